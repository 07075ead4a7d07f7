"""How far a module's results may move: the evaluator with the rounding of inexact ops shaken.

In: a module and inputs. Out: for each result the exact evaluation and a bound on what another right evaluation may give.

    wanted = Expectation(module, inputs); problem = wanted.difference(results)       "" where they agree

Two right programs round in other places, so results differ by what rounding errors grow to. A run in which every inexact
operation is moved by a unit in the last place, up or down at random, shows how much that is for every single element,
also where a comparison or a conversion to integers makes a step. Elements that no run moves must be equal.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import ml_dtypes
import numpy as np

from hloc.evaluate import Evaluator
from hloc.ir import ELEMENT_TYPES, Instruction, Module
from hloc.ops.table import OPS
from hloc.ops.values import flatten, unflatten
from hloc.tools.stability import EXACT, SUMS, AlteredEvaluator

INEXACT = frozenset(name for name, row in OPS.items() if row.is_elementwise and name not in EXACT)
RUNS = 6
SOLVING = frozenset("batch-norm-grad batch-norm-inference batch-norm-training cholesky fft triangular-solve".split())   # of no exact sums
GROWTH = 24.0                # every operation rounds once or twice, the shaken ones were moved by one unit


class ShakenEvaluator(AlteredEvaluator):
    """An evaluator whose inexact ops are off by a unit in the last place."""

    def __init__(self, module: Module, seed: int):
        super().__init__(module)
        self.seed = seed
        self.random = np.random.default_rng(seed)
        self.makes_nan = False               # whether any was made so far, whose sign is free

    def altered(self, function: Callable, instruction: Instruction) -> Callable:
        opcode = instruction.opcode
        if opcode in SUMS:
            return self.shaken_sum(self.without_subnormals(function), opcode)
        if opcode in ("sort", "topk") or instruction.get("type") == "TOTALORDER":
            return self.shaken_order(function)
        if opcode not in INEXACT and not (opcode == "abs" and instruction.operands[0].shape.kind == "complex"):
            return function
        function = self.without_subnormals(function)

        def run(evaluator, instruction, *operands):
            value = np.asarray(function(evaluator, instruction, *operands))
            return self.signed(value) if is_exact(opcode, value, operands) else self.shake(value)
        return run

    def without_subnormals(self, function: Callable) -> Callable:
        """In one run, what is computed has no subnormal operands and results: compiled code takes them for zero."""
        def run(evaluator, instruction, *operands):
            value = function(evaluator, instruction, *(flushed(o) for o in operands))
            return unflatten(instruction.shape, [flushed(part) for part in flatten(value)])
        return run if self.seed == 4 else function

    def shaken_sum(self, function: Callable, opcode: str) -> Callable:
        def run(evaluator, instruction, *operands):
            if opcode not in SOLVING and all(is_on_grid(o) for o in operands if isinstance(o, np.ndarray)):
                return self.zeros(function(evaluator, instruction, *operands))
            operands = [self.shake(o) if isinstance(o, np.ndarray) else o for o in operands]
            if opcode in ("convolution", "fft") and self.seed % 2:        # zero times infinity: skipped, or NaN
                operands = [np.where(np.isfinite(o), o, np.zeros((), o.dtype)) for o in operands]
            if opcode == "fft" and self.seed == 2:               # infinities meet with either sign, or do not meet
                operands = [np.where(np.isfinite(o), o, np.asarray(np.nan, o.dtype)) for o in operands]
            if self.seed % 2:                                             # what overflows on the way depends on the order
                factor = np.inf if self.seed == 1 else 0.0
                operands = [without_huge(o, factor) if isinstance(o, np.ndarray) else o for o in operands]
            value = function(evaluator, instruction, *operands)
            shapes = instruction.shape
            return self.zeros(unflatten(shapes, [self.shake(part) for part in flatten(value)]))
        return run

    def shaken_order(self, function: Callable) -> Callable:
        """By their signs NaNs come first or last: in one run, all of a row that holds one is something else."""
        def run(evaluator, instruction, *operands):
            value = function(evaluator, instruction, *operands)
            floats = [o for o in operands if is_float(o.dtype)]
            if self.seed != 2 or not self.makes_nan or not floats:
                return value
            strange = np.any([np.isnan(o) for o in floats], axis=0)
            if instruction.opcode != "compare":
                axis = instruction.get("dimensions", (-1,))[0]
                strange = strange.any(axis=axis, keepdims=True)
            return unflatten(instruction.shape, [np.where(strange, other(part), part) for part in flatten(value)])
        return run

    def zeros(self, value):
        """A sum that is zero may be either zero: its terms may, or may not, be added to a zero first."""
        if not isinstance(value, np.ndarray) or not is_float(value.dtype):
            return value
        with np.errstate(all="ignore"):
            negative = self.random.random(value.shape) < 0.5 if self.seed > 1 else np.full(value.shape, self.seed == 1)
            return np.where((value == 0) & (negative != np.signbit(value)), -value, value)

    def shake(self, value: np.ndarray) -> np.ndarray:
        """Each element one unit in the last place up or down."""
        if value.dtype.kind == "c":
            return self.shake_complex(value)
        if not is_float(value.dtype):
            return value
        up = self.random.random(value.shape) < 0.5
        unit = units(value)
        with np.errstate(all="ignore"):
            wide = value.astype(np.float64)
            moved = (wide + np.where(up, unit, -unit)).astype(value.dtype)
        return self.signed(np.where(np.isfinite(wide) & (wide != 0), moved, value))

    def shake_complex(self, value: np.ndarray) -> np.ndarray:
        """Both parts by a unit of the larger one: where they cancel, that much is left."""
        with np.errstate(all="ignore"):
            unit = units(np.maximum(np.abs(value.real), np.abs(value.imag)))
            moved = value + self.random.choice([-1, 1], value.shape) * unit \
                + 1j * self.random.choice([-1, 1], value.shape) * unit
            return np.where(np.isfinite(value) & (value != 0), moved, value).astype(value.dtype)

    def signed(self, value: np.ndarray) -> np.ndarray:
        """Nothing says which sign a NaN has that an operation makes."""
        if not is_float(value.dtype):
            return value
        self.makes_nan |= bool(np.isnan(value).any())
        wanted = self.random.random(value.shape) < 0.5 if self.seed > 1 else np.full(value.shape, self.seed == 1)
        return np.where(np.isnan(value) & (wanted != np.signbit(value)), -value, value)


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def flushed(value):
    """Zeros, of the same sign, for subnormal numbers. Those of f16 and smaller types are computed in f32 as they are."""
    if not isinstance(value, np.ndarray) or not (is_float(value.dtype) or value.dtype.kind == "c"):
        return value
    if value.dtype.kind == "c":
        parts = np.array(value)
        parts.real, parts.imag = flushed(value.real), flushed(value.imag)
        return parts
    with np.errstate(all="ignore"):
        size = np.abs(value.astype(np.float64))
        least = np.finfo(np.float64 if value.dtype == np.float64 else np.float32).smallest_normal
        return np.where(size < least, np.copysign(np.zeros((), value.dtype), value), value)


def other(value: np.ndarray) -> np.ndarray:
    """A different value for every element."""
    if value.dtype == np.bool_:
        return ~value
    if is_float(value.dtype) or value.dtype.kind == "c":
        return np.where(np.isnan(value), np.zeros((), value.dtype), np.asarray(np.nan, value.dtype))
    return value + np.ones((), value.dtype)


def without_huge(value: np.ndarray, factor: float) -> np.ndarray:
    """Finite numbers so large that their products overflow are multiplied by zero, or by infinity."""
    if not is_float(value.dtype) and value.dtype.kind != "c":
        return value
    with np.errstate(all="ignore"):
        largest = float(ml_dtypes.finfo(value.real.dtype if value.dtype.kind == "c" else value.dtype).max)
        size = np.abs(value).astype(np.float64)
        return np.where(np.isfinite(size) & (size > largest ** 0.4), (value * factor).astype(value.dtype), value)


def units(value: np.ndarray) -> np.ndarray:
    """The unit in the last place of each element, in f64."""
    digits = ml_dtypes.finfo(value.dtype).nmant
    with np.errstate(all="ignore"):
        wide = np.abs(value.astype(np.float64))
        _, exponent = np.frexp(np.where(np.isfinite(wide), wide, 1.0))
        return np.ldexp(1.0, exponent - 1 - digits)


def is_on_grid(value: np.ndarray) -> bool:
    """Small multiples of 1/16: sums and products of these are exact in f32."""
    if value.dtype not in (np.float32, np.float64):
        return not (is_float(value.dtype) or value.dtype.kind == "c")
    scaled = value * 16
    return bool(np.all((np.rint(scaled) == scaled) & (np.abs(value) <= 16)))


def is_exact(opcode: str, value: np.ndarray, operands: Sequence[np.ndarray]) -> bool:
    """Sums, differences and products that needed no rounding (looked at in f64), and what holds no floats."""
    if not is_float(value.dtype) and value.dtype.kind != "c":
        return True
    if opcode in ("convert", "reduce-precision") and is_float(operands[0].dtype):
        return True                                      # every program rounds here, and alike
    function = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}.get(opcode)
    if function is None or not is_float(value.dtype) or value.dtype == np.float64:
        return False
    with np.errstate(all="ignore"):
        wide = function(*(o.astype(np.float64) for o in operands))
    return bool(np.all((wide == value.astype(np.float64)) | np.isnan(wide)))


# -- comparing ---------------------------------------------------------------------------------------------------------

class Expectation:
    """What a module gives for inputs. by_norm: each element may move as far as any other one of its array, for sums of so
    many terms that a few runs do not show how far each may. Shaken runs are made where results are not equal."""

    def __init__(self, module: Module, inputs: Sequence[np.ndarray], by_norm: bool = False):
        self.module, self.inputs, self.by_norm = module, inputs, by_norm

    @cached_property
    def wanted(self) -> Sequence[np.ndarray]:
        with np.errstate(all="ignore"):
            return Evaluator(self.module).run(self.inputs)

    @cached_property
    def shaken(self) -> Sequence[Sequence[np.ndarray]]:
        with np.errstate(all="ignore"):
            return [ShakenEvaluator(self.module, seed).run(self.inputs) for seed in range(RUNS)]

    def difference(self, got: Sequence[np.ndarray]) -> str:
        """Empty where `got` is right, else what is wrong first."""
        if len(got) != len(self.wanted):
            return f"{len(got)} results instead of {len(self.wanted)}"
        for number, (have, want) in enumerate(zip(got, self.wanted)):
            problem = self.difference_of(number, np.asarray(have), want)
            if problem:
                return f"result {number}: {problem}"
        return ""

    def difference_of(self, number: int, got: np.ndarray, want: np.ndarray) -> str:
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        if same(got, want).all():
            return ""
        bad = ~acceptable(got, want, [run[number] for run in self.shaken], self.by_norm)
        if not bad.any():
            return ""
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        return f"{int(bad.sum())} of {bad.size} differ, first at {list(at)}: {got[at]!r} instead of {want[at]!r}"


def same(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Which elements are equal, or both NaN."""
    if want.dtype.kind == "c":
        return same(got.real, want.real) & same(got.imag, want.imag)
    if not is_float(want.dtype):
        return got == want
    a, b = got.astype(np.float64), want.astype(np.float64)
    return (a == b) | (np.isnan(a) & np.isnan(b))


def acceptable(got: np.ndarray, want: np.ndarray, shaken: Sequence[np.ndarray], by_norm: bool = False) -> np.ndarray:
    """Which elements are within what the shaken runs allow."""
    if want.dtype.kind == "c":
        real = acceptable(got.real, want.real, [s.real for s in shaken], by_norm)
        imaginary = acceptable(got.imag, want.imag, [s.imag for s in shaken], by_norm)
        steady = np.all([np.isfinite(s) for s in [want, *shaken]], axis=0)
        return (real & imaginary) | ~steady               # of infinite complex numbers only this is the same everywhere
    if not is_float(want.dtype):
        return (got == want) | np.any([s != want for s in shaken], axis=0)
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
        runs = np.array([s.astype(np.float64) for s in shaken])
        steady = np.all((np.isfinite(runs) == np.isfinite(b)) & (np.isnan(runs) == np.isnan(b)), axis=0)
        spread = np.max(np.where(runs == b, 0.0, np.abs(runs - b)), axis=0)
        if by_norm:
            spread = np.full_like(spread, np.max(spread, where=steady & np.isfinite(spread), initial=0.0))
        least = 2 * units(want) * (spread > 0).any()             # two moves may cancel, in all runs
        return same(got, want) | ~steady | (np.abs(a - b) <= GROWTH * spread + least)


# -- inputs ------------------------------------------------------------------------------------------------------------

def random_inputs(shapes, seed: int) -> list[np.ndarray]:
    """Arrays for these shapes: halves and quarters, in every third seed any floats, in every fifth extreme values."""
    random = np.random.default_rng(seed)
    return [_random(random, s, seed) for s in shapes]


def _random(random: np.random.Generator, shape, seed: int) -> np.ndarray:
    row = ELEMENT_TYPES[shape.element_type]
    size = shape.dimensions
    if row.kind == "pred":
        return random.random(size) < 0.5
    if row.kind in ("signed", "unsigned"):
        return _random_integers(random, row, size, seed)
    if row.kind == "complex":
        return (_floats(random, size, seed) + 1j * _floats(random, size, seed)).astype(row.dtype)
    values = np.asarray(_floats(random, size, seed))
    if seed % 5 == 4 and row.bits >= 16:
        odd = random.choice([np.nan, np.inf, -np.inf, -0.0, float(ml_dtypes.finfo(row.dtype).max)], size)
        values = np.where(random.random(size) < 0.2, odd, values)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(row.dtype)


def _floats(random: np.random.Generator, size, seed: int) -> np.ndarray:
    if seed % 3 == 2:
        return random.standard_normal(size)
    return random.integers(-12, 13, size) / 4.0


def _random_integers(random: np.random.Generator, row, size, seed: int) -> np.ndarray:
    low, high = (-(1 << row.bits - 1), (1 << row.bits - 1) - 1) if row.kind == "signed" else (0, (1 << row.bits) - 1)
    values = random.integers(max(low, -4), min(high, 9), size, endpoint=True)
    wide = values.astype(np.int64 if row.kind == "signed" else np.uint64)
    if seed % 5 == 4:
        wide = np.where(random.random(size) < 0.2, random.choice(np.array([low, high], wide.dtype), size), wide)
    return np.asarray(wide).astype(row.dtype)
