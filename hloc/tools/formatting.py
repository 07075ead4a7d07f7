"""Sizes, times and arrays as a reader wants them, on a terminal and on a page.

    size_text(1536) == "1.5 KiB";  array_cells(np.float32([1, 2])) == ["2", "1", "1.5", "2", "1, 2"]
"""
from __future__ import annotations

import numpy as np

SHOWN_VALUES = 4


def size_text(size: int) -> str:
    """1536 -> 1.5 KiB."""
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def time_text(seconds: float) -> str:
    """0.00123 -> 1.23 ms."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "\N{MICRO SIGN}s")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:,.0f} {unit}"
    return f"{seconds * 1e6:.3g} \N{MICRO SIGN}s"


def array_cells(array: np.ndarray) -> list[str]:
    """Shape, smallest, mean, largest and first values."""
    return ["x".join(map(str, array.shape)) or "scalar", *_statistics(array), first_values(array)]


def _statistics(array: np.ndarray) -> list[str]:
    if array.size == 0:
        return ["-", "-", "-"]
    if array.dtype.kind == "c":
        return [f"|{_number(float(f(np.abs(array.astype(np.complex128)))))}|" for f in (np.min, np.mean, np.max)]
    if array.dtype == np.bool_:
        wide = array.astype(np.int64)
    else:
        wide = array.astype(np.float64) if array.dtype.kind not in "iu" else array
    with np.errstate(all="ignore"):
        return [_number(wide.min().item()), _number(float(wide.mean(dtype=np.float64))), _number(wide.max().item())]


def first_values(array: np.ndarray) -> str:
    """The first SHOWN_VALUES of an array, in memory order."""
    values = array.reshape(-1)[:SHOWN_VALUES]
    shown = ", ".join(_number(v) for v in values.tolist())
    return shown + (", ..." if array.size > SHOWN_VALUES else "")


def _number(value: complex) -> str:
    if isinstance(value, (bool, int)):
        return str(value).lower()
    if isinstance(value, complex):
        return f"{value.real:.5g}{value.imag:+.5g}i"
    return f"{float(value):.6g}"
