"""Sharding rules of ops with indices: gather, scatter, slices and updates at places that are known when they run.

A dimension along which indices say where to read or write may be divided: each device reads or writes what falls into
its part. What it reads of other parts is nothing, so that the sum over devices is what was to be read.
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.ir import Instruction, Shape
from hloc.sharding.rules import Builder, Mapping, ShardingRule, combiner_of


def dynamic_slice(instruction: Instruction) -> ShardingRule:
    return _taken(instruction, [o.shape for o in instruction.operands[1:]])


def cut(instruction: Instruction) -> ShardingRule | None:
    """Of a slice at a known place, as of one at a place that is known when it runs; None with strides."""
    return None if any(s.stride != 1 for s in instruction.get("slice")) else _taken(instruction, ())


def _taken(instruction: Instruction, starts: Sequence[Shape]) -> ShardingRule:
    """Of a slice, with as many elements as the result has; starts: of the operands that say where it begins."""
    made, sizes, taken = Builder(), instruction.operands[0].shape.dimensions, instruction.shape.dimensions
    factors = [_along_slice(made, size, n, starts, reduced=True) for size, n in zip(sizes, taken)]
    result = [f if size == n else made.factor(n, whole=True) for f, size, n in zip(factors, sizes, taken)]
    return made.rule([tuple((f,) for f in factors), *map(made.wholes, starts)], [tuple((f,) for f in result)])


def _along_slice(made: Builder, size: int, taken: int, starts: Sequence[Shape], reduced: bool) -> int:
    """Of a dimension of which a slice holds so many elements. An array of all starts is read whole."""
    is_located = taken != size and all(s.rank == 0 for s in starts)
    return made.factor(size, whole=taken != size and not is_located, reduced=reduced and is_located,
                       located=is_located)


def dynamic_update_slice(instruction: Instruction) -> ShardingRule:
    """The result is as the operand; the update is a part of it where it is smaller."""
    made, starts = Builder(), [o.shape for o in instruction.operands[2:]]
    sizes, update = (o.shape.dimensions for o in instruction.operands[:2])
    factors = [_along_slice(made, size, n, starts, reduced=False) for size, n in zip(sizes, update)]
    written = [f if size == n else made.factor(n, whole=True) for f, size, n in zip(factors, sizes, update)]
    whole = tuple((f,) for f in factors)
    return made.rule([whole, tuple((f,) for f in written), *map(made.wholes, starts)], [whole])


def gather(instruction: Instruction) -> ShardingRule:
    """By the dimensions of the indices, by those of the operand that slices hold whole, and by those of which they hold
    one element: there, what a device does not have is nothing, and the sum is joined."""
    made = Builder()
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
            is_located = slices[d] == 1 < size and d in instruction.get("start_index_map")
            factor = made.factor(size, whole=not is_located and (slices[d] != size or d in gone), reduced=is_located,
                                 located=is_located)
        operand_mapping.append((factor,))
        if d not in gone:
            window_factors.append(factor if slices[d] == size else made.factor(slices[d], whole=True))
    inside, outside = iter(window_factors), iter(batch)
    result = tuple((next(inside) if d in offsets else next(outside),) for d in range(instruction.shape.rank))
    return made.rule([tuple(operand_mapping), _index_mapping(index_factors, indices)], [result])


def _index_factors(made: Builder, indices: Shape, vector: int, reduced: bool = False) -> dict[int, int]:
    return {d: made.factor(size, whole=d == vector, reduced=reduced and d != vector)
            for d, size in enumerate(indices.dimensions)}


def _index_mapping(factors: dict[int, int], indices: Shape) -> Mapping:
    return tuple((factors[d],) for d in range(indices.rank))


def scatter(instruction: Instruction) -> ShardingRule | None:
    """By the dimensions of the operand that updates hold whole, or of which they hold one element; by those of the
    indices where updates are joined in any order: then one device starts from the operand, the others from what joins
    to nothing."""
    count = (len(instruction.operands) - 1) // 2
    made = Builder()
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
        is_located = d in targets and update_size.get(d, 1) == 1 < size
        return made.factor(size, whole=not is_located and (d in gone or d in targets or update_size.get(d) != size),
                           located=is_located)
    operand_factors = {d: operand_factor(d, size) for d, size in enumerate(operand.dimensions)}
    inside = iter([operand_factors[d] if update_size[d] == operand.dimensions[d]
                   else made.factor(update_size[d], whole=True) for d in kept])
    outside = iter([factors[d] for d in range(indices.rank) if d != vector])
    update = tuple((next(inside) if d in windows else next(outside),) for d in range(updates.rank))
    whole_operand = tuple((operand_factors[d],) for d in range(operand.rank))
    return made.rule([whole_operand] * count + [_index_mapping(factors, indices)] + [update] * count,
                     [whole_operand] * count, once=tuple(range(count)))
