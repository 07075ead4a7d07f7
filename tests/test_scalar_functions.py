"""Functions without a vector form for all arguments, in loops (hloc/targets/vectors.py, vector_loops/loop_versioning.py),
and gathers among other operations."""
from __future__ import annotations

import numpy as np
import pytest

import hloc
from hloc.ir import numpy_dtype

SUM = "sum { a = f64[] parameter(0) b = f64[] parameter(1) ROOT c = f64[] add(a, b) }\n"
START = "ENTRY e {{\n  x = f64[{n}] parameter(0)\n  y = f64[{n}] parameter(1)\n  p = pred[{n}] parameter(2)\n"
AROUND = ("  m = f64[{n}] multiply(x, y)\n  d = f64[{n}] divide(m, y)\n  a = f64[{n}] add(d, x)\n"
          "  b = f64[{n}] subtract(a, y)\n")
BODIES = {
    "one call": "  s = f64[{n}] sine(b)\n  ROOT r = f64[{n}] multiply(s, a)\n",
    "calls in calls": ("  s = f64[{n}] sine(b)\n  t = f64[{n}] multiply(s, y)\n  c = f64[{n}] cosine(t)\n"
                       "  u = f64[{n}] add(c, s)\n  k = f64[{n}] cosh(u)\n  ROOT r = f64[{n}] multiply(k, a)\n"),
    "two arguments": "  s = f64[{n}] remainder(b, a)\n  w = f64[{n}] power(y, s)\n  ROOT r = f64[{n}] add(w, a)\n",
    "preds": "  s = f64[{n}] tan(b)\n  w = f64[{n}] select(p, s, a)\n  ROOT r = f64[{n}] multiply(w, a)\n",
    "preds alone": "  w = f64[{n}] select(p, b, a)\n  ROOT r = f64[{n}] multiply(w, a)\n",
    "several results": ("  s = f64[{n}] sine(b)\n  w = f64[{n}] select(p, s, a)\n  q = f64[{n}] multiply(w, w)\n"
                        "  ROOT r = (f64[{n}], f64[{n}], f64[{n}]) tuple(w, q, b)\n"),
    "a sum": ("  s = f64[{n}] sine(b)\n  w = f64[{n}] multiply(s, a)\n  zero = f64[] constant(0)\n"
              "  ROOT r = f64[] reduce(w, zero), dimensions={{0}}, to_apply=sum\n"),
    "guarded": ("  s = f64[{n}] sine(b)\n  w = f64[{n}] multiply(s, a)\n  zero = f64[] constant(0)\n"
                "  ROOT r = f64[{more}] pad(w, zero), padding=3_2\n"),
    "whole numbers": ("  i = s64[{n}] convert(b)\n  two = s64[] constant(2)\n"
                      "  twos = s64[{n}] broadcast(two), dimensions={{}}\n  j = s64[{n}] multiply(i, twos)\n  ROOT r = s64[{n}] select(p, j, i)\n"),
}


def module(body: str, n: int) -> str:
    return "HloModule m\n" + SUM + (START + AROUND + body + "}}\n").format(n=n, more=n + 5)


def arrays(n: int) -> list[np.ndarray]:
    random = np.random.default_rng(n)
    return [random.uniform(-3, 3, n), random.uniform(0.5, 2, n), random.random(n) < 0.5]


@pytest.mark.parametrize("n", [1, 50, 129, 1000])
@pytest.mark.parametrize("name", BODIES)
def test_results_are_those_of_the_evaluator(name, n):
    """Shorter than a vector, one block, a last block that is one element, several."""
    got, want = (hloc.compile(module(BODIES[name], n), target=t)(*arrays(n)) for t in ("cpu", "reference"))
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_special_values():
    text = module(BODIES["preds"], 7)
    x, y, p = np.float64([np.nan, np.inf, -np.inf, 0, -0.0, 1e300, -1]), np.ones(7), np.arange(7) % 2 == 0
    for got, want in zip(hloc.compile(text, target="cpu")(x, y, p), hloc.compile(text, target="reference")(x, y, p)):
        np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("type", [np.float32, np.float64])
@pytest.mark.parametrize("far", [False, True])
def test_remainders_by_a_division_are_exact(type, far):
    """Of small quotients none, of large ones, zeros, NaNs and infinities all vectors go through the libm."""
    random = np.random.default_rng(1)
    x, y = random.normal(size=(2, 500)).astype(type) * 100
    x[:3], y[3:6] = y[:3] * np.array([7, -1, 1 - 1e-7], type), np.inf
    if far:
        edges = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e30, -3e38, 16777217, 1e-30, 2.5], type)
        x[100:200], y[100:200] = np.repeat(edges, 10), np.tile(edges, 10)
    name = np.dtype(type).name.replace("loat", "")
    text = f"HloModule m\nENTRY e {{\n  x = {name}[500] parameter(0)\n  y = {name}[500] parameter(1)\n" \
           f"  ROOT r = {name}[500] remainder(x, y)\n}}\n"
    exe = hloc.compile(text, target="cpu")
    assert "_is_near" in exe.source
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    np.testing.assert_array_equal(exe(x, y)[0], want)
    assert (np.signbit(exe(x, y)[0]) == np.signbit(want))[~np.isnan(want)].all()


@pytest.mark.parametrize("op", ["exponential", "exponential-minus-one", "logistic", "sine", "cosine", "tan", "tanh", "power"])
@pytest.mark.parametrize("type", ["c64", "c128"])
def test_complex_functions_have_two_forms(type, op):
    """Beside blocks of usual numbers, one with infinities, NaNs and large angles; and a sum of all but those."""
    n, second = 400, ", y" if op == "power" else ""
    text = f"""HloModule m
sum {{ a = {type}[] parameter(0) b = {type}[] parameter(1) ROOT c = {type}[] add(a, b) }}
ENTRY e {{
  x = {type}[{n}] parameter(0)
  y = {type}[{n}] parameter(1)
  f = {type}[{n}] {op}(x{second})
  m = {type}[{n}] multiply(f, y)
  usual = {type}[128] slice(m), slice={{[0:128]}}
  zero = {type}[] constant((0, 0))
  s = {type}[] reduce(usual, zero), dimensions={{0}}, to_apply=sum
  ROOT r = ({type}[{n}], {type}[]) tuple(m, s)
}}
"""
    random = np.random.default_rng(n)
    x, y = ((random.normal(size=n) + 1j * random.normal(size=n)).astype(numpy_dtype(type)) for _ in range(2))
    x[130:138] = [np.inf, complex(1, np.inf), complex(np.nan, 1), complex(1, 1e12), 0, complex(np.inf, 2), 1e30j, 500]
    y[130:138] = 1
    cpu, reference = (hloc.compile(text, target=t) for t in ("cpu", "reference"))
    assert "_is_near_" in cpu.source and "_far" in cpu.source
    with np.errstate(all="ignore"):
        for got, want in zip(cpu(x, y), reference(x, y)):
            np.testing.assert_allclose(got, want, rtol=2e-5 if type == "c64" else 1e-12, atol=1e-30)


GATHER = """HloModule m
ENTRY e {{
  t = {type}[40] parameter(0)
  i = {places}[{n}] parameter(1)
  three = {places}[] constant(3)
  threes = {places}[{n}] broadcast(three), dimensions={{}}
  p = {places}[{n}] multiply(i, threes)
  q = {places}[{n}] add(p, i)
  wide = s32[{n}] convert(q)
  column = s32[{n},1] reshape(wide)
  g = {type}[{n}] gather(t, column), offset_dims={{}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1}}
  again = s32[{n}] convert(g)
  column2 = s32[{n},1] reshape(again)
  h = {type}[{n}] gather(t, column2), offset_dims={{}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1}}
  f = f32[{n}] convert(g)
  k = f32[{n}] convert(h)
  s = f32[{n}] multiply(f, k)
  x = f32[{n}] tanh(s)
  ROOT r = f32[{n}] add(x, f)
}}
"""


@pytest.mark.parametrize("n", [50, 129, 1000])
@pytest.mark.parametrize("type, places", [("u8", "s32"), ("s16", "s32"), ("bf16", "s32"), ("s32", "s16"), ("s8", "u8")])
def test_places_in_data(type, places, n):
    """Few bits, or places computed in few; a gather of what a gather gave."""
    text = GATHER.format(type=type, places=places, n=n)
    table = (np.arange(40) % 7 * 5).astype(numpy_dtype(type))
    index = np.random.default_rng(n).integers(0, 30, n).astype(numpy_dtype(places))
    cpu, reference = (hloc.compile(text, target=t) for t in ("cpu", "reference"))
    np.testing.assert_allclose(cpu(table, index)[0], reference(table, index)[0], rtol=1e-5)


def test_gathers_of_neighbours():
    """Rows of three elements are written out: three loads from places, three stores."""
    n = 200
    text = f"""HloModule m
ENTRY e {{
  t = s8[40] parameter(0)
  i = s32[{n},3] parameter(1)
  row = s32[{n}] parameter(2)
  ones = s32[{n},3] broadcast(row), dimensions={{0}}
  p = s32[{n},3] add(i, ones)
  q = s32[{n},3] multiply(p, i)
  column = s32[{n},3,1] reshape(q)
  g = s8[{n},3] gather(t, column), offset_dims={{}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=2, slice_sizes={{1}}
  ROOT r = s8[{n},3] negate(g)
}}
"""
    table, index = np.arange(40, dtype=np.int8), np.random.default_rng(3).integers(-2, 9, (n, 3), dtype=np.int32)
    row = np.arange(n, dtype=np.int32) % 4
    cpu = hloc.compile(text, target="cpu")
    np.testing.assert_array_equal(cpu(table, index, row)[0], -table[np.clip((index + row[:, None]) * index, 0, 39)])
