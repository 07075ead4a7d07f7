"""Updates in place: dynamic-update-slice and scatter, alone or at the root of a fusion.

In: a group whose root is one of them and takes a parameter as operand 0. Out: one kernel over the updates; the result
starts as that operand's value (Lowered.in_place), the rest of it is not accessed.

Scatters are deterministic: updates that may write the same element run in order, in one loop; disjoint windows are
split into blocks of columns that run in parallel, and so are batches. Targets may split that loop. Updates whose window
does not fit are skipped, as HLO specifies.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from hloc.ir import Instruction
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elemental.loop import element_kernel, loop_kernel, lower_loop
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import INDEX, SERIAL, Apply, Const, Cost, Expr
from hloc.kernels.rules.indexing import add_batch, indices_position, start_indices, window_dimensions
from hloc.machine import Machine

WINDOW_BLOCK = 128          # columns of a scattered window that one thread owns


def lower_dynamic_update_slice(group: Group, machine: Machine) -> Lowered:
    """Write the updates into the operands' memory; a fused operand 0 makes it an ordinary loop over all elements.
    Several roots have updates of one shape."""
    targets = [root.operands[0] for root in group.roots]
    if any(t not in group.parameters or group.is_scalar_constant(t) for t in targets):
        return lower_loop(group, machine)
    in_place = tuple((leaf, group.parameters[t]) for leaf, t in enumerate(targets))
    if targets[0].shape.num_elements == 0 or group.roots[0].operands[1].shape.num_elements == 0:
        return Lowered((), in_place=in_place)
    return Lowered((update_kernel(group, machine, range(len(targets))),), in_place=in_place)


def update_kernel(group: Group, machine: Machine, leaves: Sequence[int], suffix: str = "") -> KernelCall:
    """The kernel of some roots, whose updates have one shape."""
    def emit(outline: Outline, index: tuple[Index, ...]) -> None:
        found = [(leaf, *_updated(outline, group.roots[leaf], index)) for leaf in leaves]
        for leaf, position, value in found:
            outline.builder.store(outline.result_buffer(leaf, "update"), position, value)
    return loop_kernel(group, machine, group.roots[leaves[0]].operands[1].shape.dimensions, emit, suffix)


def _updated(outline: Outline, root: Instruction, index: tuple[Index, ...]) -> tuple[Index, Expr]:
    """The position and the value of one element of an update."""
    operand, update = root.operands[:2]
    limits = [n - s for n, s in zip(operand.shape.dimensions, update.shape.dimensions)]
    starts = outline.elements.drive(start_indices(outline.elements, root.operands[2:], limits))
    where = [indexing.add(s, i) for s, i in zip(starts, index)]
    value = scalars.narrow(outline.elements.value(update, index), root.shape.element_type)
    return indexing.linearize(where, operand.shape.dimensions), value


# -- scatter -----------------------------------------------------------------------------------------------------------

def lower_scatter(group: Group, machine: Machine) -> Lowered:
    root = group.roots[0]
    count = len(root.operands) // 2
    targets, indices, updates = root.operands[:count], root.operands[count], root.operands[count + 1:]
    copies = tuple(element_kernel(group, machine, leaf, t, "_operand")        # before the updates change it
                   for leaf, t in enumerate(targets) if t not in group.parameters)
    in_place = tuple((leaf, group.parameters[t]) for leaf, t in enumerate(targets) if t in group.parameters)
    if updates[0].shape.num_elements == 0 or targets[0].shape.num_elements == 0:
        return Lowered(copies, in_place=in_place)
    return Lowered((*copies, _scatter_kernel(group, root, targets, indices, updates)), in_place=in_place)


def _scatter_kernel(group: Group, root: Instruction, targets: list[Instruction], indices: Instruction,
                    updates: list[Instruction]) -> KernelCall:
    """PARALLEL over batches and blocks of the window (over all updates where they are unique), SERIAL over the rest.

    A window longer than one along a scattered dimension meets others at other columns: one iteration does them all.
    """
    outline = Outline(group)
    shape = updates[0].shape.dimensions
    window = [d for d in range(len(shape)) if d in root.get("update_window_dims", ())]
    points = [d for d in range(len(shape)) if d not in window]
    together = points if root.get("unique_indices") else _batch_axes(root, indices, points)
    serial = [d for d in points if d not in together]
    inner = math.prod(shape[d] for d in window)
    sizes = _window_sizes(root, targets[0])
    shared = math.prod(shape[d] for d in serial) > 1 and any(
        sizes[d] > 1 for d in root.get("scatter_dims_to_operand_dims", ()))         # windows that may meet
    block = inner if shared else min(inner, WINDOW_BLOCK)
    b = outline.builder
    with ExitStack() as stack:
        opened = stack.enter_context(loops.parallel(b, [*(shape[d] for d in together), -(-inner // block)]))
        index: list[Index] = [indexing.ZERO] * len(shape)
        for d, counter in zip(together, opened):
            index[d] = counter
        for d in serial:
            index[d] = stack.enter_context(b.loop(shape[d], SERIAL))
        starts, conditions = _scatter_starts(outline, root, targets[0], indices, [index[d] for d in points])
        stack.enter_context(b.guard(conditions))
        if shared:                              # positions stay affine: GPUs share such updates by ranges of elements
            for d in window:
                index[d] = stack.enter_context(b.loop(shape[d], SERIAL))
        else:
            column = stack.enter_context(loops.block_loop(b, inner, block, opened[-1]))
            for d, i in zip(window, indexing.delinearize(column, [shape[d] for d in window])):
                index[d] = i
        _update(outline, root, targets, updates, starts, index)
    elements = math.prod(shape)
    return outline.finish(cost=Cost(elements * 12, elements * 4))


def _batch_axes(root: Instruction, indices: Instruction, points: list[int]) -> list[int]:
    """Update dimensions that run along batching dimensions: updates at different ones are disjoint."""
    vector = root.get("index_vector_dim", indices.shape.rank)
    batching = root.get("scatter_indices_batching_dims", ()) or ()
    places = [d for d in range(indices.shape.rank) if d != vector]
    return [point for point, place in zip(points, places) if place in batching]


def _scatter_starts(outline: Outline, root: Instruction, target: Instruction, indices: Instruction,
                    points: list[Index]) -> tuple[list[Index], list[Expr]]:
    """The start of an update's window in the target, and the conditions for it to fit."""
    b = outline.builder
    sizes = _window_sizes(root, target)
    starts = [indexing.ZERO] * target.shape.rank
    conditions: list[Expr] = []
    for component, d in enumerate(root.get("scatter_dims_to_operand_dims", ())):
        value = outline.elements.value(indices, indices_position(root, indices, points, component))
        position = b.let(scalars.to_index(value), "p")
        limit = target.shape.dimensions[d] - sizes[d]
        conditions.append(Apply("compare_ge", (position, Const(0, INDEX)), "pred"))
        conditions.append(Apply("compare_le", (position, Const(limit, INDEX)), "pred"))
        starts[d] = b.bind_index(position, 0, max(limit, 1))
    add_batch(starts, points, root, "input_batching_dims", "scatter_indices_batching_dims")
    return starts, conditions


def _window_sizes(root: Instruction, target: Instruction) -> list[int]:
    """Extent of one update along each dimension of the target."""
    update = root.operands[len(root.operands) // 2 + 1].shape.dimensions
    sizes = [1] * target.shape.rank
    for d, axis in zip(window_dimensions(target.shape.rank, root, "inserted_window_dims"),
                       root.get("update_window_dims", ())):
        sizes[d] = update[axis]
    return sizes


def _update(outline: Outline, root: Instruction, targets: list[Instruction], updates: list[Instruction],
            starts: list[Index], index: list[Index]) -> None:
    """results[where] = to_apply(results[where], updates[index])."""
    b = outline.builder
    where = list(starts)
    for d, axis in zip(window_dimensions(targets[0].shape.rank, root, "inserted_window_dims"),
                       root.get("update_window_dims", ())):
        where[d] = indexing.add(where[d], index[axis])
    position = indexing.linearize(where, targets[0].shape.dimensions)
    names = [outline.result_buffer(leaf, "update") for leaf in range(len(targets))]
    values = [outline.elements.value(u, index) for u in updates]
    old: list[Expr] = []
    for name, target in zip(names, targets):
        b.loaded.add(name)
        old.append(scalars.widen(b.load(name, target.shape.element_type, position)))
    with b.pinned(names):
        new = outline.elements.inline(root.get("to_apply"), [*old, *values], root)
        if len(new) > 1:
            new = [b.let(v) for v in new]
    for name, target, value in zip(names, targets, new):
        b.store(name, position, scalars.narrow(value, target.shape.element_type))
