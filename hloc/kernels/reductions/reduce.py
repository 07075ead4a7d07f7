"""Reductions: one or several reduces of the same dimensions, with the computations before, beside and after them.

In: a reduce, or a kInput fusion. Out: one kernel, or two if few results are computed from many elements: then the first
computes partial results of pieces (pieces.py), so that all threads have work, and the second joins them. On a GPU the
last team to finish joins them in the same kernel.

The loops of the input space are either kept or reduced. If the innermost loop is reduced ("rows"), each result has its
own accumulators, several independent ones if the reducer may be reassociated. If it is kept ("columns"), there is a
loop over a block of adjacent results. How results go together is not decided here (schedule/row_nest.py): columns are
rows whose elements are adjacent to those of other rows, and are summed in lanes.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hloc.analysis.cost import CACHED_SPEEDUP
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, loops
from hloc.kernels.builder import Builder
from hloc.kernels.elemental.loop import cost_of, loop_kernel, lower_loop
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Cost, Expr
from hloc.kernels.monoids import identity
from hloc.kernels.reductions.argmax import ArgmaxNest, is_argmax
from hloc.kernels.reductions.blocks import BlockNest, tile_of
from hloc.kernels.reductions.nest import Nest
from hloc.kernels.reductions.pieces import best_cuts, seconds_on_one_core
from hloc.kernels.reductions.reduction import Reduction, point_values, start, store_results
from hloc.kernels.rules.loops import element_types
from hloc.machine import Machine

SHORT_INNER = 16                # a shorter innermost reduced loop is left to the second kernel;
SHORT_BYTES, OFTEN = 512, 8     # on a CPU below so many bytes of sums, if it runs so often per result
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
    reduction.choose_columns(machine)
    reduction, nest = _nest(reduction, machine)
    shapes = [p.shape for p in group.parameters if p.shape.is_array]
    seconds = seconds_on_one_core(sum(s.num_elements * ELEMENT_TYPES[s.element_type].bits // 8 for s in shapes),
                                  max(1.0, reduction.work) * math.prod(reduction.extents), machine)
    joined = 2 * nest.reduction.results * sum(ELEMENT_TYPES[t].bytes for _, _, t in reduction.accumulators)
    nest.cuts = best_cuts(nest.reduced, nest.groups, seconds,
                          seconds_on_one_core(joined, 0, machine) / CACHED_SPEEDUP, nest.steps, machine)
    return _lowered(reduction, nest)


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

    reduction.extents, reduction.reduced = extents or [1], reduced or [False]

    def emit(builder: Builder, counters: tuple[Index, ...]) -> None:
        outline = Outline(reduction.group, builder)
        point_values(reduction, outline, list(counters))
        zeros: list[Expr] = [identity("add", t) for _, _, t in reduction.accumulators]
        store_results(reduction, outline, reduction.kept(list(counters)), zeros)
    finer, origins, trial = loops.refine(reduction.extents, emit)
    reduction.extents, reduction.reduced = finer, [reduction.reduced[o] for o in origins]
    reduction.operations, reduction.work = trial.operations, trial.work
    reduction.has_loops = trial.counts.get("i", 0) > sum(n > 1 for n in finer)


def _nothing_to_reduce(reduction: Reduction, machine: Machine) -> KernelCall:
    """A reduction of no elements: the results are the initial values."""
    shape = reduction.reduces[0].shape
    dimensions = (shape.tuple_shapes[0] if shape.is_tuple else shape).dimensions

    def emit(outline: Outline, index: tuple[Index, ...]) -> None:
        starts = [start(reduction, outline, r, k) for r, k, _ in reduction.accumulators]
        store_results(reduction, outline, indexing.linearize(index, dimensions), starts)
    return loop_kernel(reduction.group, machine, dimensions, emit)


# -- kernels -----------------------------------------------------------------------------------------------------------

def _nest(reduction: Reduction, machine: Machine) -> tuple[Reduction, Nest]:
    """The reduction, one of whose loops may be split, and the loops of its only or first kernel."""
    outline = Outline(reduction.group)
    if machine.kind == "gpu":
        if True in reduction.reduced and not reduction.reduced[-1] and all(map(reduction.monoid, reduction.reduces)):
            return reduction, BlockNest(reduction, outline, machine, tile=tile_of(reduction, machine))
        first = reduction
    else:
        reduction, first = _rfactored(reduction)
        first.is_written_out = _is_written_out(first)
    kind = ArgmaxNest if first is reduction and is_argmax(reduction) else Nest
    return reduction, kind(first, outline, machine)


def _lowered(reduction: Reduction, nest: Nest) -> Lowered:
    """One kernel; or partial results go to scratch buffers, and are joined: on a GPU by the last team that finishes
    with a group of results, or else by a second kernel, which also reduces a loop that the first one keeps."""
    first, by_blocks = nest.outline, isinstance(nest, BlockNest)
    late, store = nest.reduction is not reduction, partial(store_results, reduction, first)
    if not late and not nest.cuts:
        nest.emit(store)
        return Lowered((first.finish(cost=_cost(reduction, first)),))
    by_lanes = nest.machine.kind == "gpu" and nest.has_lanes and not by_blocks
    last = max(n for n, gone in enumerate(reduction.reduced) if gone) if late else None
    loops = [(extent, n == last) for n, extent in enumerate(reduction.extents) if n == last or not reduction.reduced[n]]
    loops.insert(len(loops) if by_lanes else 0, (nest.pieces, True))
    joining = replace(reduction, extents=[n for n, _ in loops], reduced=[gone for _, gone in loops],
                      is_written_out=False)
    types, size = [t for _, _, t in reduction.accumulators], math.prod(joining.extents)

    def keep(position: Index, totals: list[Expr]) -> None:
        place = indexing.add(indexing.scale(position, nest.pieces), nest.piece) if by_lanes else \
            indexing.add(indexing.scale(nest.piece, size // nest.pieces), position)
        for k, (type, total) in enumerate(zip(types, totals)):
            first.builder.store(first.scratch_buffer(k, type, size, "write"), place, total)
    steps, scratch = " ".join(map(str, nest.cuts)), tuple(size * ELEMENT_TYPES[t].bytes for t in types)
    if by_blocks or by_lanes:
        nest.emit(keep, (nest.joining(joining, _partials(joining, first)), store))
        call = first.finish(cost=_cost(reduction, first), steps=f"{steps} joined by the last team")
        return Lowered((call,), scratch)
    nest.emit(keep)
    second = Outline(reduction.group)
    for k, type in enumerate(types):
        second.scratch_buffer(k, type, size, "read")
    join = Nest(joining, second, nest.machine, values=_partials(joining, second))
    join.emit(partial(store_results, reduction, second))
    calls = (first.finish("_partial", _cost(reduction, first), steps=steps),
             second.finish("_join", Cost(size * 4, size)))
    return Lowered(calls, scratch)


def _partials(joining: Reduction, outline: Outline) -> Callable:
    """The partial results at a place of the joining loops, in place of elements."""
    def partials(counters: list[Index]) -> list[list[list[Expr]]]:
        position = indexing.linearize(counters, joining.extents)
        loaded = iter([outline.builder.load(f"scratch{k}", t, position)
                       for k, (_, _, t) in enumerate(joining.accumulators)])
        return [[[next(loaded) for _ in element_types(r)] for r in joining.reduces]]
    return partials


def _cost(reduction: Reduction, outline: Outline) -> Cost:
    points = math.prod(reduction.extents)
    return Cost(cost_of(outline, points, outline.builder).bytes, round(max(1.0, reduction.work) * points))


# -- loops that are kept until the end ---------------------------------------------------------------------------------

def _is_written_out(reduction: Reduction) -> bool:
    """Whether the last loop is short, such as one over the coordinates of points, and others are reduced: it is written
    out, and what its elements share is computed once."""
    extents = reduction.extents
    return (len(extents) > 1 and extents[-1] in loops.SIDE_BY_SIDE and extents[-2] >= SHORTEST_VECTOR
            and any(reduction.reduced[:-1]) and reduction.operations <= MOST_OPERATIONS and not reduction.has_loops)


def _rfactored(reduction: Reduction) -> tuple[Reduction, Reduction]:
    """The reduction, one of whose loops may be split, and the part of it that the first kernel computes: without a
    short inner loop, which is kept until the second kernel. Vectors run along it in the first one. Both are the same
    where no loop is left to a second kernel."""
    if count := _rows_at_once(reduction):
        *outer, rows, columns = reduction.extents
        reduction = replace(reduction, extents=[*outer, rows // count, count, columns],
                            reduced=[*reduction.reduced[:-2], True, True, False])
        return reduction, _rfactor(reduction, -2)
    if _is_late(reduction):
        first = _rfactor(reduction, -1)
        if not _is_written_out(reduction) or not _is_written_out(first) and _are_one(reduction, first.extents):
            return reduction, first
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


def _is_late(reduction: Reduction) -> bool:
    """Whether a short innermost loop is reduced at the end: until then it is part of the columns, which makes them
    wider. On a CPU the lanes of a vector are then combined once per result, not once per row."""
    rows = math.prod(n for n, gone in zip(reduction.extents[:-1], reduction.reduced) if gone)
    bytes_each = max(ELEMENT_TYPES[t].bytes for _, _, t in reduction.accumulators)
    most = SHORT_BYTES // bytes_each if rows >= OFTEN else SHORT_INNER
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
    def emit(builder: Builder, counters: tuple[Index, ...]) -> None:
        point_values(replace(reduction, extents=extents), Outline(reduction.group, builder), list(counters))
    return loops.refine(extents, emit)[0] == extents
