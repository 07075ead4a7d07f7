"""Rules for ops that only move elements: reshape, transpose, broadcast, iota and reverse."""
from __future__ import annotations

import math

from hloc.ir import Instruction, Shape
from hloc.ops.table import OPS
from hloc.passes.patterns import reshape, scalar_source, spread, without_ones
from hloc.passes.rewriter import Rewriter

MOST_STACKED = 8                # elements of a concatenated row

# -- reshape ---------------------------------------------------------------------------------------------------------


def reshape_to_same(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reshape(x) => x of the same dimensions"""
    x = instruction.operands[0]
    return x if x.shape.dimensions == instruction.shape.dimensions else None


def reshape_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reshape(reshape(x)) => reshape(x)"""
    x = instruction.operands[0]
    return rewriter.change(instruction, operands=x.operands) if x.opcode == "reshape" else None


def reshape_of_broadcast(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reshape(broadcast(x)) => broadcast(x) if the reshape keeps the dimensions of x"""
    inner = instruction.operands[0]
    if inner.opcode != "broadcast":
        return None
    x = inner.operands[0]
    if not x.shape.dimensions:
        return rewriter.add("broadcast", instruction.shape, [x], {"dimensions": ()})
    groups = reshape_groups(inner.shape.dimensions, instruction.shape.dimensions)
    dimensions = []
    kept = []
    for dimension, size in zip(inner.get("dimensions"), x.shape.dimensions):
        if size == 1:
            continue
        target = single_image(groups, inner.shape.dimensions, instruction.shape.dimensions, dimension)
        if target is None:
            return None
        dimensions.append(target)
        kept.append(size)
    x = reshape(rewriter, x, x.shape.with_dimensions(kept))
    return rewriter.add("broadcast", instruction.shape, [x], {"dimensions": tuple(dimensions)})


def reshape_groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[range, range]]:
    """The finest pairs of dimension ranges, in order, that a reshape maps onto each other: [6,4] -> [2,3,4] gives
    (0:1, 0:2), (1:2, 2:3). Both shapes have the same number of elements, none zero."""
    groups = []
    i = j = 0
    while i < len(before) or j < len(after):
        start_i, start_j = i, j
        a = b = 1
        if i < len(before):
            a, i = before[i], i + 1
        if j < len(after):
            b, j = after[j], j + 1
        while a != b:
            if (a < b or j == len(after)) and i < len(before):
                a, i = a * before[i], i + 1
            elif j < len(after):
                b, j = b * after[j], j + 1
            else:
                return []
        groups.append((range(start_i, i), range(start_j, j)))
    return groups


def single_image(groups: list[tuple[range, range]], before: tuple[int, ...], after: tuple[int, ...],
                 dimension: int) -> int | None:
    """The dimension of `after` that equals `dimension` of `before`, ignoring dimensions of size 1, or None."""
    for source, target in groups:
        if dimension in source:
            if any(before[d] != 1 for d in source if d != dimension):
                return None
            images = [d for d in target if after[d] != 1]
            return images[0] if len(images) == 1 else None
    return None


def reshape_of_iota(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reshape(iota) => iota if the reshape keeps the counting dimension"""
    iota = instruction.operands[0]
    if iota.opcode != "iota":
        return None
    before, after = iota.shape.dimensions, instruction.shape.dimensions
    target = single_image(reshape_groups(before, after), before, after, iota.get("iota_dimension"))
    return None if target is None else rewriter.add("iota", instruction.shape, (), {"iota_dimension": target})


# -- transpose -------------------------------------------------------------------------------------------------------


def transpose_by_nothing(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """transpose(x) => x if no dimension moves"""
    order = instruction.get("dimensions")
    return instruction.operands[0] if order == tuple(range(len(order))) else None


def transpose_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """transpose(transpose(x)) => transpose(x)"""
    inner = instruction.operands[0]
    if inner.opcode != "transpose":
        return None
    order = tuple(inner.get("dimensions")[d] for d in instruction.get("dimensions"))
    return rewriter.change(instruction, operands=inner.operands, dimensions=order)


def transpose_of_ones(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """transpose(x) => reshape(x) if only dimensions of size 1 move"""
    x = instruction.operands[0]
    moved = [d for d in instruction.get("dimensions") if x.shape.dimensions[d] != 1]
    return rewriter.add("reshape", instruction.shape, [x]) if moved == sorted(moved) else None


def transpose_of_broadcast(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """transpose(broadcast(x)) => broadcast(x), or broadcast(transpose(x)) of the smaller x"""
    inner = instruction.operands[0]
    if inner.opcode != "broadcast":
        return None
    x = inner.operands[0]
    place = {old: new for new, old in enumerate(instruction.get("dimensions"))}
    return broadcast_in_order(rewriter, x, [place[d] for d in inner.get("dimensions")], instruction.shape)


def broadcast_in_order(rewriter: Rewriter, x: Instruction, dimensions: list[int], shape: Shape) -> Instruction:
    """broadcast(x) with increasing dimensions: x is transposed first if they are not increasing."""
    if dimensions != sorted(dimensions):
        order = sorted(range(len(dimensions)), key=dimensions.__getitem__)
        x = rewriter.add("transpose", x.shape.with_dimensions(x.shape.dimensions[o] for o in order), [x],
                         {"dimensions": tuple(order)})
        dimensions = sorted(dimensions)
    return rewriter.add("broadcast", shape, [x], {"dimensions": tuple(dimensions)})


def transpose_of_iota(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """transpose(iota) => iota"""
    iota = instruction.operands[0]
    if iota.opcode != "iota":
        return None
    dimension = instruction.get("dimensions").index(iota.get("iota_dimension"))
    return rewriter.add("iota", instruction.shape, (), {"iota_dimension": dimension})


def transpose_of_concatenate(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """transpose(concatenate(x, y)) => concatenate(reshape(x), reshape(y)) of a few rows that become columns, if the
    elements of x and of y keep their order. Stacked coordinates, as of cross products, are then written row by row"""
    inner, order = instruction.operands[0], instruction.get("dimensions")
    if inner.opcode != "concatenate" or rewriter.uses(inner) != 1:
        return None
    [along] = inner.get("dimensions")
    moved = [[d for d in order if x.shape.dimensions[d] != 1] for x in inner.operands]
    if order[-1] != along or inner.shape.dimensions[along] > MOST_STACKED or any(m != sorted(m) for m in moved):
        return None
    pieces = [rewriter.add("reshape", x.shape.with_dimensions(x.shape.dimensions[d] for d in order), [x])
              for x in inner.operands]
    return rewriter.add("concatenate", instruction.shape, pieces, {"dimensions": (len(order) - 1,)})


# -- broadcast -------------------------------------------------------------------------------------------------------


def broadcast_to_same(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """broadcast(x) => x of the same dimensions, => transpose(x) if they are permuted"""
    x = instruction.operands[0]
    dimensions = instruction.get("dimensions")
    if len(dimensions) != instruction.shape.rank:
        return None
    if dimensions == tuple(range(len(dimensions))):
        return x if x.shape.dimensions == instruction.shape.dimensions else None
    order = tuple(dimensions.index(d) for d in range(len(dimensions)))
    return rewriter.add("transpose", instruction.shape, [x], {"dimensions": order})


def broadcast_of_ones(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """broadcast(x) => reshape(x) if it adds only dimensions of size 1"""
    x = instruction.operands[0]
    dimensions = instruction.get("dimensions")
    if dimensions != tuple(sorted(dimensions)) or x.shape.num_elements != instruction.shape.num_elements:
        return None
    if without_ones(x.shape.dimensions) != without_ones(instruction.shape.dimensions):
        return None
    return rewriter.add("reshape", instruction.shape, [x])


def broadcast_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """broadcast(broadcast(x)) => broadcast(x)"""
    inner = instruction.operands[0]
    if inner.opcode != "broadcast":
        return None
    dimensions = tuple(instruction.get("dimensions")[d] for d in inner.get("dimensions"))
    return rewriter.change(instruction, operands=inner.operands, dimensions=dimensions)


def broadcast_of_reshaped_ones(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """broadcast(reshape(x)) => broadcast(x) if the reshape only adds dimensions of size 1"""
    inner = instruction.operands[0]
    if inner.opcode != "reshape":
        return None
    x = inner.operands[0]
    if 1 in x.shape.dimensions or x.shape.dimensions != without_ones(inner.shape.dimensions) \
            or x.shape.rank == inner.shape.rank:
        return None
    dimensions = tuple(d for d, size in zip(instruction.get("dimensions"), inner.shape.dimensions) if size != 1)
    return rewriter.change(instruction, operands=[x], dimensions=dimensions)


def broadcast_of_iota(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """broadcast(iota) => iota"""
    iota = instruction.operands[0]
    if iota.opcode != "iota":
        return None
    dimension = instruction.get("dimensions")[iota.get("iota_dimension")]
    if iota.shape.dimensions[iota.get("iota_dimension")] != instruction.shape.dimensions[dimension]:
        return None
    return rewriter.add("iota", instruction.shape, (), {"iota_dimension": dimension})


def sink_broadcasts(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """op(broadcast(x), broadcast(y)) => broadcast(op(x, y)) for elementwise op and equal dimensions; a broadcast
    scalar, like broadcast(constant), matches all dimensions"""
    operands = instruction.operands
    sources = [o.operands[0] if o.opcode == "broadcast" else o for o in operands]
    wide = None
    for operand, source in zip(operands, sources):
        if operand is source or not source.shape.dimensions:
            if source.shape.dimensions:
                return None
        elif wide is None:
            wide = operand
        elif operand.get("dimensions") != wide.get("dimensions") \
                or source.shape.dimensions != wide.operands[0].shape.dimensions:
            return None
    small = wide.operands[0].shape.dimensions if wide else ()
    if math.prod(small) >= instruction.shape.num_elements:
        return None
    shape = instruction.shape.with_dimensions(small)
    inner = [spread(rewriter, source, shape) for source in sources]
    new = rewriter.change(instruction, operands=inner, shape=shape, sharding=None)
    return rewriter.add("broadcast", instruction.shape, [new], {"dimensions": wide.get("dimensions") if wide else ()})


# -- iota, reverse ---------------------------------------------------------------------------------------------------


def iota_of_one(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """iota => broadcast(constant(0)) along a dimension of size 1"""
    if instruction.shape.dimensions[instruction.get("iota_dimension")] != 1:
        return None
    return spread(rewriter, rewriter.constant(0, instruction.shape.element_type), instruction.shape)


def reverse_of_nothing(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reverse(x) => x if the reversed dimensions have size 1 or x is a broadcast scalar"""
    x = instruction.operands[0]
    if all(x.shape.dimensions[d] == 1 for d in instruction.get("dimensions")):
        return x
    return x if scalar_source(x) is not None else None


def reverse_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reverse(reverse(x)) => reverse(x), or x if both reverse the same dimensions"""
    inner = instruction.operands[0]
    if inner.opcode != "reverse":
        return None
    left = set(instruction.get("dimensions")) ^ set(inner.get("dimensions"))
    if not left:
        return inner.operands[0]
    return rewriter.change(instruction, operands=inner.operands, dimensions=tuple(sorted(left)))


ELEMENTWISE = tuple(op.opcode for op in OPS.values() if op.is_elementwise)
RULES = {
    "reshape": (reshape_to_same, reshape_twice, reshape_of_broadcast, reshape_of_iota),
    "transpose": (transpose_by_nothing, transpose_twice, transpose_of_ones, transpose_of_broadcast, transpose_of_iota,
                  transpose_of_concatenate),
    "broadcast": (broadcast_to_same, broadcast_of_ones, broadcast_twice, broadcast_of_reshaped_ones,
                  broadcast_of_iota),
    "iota": (iota_of_one,),
    "reverse": (reverse_of_nothing, reverse_twice),
    **dict.fromkeys(ELEMENTWISE, (sink_broadcasts,)),
}
