"""Products of complex matrices: the real product by which runtime/gemm_complex.h computes one.

In: sizes and strides of hloc_gemm_args. Out: those of the real product, and the copies for it. Names are those of the C
code.

    real_product(4096, 8, 64, (0, 0, 64, 1), (0, 0, 8, 1))     4096 x 128 by 128 x 16: a in place, b copied twice
"""
from __future__ import annotations

from typing import NamedTuple

PARTS = {"c64": "f32", "c128": "f64"}
LARGER = 4
Strides = tuple[int, int, int, int]          # outer, inner, row, column


class RealProduct(NamedTuple):
    """Sizes and strides of real numbers. room: complex numbers of HLOC_THIRD; finishes: the sums are combined, or
    transposed, so there is an epilogue."""

    sizes: tuple[int, int, int]
    a: Strides
    b: Strides
    room: int
    finishes: bool


class _Operand(NamedTuple):
    lines: int
    outer: int
    inner: int
    free: int
    depth: int

    @property
    def readable(self) -> bool:
        return 1 in (self.free, self.depth)


def real_product(m: int, n: int, k: int, a: Strides, b: Strides, batches: int = 1) -> RealProduct:
    """planned() and the code after it. Copies of batches are contiguous, so their strides are not needed."""
    left = _Operand(m, a[0], a[1], a[2] if m > 1 else 1, a[3] if k > 1 else 1)
    right = _Operand(n, b[0], b[1], b[3] if n > 1 else 1, b[2] if k > 1 else 1)
    keeps_b = (right.readable or not left.readable) if n > m else (right.readable and not left.readable)
    if left.readable and right.readable and (left.free == 1) != (right.free == 1):
        across, along = (right, left) if right.free == 1 else (left, right)
        keeps_b = (across.lines * LARGER >= along.lines) == (across is right)
    kept, other = (right, left) if keeps_b else (left, right)
    room = 1
    if not kept.readable:
        room += batches * kept.lines * k
        kept = kept._replace(outer=0, inner=0, free=k, depth=1)
    copied = (batches if other.outer or other.inner else 1) * other.lines * k
    outer, inner, size = 2 * kept.outer, 2 * kept.inner, 2 * other.lines
    if kept.depth == 1:
        transposed = other.depth == 1 and other.free != 1
        return RealProduct((kept.lines, size, 2 * k), (outer, inner, 2 * kept.free, 1),
                           (0, 0, 1, 2 * k) if transposed else (0, 0, size, 1), room + 2 * copied, keeps_b)
    copies = other.free != 1 or other.lines == 1
    return RealProduct((size, 2 * kept.lines, k), (0, 0, k, 1) if copies else (0, 0, 1, 2 * other.depth),
                       (outer, inner, 2 * kept.depth, 1), room + copied * copies, True)
