"""Rules for ops on dynamic dimensions: the op's array at the bounds, and the sizes of its result.

In: the walk (walk.py) and an old instruction. Out: a Padded, or an instruction if the result is static. Elementwise
ops keep the sizes; ops that combine elements first set the elements beyond the sizes to a neutral value.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from hloc.ir import Computation, Instruction, Module, Shape, array
from hloc.ops.checks import target_of
from hloc.ops.custom_calls import as_written
from hloc.ops.table import OPS
from hloc.passes.dynamic_padder.padded import Padded, static
from hloc.passes.dynamic_padder.reshapes import dynamic_reshape, reshape
from hloc.passes.dynamic_padder.windows import convolution, reduce_window
from hloc.passes.expressions import Body, Expressions
from hloc.passes.patterns import identity_of, monoid_of

if TYPE_CHECKING:
    from hloc.passes.dynamic_padder.walk import Walk

Result = Union[Padded, Instruction]


def elementwise(w: Walk, i: Instruction) -> Result:
    operands = w.operands(i)
    sizes = {d: next((x.sizes[d] for x in operands if x.rank == i.shape.rank and x.sizes[d] is not None), None)
             for d in range(i.shape.rank)}
    return w.sized(i, w.again(i, [x.array for x in operands]), sizes)


def first_operand(w: Walk, i: Instruction) -> Result:
    x = w.operand(i, 0)
    return w.sized(i, x.array, dict(enumerate(x.sizes)))


def broadcast(w: Walk, i: Instruction) -> Result:
    x = w.operand(i, 0)
    sizes = {d: x.sizes[n] for n, d in enumerate(i.get("dimensions", ()))}
    return w.sized(i, w.again(i, [x.array]), sizes)


def transpose(w: Walk, i: Instruction) -> Result:
    x = w.operand(i, 0)
    return w.sized(i, w.again(i, [x.array]), {n: x.sizes[d] for n, d in enumerate(i.get("dimensions"))})


def get_dimension_size(w: Walk, i: Instruction) -> Instruction:
    return w.e.size(w.operand(i, 0), i.get("dimensions")[0])


def set_dimension_size(w: Walk, i: Instruction) -> Result:
    """Elements that a larger size adds are zeros."""
    x, (dimension,) = w.operand(i, 0), i.get("dimensions")
    sizes = dict(enumerate(x.sizes))
    array = w.e.masked(x, 0, [dimension])
    return w.sized(i, array, {**sizes, dimension: w.operand(i, 1).array})


def slice_(w: Walk, i: Instruction) -> Result:
    x, sizes = w.operand(i, 0), {}
    for d, (size, part) in enumerate(zip(x.sizes, i.get("slice"))):
        if size is not None:
            last = w.e.op("minimum", size, w.e.number(part.limit))
            sizes[d] = w.e.over(w.e.at_least(w.e.plus(last, part.stride - 1 - part.start), 0), part.stride)
    return w.sized(i, w.again(i, [x.array]), sizes)


def reverse(w: Walk, i: Instruction) -> Result:
    """Reversed at the bounds, the elements are at the end of the array: they are moved to the front."""
    x = w.operand(i, 0)
    array = w.again(i, [x.array])
    for d in i.get("dimensions"):
        size = x.sizes[d]
        if size is not None:
            bound = array.shape.dimensions[d]
            longer = w.e.pad(array, 0, [(0, bound if n == d else 0) for n in range(x.rank)])
            start = w.e.op("subtract", w.e.number(bound), size)
            starts = [start if n == d else w.e.number(0) for n in range(x.rank)]
            array = w.e.op("dynamic-slice", longer, *starts, dynamic_slice_sizes=array.shape.dimensions)
    return w.sized(i, array, dict(enumerate(x.sizes)))


def pad(w: Walk, i: Instruction) -> Result:
    x, fill, sizes = w.operand(i, 0), w.operand(i, 1).array, {}
    for d, (size, p) in enumerate(zip(x.sizes, i.get("padding"))):
        if size is not None:
            between = w.e.times(w.e.at_least(w.e.plus(size, -1), 0), p.interior)
            size = w.e.op("add", size, between) if p.interior else size
            sizes[d] = w.e.at_least(w.e.plus(size, p.low + p.high), 0)
    return w.sized(i, w.again(i, [w.e.masked(x, fill), fill]), sizes)


def concatenate(w: Walk, i: Instruction) -> Result:
    """Along a dynamic dimension each operand overwrites the padding of the previous one."""
    pieces, (dimension,) = w.operands(i), i.get("dimensions")
    sizes = {d: next((x.sizes[d] for x in pieces if x.sizes[d] is not None), None) for d in range(i.shape.rank)}
    if all(x.sizes[dimension] is None for x in pieces):
        return w.sized(i, w.again(i, [x.array for x in pieces]), sizes)
    result, start = w.e.full(0, i.shape.with_dimensions(i.shape.dimensions)), w.e.number(0)
    for piece in pieces:
        result = w.e.put(result, piece.array, start, dimension)
        start = w.e.op("add", start, w.e.size(piece, dimension))
    return w.sized(i, result, {**sizes, dimension: start})


def neutral(w: Walk, i: Instruction, number: int) -> Instruction:
    """The neutral value of a reduction: that of its combiner, else its initial value, as in XLA."""
    count = len(i.operands) // 2
    monoid = monoid_of(i) if count == 1 else None
    if monoid is None:
        return w.operand(i, count + number).array
    kind = i.operands[0].shape.element_type
    value = identity_of(monoid, kind)
    return w.operand(i, 1).array if value is None else w.e.constant(value, kind)


def reduce(w: Walk, i: Instruction) -> Result:
    operands, dimensions = w.operands(i), list(i.get("dimensions"))
    count = len(operands) // 2
    masked = [w.e.masked(x, neutral(w, i, n), dimensions) for n, x in enumerate(operands[:count])]
    kept = [operands[0].sizes[d] for d in range(operands[0].rank) if d not in dimensions]
    return several(w, i, [*masked, *(x.array for x in operands[count:])], dict(enumerate(kept)))


def several(w: Walk, i: Instruction, operands: list[Instruction], sizes: dict) -> Result:
    """One result, or a tuple of results with the same sizes."""
    if not i.shape.is_tuple:
        return w.sized(i, w.again(i, operands), sizes)
    shapes = i.shape.tuple_shapes
    return elements(w, w.again(i, operands, Shape.tuple(static(s) for s in shapes)), shapes, sizes)


def sort(w: Walk, i: Instruction) -> Result:
    """Along a dynamic dimension elements beyond the size are sorted after all others."""
    operands = w.operands(i)
    arrays, sizes = [x.array for x in operands], dict(enumerate(operands[0].sizes))
    inside = w.e.inside(operands[0], list(i.get("dimensions") or (0,)))
    if inside is None:
        return several(w, i, arrays, sizes)
    comparator = inside_first(w.module, i.get("to_apply"), len(operands))
    plain = w.add("sort", Shape.tuple([*(x.shape for x in arrays), inside.shape]), [*arrays, inside],
                  {k: v for k, v in i.attributes.items() if k != "sharding"} | {"to_apply": comparator})
    if not i.shape.is_tuple:
        return w.sized(i, w.e.op("get-tuple-element", plain, index=0), sizes)
    return elements(w, plain, i.shape.tuple_shapes, sizes)


def inside_first(module: Module, comparator: Computation, operands: int) -> Computation:
    """The comparator of a sort with one more operand, a pred: true comes before false; equal preds are compared as
    before."""
    body = Body(comparator.span)
    made = {old: body.parameter(old.number, old.shape) for old in comparator.parameters}
    left, right = (body.parameter(2 * operands + side, array("pred")) for side in (0, 1))
    for old in comparator.instructions:
        if old not in made:
            made[old] = body.add(old.opcode, old.shape, [made[o] for o in old.operands], old.attributes,
                                 literal=old.literal)
    e = Expressions(body, comparator.span)
    root = e.op("select", e.compare(left, "NE", right), left, made[comparator.root])
    return body.finish(module, f"{comparator.name}.inside_first", root)


def elements(w: Walk, plain: Instruction, shapes: tuple[Shape, ...], sizes: dict) -> Instruction:
    """The first elements of a tuple at the bounds as a tuple of arrays with these sizes."""
    parts = []
    for n, shape in enumerate(shapes):
        part = w.e.op("get-tuple-element", plain, index=n)
        own = [(sizes.get(d) or w.e.number(shape.dimensions[d])) for d, f in enumerate(shape.dynamic_dimensions) if f]
        parts.append(w.e.op("tuple", part, *own) if own else part)
    return w.e.op("tuple", *parts)


def dot(w: Walk, i: Instruction) -> Result:
    x, y = w.operand(i, 0), w.operand(i, 1)
    batch = i.get("lhs_batch_dims", ()), i.get("rhs_batch_dims", ())
    over = i.get("lhs_contracting_dims", ()), i.get("rhs_contracting_dims", ())
    sizes = [x.sizes[a] if x.sizes[a] is not None else y.sizes[b] for a, b in zip(*batch)]
    sizes += [x.sizes[d] for d in range(x.rank) if d not in (*batch[0], *over[0])]
    sizes += [y.sizes[d] for d in range(y.rank) if d not in (*batch[1], *over[1])]
    both = [Padded(v.array, tuple(s if s is not None else t for s, t in pairs)) for v, pairs in (
        (x, paired(x, y, over[0], over[1])), (y, paired(y, x, over[1], over[0])))]
    arrays = [w.e.masked(v, 0, list(dims)) for v, dims in zip(both, over)]
    return w.sized(i, w.again(i, arrays), dict(enumerate(sizes)))


def paired(x: Padded, y: Padded, mine: tuple[int, ...], theirs: tuple[int, ...]) -> list[tuple]:
    """For each dimension of x in `mine` its size, and that of the paired dimension of y in `theirs`."""
    partner = dict(zip(mine, theirs))
    return [(s, y.sizes[partner[d]] if d in partner else None) for d, s in enumerate(x.sizes)]


def iota_or_constant(w: Walk, i: Instruction) -> Result:
    return w.of_bounds(i, w.again(i, []))


def dynamic_slice(w: Walk, i: Instruction) -> Result:
    x, sizes = w.operand(i, 0), i.get("dynamic_slice_sizes")
    starts = clamped_starts(w, i, x, [w.operand(i, n).array for n in range(1, len(i.operands))], sizes)
    return w.sized(i, w.again(i, [x.array, *starts]), dict(enumerate(x.sizes)))


def dynamic_update_slice(w: Walk, i: Instruction) -> Result:
    x, update = w.operand(i, 0), w.operand(i, 1)
    if any(s is not None for s in update.sizes):
        raise w.refuse(i, "with an update of dynamic dimensions")
    starts = [w.operand(i, n).array for n in range(2, len(i.operands))]
    starts = clamped_starts(w, i, x, starts, update.array.shape.dimensions)
    return w.sized(i, w.again(i, [x.array, update.array, *starts]), dict(enumerate(x.sizes)))


def clamped_starts(w: Walk, i: Instruction, x: Padded, starts: list[Instruction], sizes: Any) -> list[Instruction]:
    """Start indices clamped so that `sizes` elements are within the sizes of x, not only within its bounds."""
    if all(s is None for s in x.sizes):
        return starts
    if len(starts) != x.rank:
        raise w.refuse(i, "with starts in one vector and dynamic dimensions")
    result = []
    for start, size, n in zip(starts, x.sizes, sizes):
        if size is not None:
            room = w.e.convert(w.e.at_least(w.e.plus(size, -n), 0), start.shape.element_type)
            start = w.e.op("minimum", start, room)
        result.append(start)
    return result


def gather(w: Walk, i: Instruction) -> Result:
    """Dynamic dimensions of the indices, and of the operand if the slice takes the whole dimension."""
    x, indices = w.operand(i, 0), w.operand(i, 1)
    whole = [s == n for s, n in zip(i.get("slice_sizes"), x.array.shape.dimensions)]
    if any(s is not None and not full for s, full in zip(x.sizes, whole)):
        raise w.refuse(i, "from parts of a dynamic dimension")
    vector, offsets = i.get("index_vector_dim"), i.get("offset_dims", ())
    batch = [s for d, s in enumerate(indices.sizes) if d != vector]
    gone = (*i.get("collapsed_slice_dims", ()), *i.get("operand_batching_dims", ()))
    window = [s for d, s in enumerate(x.sizes) if d not in gone]
    others = [d for d in range(i.shape.rank) if d not in offsets]
    sizes = {**dict(zip(offsets, window)), **dict(zip(others, batch))}
    return w.sized(i, w.again(i, [x.array, indices.array]), sizes)


def scatter(w: Walk, i: Instruction) -> Result:
    """Indices beyond the sizes are set out of bounds, and skipped like all such indices."""
    operands = w.operands(i)
    count = len(operands) // 2
    indices = operands[count]
    outside = -1 if indices.array.shape.kind == "signed" else (1 << 31) - 1
    arrays = [x.array for x in operands]
    arrays[count] = w.e.masked(indices, outside)
    return several(w, i, arrays, dict(enumerate(operands[0].sizes)))


def custom_call(w: Walk, i: Instruction) -> Result:
    target = target_of(i)
    if target not in ("PadToStatic", "SliceToDynamic"):
        raise w.refuse(i, f"to {target!r} with dynamic dimensions")
    with as_written(i):
        operands = w.operands(i)
        x, sizes = operands[0], operands[1:]
        if target == "PadToStatic":
            made = w.e.op("tuple", w.e.masked(x, 0), *(w.e.size(x, d) for d in range(x.rank)))
            _expect(made.shape, i.shape)
            return made
        _expect(x.array.shape, static(i.shape))
        for size in sizes:
            _expect(size.array.shape, array("s32"))
        return w.sized(i, x.array, {d: size.array for d, size in enumerate(sizes[:x.rank])})


def _expect(shape: Shape, written: Shape) -> None:
    if not shape.compatible(written):
        raise ValueError(f"{shape.to_string(False)} where {written.to_string(False)} should be")


ELEMENTWISE = [opcode for opcode, row in OPS.items() if row.is_elementwise]
RULES = {
    **dict.fromkeys([*ELEMENTWISE, "convert", "compare", "bitcast-convert", "map", "reduce-precision",
                     "stochastic-convert"], elementwise),
    **dict.fromkeys(["copy", "opt-barrier", "domain", "add-dependency"], first_operand),
    "broadcast": broadcast, "transpose": transpose, "reshape": reshape, "dynamic-reshape": dynamic_reshape,
    "get-dimension-size": get_dimension_size, "set-dimension-size": set_dimension_size, "slice": slice_,
    "reverse": reverse, "pad": pad, "concatenate": concatenate, "reduce": reduce, "reduce-window": reduce_window,
    "dot": dot, "convolution": convolution, "iota": iota_or_constant, "constant": iota_or_constant,
    "dynamic-slice": dynamic_slice, "dynamic-update-slice": dynamic_update_slice, "gather": gather,
    "scatter": scatter, "sort": sort, "custom-call": custom_call,
}
