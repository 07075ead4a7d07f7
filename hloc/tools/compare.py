"""Comparing the results of two implementations of one module.

In: two tuples of arrays. Out: a Difference per result. A result agrees if its largest error, relative to the largest
finite magnitude of the expected array, is within the tolerance of its type, and NaN and infinities are at the same
positions. Integers and pred must be equal.

    compare(results, got, want)[0].agrees
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hloc.inputs import Named
from hloc.ir import ELEMENT_TYPES, element_type_of

# Largest error relative to the largest magnitude, by bits of the significand (with the hidden one): two
# correct results differ by the rounding of sums in another order. Integers: 0.
TOLERANCES = {"f64": 1e-9, "c128": 1e-9, "f32": 1e-4, "c64": 1e-4, "f16": 2e-2, "bf16": 2e-2}
# Where products are less precise than f32, as hloc/passes/precision.py names it. The tensor cores of sm_90 add products
# of f8 with about 14 bits (measured: 3e-4 of the largest sum, where f32 takes over every 128 of the depth).
OF_PRODUCTS = {"tf32": {"f32": TOLERANCES["f16"], "c64": TOLERANCES["f16"]}, "f8": {"f32": 2e-3}}
# Every operation rounds, not only the inputs: two correct results may differ by several times the effect of one change.
NUDGE_FACTOR = 10.0
POWERS_OF_TWO = frozenset(dtype for t in ("f8e8m0fnu",) if (dtype := ELEMENT_TYPES[t].dtype) is not None)
EIGHT_BIT_FLOATS = 0.26              # one step of a three-bit significand is an eighth; two steps may be lost


class Difference(NamedTuple):
    """error: relative to the largest magnitude; where: index of the largest error; got, want: the values there; moved:
    the largest change of the result by rounding alone; causes: names of the causes of the difference (causes.py)."""

    name: str
    element_type: str
    shape: tuple[int, ...]
    error: float
    tolerance: float
    where: tuple[int, ...]
    got: object
    want: object
    note: str = ""
    moved: float = 0.0
    causes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return not self.note and self.error <= self.tolerance

    @property
    def is_unstable(self) -> bool:
        """Whether changing the inputs by one ulp changes the result by about as much: then the difference says
        nothing."""
        return not self.agrees and self.moved > 0 and self.error <= NUDGE_FACTOR * self.moved


def tolerance_of(element_type: str, products: str = "") -> float:
    """products: how precise matmuls and convolutions are, "tf32", "f8", or "" for as precise as their type."""
    if element_type in OF_PRODUCTS.get(products, {}):
        return OF_PRODUCTS[products][element_type]
    if ELEMENT_TYPES[element_type].kind in ("float", "complex"):
        return TOLERANCES.get(element_type, EIGHT_BIT_FLOATS)
    return 0.0


def compare(results: Sequence[Named], got: Sequence[np.ndarray], want: Sequence[np.ndarray],
            tolerance: float | None = None, products: str = "") -> list[Difference]:
    """One Difference per result; `tolerance` overrides that of the floating-point types."""
    return [_compare_one(r, np.asarray(g), np.asarray(w), tolerance, products) for r, g, w in zip(results, got, want)]


def _compare_one(result: Named, got: np.ndarray, want: np.ndarray, asked: float | None,
                 products: str) -> Difference:
    element_type = result.shape.element_type
    tolerance = tolerance_of(element_type, products)
    if asked is not None and tolerance > 0:
        tolerance = asked
    if got.shape != want.shape:
        return Difference(result.name, element_type, got.shape, np.inf, tolerance, (), None, None,
                          f"shapes differ: {got.shape} and {want.shape}")
    if got.size == 0:
        return Difference(result.name, element_type, got.shape, 0.0, tolerance, (), None, None)
    error, note = _errors(got, want, ELEMENT_TYPES[element_type].kind)
    place = np.unravel_index(int(np.argmax(error)), got.shape)
    return Difference(result.name, element_type, got.shape, float(error[place]), tolerance,
                      tuple(int(i) for i in place), got[place], want[place], note)


def _errors(got: np.ndarray, want: np.ndarray, kind: str) -> tuple[np.ndarray, str]:
    """Error per element relative to the largest expected magnitude, and a note on misplaced NaN or infinities."""
    if kind not in ("float", "complex"):
        return (got != want).astype(np.float64), ""
    wide = np.complex128 if kind == "complex" else np.float64
    with np.errstate(all="ignore"):
        got, want = got.astype(wide), want.astype(wide)
        finite = np.isfinite(want)
        scale = np.max(np.abs(want[finite]), initial=0.0)
        error = np.abs(got - want) / max(scale, np.finfo(np.float64).tiny)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
    error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    misplaced = (np.isnan(got) != np.isnan(want)) | (np.isinf(got) != np.isinf(want))
    if misplaced.any():
        return np.where(misplaced, np.inf, error), "NaN or infinity at other places"
    return error, ""


def nudged(arrays: Sequence[np.ndarray], seed: int = 0) -> list[np.ndarray]:
    """The floating-point inputs, each element changed by one unit in its last place, up or down at random."""
    generator = np.random.default_rng(seed)
    return [_nudge(np.asarray(a), generator) for a in arrays]


def _nudge(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    if array.dtype.kind == "c":
        parts = array.view(array.real.dtype)
        return _nudge(parts, generator).view(array.dtype)
    if ELEMENT_TYPES[element_type_of(array.dtype)].kind != "float" or array.dtype in POWERS_OF_TWO:
        return array
    with np.errstate(invalid="ignore"):
        away = np.where(generator.random(array.shape) < 0.5, 2, 0).astype(array.dtype) * array
        moved = np.nextafter(array, away)
    return np.where(np.isfinite(array) & (array != 0) & np.isfinite(moved), moved, array)


def with_stability(rows: Sequence[Difference], results: Sequence[Named], want: Sequence[np.ndarray],
                   moved: Sequence[np.ndarray]) -> list[Difference]:
    """The rows, each with the largest difference so far between a changed run (`moved`) and `want`."""
    shifts = compare(results, moved, want)
    return [row._replace(moved=max(row.moved, shift.error)) for row, shift in zip(rows, shifts)]
