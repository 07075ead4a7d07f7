"""Matmuls by blocks (runtime/gemm_tile.h): their sizes, what is packed, the tasks and their scratch memory.

The kinds of a matmul, by its work and its rows: small; skinny, of at most four tiles of rows; flat, of few rows by a
large B. What else decides is in _Facts. All sizes are in elements unless they say bytes.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.machine import Machine
from hloc.targets.cpu.plans.matmul import (
    ALIASED_ROWS,
    PAGE,
    Constants,
    Kind,
    MatmulPlan,
    Product,
    aliases,
    is_shared,
)
from hloc.targets.cpu.plans.slots import Scratch, busy_threads

AMX_DEEP = 16                                    # HLOC_DEEP of gemm_amx.h
GROUP_PANELS, GROUP_BYTES, SHORT, WIDEST_OF_TILES = 8, 256 << 10, 128, 512
TWO_TILES = 16                                   # rows of two tiles: reading a panel twice is faster than packing it
SMALL, STREAMED_BYTES = 3e6, 512 << 10
ONE_TASK, ONE_TASK_ASLEEP = 2e5, 6e5             # units, or work while threads sleep, that one thread does faster
PIECE, PIECE_ASLEEP, SPLIT = 1e5, 4e5, 1e6       # work of a task; the least work of sums in parts


class _Limits(NamedTuple):
    """Of a block: units along k, columns, columns if A is read in place. Tiles of few rows read few elements of A, and
    read and write as many sums for each block of k: for them long sums, and A in place, are faster."""

    deepest: int
    widest: int
    a_wide: int


def _limits(kind: Kind) -> _Limits:
    if kind.tile_rows > 6:
        return _Limits(512, 512, 8 * kind.columns)
    return _Limits(768 if kind.unit == 8 else 1024, 4096 // kind.unit, 1 << 30)


class _Facts(NamedTuple):
    """What decides. narrow: half a tile has all columns; whole_rows: blocks are whole rows, in order, because the
    epilogue is memory-bound; streams: B comes from memory, row by row; packs: several tiles of rows read a panel of
    such a B, or its rows are far apart."""

    work: int
    rows: int
    small: bool
    skinny: bool
    narrow: bool
    whole_rows: bool
    flat: bool
    b_readable: bool
    streams: bool
    packs: bool


def _facts(g: Product, kind: Kind, exchanged: bool) -> _Facts:
    work, rows, size = g.m * g.n * g.k, min(kind.tile_rows, (g.m + 1) // 2 * 2), g.n * g.k * kind.element
    small, skinny, narrow = work <= SMALL, g.m <= 4 * kind.tile_rows, kind.reads_b and g.n <= kind.lanes
    if narrow and _a_aliases(g, kind):
        rows = min(rows, ALIASED_ROWS)
    large = not small and not skinny
    whole_rows = g.epilogue_arrays >= 4 and large and g.n <= 2048 and not exchanged
    flat = large and not narrow and not whole_rows and g.m <= 32 * kind.tile_rows and g.batches == 1
    b_lies = kind.reads_b and g.b[3] == 1
    # One tile has all rows, and reads each line of B once: it does not matter that its rows are in few cache sets.
    is_met_once = g.m <= kind.tile_rows and is_shared(g, kind)
    streams = skinny and b_lies and size > STREAMED_BYTES
    most_rows = 4 if g.k <= SHORT else TWO_TILES if is_shared(g, kind) else kind.tile_rows
    return _Facts(work, rows, small, skinny, narrow, whole_rows, flat, b_lies and (is_met_once or not aliases(g, kind)),
                  streams, streams and g.m > most_rows)


def _a_aliases(g: Product, kind: Kind) -> bool:
    return g.a[2] * kind.element % PAGE == 0


def _k_block(g: Product, kind: Kind, facts: _Facts) -> int:
    """All terms if they are few, else equal blocks; of a skinny product rows of B in few pages, or few streams from
    memory."""
    few = (32 if g.m <= 16 else 64) if facts.streams else 256 * kind.group
    if facts.skinny and g.k > few:
        return few
    most = _limits(kind).deepest * kind.group
    if g.k <= most * 5 // 4:
        return g.k
    blocks = -(-g.k // most)
    return (-(-g.k // blocks) + 15) // 16 * 16


def _block(g: Product, kind: Kind, facts: _Facts, exchanged: bool, machine: Machine) -> tuple[int, int]:
    """Rows and columns. Blocks get smaller until all threads have some: fewer groups of rows, then fewer columns."""
    m_panels, n_panels, flat, whole_rows = -(-g.m // facts.rows), -(-g.n // kind.columns), facts.flat, facts.whole_rows
    widest = WIDEST_OF_TILES if exchanged or g.has_epilogue else _limits(kind).widest
    n_blocks, m_group = 1 if whole_rows else -(-g.n // widest), m_panels if flat else min(m_panels, 8)
    while whole_rows and m_group > 1 and m_group * facts.rows * g.n * kind.sum > 256 << 10:
        m_group -= 1
    if facts.work * g.batches < ONE_TASK * kind.group:
        n_blocks, m_group = 1, m_panels
    else:
        fewest = m_panels if facts.skinny or flat else 1 if whole_rows else 2
        while g.batches * n_blocks * -(-m_panels // m_group) < 4 * machine.cores:
            if m_group > fewest:
                m_group = (m_group + 1) // 2
            elif n_blocks * 2 <= n_panels:
                n_blocks *= 2
            elif m_group > 1:
                m_group = (m_group + 1) // 2
            else:
                break
    return m_group * facts.rows, -(-n_panels // n_blocks) * kind.columns


def _reads_a(g: Product, kind: Kind, facts: _Facts, n_block: int, k_block: int) -> bool:
    """Whether A is read in place."""
    units = all(n % kind.group == 0 for n in (*g.a[:3], g.k, k_block))
    lies = kind.is_memory and not kind.offsets_a and g.a[3] == 1 and units
    aliased = _a_aliases(g, kind) and facts.rows > (ALIASED_ROWS if facts.narrow else 4)
    return lies and not facts.flat and (n_block <= _limits(kind).a_wide or facts.small) and not (aliased and g.k > 64)


def plan_of_blocks(g: Product, kind: Kind, machine: Machine, exchanged: bool) -> MatmulPlan:
    f = _facts(g, kind, exchanged)
    k_block, (m_block, n_block) = _k_block(g, kind, f), _block(g, kind, f, exchanged, machine)
    shares_b = not f.flat and g.batches == 1 and not (f.b_readable and (f.small or f.skinny)) and not f.skinny
    reads_a = _reads_a(g, kind, f, n_block, k_block)
    reads_b = f.b_readable and not shares_b and not f.flat and not f.packs and not g.is_packed
    k_blocks, blocks = -(-g.k // k_block), g.batches * -(-g.m // m_block) * -(-g.n // n_block)
    k_part = g.k
    if blocks < machine.cores and k_blocks > 1 and f.work * g.batches >= SPLIT:
        k_part = -(-k_blocks // min(k_blocks, 2 * machine.cores // blocks)) * k_block
    splits, group = k_part < g.k, 1
    if g.b[3] == 1 and not shares_b and not reads_b and not g.is_packed:
        panel = kind.columns * kind.units(k_block) * kind.unit
        group = min(-(-n_block // kind.columns), GROUP_PANELS, 1 + GROUP_BYTES // panel)
    sweeps = g.has_epilogue and not exchanged and n_block > kind.columns and not f.small and not splits and (
        k_blocks > 1 or m_block * n_block * kind.sum <= 512 << 10)
    sums_in_c = not (exchanged or g.has_epilogue or g.is_narrow or splits) and g.c[1] == 1 and (
        k_blocks == 1 or g.c[0] * kind.sum % PAGE != 0)
    tasks = blocks * -(-g.k // k_part)
    grain, asleep = (_grain(m_block * n_block * k_part, piece) for piece in (PIECE, PIECE_ASLEEP))
    constants = Constants(
        g.batches, g.m, False, exchanged, f.rows, m_block, n_block, k_block, k_part, group, reads_a,
        kind.reads_b and g.a[2] == 1 and not reads_a and not f.flat and n_block <= 2 * kind.columns, reads_b,
        f.flat and not splits, shares_b and not splits and not g.is_packed, sums_in_c, sweeps, grain=grain,
        grain_asleep=tasks if f.work * g.batches < ONE_TASK_ASLEEP else asleep)
    return _with_memory(g, kind, constants, busy_threads(tasks, grain, machine))


def _grain(work_of_task: int, piece: float) -> int:
    return 1 if work_of_task > piece else int(piece / work_of_task) + 1


def _with_memory(g: Product, kind: Kind, p: Constants, threads: int) -> MatmulPlan:
    """First: what tasks share, or the sums of parts. Own: panels of A and B, sums of a block, a tile, a row."""
    depth, m_panels, n_panels = kind.units(p.k_block), -(-g.m // p.rows), -(-g.n // kind.columns)
    a_units, k_blocks = -(-depth // AMX_DEEP) * AMX_DEEP if kind.amx else depth, -(-g.k // p.k_block)
    panels, first, a_panel_units = -(-p.m_block // p.rows), 0, 0
    sums = panels * p.rows * -(-p.n_block // kind.columns) * kind.columns * kind.sum
    if p.k_part < g.k:
        blocks = g.batches * -(-g.m // p.m_block) * -(-g.n // p.n_block)
        first = blocks * -(-g.k // p.k_part) * sums
    elif p.shares_a:
        vector = kind.vector // kind.unit                        # packing may write one vector beyond a panel
        a_panel_units = (p.rows * a_units + 2 * vector - 1) // vector * vector
        first = k_blocks * m_panels * a_panel_units * kind.unit
    elif p.shares_b:
        corrections = n_panels * k_blocks * kind.columns * kind.sum if kind.offsets_a else 0
        first = n_panels * kind.units(g.k) * kind.columns * kind.unit + corrections
    a = 0 if p.shares_a else _spaced(panels * p.rows * a_units * kind.unit + kind.vector)
    b = 0 if p.shares_b or g.is_packed else _spaced(p.group * kind.columns * depth * kind.unit)
    kept = _spaced(sums) if (k_blocks > 1 or p.sweeps) and p.k_part == g.k else 0
    tile, row = _spaced(kind.tile_rows * kind.columns * kind.sum), _spaced(p.group * kind.columns * kind.sum)
    own = a + b + kept + tile + row
    return MatmulPlan(g, p._replace(first=first, own=own, a_panel_units=a_panel_units, at_b=a, at_sums=a + b,
                                    at_tile=a + b + kept, at_correction=a + b + kept + tile),
                      Scratch.of(first=first, own=own, threads=threads))


def _spaced(size: int) -> int:
    """Whole cache lines, and one between."""
    return (size + 127) // 64 * 64 + 64
