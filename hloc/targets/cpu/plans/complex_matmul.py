"""Products of complex matrices: which real product computes one, and how operands are read (runtime/gemm_complex.h).

In: sizes and strides. Out: a RealProduct. One operand is kept: read in place, every number as two contiguous real ones;
gemm_complex.h says what is done to the other.

    real_product(4096, 8, 64, (0, 0, 64, 1), (0, 0, 8, 1))     4096 x 128 by 128 x 16: a in place, b copied twice
"""
from __future__ import annotations

from typing import NamedTuple

PARTS = {"c64": "f32", "c128": "f64"}
# An operand so many times larger is kept even if it is contiguous along k: splitting the other one is half the work.
LARGER = 4
Strides = tuple[int, int, int, int]          # outer, inner, row, column


class RealProduct(NamedTuple):
    """Sizes and strides of real numbers. room: complex numbers of HLOC_THIRD.

    keeps_b     b is kept, not a
    along       the kept operand is contiguous along k
    transposed  the copy of the other one is contiguous along k
    orders      the kept operand is copied first, because none of its strides is 1
    copies      the other operand is copied; else it is read as it lies
    finishes    the sums are combined, transposed or spread: the real product has an epilogue
    """

    sizes: tuple[int, int, int]
    a: Strides
    b: Strides
    room: int
    keeps_b: bool
    along: bool
    transposed: bool
    orders: bool
    copies: bool
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


def real_product(m: int, n: int, k: int, a: Strides, b: Strides, batches: int = 1, *,
                 stores_rows: bool = True) -> RealProduct:
    """stores_rows: sums are stored, not passed to an epilogue, with neighbouring columns side by side. Copies of
    batches are contiguous, so their strides are not needed."""
    left = _Operand(m, a[0], a[1], a[2] if m > 1 else 1, a[3] if k > 1 else 1)
    right = _Operand(n, b[0], b[1], b[3] if n > 1 else 1, b[2] if k > 1 else 1)
    keeps_b = (right.readable or not left.readable) if n > m else (right.readable and not left.readable)
    if left.readable and right.readable and (left.free == 1) != (right.free == 1):
        across, along = (right, left) if right.free == 1 else (left, right)
        keeps_b = (across.lines * LARGER >= along.lines) == (across is right)
    kept, other = (right, left) if keeps_b else (left, right)
    orders, room = not kept.readable, 1
    if orders:
        room += batches * kept.lines * k
        kept = kept._replace(outer=0, inner=0, free=k, depth=1)
    copied = (batches if other.outer or other.inner else 1) * other.lines * k
    outer, inner, size = 2 * kept.outer, 2 * kept.inner, 2 * other.lines
    transposed = other.depth == 1 and other.free != 1
    if kept.depth == 1:
        return RealProduct((kept.lines, size, 2 * k), (outer, inner, 2 * kept.free, 1),
                           (0, 0, 1, 2 * k) if transposed else (0, 0, size, 1), room + 2 * copied, keeps_b, True,
                           transposed, orders, True, keeps_b or not stores_rows)
    copies = other.free != 1 or other.lines == 1
    return RealProduct((size, 2 * kept.lines, k), (0, 0, k, 1) if copies else (0, 0, 1, 2 * other.depth),
                       (outer, inner, 2 * kept.depth, 1), room + copied * copies, keeps_b, False, transposed, orders,
                       copies, True)
