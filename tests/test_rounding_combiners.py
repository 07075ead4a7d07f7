"""Combiners that round or convert on the way: none of them is the plain operation that it resembles."""
from __future__ import annotations

import shutil

import numpy as np
import pytest
from cuda_emulation.cases import emulate

import hloc
from hloc import api
from hloc.api import compile_for_devices
from hloc.evaluate import evaluate
from hloc.evaluate.simulate import evaluate_devices, run_concurrently, simulated_devices
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.text import parse_module

H100 = GPUS["h100"]
# What a combiner does with its parameters a and b, of a type: the result must not depend on the order.
COMBINERS = {
    "bf16_of_maximum": ("f32", "m = f32[] maximum(a, b)  n = bf16[] convert(m)  ROOT r = f32[] convert(n)"),
    "maximum_in_bf16": ("f32", "c = bf16[] convert(a)  d = bf16[] convert(b)  m = bf16[] maximum(c, d)  "
                               "ROOT r = f32[] convert(m)"),
    "integer_of_minimum": ("f32", "m = f32[] minimum(a, b)  n = s32[] convert(m)  ROOT r = f32[] convert(n)"),
    "bits_of_maximum": ("f32", "m = f32[] maximum(a, b)  ROOT r = f32[] reduce-precision(m), exponent_bits=8, "
                               "mantissa_bits=3"),
    "f8_of_maximum": ("bf16", "c = f32[] convert(a)  d = f32[] convert(b)  m = f32[] maximum(c, d)  "
                              "n = f8e4m3fn[] convert(m)  ROOT r = bf16[] convert(n)"),
    "bf16_of_f16": ("f16", "m = f16[] maximum(a, b)  n = bf16[] convert(m)  ROOT r = f16[] convert(n)"),
    "f32_of_f64": ("f64", "m = f64[] maximum(a, b)  n = f32[] convert(m)  ROOT r = f64[] convert(n)"),
    "s8_of_sum": ("s32", "m = s32[] add(a, b)  n = s8[] convert(m)  ROOT r = s32[] convert(n)"),
    "pred_of_or": ("u8", "m = u8[] or(a, b)  n = pred[] convert(m)  ROOT r = u8[] convert(n)"),
    "plain_in_f32": ("bf16", "c = f32[] convert(a)  d = f32[] convert(b)  m = f32[] maximum(c, d)  "
                             "ROOT r = bf16[] convert(m)"),
    "sum_in_f32": ("bf16", "c = f32[] convert(a)  d = f32[] convert(b)  m = f32[] add(c, d)  ROOT r = bf16[] convert(m)"),
}
START = {"integer_of_minimum": "1000"}
OPS = {
    "row": "{t}[13] reduce(x, z), dimensions={{1}}, to_apply=f",
    "column": "{t}[600] reduce(x, z), dimensions={{0}}, to_apply=f",
    "all": "{t}[] reduce(x, z), dimensions={{0,1}}, to_apply=f",
    "window": "{t}[13,600] reduce-window(x, z), window={{size=1x5 pad=0_0x2_2}}, to_apply=f",
    "square": "{t}[11,598] reduce-window(x, z), window={{size=3x3}}, to_apply=f",
    "running": "{t}[13,600] reduce-window(x, z), window={{size=1x600 pad=0_0x599_0}}, to_apply=f",
    "scatter": "{t}[13,600] scatter(x, i, y), update_window_dims={{1}}, inserted_window_dims={{0}}, "
               "scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=f",
    "select-and-scatter": "{t}[13,600] select-and-scatter(x, y, z), window={{size=2x1 stride=2x1}}, select=above, "
                          "scatter=f",
}


def module(name: str) -> str:
    """All ops with one combiner."""
    type_, body = COMBINERS[name]
    lines = [f"  {op.replace('-', '_')} = {text.format(t=type_)}" for op, text in OPS.items()]
    shapes = ", ".join(text.format(t=type_).split()[0] for text in OPS.values())
    names = ", ".join(op.replace("-", "_") for op in OPS)
    return f"""HloModule {name}
f {{ a = {type_}[] parameter(0)  b = {type_}[] parameter(1)  {body} }}
above {{ a = {type_}[] parameter(0)  b = {type_}[] parameter(1)  ROOT r = pred[] compare(a, b), direction=GE }}
ENTRY e {{
  x = {type_}[13,600] parameter(0)
  y = {type_}[6,600] parameter(1)
  i = s32[6,1] constant({{{{3}}, {{0}}, {{3}}, {{12}}, {{3}}, {{7}}}})
  z = {type_}[] constant({START.get(name, "0")})
""" + "\n".join(lines) + f"\n  ROOT all_of_them = ({shapes}) tuple({names})\n}}\n"


def inputs(name: str) -> list[np.ndarray]:
    dtype, random = numpy_dtype(COMBINERS[name][0]), np.random.default_rng(1)
    if dtype.kind in "iu":
        return [random.integers(0, 90, size).astype(dtype) for size in ((13, 600), (6, 600))]
    return [(random.random(size) * 9).astype(dtype) for size in ((13, 600), (6, 600))]


def check(name: str, results, expected) -> None:
    for op, actual, wanted in zip(OPS, results, expected, strict=True):
        if name == "sum_in_f32":
            np.testing.assert_allclose(actual.astype("f8"), wanted.astype("f8"), rtol=1e-2, err_msg=op)
        else:
            np.testing.assert_array_equal(actual.astype("f8"), wanted.astype("f8"), err_msg=op)


@pytest.mark.parametrize("name", COMBINERS)
def test_cpu(name):
    text, arrays = module(name), inputs(name)
    check(name, hloc.compile(text, "cpu")(*arrays), hloc.compile(text, "reference")(*arrays))


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
@pytest.mark.parametrize("name", COMBINERS)
def test_cuda(name, monkeypatch):
    text, arrays, target = module(name), inputs(name), cuda_target(H100)
    program = api.plan(api.optimize(api.load(text), target), target)
    results = emulate(make_sources(program, H100), check_arrays(program.parameters, arrays), monkeypatch)
    check(name, results, hloc.compile(text, "reference")(*arrays))


def exchanged(name: str) -> str:
    """Four replicas, all together and by twos."""
    type_, body = COMBINERS[name]
    return f"""HloModule exchanged, replica_count=4
f {{ a = {type_}[] parameter(0)  b = {type_}[] parameter(1)  {body} }}
ENTRY e {{
  x = {type_}[12,50] parameter(0)
  all = {type_}[12,50] all-reduce(x), replica_groups={{}}, to_apply=f
  pairs = {type_}[12,50] all-reduce(x), replica_groups={{{{0,2}}, {{1,3}}}}, to_apply=f
  alone = {type_}[12,50] all-reduce(x), replica_groups={{{{0}}, {{1}}, {{2}}, {{3}}}}, to_apply=f
  part = {type_}[3,50] reduce-scatter(x), dimensions={{0}}, replica_groups={{}}, to_apply=f
  ROOT r = ({type_}[12,50], {type_}[12,50], {type_}[12,50], {type_}[3,50]) tuple(all, pairs, alone, part)
}}
"""


def combined(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """By maps of the combiner, one array after the other."""
    type_, body = COMBINERS[name]
    text = f"""HloModule m
f {{ a = {type_}[] parameter(0)  b = {type_}[] parameter(1)  {body} }}
ENTRY e {{ x = {type_}[12,50] parameter(0)  y = {type_}[12,50] parameter(1)
ROOT r = {type_}[12,50] map(x, y), dimensions={{0,1}}, to_apply=f }}"""
    total = arrays[0]
    for array in arrays[1:]:
        total, = evaluate(parse_module(text), [total, array])
    return total


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", COMBINERS)
def test_several_devices(name: str, target: str) -> None:
    """One device's array alone is not combined with anything, and stays as it is."""
    module, arrays = parse_module(exchanged(name)), [a[:12, 50 * n:50 * n + 50] for n in range(4) for a in inputs(name)[:1]]
    if target == "reference":
        results = evaluate_devices(module, [[a] for a in arrays])
    else:
        devices = simulated_devices(module, 4)
        executables = compile_for_devices(module, devices, target)
        results = run_concurrently(devices, [lambda e=e, a=a: e(a) for e, a in zip(executables, arrays)])
    total = combined(name, arrays)
    for n, (everyone, pairs, alone, part) in enumerate(results):
        for got, want in ((everyone, total), (pairs, combined(name, arrays[n % 2::2])), (alone, arrays[n]),
                          (part, total[3 * n:3 * n + 3])):
            rounding = 1e-2 if name == "sum_in_f32" else 0              # such sums are rounded once, at the end
            np.testing.assert_allclose(np.asarray(got).astype("f8"), want.astype("f8"), rtol=rounding, atol=0)


def test_a_sum_that_rounds_at_the_end():
    """bf16(f32(a) + f32(b)) is how some compilers write the sum of bf16: 2,000 ones are 2,000, not 256."""
    text = f"""HloModule m
f {{ a = bf16[] parameter(0)  b = bf16[] parameter(1)  {COMBINERS["sum_in_f32"][1]} }}
ENTRY e {{ x = bf16[2000] parameter(0)  z = bf16[] constant(0)  ROOT r = bf16[] reduce(x, z), dimensions={{0}}, to_apply=f }}"""
    x = np.ones(2000, numpy_dtype("bf16"))
    assert [float(hloc.compile(text, target)(x)[0]) for target in ("reference", "cpu")] == [2000, 2000]
