"""Norms on a GPU: statistics and what uses them first are one kernel, also if the backward pass reads the statistics."""
from __future__ import annotations

import shutil

import numpy as np
import pytest
from cuda_emulation.cases import emulate

from hloc import api
from hloc.evaluate import evaluate
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

H100 = GPUS["h100"]
NORM = """HloModule norm
add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }}
ENTRY e {{
  x = f32[{r},{c}] parameter(0)  w = f32[{c}] parameter(1)  g = f32[{r},{c}] parameter(2)
  zero = f32[] constant(0)  each = f32[] constant({each})  many = f32[{r}] broadcast(each), dimensions={{}}
  s = f32[{r}] reduce(x, zero), dimensions={{1}}, to_apply=add  mean = f32[{r}] multiply(s, many)
  meanb = f32[{r},{c}] broadcast(mean), dimensions={{0}}  less = f32[{r},{c}] subtract(x, meanb)
  square = f32[{r},{c}] multiply(less, less)
  v = f32[{r}] reduce(square, zero), dimensions={{1}}, to_apply=add  var = f32[{r}] multiply(v, many)
  scale = f32[{r}] rsqrt(var)  scaleb = f32[{r},{c}] broadcast(scale), dimensions={{0}}
  n = f32[{r},{c}] multiply(less, scaleb)  wb = f32[{r},{c}] broadcast(w), dimensions={{1}}
  y = f32[{r},{c}] multiply(n, wb)
"""
FORWARD = "  ROOT t = f32[{r},{c}] negate(y)\n}}\n"
# a product between the norm and its backward pass, which reads the statistics again
BACKWARD = """  p = f32[{c},{c}] dot(y, g), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  q = f32[{r},{c}] dot(g, p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  u = f32[{r},{c}] multiply(q, scaleb)  b = f32[{r},{c}] multiply(u, n)
  ROOT t = (f32[{r},{c}], f32[{c},{c}], f32[{r},{c}]) tuple(b, p, y)
}}
"""


def program_of(text: str, rows: int, columns: int):
    module = api.load(text.format(r=rows, c=columns, each=1 / columns))
    return module, api.optimized_plan(module, cuda_target(H100), api.Options(passes={"f32": "exact"}))[1]


def norms(program) -> list[str]:
    """The kernels that compute statistics."""
    return [k.name for k in program.kernels if any("reduce" in line for line in k.origin)]


@pytest.mark.parametrize("rows, columns", [(1, 768), (1, 24), (200, 64), (3, 5000)])
def test_a_norm_is_one_kernel(rows, columns):
    _, program = program_of(NORM + FORWARD, rows, columns)
    assert len(program.kernels) == len(program.steps) == 1


def test_so_is_one_whose_statistics_are_read_again():
    _, program = program_of(NORM + BACKWARD, 200, 64)
    assert len(norms(program)) == 1 and len(program.steps) == 3
    first = program.kernels[program.steps[0].kernel]
    assert sum(b.access == "write" for b in first.buffers) > 1          # the result, and what the backward pass reads


def test_few_long_rows_stay_apart():
    """One block for each of three rows would leave the device empty."""
    _, program = program_of(NORM + BACKWARD, 3, 40_000)
    assert len(norms(program)) > 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
@pytest.mark.parametrize("text, rows, columns", [(NORM + FORWARD, 1, 768), (NORM + BACKWARD, 140, 24)],
                         ids=["one row", "backward"])
def test_results(text, rows, columns, monkeypatch):
    module, program = program_of(text, rows, columns)
    expected = evaluate(api.load(text.format(r=rows, c=columns, each=1 / columns)), random := [
        np.random.default_rng(n).normal(size=v.shape.dimensions).astype("f4") for n, v in enumerate(program.parameters)])
    results = emulate(make_sources(program, H100), random, monkeypatch, checked=True)
    for actual, wanted in zip(results, expected):
        np.testing.assert_allclose(actual, np.asarray(wanted), rtol=2e-4, atol=2e-4 * float(np.abs(wanted).max()))
