"""Rules for ops that take parts of arrays or join them: slice, dynamic-slice, pad and concatenate."""
from __future__ import annotations

from hloc.ir import Instruction, PaddingDim, SliceDim
from hloc.passes.patterns import full, scalar_source, splat, spread
from hloc.passes.rewriter import Rewriter

MOST_JOINED = 64                 # operands of a concatenate that joins another of few operands

# -- slice -----------------------------------------------------------------------------------------------------------


def slice_of_all(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """slice(x) => x if it takes the whole array"""
    x = instruction.operands[0]
    return x if x.shape.dimensions == instruction.shape.dimensions else None


def slice_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """slice(slice(x)) => slice(x)"""
    inner = instruction.operands[0]
    if inner.opcode != "slice":
        return None
    composed = tuple(
        SliceDim(i.start + o.start * i.stride, i.start + (o.limit - 1) * i.stride + 1, o.stride * i.stride)
        for i, o in zip(inner.get("slice"), instruction.get("slice")))
    if instruction.shape.num_elements == 0:
        return None
    return rewriter.change(instruction, operands=inner.operands, slice=composed)


def slice_of_broadcast(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """slice(broadcast(x)) => broadcast(x) if the dimensions of x are taken whole"""
    inner = instruction.operands[0]
    if inner.opcode != "broadcast":
        return None
    before, after = inner.shape.dimensions, instruction.shape.dimensions
    if any(before[d] != after[d] for d in inner.get("dimensions")):
        return None
    return rewriter.add("broadcast", instruction.shape, inner.operands, {"dimensions": inner.get("dimensions")})


def slice_of_reverse(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """slice(reverse(x)) => reverse(slice(x)): only the needed part is reversed"""
    turned = instruction.operands[0]
    if turned.opcode != "reverse" or instruction.shape.num_elements == 0:
        return None
    taken = list(instruction.get("slice"))
    for d in turned.get("dimensions"):
        start, _, stride = taken[d]
        last = turned.shape.dimensions[d] - 1 - start                # the index in x of the first element taken
        taken[d] = SliceDim(last - (instruction.shape.dimensions[d] - 1) * stride, last + 1, stride)
    part = rewriter.add("slice", instruction.shape, turned.operands, {"slice": tuple(taken)})
    return rewriter.change(turned, operands=[part], shape=instruction.shape, sharding=None)


def slice_of_pad(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """slice(pad(x, v)) => slice(x) if it takes only elements of x, => broadcast(v) if it takes none"""
    pad = instruction.operands[0]
    if pad.opcode != "pad" or instruction.shape.num_elements == 0:
        return None
    x, value = pad.operands
    taken = []
    for part, padding, size in zip(instruction.get("slice"), pad.get("padding"), x.shape.dimensions):
        if padding.interior:
            return None
        start, limit = part.start - padding.low, part.limit - padding.low
        if limit <= 0 or start >= size:
            return spread(rewriter, value, instruction.shape)
        if start < 0 or limit > size:
            return None
        taken.append(SliceDim(start, limit, part.stride))
    return rewriter.change(instruction, operands=[x], slice=tuple(taken))


def slice_of_concatenate(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """slice(concatenate(x, y, ...)) => slice(x) if it takes elements of only one operand"""
    joined = instruction.operands[0]
    if joined.opcode != "concatenate" or instruction.shape.num_elements == 0:
        return None
    along = joined.get("dimensions")[0]
    part = instruction.get("slice")[along]
    offset = 0
    for piece in joined.operands:
        size = piece.shape.dimensions[along]
        if part.start >= offset and part.limit <= offset + size:
            taken = list(instruction.get("slice"))
            taken[along] = SliceDim(part.start - offset, part.limit - offset, part.stride)
            return rewriter.change(instruction, operands=[piece], slice=tuple(taken))
        offset += size
    return None


def slice_of_iota(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """slice(iota) => iota if the counting dimension is taken whole"""
    iota = instruction.operands[0]
    if iota.opcode != "iota":
        return None
    along = iota.get("iota_dimension")
    if iota.shape.dimensions[along] != instruction.shape.dimensions[along]:
        return None
    return rewriter.add("iota", instruction.shape, (), {"iota_dimension": along})


# -- dynamic-slice ---------------------------------------------------------------------------------------------------


def dynamic_slice_of_all(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """dynamic-slice(x, ...) => x if it takes the whole array: the start is clamped to 0"""
    x = instruction.operands[0]
    return x if x.shape.dimensions == instruction.shape.dimensions else None


def dynamic_slice_at_constant(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """dynamic-slice(x, c, ...) => slice(x); a dimension taken whole starts at 0, whatever its index is"""
    x, *indices = instruction.operands
    if len(indices) != x.shape.rank:
        return None
    taken = []
    for index, size, wanted in zip(indices, x.shape.dimensions, instruction.shape.dimensions):
        start = 0 if size == wanted else splat(index)
        if start is None:
            return None
        start = min(max(int(start), 0), size - wanted)
        taken.append(SliceDim(start, start + wanted))
    return rewriter.add("slice", instruction.shape, [x], {"slice": tuple(taken)})


def dynamic_slice_of_broadcast(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """dynamic-slice(broadcast(x), ...) => broadcast(x) if the dimensions of x are taken whole"""
    return slice_of_broadcast(instruction, rewriter)


def dynamic_slice_of_update(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """dynamic-slice(dynamic-update-slice(x, u, i), i) => u of the same dimensions"""
    updated = instruction.operands[0]
    if updated.opcode != "dynamic-update-slice":
        return None
    update = updated.operands[1]
    same = len(updated.operands) == len(instruction.operands) + 1 \
        and all(a is b for a, b in zip(updated.operands[2:], instruction.operands[1:]))
    return update if same and update.shape.dimensions == instruction.shape.dimensions else None


# -- pad -------------------------------------------------------------------------------------------------------------


def pad_by_nothing(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """pad(x, v) => x if all padding is zero"""
    nothing = all(p == (0, 0, 0) for p in instruction.get("padding"))
    return instruction.operands[0] if nothing else None


def pad_with_same_value(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """pad(broadcast(c), c) => broadcast(c), pad(x, c) => broadcast(c) for x without elements"""
    x, value = instruction.operands
    if x.shape.num_elements == 0:
        return spread(rewriter, value, instruction.shape)
    source, number = splat(x), splat(value)
    if source is None or number is None or source.tobytes() != number.tobytes():
        return None
    return spread(rewriter, value, instruction.shape)


def pad_negatively(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """pad(x, v) => slice(x) if all padding is negative"""
    x = instruction.operands[0]
    padding = instruction.get("padding")
    if any(p.low > 0 or p.high > 0 or p.interior for p in padding) or instruction.shape.num_elements == 0:
        return None
    taken = tuple(SliceDim(-p.low, size + p.high) for p, size in zip(padding, x.shape.dimensions))
    return rewriter.add("slice", instruction.shape, [x], {"slice": taken})


def pad_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """pad(pad(x, v), v) => pad(x, v) for padding at the edges"""
    inner, value = instruction.operands
    if inner.opcode != "pad" or inner.operands[1] is not value:
        return None
    paddings = inner.get("padding") + instruction.get("padding")
    if any(p.interior or p.low < 0 or p.high < 0 for p in paddings):
        return None
    both = tuple(PaddingDim(i.low + o.low, i.high + o.high)
                 for i, o in zip(inner.get("padding"), instruction.get("padding")))
    return rewriter.change(instruction, operands=[inner.operands[0], value], padding=both)


# -- concatenate -----------------------------------------------------------------------------------------------------


def concatenate_one(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """concatenate(x) => x, and operands without elements are removed"""
    along = instruction.get("dimensions")[0]
    pieces = [o for o in instruction.operands if o.shape.dimensions[along] != 0]
    if len(pieces) == 1:
        return pieces[0]
    if not pieces or len(pieces) == len(instruction.operands):
        return None
    return rewriter.change(instruction, operands=pieces)


def concatenate_nested(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """concatenate(concatenate(x, y), z) => concatenate(x, y, z) if the inner one has no other users

    A long inner one is kept if there are few other operands: otherwise n concatenates of one more element each
    would have n long lists of operands."""
    along = instruction.get("dimensions")
    most = max(MOST_JOINED, len(instruction.operands))
    inner = {o for o in instruction.operands if o.opcode == "concatenate" and len(o.operands) <= most
             and o.get("dimensions") == along and rewriter.uses(o) == 1}
    if not inner:
        return None
    pieces = [piece for o in instruction.operands for piece in (o.operands if o in inner else [o])]
    return rewriter.change(instruction, operands=pieces)


def concatenate_neighbours(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """concatenate(slice(x, [0:2]), slice(x, [2:5])) => concatenate(slice(x, [0:5]))"""
    along = instruction.get("dimensions")[0]
    runs: list[tuple[Instruction, tuple[SliceDim, ...] | None]] = []      # the first operand, and the slice of all
    for piece in instruction.operands:
        joined = joined_slice(*runs[-1], piece, along) if runs else None
        if joined is None:
            runs.append((piece, piece.get("slice") if piece.opcode == "slice" else None))
        else:
            runs[-1] = (runs[-1][0], joined)
    if len(runs) == len(instruction.operands):
        return None
    pieces = [first if taken is None or first.get("slice") == taken else wider_slice(rewriter, first, taken)
              for first, taken in runs]
    return rewriter.change(instruction, operands=pieces)


def wider_slice(rewriter: Rewriter, piece: Instruction, taken: tuple[SliceDim, ...]) -> Instruction:
    sizes = [-(-(part.limit - part.start) // part.stride) for part in taken]
    return rewriter.add("slice", piece.shape.with_dimensions(sizes), piece.operands, {"slice": taken})


def joined_slice(a: Instruction, first: tuple[SliceDim, ...] | None, b: Instruction,
                 along: int) -> tuple[SliceDim, ...] | None:
    """The slice that takes the elements of `first` (of the array that `a` reads) and then those of `b`, or None."""
    if first is None or b.opcode != "slice" or a.operands[0] is not b.operands[0]:
        return None
    second = b.get("slice")
    if first[:along] + first[along + 1:] != second[:along] + second[along + 1:]:
        return None
    left, right = first[along], second[along]
    if left.stride != 1 or right.stride != 1 or left.limit != right.start:
        return None
    return (*first[:along], SliceDim(left.start, right.limit), *first[along + 1:])


def concatenate_same_value(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """concatenate(broadcast(c), broadcast(c)) => broadcast(c)"""
    first = scalar_source(instruction.operands[0])
    if first is None:
        return None
    value = first.elements.tobytes()
    for operand in instruction.operands[1:]:
        source = scalar_source(operand)
        if source is None or source.elements.tobytes() != value:
            return None
    return full(rewriter, first.elements.reshape(()), instruction.shape)


def concatenate_with_padding(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """concatenate(x, broadcast(c)) => pad(x, c), and the same with the constant first"""
    if len(instruction.operands) != 2:
        return None
    a, b = instruction.operands
    along = instruction.get("dimensions")[0]
    source_a, source_b = scalar_source(a), scalar_source(b)
    x, value = (a, source_b) if source_a is None else (b, source_a)
    if value is None or source_a is not None and source_b is not None:
        return None
    low = 0 if source_a is None else a.shape.dimensions[along]
    high = b.shape.dimensions[along] if source_a is None else 0
    padding = tuple(PaddingDim(low, high) if d == along else PaddingDim(0, 0) for d in range(x.shape.rank))
    scalar = spread(rewriter, value, value.shape.with_dimensions(())) if not value.shape.dimensions \
        else rewriter.constant(value.elements.reshape(()), value.shape.element_type)
    return rewriter.add("pad", instruction.shape, [x, scalar], {"padding": padding})


RULES = {
    "slice": (slice_of_all, slice_twice, slice_of_broadcast, slice_of_reverse, slice_of_pad,
              slice_of_concatenate, slice_of_iota),
    "dynamic-slice": (dynamic_slice_of_all, dynamic_slice_at_constant, dynamic_slice_of_broadcast,
                      dynamic_slice_of_update),
    "pad": (pad_by_nothing, pad_with_same_value, pad_negatively, pad_twice),
    "concatenate": (concatenate_one, concatenate_nested, concatenate_neighbours, concatenate_same_value,
                    concatenate_with_padding),
}
