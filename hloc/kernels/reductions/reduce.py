"""Reductions: one or several reduces of the same dimensions, with the computations before, beside and after them.

In: a reduce, or a kInput fusion. Out: one kernel, or two if few results are computed from many elements: then the first
computes partial results of chunks, so that all threads have work, and the second combines them. On a GPU the last block
to finish combines them in the same kernel.

The loops of the input space are either kept or reduced. If the innermost loop is reduced ("rows"), each result has its
own accumulators, several independent ones if the reducer may be reassociated. If it is kept ("columns"), there is a
loop over a block of adjacent results. How results go together is not decided here (schedule/row_nest.py): columns are
rows whose elements are adjacent to those of other rows, and are summed in lanes.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, loops
from hloc.kernels.builder import Builder
from hloc.kernels.elemental.loop import cost_of, loop_kernel, lower_loop
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Cost, Expr
from hloc.kernels.monoids import identity
from hloc.kernels.reductions.argmax import ArgmaxNest, is_argmax
from hloc.kernels.reductions.blocks import BlockNest
from hloc.kernels.reductions.nest import Nest
from hloc.kernels.reductions.reduction import Reduction, point_values, start, store_results
from hloc.kernels.rules.loops import element_types
from hloc.machine import Machine

SHORT_INNER = 16                # a shorter innermost reduced loop is left to the second kernel;
SHORT_BYTES, OFTEN = 512, 8     # on a CPU below so many bytes of sums, if it runs so often per result
CHUNKS = 64
GPU_PIECES = 8                  # warps or blocks per SM that keep enough loads in flight
LONGEST_OF_A_BLOCK = 1 << 14    # elements of a row that one block of a GPU sums
SMALLEST_TWO_PHASE = 1 << 16    # elements
FEW_COLUMNS, MOST_AT_ONCE = 16, 128     # of a row; of several rows that are summed as one
SMALLEST_AT_ONCE = 1 << 12      # elements of all of them
FEWEST_LANES = 32                       # elements of such a row
SHORTEST_VECTOR = 16            # iterations of the loop before one that is written out
MOST_OPERATIONS = 64            # for each element of this one: more would not stay in registers


def lower_reduce(group: Group, machine: Machine) -> Lowered:
    """Kernels of a reduce or of a fusion around reduces."""
    reduces = [m for m in group.members if m.opcode == "reduce"]
    if not reduces or not _alike(reduces):
        return lower_loop(group, machine)
    if all(s.num_elements == 0 for s in group.result_shapes):
        return Lowered(())
    reduction = Reduction(group, reduces, reduces[0].operands[0].shape.dimensions)
    if math.prod(reduction.dimensions) == 0:
        return Lowered((_nothing_to_reduce(reduction, machine),))
    _choose_loops(reduction)
    if machine.kind == "gpu":
        return _lower_on_gpu(reduction, machine)
    reduction.choose_columns(machine)
    reduction, partial = _rfactored(reduction, machine)
    partial.is_written_out = _is_written_out(partial)
    chunks = _chunks(partial, machine)
    whole = chunks == 1 and partial is reduction
    nest = ArgmaxNest if partial is reduction and is_argmax(reduction) else Nest
    return Lowered((_one_phase(reduction, nest, machine),)) if whole else \
        _two_phases(reduction, partial, chunks, nest, machine)


def _alike(reduces: list[Instruction]) -> bool:
    first = reduces[0]
    return all(r.operands[0].shape.dimensions == first.operands[0].shape.dimensions
               and set(r.get("dimensions", ())) == set(first.get("dimensions", ())) for r in reduces)


def _choose_loops(reduction: Reduction) -> None:
    """Collapse adjacent dimensions of the same kind into one loop, split again where the elements' positions need
    it."""
    gone = set(reduction.reduces[0].get("dimensions", ()))
    extents: list[int] = []
    reduced: list[bool] = []
    for d, size in enumerate(reduction.dimensions):
        if size == 1:
            continue
        if reduced and reduced[-1] == (d in gone):
            extents[-1] *= size
        else:
            extents.append(size)
            reduced.append(d in gone)

    finer, origins, trial = _refined(reduction, extents, reduced)
    reduction.extents, reduction.reduced = finer, [reduced[o] for o in origins] if extents else [False]
    reduction.operations, reduction.work = trial.operations, trial.work
    reduction.has_loops = trial.counts.get("i", 0) > sum(n > 1 for n in finer)


def _refined(reduction: Reduction, extents: list[int], reduced: list[bool]) -> tuple:
    """loops.refine for one point of the input space."""
    def emit(builder: Builder, counters: tuple[Index, ...], finer: list[int]) -> None:
        point = replace(reduction, extents=finer, reduced=_kinds(finer, extents, reduced))
        outline = Outline(reduction.group, builder)
        point_values(point, outline, list(counters))
        zeros: list[Expr] = [identity("add", t) for _, _, t in reduction.accumulators]
        store_results(point, outline, list(counters), zeros)
    return loops.refine(extents or [1], emit)


def _kinds(finer: list[int], extents: list[int], reduced: list[bool]) -> list[bool]:
    """Which of the finer loops are reduced; the finer loops split the given ones in order."""
    kinds: list[bool] = []
    position, size = 0, 1
    for extent in finer:
        kinds.append(reduced[position] if reduced else False)
        size *= extent
        if extents and size == extents[position]:
            position, size = position + 1, 1
    return kinds


def _nothing_to_reduce(reduction: Reduction, machine: Machine) -> KernelCall:
    """A reduction of no elements: the results are the initial values."""
    shape = reduction.reduces[0].shape
    dimensions = (shape.tuple_shapes[0] if shape.is_tuple else shape).dimensions
    kept = [n for n in dimensions if n > 1]

    def emit(outline: Outline, index: tuple[Index, ...]) -> None:
        reduction.extents, reduction.reduced = kept, [False] * len(kept)
        counters = list(indexing.delinearize(indexing.linearize(index, dimensions), kept)) if kept else []
        starts = [start(reduction, outline, r, k) for r, k, _ in reduction.accumulators]
        store_results(reduction, outline, counters, starts)
    return loop_kernel(reduction.group, machine, dimensions, emit)


# -- one kernel --------------------------------------------------------------------------------------------------------

def _one_phase(reduction: Reduction, nest: type[Nest], machine: Machine) -> KernelCall:
    outline = Outline(reduction.group)
    nest(reduction, outline, machine).emit(
        lambda counters, totals: store_results(reduction, outline, counters, totals))
    return outline.finish(cost=_cost(reduction, outline))


def _cost(reduction: Reduction, outline: Outline) -> Cost:
    points = math.prod(reduction.extents)
    return Cost(cost_of(outline, points, outline.builder).bytes, round(max(1.0, reduction.work) * points))


# -- on a GPU ----------------------------------------------------------------------------------------------------------

def _lower_on_gpu(reduction: Reduction, machine: Machine) -> Lowered:
    """Columns by blocks that share tiles, rows by teams; one kernel, unless the order of the elements matters."""
    columns = _rfactor(reduction, -1) if _is_late(reduction, machine) else reduction
    if True in columns.reduced and not columns.reduced[-1] and all(reduction.monoid(r) for r in reduction.reduces):
        outline = Outline(reduction.group)
        scratch = BlockNest(reduction, columns, outline, machine, _bytes_read(reduction)).emit()
        return Lowered((outline.finish(cost=_cost(reduction, outline)),), scratch)
    chunks = _chunks(reduction, machine)
    nest = ArgmaxNest if is_argmax(reduction) else Nest
    if chunks == 1:
        return Lowered((_one_phase(reduction, nest, machine),))
    return _joined_rows(reduction, chunks, nest, machine) if reduction.reduced[-1] else \
        _two_phases(reduction, reduction, chunks, nest, machine)


def _bytes_read(reduction: Reduction) -> int:
    """Bytes of the arrays that a kernel reads."""
    shapes = [p.shape for p in reduction.group.parameters if p.shape.is_array]
    return sum(s.num_elements * ELEMENT_TYPES[s.element_type].bits // 8 for s in shapes)


def _joined_rows(reduction: Reduction, chunks: int, kind: type[Nest], machine: Machine) -> Lowered:
    """Rows in chunks: the last team that finishes with a chunk of a row combines the partial results of the row."""
    outline = Outline(reduction.group)
    b, types, results = outline.builder, [t for _, _, t in reduction.accumulators], reduction.results
    joining = Reduction(reduction.group, reduction.reduces, reduction.dimensions,
                        [*reduction.kept_extents, chunks], [False] * len(reduction.kept_extents) + [True])
    nest = kind(reduction, outline, machine, chunks)
    join = Nest(joining, outline, machine, values=_partials(joining, outline, types))

    def keep(counters: list[Index], totals: list[Expr]) -> None:
        row = reduction.kept(counters)
        place = indexing.add(indexing.scale(row, chunks), nest.piece)
        for k, (type, total) in enumerate(zip(types, totals)):
            b.store(outline.scratch_buffer(k, type, chunks * results, "write"), place, total)
        own = [c for c, gone in zip(counters, reduction.reduced) if not gone] + [indexing.ZERO]
        with b.last(row, results, chunks):
            store_results(joining, outline, own, join.row(own)[0])
    nest.emit(keep)
    return Lowered((outline.finish(cost=_cost(reduction, outline)),),
                   tuple(chunks * results * ELEMENT_TYPES[t].bytes for t in types))


# -- two kernels -------------------------------------------------------------------------------------------------------

def _chunks(reduction: Reduction, machine: Machine) -> int:
    """The number of chunks into which the reduced loops are split, so that all threads have work; 1: no split. On a GPU
    several loops may be distributed; otherwise the first one is cut."""
    work = math.prod(reduction.extents)
    if machine.cores == 1 or work < SMALLEST_TWO_PHASE or True not in reduction.reduced:
        return 1
    rows = reduction.reduced[-1]
    width = 1 if rows else min(reduction.columns, reduction.extents[-1])
    pieces = reduction.results // width
    gpu = machine.kind == "gpu"
    long = math.prod(n for n, gone in zip(reduction.extents, reduction.reduced) if gone) >= LONGEST_OF_A_BLOCK
    if pieces >= (GPU_PIECES if gpu and not rows else 2) * machine.cores or gpu and rows and not long:
        return 1
    chunks = GPU_PIECES * machine.cores if gpu else CHUNKS
    most = min(chunks // max(1, pieces) + 1, chunks, max(1, work // (SMALLEST_TWO_PHASE // 4)))
    return _distributed_chunks(reduction, most) if gpu else _cut(reduction.extents[reduction.cut_loop], most)


def _distributed_chunks(reduction: Reduction, most: int) -> int:
    """The same for a GPU: loops are distributed from the first one on while there are few enough chunks, and the next
    one is cut. The innermost loop of rows belongs to the lanes, unless it is the only one."""
    gone = [n for n, reduced in enumerate(reduction.reduced) if reduced]
    inner = gone[-1] if reduction.reduced[-1] else None
    chunks, spread = 1, []
    for n in gone:
        extent = reduction.extents[n]
        if n != inner and chunks * extent <= most:
            spread.append(n)
            chunks *= extent
        elif n != inner or len(gone) == 1:
            pieces = _cut(extent, most // chunks)
            reduction.spread, reduction.cut = tuple(spread), n
            return chunks * pieces
    reduction.spread, reduction.cut = tuple(spread), gone[-1]
    return chunks


def _cut(extent: int, most: int) -> int:
    """The number of pieces of a cut loop: equal ones, if that leaves enough."""
    most = min(most, extent // 2)
    even = [c for c in range(most, most // 2, -1) if extent % c == 0]
    return even[0] if even else _ragged(extent, most)


def _ragged(extent: int, most: int) -> int:
    """A number of chunks none of which is empty."""
    chunk = -(-extent // max(1, most))
    return -(-extent // chunk)


def _is_written_out(reduction: Reduction) -> bool:
    """Whether the last loop is short, such as one over the coordinates of points, and others are reduced: it is written
    out, and what its elements share is computed once."""
    extents = reduction.extents
    return (len(extents) > 1 and extents[-1] in loops.SIDE_BY_SIDE and extents[-2] >= SHORTEST_VECTOR
            and any(reduction.reduced[:-1]) and reduction.operations <= MOST_OPERATIONS and not reduction.has_loops)


def _rfactored(reduction: Reduction, machine: Machine) -> tuple[Reduction, Reduction]:
    """The reduction, one of whose loops may be split, and the part of it that the first kernel computes: without a
    short inner loop, which is kept until the second kernel. Vectors run along it in the first one. Both are the same
    where no loop is left to a second kernel."""
    if count := _rows_at_once(reduction):
        *outer, rows, columns = reduction.extents
        reduction = replace(reduction, extents=[*outer, rows // count, count, columns],
                            reduced=[*reduction.reduced[:-2], True, True, False])
        return reduction, _rfactor(reduction, -2)
    if _is_late(reduction, machine):
        partial = _rfactor(reduction, -1)
        if not _is_written_out(reduction) or not _is_written_out(partial) and _are_one(reduction, partial.extents):
            return reduction, partial
    return reduction, reduction


def _rows_at_once(reduction: Reduction) -> int:
    """How many rows of few columns, as in the gradient of a bias of ten classes, are summed as one longer row, of whole
    vectors if possible; 0: none."""
    *outer, rows, columns = reduction.extents if len(reduction.extents) > 1 else (1, 1)
    if reduction.reduced != [False] * len(outer) + [True, False] or columns >= FEW_COLUMNS \
            or rows * columns < SMALLEST_AT_ONCE or reduction.has_loops \
            or not all(map(reduction.monoid, reduction.reduces)):
        return 0
    widths = range(FEWEST_LANES // columns + 1, MOST_AT_ONCE // columns + 1)
    even = [n for n in widths if rows % n == 0]
    count = max(even, key=lambda n: (n * columns % FEW_COLUMNS == 0, n), default=0)
    return count if count and _are_one(reduction, [*outer, rows // count, count * columns]) else 0


def _is_late(reduction: Reduction, machine: Machine) -> bool:
    """Whether a short innermost loop is reduced at the end: until then it is part of the columns, which makes them
    wider. On a CPU the lanes of a vector are then combined once per result, not once per row."""
    rows = math.prod(n for n, gone in zip(reduction.extents[:-1], reduction.reduced) if gone)
    bytes_each = max(ELEMENT_TYPES[t].bytes for _, _, t in reduction.accumulators)
    most = SHORT_BYTES // bytes_each if machine.kind == "cpu" and rows >= OFTEN else SHORT_INNER
    return (reduction.reduced[-1] and reduction.extents[-1] < most and True in reduction.reduced[:-1]
            and False in reduction.reduced and all(reduction.monoid(r) for r in reduction.reduces))


def _rfactor(reduction: Reduction, loop: int) -> Reduction:
    """The reduction with a reduced loop kept, -1 or -2, and joined with a kept one beside it; except for longer ones
    that the elements' positions need as separate loops."""
    extents, reduced = list(reduction.extents), list(reduction.reduced)
    reduced[loop] = False
    joined = [*extents[:-2], extents[-2] * extents[-1]]
    if not any(reduced[-2:]) and (extents[-1] < SHORT_INNER or _are_one(reduction, joined)):
        extents, reduced = joined, reduced[:-1]
    return replace(reduction, extents=extents, reduced=reduced)


def _are_one(reduction: Reduction, extents: list[int]) -> bool:
    """Whether the elements' positions need no finer loops than these."""
    def emit(builder: Builder, counters: tuple[Index, ...], finer: list[int]) -> None:
        point_values(replace(reduction, extents=finer), Outline(reduction.group, builder), list(counters))
    return loops.refine(extents, emit)[0] == extents


def _two_phases(reduction: Reduction, partial: Reduction, chunks: int, kind: type[Nest], machine: Machine) -> Lowered:
    """Partial results of each chunk go to scratch buffers [chunk][result]; a second kernel combines them."""
    results = partial.results
    types = [t for _, _, t in reduction.accumulators]
    size = chunks * results
    first = Outline(reduction.group)
    nest = kind(partial, first, machine, chunks)

    def keep(counters: list[Index], totals: list[Expr]) -> None:
        position = indexing.add(indexing.scale(nest.piece, results), partial.kept(counters))
        for k, (type, total) in enumerate(zip(types, totals)):
            first.builder.store(first.scratch_buffer(k, type, size, "write"), position, total)
    nest.emit(keep)
    last = max(n for n, gone in enumerate(reduction.reduced) if gone) if partial is not reduction else None
    remaining = [n for n, gone in enumerate(reduction.reduced) if not gone or n == last]
    extents, gone = [reduction.extents[n] for n in remaining], [n == last for n in remaining]
    joining = Reduction(reduction.group, reduction.reduces, reduction.dimensions,
                        [chunks, *extents], [True, *gone])
    second = Outline(reduction.group)
    for k, type in enumerate(types):
        second.scratch_buffer(k, type, size, "read")
    Nest(joining, second, machine, values=_partials(joining, second, types)).emit(
        lambda counters, totals: store_results(joining, second, counters, totals))
    calls = first.finish("_partial", _cost(reduction, first)), second.finish("_join", Cost(size * 4, size))
    return Lowered(calls, tuple(size * ELEMENT_TYPES[t].bytes for t in types))


def _partials(joining: Reduction, outline: Outline, types: list[str]) -> Callable:
    """The partial results at a place of the joining loops, in place of elements."""
    def partials(counters: list[Index]) -> list[list[list[Expr]]]:
        position = indexing.linearize(counters, joining.extents)
        loaded = iter([outline.builder.load(f"scratch{k}", t, position) for k, t in enumerate(types)])
        return [[[next(loaded) for _ in element_types(r)] for r in joining.reduces]]
    return partials
