"""Reshapes of arrays with dynamic dimensions: elements within the sizes keep their order, so their indices may change.

    f32[2,<=4] of size 3  ->  f32[<=8] of size 6:    element k is at (k / 3, k % 3) of the operand, whose offset
                                                     in memory is 4 * (k / 3) + k % 3
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from hloc.ir import Instruction
from hloc.passes.dynamic_padder.padded import Padded, static

if TYPE_CHECKING:
    from hloc.passes.dynamic_padder.walk import Walk


def reshape(w: Walk, i: Instruction) -> Padded | Instruction:
    x = w.operand(i, 0)
    old, new = x.array.shape.dimensions, i.shape.dimensions
    kept = [d for d, n in enumerate(old) if n != 1 or x.sizes[d] is not None]
    flags = i.shape.dynamic_dimensions or (False,) * i.shape.rank
    placed = [d for d, n in enumerate(new) if n != 1 or flags[d]]
    if [old[d] for d in kept] == [new[d] for d in placed]:
        return w.sized(i, plain(w, i, x), {d: x.sizes[k] for d, k in zip(placed, kept)})
    unknown = [d for d, flag in enumerate(flags) if flag]
    if len(unknown) > 1:
        raise w.refuse(i, "to several dynamic dimensions at once")
    total = w.e.product([w.e.size(x, d) for d in range(x.rank)])
    sizes = [w.e.number(n) for n in new]
    if unknown:
        rest = max(1, i.shape.num_elements // max(1, new[unknown[0]]))
        sizes[unknown[0]] = w.e.over(total, rest)
    return moved(w, i, x, sizes)


def dynamic_reshape(w: Walk, i: Instruction) -> Padded | Instruction:
    operands = w.operands(i)
    return moved(w, i, operands[0], [w.e.convert(s.array, "s32") for s in operands[1:]])


def plain(w: Walk, i: Instruction, x: Padded) -> Instruction:
    return w.e.op("reshape", x.array, shape=static(i.shape).with_default_layout())


def moved(w: Walk, i: Instruction, x: Padded, sizes: list[Instruction]) -> Padded | Instruction:
    """Each element of the result, gathered from its index in the operand."""
    e, new = w.e, i.shape.dimensions
    sizes = [s if f else e.number(n) for s, n, f in zip(sizes, new, i.shape.dynamic_dimensions or (False,) * len(new))]
    if x.array.shape.num_elements == 0 or i.shape.num_elements == 0:
        return w.sized(i, e.full(0, i.shape.with_dimensions(new)), dict(enumerate(sizes)))
    number, step = e.full(0, x.array.shape.with_element_type("s32").with_dimensions(new)), e.number(1)
    for d in reversed(range(len(new))):
        place = e.iota("s32", new, d)
        number = e.op("add", number, e.op("multiply", place, e.spread(step, place.shape)))
        step = e.op("multiply", step, sizes[d])
    position, stride = None, 1
    for d in reversed(range(x.rank)):
        size = e.spread(e.at_least(e.size(x, d), 1), number.shape)
        part = e.op("multiply", e.op("remainder", number, size), e.like(stride, number))
        number = e.op("divide", number, size)
        position = part if position is None else e.op("add", position, part)
        stride *= x.array.shape.dimensions[d]
    if position is None:
        position = number
    flat = e.reshape(x.array, x.array.shape.num_elements)
    count = i.shape.num_elements
    taken = e.op("gather", flat, e.reshape(position, count, 1), offset_dims=(), collapsed_slice_dims=(0,),
                 start_index_map=(0,), index_vector_dim=1, slice_sizes=(1,))
    return w.sized(i, e.reshape(taken, *new), dict(enumerate(sizes)))
