"""Conversions of f64 to floats of less than 32 bits round once, on the evaluator and the CPU."""
from __future__ import annotations

import numpy as np
import pytest

import hloc
from hloc.ir import ELEMENT_TYPES, numpy_dtype

NARROW = [t.name for t in ELEMENT_TYPES.values() if t.kind == "float" and t.bits < 32]
SMALLEST_NORMAL = 2.0 ** -126           # of f32: below it, compiled arithmetic takes numbers for zero


def neighbours(element_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Every two neighbouring positive numbers of the type."""
    dtype = numpy_dtype(element_type)
    codes = np.arange(1 << ELEMENT_TYPES[element_type].bits).astype(f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):
        codes = codes.astype(np.float32).astype(np.float64)
    codes = np.unique(codes[np.isfinite(codes) & (codes >= SMALLEST_NORMAL)])
    return codes[:-1], codes[1:]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("element_type", NARROW)
def test_beside_midpoints(element_type, target):
    """The next f64 below a midpoint goes down, the next above it goes up."""
    low, high = neighbours(element_type)
    middle = (low + high) / 2
    x = np.concatenate([np.nextafter(middle, 0), np.nextafter(middle, np.inf)])
    x = np.concatenate([x, -x]) if element_type != "f8e8m0fnu" else x
    text = f"""HloModule m
    ENTRY e {{ x = f64[{x.size}] parameter(0)  y = {element_type}[{x.size}] convert(x)
      ROOT r = f64[{x.size}] convert(y) }}"""
    (found,) = hloc.compile(text, target)(x)
    wanted = np.concatenate([low, high])
    np.testing.assert_array_equal(found, np.concatenate([wanted, -wanted])[:x.size])
