"""Elementwise and data-moving kernels: one loop nest over the elements of the roots.

In: a kLoop fusion, or a lone instruction that has an element rule. Out: one kernel (several for a concatenate of many
pieces at the root). Loads widen narrow types, the results are stored once.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from hloc.analysis.fusible import PIECES_TOGETHER, is_in_pieces
from hloc.analysis.packing import ALIGNMENT
from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, loops
from hloc.kernels.builder import Builder
from hloc.kernels.elemental.tiling import find_tiling, tiled_nest
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import VECTOR, Cost
from hloc.kernels.rules.elementwise import ELEMENTWISE_RULES
from hloc.kernels.schedule.rules import MOST_AT_ONCE
from hloc.machine import Machine

Emit = Callable[[Outline, tuple[Index, ...]], None]        # stores the elements at one point


def lower_loop(group: Group, machine: Machine) -> Lowered:
    """The kernels of a group whose roots all have as many elements as the first."""
    root = group.roots[0]
    total = root.shape.num_elements
    if any(r.shape.is_tuple for r in group.roots):
        raise UnsupportedError(f"'{root.opcode}' with several results cannot be compiled", group.instruction.span)
    if any(r.shape.num_elements != total for r in group.roots):
        return Lowered(tuple(element_kernel(group, machine, leaf, r) for leaf, r in enumerate(group.roots)
                             if r.shape.num_elements))
    if total == 0:
        return Lowered(())
    if len(group.roots) == 1 and root.opcode == "concatenate" and root not in group.parameters:
        calls = _pieces(group, root, machine)
    else:
        calls = (loop_kernel(group, machine, root.shape.dimensions, store_roots),)
    return Lowered(calls, can_share=tuple(shareable(group)))


def element_kernel(group: Group, machine: Machine, leaf: int, node: Instruction, suffix: str = "") -> KernelCall:
    """A kernel that computes the elements of an instruction into a result of as many."""
    def emit(outline: Outline, index: tuple[Index, ...]) -> None:
        outline.store(leaf, indexing.linearize(index, node.shape.dimensions), outline.elements.value(node, index))
    return loop_kernel(group, machine, node.shape.dimensions, emit, suffix)


def loop_kernel(group: Group, machine: Machine, dimensions: tuple[int, ...], emit: Emit,
                suffix: str = "") -> KernelCall:
    """A kernel that runs emit(outline, indices) at every point of a space of these dimensions."""
    extents, trial = loops.factors(dimensions, lambda builder, index: emit(Outline(group, builder), index))
    outline, is_cpu = Outline(group), machine.kind == "cpu"
    tiling = find_tiling(extents, trial, outline) if is_cpu else None
    inner = loops.innermost(extents, trial) if is_cpu and not tiling else len(extents) - 1
    walked = [*extents[:inner], *extents[inner + 1:], extents[inner]]
    # gcc 12 confuses the conditions of adjacent loads, each under its own one
    outline.builder.loads_first = is_cpu and walked[-1] <= MOST_AT_ONCE
    with tiled_nest(outline, tiling) if tiling else loops.nest(outline.builder, walked, machine) as counters:
        own = (*counters[:inner], counters[-1], *counters[inner:-1])
        emit(outline, indexing.delinearize(indexing.linearize(own, extents), dimensions))
    return outline.finish(suffix, cost_of(outline, math.prod(dimensions), trial))


def cost_of(outline: Outline, points: int, trial: Builder) -> Cost:
    """Bytes of all buffers (reads at most one element a point), work on one point times points."""
    buffers, _ = outline.buffers()
    moved = sum(min(b.size, points) * ELEMENT_TYPES[b.type].bytes for b in buffers)
    return Cost(moved, round(trial.work * points))


def store_roots(outline: Outline, index: tuple[Index, ...]) -> None:
    """All values first, then the stores: a result may share the memory of an operand."""
    group = outline.group
    dimensions = group.roots[0].shape.dimensions
    flat = indexing.linearize(index, dimensions)
    values = []
    for root in group.roots:
        own = index if root.shape.dimensions == dimensions else indexing.delinearize(flat, root.shape.dimensions)
        values.append(outline.elements.value(root, own))
    outline.store_all(flat, values)


def _pieces(group: Group, root: Instruction, machine: Machine) -> tuple[KernelCall, ...]:
    """A concatenate: a loop per piece, without branches; in one kernel, or in several if rows are few and long."""
    dimension = root.get("dimensions")[0]
    starts, start = [], 0
    for piece in root.operands:
        starts.append((piece, start))
        start += piece.shape.dimensions[dimension]
    pieces = [(p, s) for p, s in starts if p.shape.num_elements]
    if is_in_pieces(root):
        return tuple(_piece(group, root, machine, dimension, p, s) for p, s in pieces)
    together = [pieces[n:n + PIECES_TOGETHER] for n in range(0, len(pieces), PIECES_TOGETHER)]
    return tuple(_joined_pieces(group, root, machine, dimension, some) for some in together)


def _piece(group: Group, root: Instruction, machine: Machine, dimension: int, piece: Instruction,
           start: int) -> KernelCall:
    """One row's piece is memory of its own, so that all of them may be written at the same time."""
    width = ELEMENT_TYPES[root.shape.element_type].bytes
    rows, *length = math.prod(root.shape.dimensions[:dimension]), *root.shape.dimensions[dimension + 1:]
    first, size = (n * math.prod(length) * width for n in (start, piece.shape.dimensions[dimension]))
    if rows == 1 and first % ALIGNMENT == 0:
        call = element_kernel(group, machine, 0, piece)
        buffers = tuple(b._replace(size=piece.shape.num_elements) if a.kind == "result" else b
                        for b, a in zip(call.kernel.buffers, call.arguments))
        places = tuple(a._replace(part=(first, size)) if a.kind == "result" else a for a in call.arguments)
        return KernelCall(call.kernel._replace(buffers=buffers), places)

    def emit(outline: Outline, index: tuple[Index, ...]) -> None:
        moved = (*index[:dimension], indexing.shift(index[dimension], start), *index[dimension + 1:])
        value = outline.elements.value(piece, index)
        outline.store(0, indexing.linearize(moved, root.shape.dimensions), value)
    return loop_kernel(group, machine, piece.shape.dimensions, emit)


def _joined_pieces(group: Group, root: Instruction, machine: Machine, dimension: int,
                   pieces: list[tuple[Instruction, int]]) -> KernelCall:
    """Loops over the dimensions before the joined one; in them one loop after the other, piece by piece."""
    outline = Outline(group)
    b = outline.builder
    rows, length, width = (math.prod(root.shape.dimensions[part]) for part in (
        slice(dimension), slice(dimension, None), slice(dimension + 1, None)))
    trials = [_piece_loops(group, dimension, piece, rows) for piece, _ in pieces]
    with loops.rows(b, [rows], loops.ELEMENT_BYTES * length, machine, VECTOR, loops.MOST_SHORT_ROWS) as (row,):
        for (piece, start), (extents, _) in zip(pieces, trials):
            with ExitStack() as stack:
                counters = [stack.enter_context(b.loop(n)) for n in extents[:-1]]
                counters.append(stack.enter_context(b.loop(extents[-1], VECTOR)))
                inner = indexing.linearize(counters, extents)
                value = outline.elements.value(piece, _piece_index(piece, dimension, row, inner))
                outline.store(0, indexing.add(indexing.scale(row, length), indexing.shift(inner, start * width)), value)
    return outline.finish(cost=cost_of(outline, sum(p.shape.num_elements for p, _ in pieces), trials[0][1]))


def _piece_index(piece: Instruction, dimension: int, row: Index, inner: Index) -> tuple[Index, ...]:
    sizes = piece.shape.dimensions
    return (*indexing.delinearize(row, sizes[:dimension]), *indexing.delinearize(inner, sizes[dimension:]))


def _piece_loops(group: Group, dimension: int, piece: Instruction, rows: int) -> tuple[list[int], Builder]:
    """The loops that one piece needs within a row."""
    def emit(builder: Builder, counters: tuple[Index, ...]) -> None:
        Outline(group, builder).elements.value(piece, _piece_index(piece, dimension, *counters))
    extents, origins, trial = loops.refine([rows, math.prod(piece.shape.dimensions[dimension:])], emit)
    return extents[origins.count(0):], trial


def shareable(group: Group, stops: tuple[Instruction, ...] = ()) -> Iterator[tuple[int, int]]:
    """(result leaf, operand) for operands read only at the element that is written: the result may lie there.

    stops: instructions that are finished before anything is written, and read what they like at other places."""
    moved = moved_parameters(group, stops)
    for leaf, root in enumerate(group.roots):
        for parameter, number in group.parameters.items():
            if parameter not in moved and same_bytes(parameter, root):
                yield leaf, number


def same_bytes(parameter: Instruction, root: Instruction) -> bool:
    """Both are arrays of as many elements of the same width."""
    shape = parameter.shape
    if not shape.is_array or shape.num_elements != root.shape.num_elements or shape.num_elements == 1:
        return False
    return ELEMENT_TYPES[shape.element_type].bytes == ELEMENT_TYPES[root.shape.element_type].bytes


def moved_parameters(group: Group, stops: tuple[Instruction, ...] = ()) -> set[Instruction]:
    """Parameters that some path reads at another position than the one being computed, or that a stop reads."""
    moved: set[Instruction] = set()
    seen: set[tuple[Instruction, bool]] = set()
    stack = [(root, root.shape.num_elements != group.roots[0].shape.num_elements) for root in group.roots]
    while stack:
        node, away = stack.pop()
        if (node, away) in seen:
            continue
        seen.add((node, away))
        if node in group.parameters and node is not group.instruction:
            if away:
                moved.add(node)
            continue
        away = away or node in stops or not keeps_place(node)
        stack.extend((operand, away) for operand in node.operands)
    return moved


def keeps_place(node: Instruction) -> bool:
    """The element at a flat position is computed from its operands' elements at the same position."""
    return node.opcode in ELEMENTWISE_RULES or node.opcode in (
        "reshape", "bitcast", "convert", "compare", "copy", "bitcast-convert", "reduce-precision", "map", "tuple")
