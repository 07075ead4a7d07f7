"""Matmuls of at most four rows, which read B only once (runtime/gemm_thin.h): when, and how.

    f32[1,900] by f32[900,400]      sums stay in registers; two tasks of 208 columns
    f32[3,900] by f32[900,4000]     rows of B are streamed; sums are split among tasks
"""
from __future__ import annotations

from hloc.machine import Machine
from hloc.targets.cpu.plans.matmul import SHARED, Constants, Kind, MatmulPlan, Product, aliases
from hloc.targets.cpu.plans.slots import Scratch

MOST_ROWS, FEWEST_COLUMNS, SMALLEST = 4, 8, 1024
COLUMNS = 4096
LEAST, LEAST_ASLEEP = 24576, 65536               # the least work for a second thread
FEWEST_TERMS = 64                                # of a part of a sum


def goes_thin(g: Product, kind: Kind) -> bool:
    b_row, b_column = g.b[2:]
    size = g.n * g.k
    # Four rows by a B that fits the cache: tiles read it in place, and keep their sums in registers.
    if g.m > 3 and kind.reads_b and b_column == 1 and not aliases(g, kind) and size * kind.element <= 1 << 20:
        return False
    return g.m <= MOST_ROWS and 1 in (b_column, b_row) and g.n >= FEWEST_COLUMNS and size >= SMALLEST


def plan_of_thin(g: Product, kind: Kind, machine: Machine) -> MatmulPlan:
    """A B that fits the cache is read a few columns at a time, with sums in registers; else whole rows are streamed at
    memory bandwidth, and sums are in parts. A sum over a contiguous column is a dot product."""
    held, work = g.b[2] != 1 and g.n * g.k * kind.element <= SHARED, g.n * g.k * g.batches
    parts, splits, wanted = -(-g.n // COLUMNS), 1, 4 * machine.cores
    if held:
        parts = _doubled(parts, g, machine.cores if work >= LEAST else 1, 4 * kind.lanes)
    elif g.b[2] == 1:
        fewest = max(2, min(4 * kind.lanes, LEAST_ASLEEP // g.k))
        parts = _doubled(parts, g, wanted if work >= LEAST else 1, fewest)
    elif parts * g.batches < wanted:
        splits = min(-(-wanted // (parts * g.batches)), -(-g.k // FEWEST_TERMS))
    k_part = (-(-g.k // splits) + 3) // 4 * 4 if splits > 1 else g.k
    splits, columns = -(-g.k // k_part), -(-g.n // parts)
    if columns >= kind.lanes:
        columns = -(-columns // kind.lanes) * kind.lanes
    tasks = g.batches * splits * -(-g.n // columns)
    grain = tasks // (2 * wanted) + 1
    a_bytes = (g.batches * g.m * g.k * kind.sum + 127) // 64 * 64
    first = a_bytes + g.batches * splits * g.m * g.n * kind.sum
    return MatmulPlan(g, Constants(
        g.batches, g.m, is_thin=True, n_block=columns, k_part=k_part, is_held=held,
        grain=tasks if work < LEAST else grain, grain_asleep=tasks if work < LEAST_ASLEEP else grain, first=first,
        at_sums=a_bytes), Scratch.of(first=first))


def _doubled(parts: int, g: Product, wanted: int, fewest_columns: int) -> int:
    while parts * g.batches < wanted and g.n // parts >= fewest_columns:
        parts *= 2
    return parts
