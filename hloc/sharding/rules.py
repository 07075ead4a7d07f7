"""What an op does with parts of its operands: which dimensions of operands and results go together.

In: an instruction, of which operands' and results' shapes are known. Out: a ShardingRule in factors, the loops that the
op is made of, as in a product:

    dot(f32[m,k], f32[k,n])      factors m, n, k;  operands (m,k), (k,n);  result (m,n);  k is reduced

Devices may have parts of a factor: its part of each array that has it. Partial results of a reduced factor are joined
afterwards. `whole` factors cannot be divided: what an op does there reaches over all of the dimension.
A rule of None means that each device must do all of the op. The rows of hloc/ops name their rules.
Source of the idea: Shardy's OpShardingRule (shardy/dialect/sdy/ir/attrs.td).
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hloc.ir import ConvolutionDimensionNumbers, Instruction, Shape, leaves, window_of

Mapping = tuple[tuple[int, ...], ...]          # by dimension: its factors, the major one first


@dataclass(frozen=True, slots=True)
class ShardingRule:
    """sizes      of the factors
    operands    by operand, by dimension: the factors that it is made of
    results     likewise, by array of the result
    reduced     factors over which partial results are joined, by the combiner of the op
    whole       factors that stay whole
    once        operands that partial results may hold only once: the others start from the combiner's identity
    """

    sizes: tuple[int, ...]
    operands: tuple[Mapping, ...]
    results: tuple[Mapping, ...]
    reduced: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    once: tuple[int, ...] = ()


Rule = Callable[[Instruction], "ShardingRule | None"]


class _Builder:
    """Factors as they come up."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.whole: set[int] = set()
        self.reduced: set[int] = set()

    def factor(self, size: int, whole: bool = False, reduced: bool = False) -> int:
        number = len(self.sizes)
        self.sizes.append(size)
        if whole:
            self.whole.add(number)
        if reduced:
            self.reduced.add(number)
        return number

    def wholes(self, shape: Shape) -> Mapping:
        return tuple((self.factor(size, whole=True),) for size in shape.dimensions)

    def rule(self, operands: Sequence[Mapping], results: Sequence[Mapping], once: tuple[int, ...] = ()) -> ShardingRule:
        return ShardingRule(tuple(self.sizes), tuple(operands), tuple(results), frozenset(self.reduced),
                            frozenset(self.whole), once)


def _arrays(instruction: Instruction) -> list[Shape]:
    return [leaf for leaf in leaves(instruction.shape) if leaf.is_array]


def _shapes(instruction: Instruction) -> list[Shape]:
    return [o.shape for o in instruction.operands]


def aligned(instruction: Instruction, whole: Sequence[int] = ()) -> ShardingRule:
    """Dimension k of every array belongs to dimension k of the others; scalars to all. The op reaches over the
    dimensions in `whole`, whose sizes may differ."""
    made = _Builder()
    results = _arrays(instruction)
    factors = [made.factor(size, whole=k in whole) for k, size in enumerate(results[0].dimensions)]

    def mapping(shape: Shape) -> Mapping:
        if shape.rank != len(factors):
            return made.wholes(shape)
        return tuple((factors[k] if made.sizes[factors[k]] == size else made.factor(size, whole=True),)
                     for k, size in enumerate(shape.dimensions))
    return made.rule([mapping(s) if s.is_array else () for s in _shapes(instruction)], [mapping(s) for s in results])


def elementwise(instruction: Instruction) -> ShardingRule:
    return aligned(instruction)


def along(dimensions: Callable[[Instruction], Sequence[int]]) -> Rule:
    """Of an op that reaches over these dimensions alone."""
    return lambda instruction: aligned(instruction, dimensions(instruction))


def batched(core: int) -> Rule:
    """Of an op on matrices (core 2), rows (core 1): all dimensions before are independent."""
    def rule(instruction: Instruction) -> ShardingRule:
        made = _Builder()
        ranks = [s.rank for s in (*_shapes(instruction), *_arrays(instruction)) if s.is_array]
        batch = max(max(ranks, default=0) - core, 0)
        first = next((s for s in _shapes(instruction) if s.is_array and s.rank >= batch), None)
        factors = [made.factor(size) for size in first.dimensions[:batch]] if first else []

        def mapping(shape: Shape) -> Mapping:
            sizes = tuple(made.sizes[f] for f in factors)
            if shape.dimensions[:batch] != sizes or not factors:
                return made.wholes(shape)
            return (*((f,) for f in factors), *((made.factor(n, whole=True),) for n in shape.dimensions[batch:]))
        return made.rule([mapping(s) if s.is_array else () for s in _shapes(instruction)],
                         [mapping(s) for s in _arrays(instruction)])
    return rule


# -- movement ----------------------------------------------------------------------------------------------------------

def broadcast(instruction: Instruction) -> ShardingRule:
    made = _Builder()
    factors = [made.factor(size) for size in instruction.shape.dimensions]
    operand = instruction.operands[0].shape
    into = instruction.get("dimensions", ())
    return made.rule([tuple((factors[d],) if made.sizes[factors[d]] == size else (made.factor(size, whole=True),)
                            for d, size in zip(into, operand.dimensions))], [tuple((f,) for f in factors)])


def transpose(instruction: Instruction) -> ShardingRule:
    made = _Builder()
    factors = [made.factor(size) for size in instruction.operands[0].shape.dimensions]
    return made.rule([tuple((f,) for f in factors)], [tuple((factors[d],) for d in instruction.get("dimensions"))])


def reshape(instruction: Instruction) -> ShardingRule:
    """Both shapes as products of the same factors: [8,6] and [2,4,6] are (2 4) 6; [4,6] and [3,8] have one of 24, that
    neither holds in parts."""
    made = _Builder()
    sides = [instruction.operands[0].shape.dimensions, instruction.shape.dimensions]
    if 0 in sides[0] or 0 in sides[1]:
        return made.rule([made.wholes(instruction.operands[0].shape)], [made.wholes(instruction.shape)])
    cuts = [_places(sizes) for sizes in sides]
    common = sorted(set(cuts[0]) & set(cuts[1]))
    everything = set(cuts[0]) | set(cuts[1])
    places = [1]
    for low, high in zip(common, common[1:]):            # within, each cut must divide the next
        inner = sorted(c for c in everything if low <= c <= high)
        exact = all(b % a == 0 for a, b in zip(inner, inner[1:]))
        places += inner[1:] if exact else [high]
    factors = {place: made.factor(place // before) for before, place in zip(places, places[1:])}

    def mapping(sizes: tuple[int, ...]) -> Mapping:
        found, low = [], 1
        for size in reversed(sizes):
            inside = [factors[p] for p in places[1:] if low < p <= low * size]
            exact = size == math.prod(made.sizes[f] for f in inside)
            found.append(tuple(reversed(inside)) if exact else (made.factor(size, whole=True),))
            low *= size
        return tuple(reversed(found))
    return made.rule([mapping(sides[0])], [mapping(sides[1])])


def _places(sizes: tuple[int, ...]) -> list[int]:
    """Where dimensions end, in elements from the last."""
    found = [1]
    for size in reversed(sizes):
        found.append(found[-1] * size)
    return found


def concatenate(instruction: Instruction) -> ShardingRule:
    return aligned(instruction, instruction.get("dimensions"))


def pad(instruction: Instruction) -> ShardingRule:
    return aligned(instruction, [d for d, p in enumerate(instruction.get("padding")) if tuple(p) != (0, 0, 0)])


def slice_(instruction: Instruction) -> ShardingRule:
    sizes = instruction.operands[0].shape.dimensions
    return aligned(instruction, [d for d, s in enumerate(instruction.get("slice"))
                                 if (s.start, s.limit, s.stride) != (0, sizes[d], 1)])


def dynamic_slice(instruction: Instruction) -> ShardingRule:
    sizes = instruction.operands[0].shape.dimensions
    return aligned(instruction, [d for d, n in enumerate(instruction.get("dynamic_slice_sizes")) if n != sizes[d]])


def dynamic_update_slice(instruction: Instruction) -> ShardingRule:
    """The result is as the operand; the update is a part of it where it is smaller."""
    sizes, update = (o.shape.dimensions for o in instruction.operands[:2])
    return aligned(instruction, [d for d in range(len(sizes)) if sizes[d] != update[d]])


def bitcast_convert(instruction: Instruction) -> ShardingRule:
    """Elements of another width have a dimension more or less at the end."""
    made = _Builder()
    operand, result = instruction.operands[0].shape, instruction.shape
    factors = [made.factor(size) for size in operand.dimensions[:result.rank]]
    return made.rule([tuple((f,) for f in factors) + tuple((made.factor(n, whole=True),) for n in operand.dimensions[
        len(factors):])], [tuple((f,) for f in factors) + tuple((made.factor(n, whole=True),) for n in
                                                                  result.dimensions[len(factors):])])


# -- products and reductions -------------------------------------------------------------------------------------------

def sums_join(instruction: Instruction) -> bool:
    """Whether partial sums, each in the result's type, add up to the sum: of floats, and of integers that wrap around,
    but not of what is rounded to an integer, or a truth value, at the end."""
    kinds = {o.shape.kind for o in instruction.operands}
    return instruction.shape.kind in ("float", "complex") or instruction.shape.kind in (
        "signed", "unsigned") and kinds <= {"signed", "unsigned"}


def dot(instruction: Instruction) -> ShardingRule:
    made = _Builder()
    joins = sums_join(instruction)
    left, right = (o.shape for o in instruction.operands[:2])
    keys = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")
    left_batch, right_batch, left_sum, right_sum = (tuple(instruction.get(k, ())) for k in keys)
    batch = [made.factor(left.dimensions[d]) for d in left_batch]
    summed = [made.factor(left.dimensions[d], reduced=joins, whole=not joins) for d in left_sum]

    def mapping(shape: Shape, batch_dims: tuple[int, ...], sum_dims: tuple[int, ...]) -> tuple[Mapping, list[int]]:
        known = dict(zip((*batch_dims, *sum_dims), (*batch, *summed)))
        own = [d for d in range(shape.rank) if d not in known]
        known |= {d: made.factor(shape.dimensions[d]) for d in own}
        return tuple((known[d],) for d in range(shape.rank)), [known[d] for d in own]
    left_mapping, left_own = mapping(left, left_batch, left_sum)
    right_mapping, right_own = mapping(right, right_batch, right_sum)
    return made.rule([left_mapping, right_mapping], [tuple((f,) for f in (*batch, *left_own, *right_own))])


def convolution(instruction: Instruction) -> ShardingRule:
    """By images and by output features, summed over input features; windows reach over the spatial dimensions. Groups
    keep the features whole."""
    made = _Builder()
    numbers: ConvolutionDimensionNumbers = instruction.get("dim_labels")
    image, kernel = (o.shape for o in instruction.operands)
    batch_groups = instruction.get("batch_group_count", 1) > 1
    grouped = batch_groups or instruction.get("feature_group_count", 1) > 1
    joins = not grouped and sums_join(instruction)
    batch = made.factor(image.dimensions[numbers.input_batch], whole=batch_groups)
    summed = made.factor(image.dimensions[numbers.input_feature], whole=not joins, reduced=joins)
    output = made.factor(kernel.dimensions[numbers.kernel_output_feature], whole=grouped)
    inputs = made.factor(kernel.dimensions[numbers.kernel_input_feature], whole=True) if grouped else summed

    def mapping(shape: Shape, known: dict[int, int]) -> Mapping:
        return tuple((known[d] if d in known and made.sizes[known[d]] == size else made.factor(size, whole=True),)
                     for d, size in enumerate(shape.dimensions))
    return made.rule(
        [mapping(image, {numbers.input_batch: batch, numbers.input_feature: summed}),
         mapping(kernel, {numbers.kernel_input_feature: inputs, numbers.kernel_output_feature: output})],
        [mapping(instruction.shape, {numbers.output_batch: batch, numbers.output_feature: output})])


# Ops that join partial results in any order, and what they join nothing to.
COMBINERS = frozenset(["add", "multiply", "maximum", "minimum", "and", "or"])


def combiner_of(instruction: Instruction) -> str | None:
    """The one op of to_apply, where that joins two numbers in any order."""
    computation = instruction.get("to_apply")
    root = computation.root
    plain = root.opcode in COMBINERS and len(computation.instructions) == 3 and root.operands != [] and {
        o.opcode for o in root.operands} == {"parameter"} and root.operands[0] is not root.operands[1]
    return root.opcode if plain else None


def reduce(instruction: Instruction) -> ShardingRule:
    made = _Builder()
    count = len(instruction.operands) // 2
    dimensions, sizes = instruction.get("dimensions"), instruction.operands[0].shape.dimensions
    joined = count == 1 and combiner_of(instruction) is not None
    factors = [made.factor(size, whole=d in dimensions and not joined, reduced=d in dimensions and joined)
               for d, size in enumerate(sizes)]
    kept = tuple((f,) for d, f in enumerate(factors) if d not in dimensions)
    return made.rule([tuple((f,) for f in factors)] * count + [()] * count, [kept] * count)


def window(instruction: Instruction) -> ShardingRule:
    """Of reduce-window and select-and-scatter: windows of one element reach nowhere."""
    plain = (1, 1, 0, 0, 1, 1, False)
    return aligned(instruction, [d for d, w in enumerate(window_of(instruction)) if tuple(w) != plain])


# -- indexing ----------------------------------------------------------------------------------------------------------

def gather(instruction: Instruction) -> ShardingRule:
    """By the dimensions of the indices, and by those of the operand that slices hold whole."""
    made = _Builder()
    operand, indices = (o.shape for o in instruction.operands)
    offsets, slices = instruction.get("offset_dims"), instruction.get("slice_sizes")
    gone = {*instruction.get("collapsed_slice_dims", ()), *instruction.get("operand_batching_dims", ())}
    index_factors = _index_factors(made, indices, instruction.get("index_vector_dim"))
    known = {d: index_factors[i] for d, i in zip(instruction.get("operand_batching_dims", ()),
                                                 instruction.get("start_indices_batching_dims", ()))}
    batch = [index_factors[d] for d in range(indices.rank) if d != instruction.get("index_vector_dim")]
    operand_mapping, window_factors = [], []
    for d, size in enumerate(operand.dimensions):
        if d in known:
            factor = known[d]
        else:
            factor = made.factor(size, whole=slices[d] != size or d in gone)
        operand_mapping.append((factor,))
        if d not in gone:
            window_factors.append(factor if slices[d] == size else made.factor(slices[d], whole=True))
    inside, outside = iter(window_factors), iter(batch)
    result = tuple((next(inside) if d in offsets else next(outside),) for d in range(instruction.shape.rank))
    return made.rule([tuple(operand_mapping), _index_mapping(index_factors, indices)], [result])


def _index_factors(made: _Builder, indices: Shape, vector: int, reduced: bool = False) -> dict[int, int]:
    return {d: made.factor(size, whole=d == vector, reduced=reduced and d != vector)
            for d, size in enumerate(indices.dimensions)}


def _index_mapping(factors: dict[int, int], indices: Shape) -> Mapping:
    return tuple((factors[d],) for d in range(indices.rank))


def scatter(instruction: Instruction) -> ShardingRule | None:
    """By the dimensions of the operand that updates hold whole; by those of the indices where updates are joined in any
    order: then one device starts from the operand, the others from what joins to nothing."""
    count = (len(instruction.operands) - 1) // 2
    made = _Builder()
    operand, indices, updates = (instruction.operands[k].shape for k in (0, count, count + 1))
    windows, vector = instruction.get("update_window_dims"), instruction.get("index_vector_dim")
    batching = dict(zip(instruction.get("input_batching_dims", ()),
                        instruction.get("scatter_indices_batching_dims", ())))
    joined = count == 1 and combiner_of(instruction) is not None
    gone = {*instruction.get("inserted_window_dims", ()), *batching}
    factors = {}
    for d, size in enumerate(indices.dimensions):
        own = d != vector and d not in batching.values()
        factors[d] = made.factor(size, whole=d == vector or own and not joined, reduced=own and joined)
    targets = set(instruction.get("scatter_dims_to_operand_dims"))
    kept = [d for d in range(operand.rank) if d not in gone]
    update_size = {d: updates.dimensions[w] for d, w in zip(kept, windows)}

    def operand_factor(d: int, size: int) -> int:
        if d in batching:
            return factors[batching[d]]
        return made.factor(size, whole=d in gone or d in targets or update_size.get(d) != size)
    operand_factors = {d: operand_factor(d, size) for d, size in enumerate(operand.dimensions)}
    inside = iter([operand_factors[d] if update_size[d] == operand.dimensions[d]
                   else made.factor(update_size[d], whole=True) for d in kept])
    outside = iter([factors[d] for d in range(indices.rank) if d != vector])
    update = tuple((next(inside) if d in windows else next(outside),) for d in range(updates.rank))
    whole_operand = tuple((operand_factors[d],) for d in range(operand.rank))
    return made.rule([whole_operand] * count + [_index_mapping(factors, indices)] + [update] * count,
                     [whole_operand] * count, once=tuple(range(count)))
