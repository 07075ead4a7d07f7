"""Matmuls of at most four rows, which read B only once (runtime/gemm_thin.h): when, and how.

    f32[1,900] by f32[900,400]      sums stay in registers; two tasks of 208 columns
    f32[3,700] by f32[700,4000]     rows of B are streamed; sums are split among tasks
"""
from __future__ import annotations

from hloc.machine import Machine
from hloc.targets.cpu.plans.matmul import PAGE, SHARED, Constants, Kind, MatmulPlan, Product, aliases, is_shared
from hloc.targets.cpu.plans.slots import Scratch

MOST_ROWS, FEWEST_COLUMNS, SMALLEST = 4, 8, 1024
SMALL, SMALL_NARROW = 1024 << 10, 512 << 10      # bytes of a B that fits a core's cache
FEW_PAGES, MANY_PAGES = 512, 2048                # rows in FEW_PAGES count twice
SHORT, LONG = 32, 8192                           # terms of a sum
WIDE, COLUMNS = 1024, 4096
OWN = 2 << 20                                    # bytes of B that fit the cores' private caches
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
    held, work = is_held(g, kind), g.n * g.k * g.batches
    parts, splits, wanted = -(-g.n // COLUMNS), 1, 4 * machine.cores
    if work < LEAST:
        parts = 1
    elif held:
        parts = _doubled(parts, g, machine.cores, 4 * kind.lanes)
    elif g.b[2] == 1:
        parts = _doubled(parts, g, wanted, 64)
        parts = _doubled(parts, g, machine.cores, 2) if g.k >= LONG else parts
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
        fetches=g.n * g.k * kind.element > OWN, grain=tasks if work < LEAST else grain,
        grain_asleep=tasks if work < LEAST_ASLEEP else grain, first=first, at_sums=a_bytes), Scratch.of(first=first))


def _doubled(parts: int, g: Product, wanted: int, fewest_columns: int) -> int:
    while parts * g.batches < wanted and g.n // parts >= fewest_columns:
        parts *= 2
    return parts


def is_held(g: Product, kind: Kind) -> bool:
    """Whether sums stay in registers for all of k, a few vectors of columns at a time: B is in cache, or has few rows.
    With vectors of 64 bytes also if it may be in a shared cache, in no more pages than the TLB covers. Otherwise whole
    rows are streamed at memory bandwidth."""
    size = g.n * g.k * kind.element
    if g.b[2] == 1:
        return False
    small = (SMALL if kind.element == kind.sum else SMALL_NARROW) * (2 if g.k <= FEW_PAGES else 1)
    if g.k <= SHORT or size <= small:
        return True
    if not is_shared(g, kind) or kind.element < kind.sum:
        return False
    if g.m == 1 and (g.n < WIDE or size > SHARED // 2):
        return False
    return g.k * min(g.b[2] * kind.element, PAGE) <= MANY_PAGES * PAGE
