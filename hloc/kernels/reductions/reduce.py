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
from hloc.kernels.reductions.pieces import Cut, best_cuts, seconds_on_one_core
from hloc.kernels.reductions.reduction import Reduction, point_values, start, store_results
from hloc.kernels.rules.loops import element_types
from hloc.machine import Machine

LATE_BYTES, OFTEN = 512, 8       # of sums of one row that are kept until the end; rows that each of them is a sum of
VECTOR_LANES, FEWEST_LANES = 16, 32


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
    reduction.work = trial.work
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
    kind = ArgmaxNest if first is reduction and is_argmax(reduction) else Nest
    return reduction, kind(first, outline, machine)


def _lowered(reduction: Reduction, nest: Nest) -> Lowered:
    """One kernel; or partial results go to scratch buffers, and are joined: on a GPU by the last team that finishes
    with a group of results, or else by a second kernel, which also reduces loops that the first one keeps."""
    first, by_blocks = nest.outline, isinstance(nest, BlockNest)
    store = partial(store_results, reduction, first)
    if nest.reduction is reduction and not nest.cuts:
        nest.emit(store)
        return Lowered((first.finish(cost=_cost(reduction, first)),))
    by_lanes = nest.machine.kind == "gpu" and nest.has_lanes and not by_blocks
    inner = 1 + max(n for n, gone in enumerate(nest.reduction.reduced) if gone)
    loops = [(extent, gone) for n, (extent, gone) in enumerate(zip(reduction.extents, reduction.reduced))
             if n >= inner or not gone]
    loops.insert(len(loops) if by_lanes else 0, (nest.pieces, True))
    joining = replace(reduction, extents=[n for n, _ in loops], reduced=[gone for _, gone in loops])
    types, size = [t for _, _, t in reduction.accumulators], math.prod(joining.extents)

    def keep(position: Index, totals: list[Expr]) -> None:
        place = indexing.add(indexing.scale(position, nest.pieces), nest.piece) if by_lanes else \
            indexing.add(indexing.scale(nest.piece, size // nest.pieces), position)
        for k, (type, total) in enumerate(zip(types, totals)):
            first.builder.store(first.scratch_buffer(k, type, size, "write"), place, total)
    late = [Cut(n, reduction.extents[n], 1) for n, gone in enumerate(reduction.reduced) if gone and n >= inner]
    steps, scratch = " ".join(map(str, (*late, *nest.cuts))), tuple(size * ELEMENT_TYPES[t].bytes for t in types)
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
    def partials(counters: list[Index]) -> list[list[Expr]]:
        position = indexing.linearize(counters, joining.extents)
        loaded = iter([outline.builder.load(f"scratch{k}", t, position)
                       for k, (_, _, t) in enumerate(joining.accumulators)])
        return [[next(loaded) for _ in element_types(r)] for r in joining.reduces]
    return partials


def _cost(reduction: Reduction, outline: Outline) -> Cost:
    points = math.prod(reduction.extents)
    return Cost(cost_of(outline, points, outline.builder).bytes, round(max(1.0, reduction.work) * points))


# -- loops that are kept until the end ---------------------------------------------------------------------------------

def _rfactored(reduction: Reduction) -> tuple[Reduction, Reduction]:
    """The reduction, one of whose loops may be split, and the part of it that the first kernel computes: where the
    innermost loops are short, those that are reduced are kept until the second kernel, or of the outermost one a part.
    Vectors run along all of them in the first one. Both are the same where that does not make vectors."""
    r, n, width = reduction, len(reduction.extents), 1
    if r.has_loops or not all(map(r.monoid, r.reduces)):
        return reduction, reduction
    most = LATE_BYTES // max(ELEMENT_TYPES[t].bytes for _, _, t in r.accumulators)
    while n and (width < FEWEST_LANES or all(r.reduced[n:])):
        n -= 1
        rows = r.extents[n]
        if r.reduced[n] and (True not in r.reduced[:n] or width * rows > most):
            even = [k for k in range(1, min(most // width, rows // OFTEN) + 1) if rows % k == 0]
            count, n = max(even, key=lambda k: (k * width % VECTOR_LANES == 0, k), default=1), n + 1
            if count > 1:
                r = replace(r, extents=[*r.extents[:n - 1], rows // count, count, *r.extents[n:]],
                            reduced=[*r.reduced[:n], *r.reduced[n - 1:]])
            width *= count
            break
        width *= rows
    if r is not reduction and not _are_one(r, [*r.extents[:n], width]):
        r, width = reduction, width // r.extents[n]
    often = math.prod(extent for extent, gone in zip(r.extents[:n], r.reduced) if gone)
    if not any(r.reduced[n:]) or all(r.reduced[n:]) or width < VECTOR_LANES or True not in r.reduced[:n] \
            or often < OFTEN and r.extents[-1] >= VECTOR_LANES:
        return reduction, reduction
    kept = [*r.reduced[:n], *(False for _ in r.extents[n:])]
    if _are_one(r, joined := [*r.extents[:n], width]) or r.extents[-1] < VECTOR_LANES:
        return r, replace(r, extents=joined, reduced=kept[:n + 1])
    return r, replace(r, reduced=kept)


def _are_one(reduction: Reduction, extents: list[int]) -> bool:
    """Whether the elements' positions need no finer loops than these."""
    def emit(builder: Builder, counters: tuple[Index, ...]) -> None:
        point_values(replace(reduction, extents=extents), Outline(reduction.group, builder), list(counters))
    return loops.refine(extents, emit)[0] == extents
