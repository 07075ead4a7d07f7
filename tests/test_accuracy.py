"""Functions of real and complex numbers against mpmath's exact values, over the whole range of their types: compiled C,
CUDA C and the evaluator. Errors are in units in the last place, of each part or of the length (docs/support.md)."""
from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable, Mapping
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
from hloc.text import parse_module

pytest.importorskip("mpmath", reason="mpmath is not installed")
import mpmath_values as exact  # noqa: E402

TYPES = {"f32": np.float32, "f64": np.float64, "c64": np.float32, "c128": np.float64}       # of the parts
ONE = {**{t: exact.OF_COMPLEX for t in ("c64", "c128")}, **{t: exact.OF_REAL for t in ("f32", "f64")}}
TWO = {**{t: exact.OF_TWO_COMPLEX for t in ("c64", "c128")}, **{t: exact.OF_TWO_REAL for t in ("f32", "f64")}}
# Largest errors of compiled C in units of the part's last place, and of the evaluator.
C_PARTS = {"c64": 0.51, "c128": 4.5, "f32": 3, "f64": 3}
EVALUATOR_PARTS = {"c64": 0.51, "c128": 0.51, "f32": 0.51, "f64": 3}
OTHERS = {"c64": {"abs": 1, "sign": 2}, "c128": {"logistic": 6}}
OTHERS_OF_EVALUATOR = {op: 3.5 for op in ("abs", *exact.INVERSE)}
# Where parts may cancel, or one vanishes beside the other, the unit is that of the larger part.
OF_LENGTH = {("c128", "exponential-minus-one"): 2.5, ("c128", "divide"): 2.5, ("c128", "power"): 3.5, ("c128", "atan2"): 3.5,
             ("c64", "multiply"): 1, ("c128", "multiply"): 1}


def arguments(type: str, op: str, operands: int) -> list[np.ndarray]:
    dtype, rng = numpy_dtype(type), np.random.default_rng(2)
    if operands == 1:
        return [exact.complex_arguments(dtype) if type[0] == "c" else exact.real_arguments(dtype)]
    first = exact.complex_arguments(dtype, 3) if type[0] == "c" else exact.real_arguments(dtype)[::2]
    if op != "power":
        return [first, rng.permutation(first)]
    second = rng.normal(size=first.size) * 10 ** rng.uniform(-3, 3, first.size)
    if type[0] == "c":
        second = second + 1j * rng.normal(size=first.size) * 10 ** rng.uniform(-3, 3, first.size)
    return [first if type[0] == "c" else np.abs(first), second.astype(dtype)]


def module(type: str) -> str:
    """All functions of a type, in one program."""
    lines, results = [], []
    for table, operands in ((ONE[type], 1), (TWO[type], 2)):
        for op in table:
            shapes = [f"{type}[{a.size}]" for a in arguments(type, op, operands)]
            names = [f"p{len(lines) + n}" for n in range(operands)]
            lines += [f"  {n} = {s} parameter({n[1:]})" for n, s in zip(names, shapes)]
            shape = shapes[0].replace(type, {"c64": "f32", "c128": "f64"}[type]) if op == "abs" else shapes[0]
            results.append((f"r{len(results)}", shape, f"{op}({', '.join(names)})"))
    lines += [f"  {name} = {shape} {call}" for name, shape, call in results]
    root = f"  ROOT r = ({', '.join(r[1] for r in results)}) tuple({', '.join(r[0] for r in results)})"
    return "HloModule accuracy\nENTRY e {\n" + "\n".join([*lines, root]) + "\n}\n"


class Asked(NamedTuple):
    """A function, its operands, and the exact values as two doubles each."""
    op: str
    operands: list[np.ndarray]
    near: np.ndarray
    lost: np.ndarray


@functools.cache
def asked(type: str) -> list[Asked]:
    """In the order of module's parameters and results."""
    cases = [(op, arguments(type, op, n), table[type][op]) for n, table in ((1, ONE), (2, TWO)) for op in table[type]]
    return [Asked(op, operands, *exact.values(function, *operands)) for op, operands, function in cases]


def errors(got: np.ndarray, near: np.ndarray, lost: np.ndarray, real: type, of_length: bool) -> np.ndarray:
    """In units in the last place; of results below the smallest normal number, which compiled C takes for zero, none."""
    limits = np.finfo(real)
    parts = np.stack([got.real, got.imag], -1)[:, :near.shape[1]].astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = near.astype(real)
        size = np.abs(rounded).max(axis=1, keepdims=True) if of_length else np.abs(rounded)
        unit = np.spacing(np.clip(size, limits.smallest_normal, limits.max)).astype(np.float64)
        found = np.abs((parts - near) - lost) / unit
        found = np.where((np.abs(near) < 2 * limits.smallest_normal) & (np.abs(parts) <= 2 * limits.smallest_normal), 0, found)
        found = np.where(np.isinf(rounded), np.where((parts == rounded) | (np.abs(parts) == limits.max), 0, np.inf), found)
    return np.where(np.isnan(near), 0, np.where(np.isnan(found), np.inf, found))          # a pole


def check(type: str, results: Iterable[np.ndarray], limits: Mapping[str, float], default: float, by_angle: bool = False):
    """limits: by op. by_angle: the error of powers of c128 may grow with |w log z|."""
    wrong = []
    for (op, operands, near, lost), got in zip(asked(type), results):
        of_length = (type, op) in OF_LENGTH
        error = errors(got, near, lost, TYPES[type], of_length).max(axis=1)
        if op == "multiply":                                                    # whose parts' products vanish
            error = np.where(np.abs(near).min(axis=1) < 1e16 * np.finfo(TYPES[type]).smallest_normal, 0, error)
        if op == "power" and by_angle:
            logarithm = np.log(np.where(operands[0] == 0, 1, operands[0]))
            error = error / np.maximum(1, np.abs(operands[1] * logarithm) / 250)
        worst = int(error.argmax())
        if error[worst] > (OF_LENGTH[type, op] if of_length else limits.get(op, default)):
            wrong.append(f"{op} of {[o[worst] for o in operands]}: {got[worst]}, {error[worst]:.3g} units from {near[worst]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("type", TYPES)
def test_functions_of_compiled_c(type):
    operands = [a for case in asked(type) for a in case.operands]
    with np.errstate(all="ignore"):
        check(type, hloc.compile(module(type), target="cpu")(*operands), OTHERS.get(type, {}), C_PARTS[type])


@pytest.mark.parametrize("type", TYPES)
def test_functions_of_the_evaluator(type):
    operands = [a for case in asked(type) for a in case.operands]
    limits = OTHERS_OF_EVALUATOR if type[0] == "c" else {}
    with np.errstate(all="ignore"):
        results = hloc.compile(module(type), target="reference")(*operands)
        check(type, results, limits, EVALUATOR_PARTS[type], by_angle=type == "c128")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
def test_complex_functions_of_cuda(monkeypatch):
    """The same headers without their parts for CPUs, emulated: with this machine's libm in place of the device's."""
    gpu = GPUS["h100"]
    target = cuda_target(gpu)
    program = api.plan(api.optimize(parse_module(module("c128")), target), target)
    operands = check_arrays(program.parameters, [a for case in asked("c128") for a in case.operands])
    with np.errstate(all="ignore"):
        check("c128", emulate(make_sources(program, gpu), operands, monkeypatch), {"logistic": 7}, C_PARTS["c128"])


OF_C = {"exponential": np.exp, "log": np.log, "sqrt": np.sqrt, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
        "acos": np.arccos, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh}       # NumPy asks the C library


def special_arguments(dtype) -> np.ndarray:
    parts = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]
    return np.array([complex(a, b) for a in parts for b in parts], dtype)


def same(a: np.ndarray, b: np.ndarray, signs_of_lost: bool) -> np.ndarray:
    """Whether values are the same but for rounding; the sign of an infinity or a zero beside a NaN may be left open."""
    alike = []
    for x, y, other in ((a.real, b.real, b.imag), (a.imag, b.imag, b.real)):
        with np.errstate(all="ignore"):
            close = (x == y) | (np.abs(x - y) <= 1e-6 * np.abs(y)) | (np.isnan(x) & np.isnan(y))
            is_open = np.isnan(other) & (np.abs(x) == np.abs(y)) & ((y == 0) | np.isinf(y)) & (not signs_of_lost)
        alike.append(is_open | close & ((np.signbit(x) == np.signbit(y)) | (y != 0)))
    return alike[0] & alike[1]


def test_special_values_are_those_of_c():
    """Infinities, NaNs and signed zeros: both targets give the same, and what C's Annex G says where C has the function."""
    z, dtype = special_arguments(np.complex128), np.complex128
    names = [op for op in exact.OF_COMPLEX if op != "abs"]
    body = "\n".join(f"  r{n} = c128[{z.size}] {op}(z)" for n, op in enumerate(names))
    results = ", ".join(f"r{n}" for n in range(len(names)))
    shape = ", ".join([f"c128[{z.size}]"] * len(names))
    text = f"ENTRY e {{\n  z = c128[{z.size}] parameter(0)\n{body}\n  ROOT t = ({shape}) tuple({results})\n}}\n"
    with np.errstate(all="ignore"):
        cpu, reference = (hloc.compile(text, target=t)(z) for t in ("cpu", "reference"))
        for op, got, want in zip(names, cpu, reference):
            alike = same(got, want, op not in exact.INVERSE)
            assert alike.all(), f"{op} of {z[~alike]}: {got[~alike]} and {want[~alike]}"
            if op in OF_C:
                wanted = OF_C[op](z).astype(dtype)
                alike = same(want, wanted, False)
                assert alike.all(), f"{op} of {z[~alike]}: {want[~alike]}, C has {wanted[~alike]}"
