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
from hloc.kernels.elemental.column_hoisting import with_blocks_of_rows
from hloc.kernels.elemental.loop_collapsing import LANES, LONGEST, with_collapsed_rows
from hloc.kernels.elemental.row_fission import with_row_fission
from hloc.kernels.elemental.tiling import find_tiling, tiled_nest
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import VECTOR, Cost
from hloc.kernels.rules.elementwise import ELEMENTWISE_RULES
from hloc.machine import Machine

FEWEST_ROWS, LONGEST_ROW = 64, 16       # of a concatenate with unrolled rows, and their elements at most,
LONGEST_PIECE = 2                       # in such short pieces
SHORTEST, SHORTEST_NARROW = 4, 16       # loops over such rows; shorter ones are one loop, with divisions

Emit = Callable[[Outline, tuple[Index, ...]], None]        # stores the elements at one point


def lower_loop(group: Group, machine: Machine) -> Lowered:
    """The kernels of a group whose roots all have as many elements as the first."""
    root = group.roots[0]
    total = root.shape.num_elements
    if any(r.shape.is_tuple for r in group.roots):
        raise UnsupportedError(f"'{root.opcode}' with several results cannot be compiled", group.instruction.span)
    if any(r.shape.num_elements != total for r in group.roots):
        return Lowered(tuple(c for leaf in range(len(group.roots)) for c in _alone(group, machine, leaf)))
    if total == 0:
        return Lowered(())
    if len(group.roots) == 1 and root.opcode == "concatenate" and root not in group.parameters:
        calls = _pieces(group, root, machine)
    else:
        calls = (loop_kernel(group, machine, root.shape.dimensions, store_roots),)
    return Lowered(calls, can_share=tuple(shareable(group)))


def _alone(group: Group, machine: Machine, leaf: int) -> tuple[KernelCall, ...]:
    """One root in a kernel of its own, if the roots differ in size."""
    root = group.roots[leaf]

    def emit(outline: Outline, index: tuple[Index, ...]) -> None:
        outline.store(leaf, indexing.linearize(index, root.shape.dimensions), outline.elements.value(root, index))
    return (loop_kernel(group, machine, root.shape.dimensions, emit),) if root.shape.num_elements else ()


def loop_kernel(group: Group, machine: Machine, dimensions: tuple[int, ...], emit: Emit,
                suffix: str = "") -> KernelCall:
    """A kernel that runs emit(outline, indices) at every point of a space of these dimensions."""
    extents, trial = loops.factors(dimensions, lambda builder, index: emit(Outline(group, builder), index))

    def point(builder: Builder, counters: tuple[Index, ...]) -> None:
        emit(Outline(group, builder), indexing.delinearize(indexing.linearize(counters, extents), dimensions))
    outline = Outline(group)
    tiling = find_tiling(extents, trial, outline) if machine.kind == "cpu" else None
    if machine.kind == "cpu" and not tiling and loops.has_short_columns(extents, trial) and \
            loops.whole_columns(extents)[-1] % LANES == 0:
        tabled = _with_whole_columns(group, machine, dimensions, emit, suffix, loops.whole_columns(extents), trial)
        if tabled is not None:
            return tabled
    halves = _holds_halves(group)
    width = loops.neighbours(extents, trial, point, halves) if machine.kind == "cpu" and not tiling else 1
    if machine.kind == "cpu" and not tiling and (width == 1 or (halves and not trial.guards)):
        joined = _with_collapsed_rows(group, machine, dimensions, emit, suffix, extents, trial)
        if joined is not None:
            return joined
    if width > 1:
        outline.share_broadcasts()
    beside = len(extents) - 1 if width > 1 else None            # the loop that is unrolled
    if width == 1 and not tiling and machine.kind == "cpu":
        beside = loops.interleaved(extents, trial)
        width = 1 if beside is None else extents[beside]
    # gcc 12 confuses the conditions of adjacent loads, each under its own one
    outline.builder.loads_first = width > 1
    walked = [n for d, n in enumerate(extents) if d != beside]
    with tiled_nest(outline, tiling) if tiling else loops.nest(outline.builder, walked, machine) as counters:
        for place in range(width):
            own = counters if beside is None else (*counters[:beside], indexing.constant(place), *counters[beside:])
            emit(outline, indexing.delinearize(indexing.linearize(own, extents), dimensions))
    call = outline.finish(suffix, cost_of(outline, math.prod(dimensions), trial))
    if machine.kind != "cpu":
        return call
    kernel = with_row_fission(call.loops)
    return call._replace(kernel=with_blocks_of_rows(kernel, machine.cores) or kernel)


def _with_whole_columns(group: Group, machine: Machine, dimensions: tuple[int, ...], emit: Emit, suffix: str,
                        extents: list[int], trial: Builder) -> KernelCall | None:
    """The kernel with short innermost loops joined, where what they would divide for goes into tables."""
    outline = Outline(group)
    with loops.parallel(outline.builder, extents[:-1]) as counters, outline.builder.loop(extents[-1], VECTOR) as last:
        emit(outline, indexing.delinearize(indexing.linearize((*counters, last), extents), dimensions))
    call = outline.finish(suffix, cost_of(outline, math.prod(dimensions), trial))
    kernel = with_blocks_of_rows(call.loops, machine.cores)
    return call._replace(kernel=kernel) if kernel is not None else None


def _holds_halves(group: Group) -> bool:
    """Whether f16 is read or written, which is vectorized only if it is contiguous."""
    return any(i.shape.is_array and i.shape.element_type == "f16" for i in (*group.parameters, *group.roots))


def _with_collapsed_rows(group: Group, machine: Machine, dimensions: tuple[int, ...], emit: Emit, suffix: str,
                    extents: list[int], trial: Builder) -> KernelCall | None:
    """The kernel with short innermost loops joined, where what these share goes into tables."""
    if len(extents) < 2 or extents[-1] > LONGEST:
        return None
    outline = Outline(group)
    with loops.nest(outline.builder, extents, machine) as counters:
        emit(outline, indexing.delinearize(indexing.linearize(counters, extents), dimensions))
    call = outline.finish(suffix, cost_of(outline, math.prod(dimensions), trial))
    kernel = with_collapsed_rows(call.loops)
    return call._replace(kernel=kernel) if kernel is not None else None


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
    rows = math.prod(root.shape.dimensions[:dimension])
    if is_in_pieces(root):
        return tuple(_piece(group, root, machine, dimension, p, s) for p, s in pieces)
    length = math.prod(root.shape.dimensions[dimension:])
    longest = max(math.prod(p.shape.dimensions[dimension:]) for p, _ in pieces)
    if machine.kind == "cpu" and rows >= FEWEST_ROWS and length <= LONGEST_ROW and longest <= LONGEST_PIECE:
        return (_pieces_of_rows(group, root, dimension, pieces, rows, machine),)
    flat: list[KernelCall] = []
    if machine.kind == "cpu" and rows >= FEWEST_ROWS:
        calls = {(p, s): _flat_piece(group, root, machine, dimension, p, s) for p, s in pieces}
        flat = [call for call in calls.values() if call is not None]
        pieces = [piece for piece in pieces if calls[piece] is None]
    together = [pieces[n:n + PIECES_TOGETHER] for n in range(0, len(pieces), PIECES_TOGETHER)]
    return (*flat, *(_joined_pieces(group, root, dimension, some, rows) for some in together))


def _flat_piece(group: Group, root: Instruction, machine: Machine, dimension: int, piece: Instruction,
                start: int) -> KernelCall | None:
    """A kernel of one piece, whose rows are computed as one long one; None where that gains nothing."""
    if math.prod(piece.shape.dimensions[dimension:]) > LONGEST:
        return None
    emit = _emit_piece(root, dimension, piece, start)
    extents, trial = loops.factors(piece.shape.dimensions, lambda b, index: emit(Outline(group, b), index))
    return _with_collapsed_rows(group, machine, piece.shape.dimensions, emit, "", extents, trial)


def _pieces_of_rows(group: Group, root: Instruction, dimension: int, pieces: list[tuple[Instruction, int]], rows: int,
                    machine: Machine) -> KernelCall:
    """Loops over many rows of a few elements, which are unrolled: vectors run along the rows."""
    width, length = (math.prod(root.shape.dimensions[d:]) for d in (dimension + 1, dimension))

    def emit(outline: Outline, row: Index) -> None:
        for piece, start in pieces:
            for place in range(math.prod(piece.shape.dimensions[dimension:])):
                value = outline.elements.value(piece, _piece_index(piece, dimension, row, indexing.constant(place)))
                at = indexing.shift(indexing.scale(row, length), start * width + place)
                outline.store(0, at, value)
    extents, _, _ = loops.refine([rows], lambda builder, counters, extents: emit(
        Outline(group, builder), indexing.linearize(counters, extents)))
    outline = Outline(group)
    outline.builder.loads_first = True
    is_narrow = ELEMENT_TYPES[root.shape.element_type].bytes < 4
    walked = extents if extents[-1] >= (SHORTEST_NARROW if is_narrow else SHORTEST) else [rows]
    with loops.nest(outline.builder, walked, machine) as counters:
        emit(outline, indexing.linearize(counters, walked))
    _, trial = _piece_loops(group, dimension, pieces[0][0], rows)
    return outline.finish(cost=cost_of(outline, root.shape.num_elements, trial))


def _piece(group: Group, root: Instruction, machine: Machine, dimension: int, piece: Instruction,
           start: int) -> KernelCall:
    """One row's piece is memory of its own, so that all of them may be written at the same time."""
    width = ELEMENT_TYPES[root.shape.element_type].bytes
    rows, *length = math.prod(root.shape.dimensions[:dimension]), *root.shape.dimensions[dimension + 1:]
    first, size = (n * math.prod(length) * width for n in (start, piece.shape.dimensions[dimension]))
    if rows > 1 or first % ALIGNMENT:
        return loop_kernel(group, machine, piece.shape.dimensions, _emit_piece(root, dimension, piece, start))

    def emit(outline: Outline, index: tuple[Index, ...]) -> None:
        value = outline.elements.value(piece, index)
        outline.store(0, indexing.linearize(index, piece.shape.dimensions), value)
    call = loop_kernel(group, machine, piece.shape.dimensions, emit)
    buffers = tuple(b._replace(size=piece.shape.num_elements) if a.kind == "result" else b
                    for b, a in zip(call.kernel.buffers, call.arguments))
    places = tuple(a._replace(part=(first, size)) if a.kind == "result" else a for a in call.arguments)
    return KernelCall(call.kernel._replace(buffers=buffers), places)


def _emit_piece(root: Instruction, dimension: int, piece: Instruction, start: int) -> Emit:
    def emit(outline: Outline, index: tuple[Index, ...]) -> None:
        moved = (*index[:dimension], indexing.shift(index[dimension], start), *index[dimension + 1:])
        value = outline.elements.value(piece, index)
        outline.store(0, indexing.linearize(moved, root.shape.dimensions), value)
    return emit


def _joined_pieces(group: Group, root: Instruction, dimension: int, pieces: list[tuple[Instruction, int]],
                   rows: int) -> KernelCall:
    """PARALLEL over the dimensions before the joined one; in it one loop after the other, piece by piece."""
    outline = Outline(group)
    b = outline.builder
    trials = [_piece_loops(group, dimension, piece, rows) for piece, _ in pieces]
    with loops.parallel(b, [rows]) as (row,):
        for (piece, start), (extents, _) in zip(pieces, trials):
            with ExitStack() as stack:
                counters = [stack.enter_context(b.loop(n)) for n in extents[:-1]]
                counters.append(stack.enter_context(b.loop(extents[-1], VECTOR)))
                inner = indexing.linearize(counters, extents)
                value = outline.elements.value(piece, _piece_index(piece, dimension, row, inner))
                width = math.prod(root.shape.dimensions[dimension + 1:])
                place = indexing.shift(inner, start * width)
                length = root.shape.dimensions[dimension] * width
                outline.store(0, indexing.add(indexing.scale(row, length), place), value)
    return outline.finish(cost=cost_of(outline, sum(p.shape.num_elements for p, _ in pieces), trials[0][1]))


def _piece_index(piece: Instruction, dimension: int, row: Index, inner: Index) -> tuple[Index, ...]:
    sizes = piece.shape.dimensions
    return (*indexing.delinearize(row, sizes[:dimension]), *indexing.delinearize(inner, sizes[dimension:]))


def _piece_loops(group: Group, dimension: int, piece: Instruction, rows: int) -> tuple[list[int], Builder]:
    """The loops that one piece needs within a row."""
    def emit(builder: Builder, counters: tuple[Index, ...], extents: list[int]) -> None:
        position = indexing.linearize(counters, extents)
        columns = math.prod(piece.shape.dimensions[dimension:])
        row, inner = indexing.floor_divide(position, columns), indexing.modulo(position, columns)
        Outline(group, builder).elements.value(piece, _piece_index(piece, dimension, row, inner))
    extents, origins, trial = loops.refine([rows, math.prod(piece.shape.dimensions[dimension:])], emit)
    return extents[origins.count(0):], trial


def shareable(group: Group, stops: tuple[Instruction, ...] = ()) -> Iterator[tuple[int, int, int]]:
    """(result leaf, operand, 0) for operands read only at the element that is written: the result may lie there.

    stops: instructions that are finished before anything is written, and read what they like at other places."""
    moved = moved_parameters(group, stops)
    for leaf, root in enumerate(group.roots):
        for parameter, number in group.parameters.items():
            if parameter not in moved and same_bytes(parameter, root):
                yield leaf, number, 0


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
