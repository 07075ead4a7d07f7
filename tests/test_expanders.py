"""Expanders give what the op itself gives: many forms of each op, evaluated before and after."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hloc.evaluate import evaluate
from hloc.inputs import entry_parameters, random_arrays
from hloc.ir import numpy_dtype
from hloc.passes.context import PassContext
from hloc.passes.pipelines import ALL_PASSES
from hloc.text import parse_module
from hloc.verify import verify

POSITIVE_DEFINITE = """
ENTRY e {{
  m = {t}[{n},{n}] parameter(0)
  mm = {t}[{n},{n}] dot(m, m), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  ii = s32[{n},{n}] iota(), iota_dimension=0
  jj = s32[{n},{n}] iota(), iota_dimension=1
  same = pred[{n},{n}] compare(ii, jj), direction=EQ
  eye = {t}[{n},{n}] convert(same)
  a = {t}[{n},{n}] add(mm, eye)
  ROOT l = {t}[{n},{n}] cholesky(a), lower={lower}
}}"""

TRIANGULAR = """
ENTRY e {{
  m = {t}[{a}] parameter(0)
  b = {t}[{b}] parameter(1)
  ii = s32[{a}] iota(), iota_dimension={i}
  jj = s32[{a}] iota(), iota_dimension={j}
  same = pred[{a}] compare(ii, jj), direction=EQ
  eye = {t}[{a}] convert(same)
  eight = f32[] constant(8)
  wide = {t}[] convert(eight)
  eights = {t}[{a}] broadcast(wide), dimensions={{}}
  diagonal = {t}[{a}] multiply(eye, eights)
  c = {t}[{a}] add(m, diagonal)
  ROOT x = {t}[{b}] triangular-solve(c, b), {options}
}}"""

RANDOM_BITS = """
ENTRY e {{
  s = {state} constant({values})
  ROOT r = ({state}, {bits}) rng-bit-generator(s), algorithm={algorithm}
}}"""

PROGRAMS = Path(__file__).parent.parent / "testdata" / "programs"
DRAWS = """
ENTRY e {
  low = f32[] constant(-1)
  high = f32[] constant(3)
  u = f32[3,5] rng(low, high), distribution=rng_uniform
  n = f32[7] rng(low, high), distribution=rng_normal
  a = s32[] constant(-4)
  b = s32[] constant(9)
  i = s32[6] rng(a, b), distribution=rng_uniform
  f = pred[] constant(false)
  t = pred[] constant(true)
  p = pred[6] rng(f, t), distribution=rng_uniform
  zero = f64[] constant(0)
  one = f64[] constant(1)
  d = f64[3] rng(zero, one), distribution=rng_uniform
  s = u64[2] rng-get-and-update-state(), delta=9
  zh = bf16[] constant(0)
  oh = bf16[] constant(1)
  h = bf16[5] rng(zh, oh), distribution=rng_uniform
  ROOT r = (f32[3,5], f32[7], s32[6], pred[6], f64[3], u64[2], bf16[5]) tuple(u, n, i, p, d, s, h)
}"""

INFERENCE = """
ENTRY e {
  x = bf16[4,3] parameter(0)
  scale = bf16[3] parameter(1)
  offset = bf16[3] parameter(2)
  mean = bf16[3] parameter(3)
  square = bf16[3] parameter(4)
  variance = bf16[3] abs(square)
  ROOT b = bf16[4,3] batch-norm-inference(x, scale, offset, mean, variance), epsilon=0.001, feature_index=1
}"""


def assert_keeps_meaning(text: str, name: str, tolerance: float) -> None:
    module = parse_module(text)
    inputs = [x if x.dtype.kind == "u" else (x * 0.25).astype(x.dtype)
              for x in random_arrays(entry_parameters(module), 3)]
    before = evaluate(module, inputs)
    assert ALL_PASSES[name](module, PassContext(target="cuda"))        # the CPU has library kernels for some
    verify(module)
    for a, b in zip(before, evaluate(module, inputs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        wide = np.complex128 if a.dtype.kind == "c" else np.float64 if tolerance else a.dtype
        np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("t, n, lower, tolerance", [
    ("f32", 5, "true", 1e-5), ("f32", 1, "false", 1e-5), ("f64", 7, "false", 1e-12), ("f32", 130, "true", 1e-3)])
def test_cholesky(t: str, n: int, lower: str, tolerance: float) -> None:
    assert_keeps_meaning(POSITIVE_DEFINITE.format(t=t, n=n, lower=lower), "cholesky_expander", tolerance)


def test_cholesky_of_what_is_not_positive_definite() -> None:
    text = """ENTRY e {
      a = f32[2,2,2] constant({{{4, 0}, {2, 5}}, {{1, 0}, {2, 1}}})
      ROOT l = f32[2,2,2] cholesky(a), lower=true
    }"""
    assert_keeps_meaning(text, "cholesky_expander", 1e-6)


@pytest.mark.parametrize("t, a, b, options", [
    ("f32", (4, 4), (4, 3), "left_side=true, lower=true"),
    ("f32", (3, 3), (2, 3), "lower=true"),
    ("f32", (3, 3), (2, 3), "lower=false"),
    ("f32", (3, 3), (3, 2), "left_side=true, lower=false, unit_diagonal=true"),
    ("f64", (2, 4, 4), (2, 3, 4), "lower=false, transpose_a=TRANSPOSE"),
    ("c64", (3, 3), (3, 2), "left_side=true, lower=true, transpose_a=ADJOINT"),
    ("f32", (130, 130), (130, 2), "left_side=true, lower=true"),
    ("f32", (130, 130), (130, 2), "left_side=true, lower=false"),
])
def test_triangular_solve(t: str, a: tuple, b: tuple, options: str) -> None:
    text = TRIANGULAR.format(t=t, a=",".join(map(str, a)), b=",".join(map(str, b)), i=len(a) - 2, j=len(a) - 1,
                             options=options)
    assert_keeps_meaning(text, "triangular_solve_expander", 1e-4 if t != "f64" else 1e-12)


@pytest.mark.parametrize("t, n, stays", [("f32", 8, False), ("f32", 64, True), ("f64", 64, True), ("c64", 64, False)])
def test_what_the_cpu_has_a_library_kernel_for_stays(t: str, n: int, stays: bool) -> None:
    for name, text in (
            ("cholesky_expander", f"a = {t}[{n},{n}] parameter(0) ROOT r = {t}[{n},{n}] cholesky(a)"),
            ("triangular_solve_expander", f"a = {t}[{n},{n}] parameter(0) b = {t}[5,{n}] parameter(1) "
             f"ROOT r = {t}[5,{n}] triangular-solve(a, b), transpose_a=NO_TRANSPOSE")):
        assert ALL_PASSES[name](parse_module(f"ENTRY e {{ {text} }}"), PassContext()) != stays


@pytest.mark.parametrize("algorithm, state, values, bits", [
    ("rng_three_fry", "u64[2]", "{3, 18446744073709551614}", "u32[3,6]"),
    ("rng_three_fry", "u64[2]", "{3, 9}", "u32[3,7]"),
    ("rng_three_fry", "u64[2]", "{3, 9}", "u64[5]"),
    ("rng_three_fry", "u64[2]", "{3, 9}", "u8[4]"),
    ("rng_three_fry", "u64[2]", "{3, 9}", "u32[]"),
    ("rng_philox", "u64[3]", "{7, 18446744073709551614, 5}", "u32[3,7]"),
    ("rng_philox", "u64[2]", "{7, 5}", "u32[10]"),
    ("rng_philox", "u64[3]", "{7, 5, 6}", "u64[7]"),
    ("rng_default", "u32[4]", "{1, 2, 3, 4}", "s32[5]"),
])
def test_random_bits(algorithm: str, state: str, values: str, bits: str) -> None:
    text = RANDOM_BITS.format(algorithm=algorithm, state=state, values=values, bits=bits)
    assert_keeps_meaning(text, "rng_bit_generator_expander", 0)


def test_draws() -> None:
    assert_keeps_meaning(DRAWS, "rng_expander", 1e-6)


def test_draws_in_loops_branches_and_functions() -> None:
    assert_keeps_meaning((PROGRAMS / "draws_in_loops.hlo").read_text(encoding="utf-8"), "rng_expander", 1e-6)


def test_batch_norm_of_halves() -> None:
    assert_keeps_meaning(INFERENCE, "batch_norm_expander", 2e-2)


def test_every_type_of_a_bitcast() -> None:
    for narrow, wide, parts in (("u8", "f32", 4), ("s4", "s16", 4), ("bf16", "f64", 4), ("u2", "u8", 4)):
        assert numpy_dtype(narrow)
        text = f"""ENTRY e {{
          x = {wide}[3] parameter(0)
          y = {narrow}[3,{parts}] bitcast-convert(x)
          ROOT z = {wide}[3] bitcast-convert(y)
        }}"""
        assert_keeps_meaning(text, "bitcast_dtypes_expander", 0)


