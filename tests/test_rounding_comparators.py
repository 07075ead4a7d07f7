"""Comparators that round or convert on the way: keys that were different are the same, and keep their order.

All sorts are stable, so what is right is NumPy's stable order of the converted keys.
"""
from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from cuda_emulation.cases import emulate

import hloc
from hloc import api
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

H100 = GPUS["h100"]


class Comparator(NamedTuple):
    """type: of what is sorted; key: the instruction that makes a key of `$`; descending; of: the same in NumPy."""

    type: str
    key: str
    descending: bool
    of: Callable[[np.ndarray], np.ndarray]


def to(type: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: x.astype(numpy_dtype(type)).astype("f8")


COMPARATORS = {
    "f32_in_bf16": Comparator("f32", "bf16[] convert($)", False, to("bf16")),
    "f32_in_s32": Comparator("f32", "s32[] convert($)", True, np.trunc),
    "f32_in_u8": Comparator("f32", "u8[] convert($)", True, lambda x: np.maximum(np.trunc(x), 0)),
    "f32_of_few_bits": Comparator("f32", "f32[] reduce-precision($), exponent_bits=8, mantissa_bits=7", False, to("bf16")),
    "f32_of_eight_bits": Comparator("f32", "f32[] reduce-precision($), exponent_bits=4, mantissa_bits=3", True,
                                    to("f8e4m3")),
    "bf16_in_f8": Comparator("bf16", "f8e4m3fn[] convert($)", True, to("f8e4m3fn")),
    "bf16_in_f32": Comparator("bf16", "f32[] convert($)", True, to("f32")),
    "bf16_sum": Comparator("bf16", "bf16[] add($, k)", False, lambda x: (x + np.array(256, x.dtype)).astype("f8")),
    "f16_in_bf16": Comparator("f16", "bf16[] convert($)", False, to("bf16")),
    "f64_in_f32": Comparator("f64", "f32[] convert($)", False, to("f32")),
    "s32_in_s8": Comparator("s32", "s8[] convert($)", False, to("s8")),
    "s64_in_f32": Comparator("s64", "f32[] convert($)", False, to("f32")),
    "u8_as_pred": Comparator("u8", "pred[] convert($)", True, to("pred")),
}
SHAPES = {"rows": ((6, 300), 1), "columns": ((300, 6), 0), "long": ((3000,), 0), "short": ((40, 9), 1)}
KEPT = 5                    # elements of each row that are read from the last sort
groups = pytest.mark.parametrize("names", [list(COMPARATORS)[n::3] for n in range(3)], ids=["first", "second", "third"])


def computations(name: str) -> str:
    """A comparator of one operand, and of a key with its place."""
    type, key, descending, _ = COMPARATORS[name]
    body = f"""k = bf16[] constant(256)
  ka = {key.replace("$", "a")}
  kb = {key.replace("$", "b")}
  ROOT r = pred[] compare(ka, kb), direction={"GT" if descending else "LT"}"""
    return f"""
{name} {{
  a = {type}[] parameter(0)
  b = {type}[] parameter(1)
  {body}
}}
{name}_with_places {{
  a = {type}[] parameter(0)
  b = {type}[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  {body}
}}"""


def sorts(name: str, shape: str, number: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Lines, and (name, shape) of the results: sorted keys, keys with places, the first few of those in reverse."""
    type, (dims, d) = COMPARATORS[name].type, SHAPES[shape]
    text = ",".join(map(str, dims))
    few = ",".join(str(KEPT if n == d else size) for n, size in enumerate(dims))
    cut = ", ".join(f"[0:{KEPT if n == d else size}]" for n, size in enumerate(dims))
    how = f"dimensions={{{d}}}, is_stable=true, to_apply={name}"
    p = f"{name}_{shape}"
    return [f"{p} = {type}[{text}] parameter({number})",
            f"{p}_s = {type}[{text}] sort({p}), {how}",
            f"{p}_n = s32[{text}] iota(), iota_dimension={d}",
            f"{p}_t = ({type}[{text}], s32[{text}]) sort({p}, {p}_n), {how}_with_places",
            f"{p}_k = {type}[{text}] get-tuple-element({p}_t), index=0",
            f"{p}_v = s32[{text}] get-tuple-element({p}_t), index=1",
            f"{p}_x = {type}[{text}] reverse({p}), dimensions={{{d}}}",
            f"{p}_u = ({type}[{text}], s32[{text}]) sort({p}_x, {p}_n), {how}_with_places",
            f"{p}_w = s32[{text}] get-tuple-element({p}_u), index=1",
            f"{p}_f = s32[{few}] slice({p}_w), slice={{{cut}}}"], \
           [(f"{p}_s", f"{type}[{text}]"), (f"{p}_k", f"{type}[{text}]"), (f"{p}_v", f"s32[{text}]"),
            (f"{p}_f", f"s32[{few}]")]


def module(names: list[str], shapes: list[str]) -> str:
    lines, results = [], []
    for n, (name, shape) in enumerate((name, shape) for name in names for shape in shapes):
        more, made = sorts(name, shape, n)
        lines += more
        results += made
    root = f"ROOT r = ({', '.join(s for _, s in results)}) tuple({', '.join(r for r, _ in results)})"
    return "HloModule m\n" + "\n".join(map(computations, names)) + "\nENTRY e {\n  " + "\n  ".join([*lines, root]) + "\n}\n"


def inputs(names: list[str], shapes: list[str]) -> list[np.ndarray]:
    made = []
    for n, (name, shape) in enumerate((name, shape) for name in names for shape in shapes):
        dtype, random, dims = numpy_dtype(COMPARATORS[name].type), np.random.default_rng(n), SHAPES[shape][0]
        most = {"u": 3, "i": 1000 if dtype.itemsize < 8 else 1 << 40}.get(dtype.kind)
        made.append((random.integers(0, most, dims) if most else random.random(dims) * 90 - 30).astype(dtype))
    return made


def expected(name: str, shape: str, x: np.ndarray) -> list[np.ndarray]:
    axis = SHAPES[shape][1]
    keys, back = (COMPARATORS[name].of(each) for each in (x, np.flip(x, axis)))
    sign = -1 if COMPARATORS[name].descending else 1
    order, other = (np.argsort(sign * each, axis, kind="stable") for each in (keys, back))
    ordered = np.take_along_axis(x, order, axis)
    return [ordered, ordered, order, np.take(other, range(KEPT), axis)]


def check(names: list[str], shapes: list[str], results, arrays) -> None:
    results = iter(results)
    for (name, shape), x in zip(((n, s) for n in names for s in shapes), arrays, strict=True):
        for what, wanted in zip(("keys", "keys with places", "places", "first places"), expected(name, shape, x)):
            np.testing.assert_array_equal(next(results).astype("f8"), wanted.astype("f8"), f"{name} {shape} {what}")


@groups
def test_evaluator(names):
    arrays = inputs(names, list(SHAPES))
    check(names, list(SHAPES), hloc.compile(module(names, list(SHAPES)), "reference")(*arrays), arrays)


@groups
def test_cpu(names):
    arrays = inputs(names, list(SHAPES))
    check(names, list(SHAPES), hloc.compile(module(names, list(SHAPES)), "cpu")(*arrays), arrays)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
@groups
def test_cuda(names, monkeypatch):
    shapes, target = ["rows", "short"], cuda_target(H100)
    program = api.plan(api.optimize(api.load(module(names, shapes)), target), target)
    arrays = inputs(names, shapes)
    check(names, shapes, emulate(make_sources(program, H100), check_arrays(program.parameters, arrays), monkeypatch), arrays)
