"""Scratch memory of Cholesky factorizations and triangular solves, as runtime/triangular_rows.h takes it.

In: a Tile of the library kernel "cholesky" or "triangular-solve". Out: a Scratch (slots.py). Names are those of the C
code.
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.plans.slots import Scratch, busy_threads

PIECE, MANY, LARGE, FEW = 65536, 8, 256, 2


def cholesky_scratch(tile: Tile, machine: Machine) -> Scratch:
    """A matrix for each thread, with rows and columns padded."""
    given, size, rows, width = _sides(tile, machine)
    n, batch = given["size"], given["batch"]
    stride = _up(n, width)
    if stride * size % 1024 == 0:
        stride += width
    grain = batch if batch < MANY and n > LARGE else 1 + PIECE // n ** 3
    return Scratch.of(own=_up(n, rows) * stride * size, threads=busy_threads(batch, grain, machine))


def triangular_solve_scratch(tile: Tile, machine: Machine) -> Scratch:
    """The matrix in groups of rows, and a strip of right-hand sides for each thread."""
    given, size, rows, width = _sides(tile, machine)
    n, m, batch = given["size"], given["sides"], given["batch"]
    groups = -(-n // rows)
    packed = _up(rows * rows * groups * (groups + 1) // 2 + groups * rows, width)
    strip = groups * rows * width
    if batch >= MANY or m <= width:
        threads = busy_threads(batch, 1 + PIECE // (n * n * m), machine)
        return Scratch.of(own=(n if m <= FEW else packed + strip) * size, threads=threads)
    threads = busy_threads(-(-m // width), 1 + PIECE // (n * n * width), machine)
    return Scratch.of(first=packed * size, own=strip * size, threads=threads)


def _sides(tile: Tile, machine: Machine) -> tuple[dict, int, int, int]:
    """Parameters, bytes of an element, ROWS and WIDTH."""
    size = ELEMENT_TYPES[tile.buffers[0].type].bytes
    return dict(tile.parameters), size, 8 if machine.vector_bytes == 64 else 4, 2 * machine.vector_bytes // size


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
