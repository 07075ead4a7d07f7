"""How Cholesky factorizations and triangular systems are computed: what threads share, layouts, scratch memory.

In: a Tile of the library kernel "cholesky" or "triangular-solve". Out: a plan, printed as a constant of
runtime/triangular.h, and a Scratch.

    f32[64,20,20]           the matrices of the batch are shared out
    f32[1000,1000]          panels of 64 rows, by one thread; the strips beside a panel by all
    a system with 2 sides   one side after the other, without a copy of the matrix
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.plans.slots import Scratch, busy_threads

PIECE = 65536                    # least multiply-adds for a thread
MANY, LARGE = 8, 256             # matrices of a batch that are shared out; rows of one that is not
FEW = 2                          # most right-hand sides that are solved one by one
PANEL = 64                       # HLOC_CHOLESKY_PANEL of runtime/triangular.h


class CholeskyConstants(NamedTuple):
    """hloc_cholesky_plan. stride: of a factor's rows; grain: matrices that a thread takes at once; panel_work: PIECE
    in strips of a panel's rows, one deep; own: bytes."""

    n: int
    batch: int
    stride: int
    grain: int
    panel_work: int
    own: int
    lower: bool


class SystemConstants(NamedTuple):
    """hloc_system_plan: as a lower triangle from the left. reversed: it is an upper one, read from its end.

    a_row, a_column   strides of the matrix
    packed            elements of a packed matrix
    grain             strips of right-hand sides that a thread takes at once
    own               bytes of scratch memory
    by_lines          sides one by one, the matrix as it lies
    """

    n: int
    m: int
    batch: int
    a_row: int
    a_column: int
    packed: int
    grain: int
    own: int
    from_left: bool
    reversed: bool
    unit: bool
    by_lines: bool


class Plan(NamedTuple):
    constants: CholeskyConstants | SystemConstants
    scratch: Scratch


def plan_of_cholesky(tile: Tile, machine: Machine) -> Plan:
    """A matrix for each thread, with rows and columns padded."""
    given, size, rows, width = _sides(tile, machine)
    n, batch = given["size"], given["batch"]
    stride = _up(n, width)
    if stride * size % 1024 == 0:
        stride += width                                      # rows in different sets of the cache
    grain = batch if batch < MANY and n > LARGE else 1 + PIECE // n ** 3
    own = _up(n, rows) * stride * size
    return Plan(CholeskyConstants(n, batch, stride, grain, PIECE // (PANEL * width), own, given["lower"]),
                Scratch.of(own=own, threads=busy_threads(batch, grain, machine)))


def plan_of_system(tile: Tile, machine: Machine) -> Plan:
    """The matrix in groups of rows, and a strip of right-hand sides, for each thread: its strips are neighbours, so
    that it packs few matrices."""
    given, size, rows, width = _sides(tile, machine)
    n, m, batch = given["size"], given["sides"], given["batch"]
    by_lines, groups = m <= FEW, -(-n // rows)
    packed = _up(rows * rows * groups * (groups + 1) // 2 + groups * rows, width)
    own, strips = (n, batch) if by_lines else (packed + groups * rows * width, batch * -(-m // width))
    grain = max(1 + PIECE // (n * n * min(m, width)), -(-strips // machine.cores))
    transposed = given["transpose"] == given["left_side"]
    reversed = given["lower"] == transposed
    sign = -1 if reversed else 1
    constants = SystemConstants(
        n, m, batch, (1 if transposed else n) * sign, (n if transposed else 1) * sign, packed, grain, own * size,
        given["left_side"], reversed, given["unit_diagonal"], by_lines)
    return Plan(constants, Scratch.of(own=own * size, threads=busy_threads(strips, grain, machine)))


def _sides(tile: Tile, machine: Machine) -> tuple[dict, int, int, int]:
    """Parameters, bytes of an element, rows of a tile and columns of a strip."""
    size = ELEMENT_TYPES[tile.buffers[0].type].bytes
    return dict(tile.parameters), size, tile_rows(machine), 2 * machine.vector_bytes // size


def tile_rows(machine: Machine) -> int:
    """HLOC_TRIANGULAR_ROWS of runtime/triangular.h."""
    return 8 if machine.vector_bytes == 64 else 4


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
