"""Collectives: ops of several devices. On one device they act as in a group of one.

In: each device's values. Out: sums, gathered, scattered, exchanged values. Device.exchange (hloc/evaluate) returns
the values of all members of the group; hloc/evaluate/simulate.py runs several devices on one machine.

    r = f32[8] all-gather(f32[4] x), dimensions={0}, replica_groups={{0,1}}
"""
from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from hloc.devices import device_counts
from hloc.errors import RunError, UnsupportedError, VerifyError
from hloc.ir import Instruction, Module, Shape, array, numpy_dtype
from hloc.ops.checks import (
    array_operand,
    array_shape,
    attribute,
    check_combiner,
    dimension_list,
    fail,
    require,
    same_dimensions_all,
    text,
)
from hloc.ops.combiners import Combiner
from hloc.ops.device_groups import missing_devices, parse_groups
from hloc.ops.host import transfer_pairs
from hloc.ops.op import Op
from hloc.ops.values import result_of
from hloc.sharding import rules

# -- who takes part ----------------------------------------------------------------------------------------------------

# Ops where devices meet, without async forms; then also ops that depend on the device.
EXCHANGES = frozenset(["all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute",
                       "ragged-all-to-all", "reduce-scatter"])
OWN_NUMBERS = frozenset(["partition-id", "replica-id"])
COLLECTIVES = EXCHANGES | OWN_NUMBERS


def meets_devices(instruction: Instruction) -> bool:
    """Whether devices exchange arrays at an instruction, or it is about the device's number; not with the host."""
    opcode = instruction.opcode.removesuffix("-start")
    return opcode in COLLECTIVES or opcode in ("send", "recv") and transfer_pairs(instruction) is not None


_BOTH_MODES = ("all-reduce", "all-gather", "reduce-scatter")       # a channel joins all partitions of the replicas


def _device_lists(instruction: Instruction, attribute: str) -> list[list[int]]:
    try:
        return parse_groups(instruction.get(attribute, "{}"))
    except UnsupportedError as error:
        raise UnsupportedError(error.message, instruction.span) from None


def _named_lists(instruction: Instruction) -> list[list[int]]:
    """The groups and pairs as they are written."""
    return [*_device_lists(instruction, "replica_groups"), *_device_lists(instruction, "source_target_pairs"),
            *(transfer_pairs(instruction) or ())]


def named_devices(instructions: Iterable[Instruction]) -> tuple[int, int]:
    """(replicas, partitions) so many that there is every device that collectives name: for modules whose header has no
    counts. Raises UnsupportedError as device_groups does."""
    replicas = partitions = devices = 1
    for instruction in filter(meets_devices, instructions):
        named = 1 + max((n for numbers in _named_lists(instruction) for n in numbers), default=0)
        if instruction.opcode in ("send", "recv") or instruction.get("use_global_device_ids", False):
            devices = max(devices, named)
        elif instruction.get("channel_id") is None or instruction.opcode.removesuffix("-start") in _BOTH_MODES:
            replicas = max(replicas, named)
        else:
            partitions = max(partitions, named)
    return replicas, max(partitions, -(-devices // replicas))


def counts_of_run(module: Module, count: int) -> tuple[int, int]:
    """(replicas, partitions) of a run on `count` devices: those of the header or, where that has others, those that
    collectives name; else all are replicas. Raises UnsupportedError where collectives name more devices."""
    written, named = device_counts(module), named_devices(module.instructions())
    fitting = next((counts for counts in (written, named) if prod(counts) == count), None)
    replicas, partitions = fitting or ((1, count) if max(written[1], named[1]) > 1 else (count, 1))
    for instruction in filter(meets_devices, module.instructions()):
        own = named_devices([instruction])
        if own[0] > replicas or own[1] > partitions and prod(own) > count:
            raise missing_devices(instruction, max(_named_lists(instruction), key=max), count, prod(named))
    return replicas, partitions


def device_groups(instruction: Instruction, replicas: int, partitions: int) -> list[list[int]]:
    """The groups of a collective, of device numbers (replica * partitions + partition), in order. Raises
    UnsupportedError for groups that cannot be read."""
    groups = _device_lists(instruction, "replica_groups")
    base = instruction.opcode.removesuffix("-start")
    if instruction.get("use_global_device_ids", False):
        return groups or [list(range(replicas * partitions))]
    if instruction.get("channel_id") is None:                      # groups of replicas, within each partition
        groups = groups or [list(range(replicas))]
        return [[r * partitions + p for r in g] for g in groups for p in range(partitions)]
    if base in _BOTH_MODES:
        groups = groups or [list(range(replicas))]
        return [[r * partitions + p for r in g for p in range(partitions)] for g in groups]
    groups = groups or [list(range(partitions))]
    return [[r * partitions + p for p in g] for g in groups for r in range(replicas)]


def device_pairs(instruction: Instruction, replicas: int, partitions: int) -> list[tuple[int, int]]:
    """The pairs of a collective-permute as (source, target), of device numbers. Raises UnsupportedError where one names
    a device that there is not."""
    pairs = _device_lists(instruction, "source_target_pairs")
    of_replicas = instruction.get("channel_id") is None
    limit, others = (replicas, partitions) if of_replicas else (partitions, replicas)
    if wrong := next((pair for pair in pairs if max(pair) >= limit), None):
        raise missing_devices(instruction, wrong, limit, prod(named_devices([instruction])))
    if of_replicas:
        return [(s * partitions + o, t * partitions + o) for s, t in pairs for o in range(others)]
    return [(o * partitions + s, o * partitions + t) for s, t in pairs for o in range(others)]


def members(evaluator, instruction: Instruction) -> list[int]:
    """Device numbers of the group that this device belongs to, in order; [] if it belongs to none."""
    device = evaluator.device
    groups = device_groups(instruction, device.replica_count, device.partition_count)
    return next((g for g in groups if device.number in g), [])


def group_of(evaluator, instruction: Instruction) -> list[int]:
    """The members, of which this device is one. Raises UnsupportedError where it is none, or the run has too few."""
    group = members(evaluator, instruction)
    missing = [d for d in group if d >= evaluator.device.count]
    if missing or evaluator.device.number not in group:
        shown = group or device_groups(instruction, evaluator.device.replica_count, evaluator.device.partition_count)[0]
        raise missing_devices(instruction, shown, evaluator.device.count, prod(named_devices([instruction])))
    return group


def exchanged(evaluator, instruction: Instruction, value) -> tuple[list, int]:
    """The values of all members, and this device's position among them."""
    group = group_of(evaluator, instruction)
    return evaluator.device.exchange(instruction, group, value), group.index(evaluator.device.number)


# -- evaluation --------------------------------------------------------------------------------------------------------

def _joiner(evaluator, instruction: Instruction) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    """A function from the same elements of each member to these combined, in the order of the members."""
    check_reducer(instruction)
    combiner = Combiner(evaluator, instruction.get("to_apply"))

    def join(parts: Sequence[np.ndarray]) -> np.ndarray:
        total = combiner.widen(parts[:1])
        if combiner.ufunc is not None and parts[0].dtype.kind in "fc" and total[0].dtype != parts[0].dtype:
            for other in parts[1:]:                       # NumPy widens inside
                combiner.ufunc(total[0], other, out=total[0])
        else:
            for other in parts[1:]:
                total = combiner(total, combiner.widen([other]))
        return combiner.narrow(total, [parts[0].dtype])[0]
    return join


def evaluate_all_reduce(evaluator, instruction: Instruction, *operands: np.ndarray):
    group = group_of(evaluator, instruction)
    if len(group) == 1:
        return result_of(operands, instruction.shape)
    combined = evaluator.device.combined(instruction, group, operands, _joiner(evaluator, instruction))
    return result_of(combined, instruction.shape)


def evaluate_reduce_scatter(evaluator, instruction: Instruction, *operands: np.ndarray):
    group = group_of(evaluator, instruction)
    if len(group) == 1:
        return result_of(operands, instruction.shape)
    (axis,) = instruction.get("dimensions")
    parts = evaluator.device.combined_part(instruction, group, operands, _joiner(evaluator, instruction), axis)
    return result_of(parts, instruction.shape)


def evaluate_all_gather(evaluator, instruction: Instruction, *operands: np.ndarray):
    held, _ = exchanged(evaluator, instruction, operands)
    (axis,) = instruction.get("dimensions")
    return result_of([np.concatenate([h[k] for h in held], axis) for k in range(len(operands))], instruction.shape)


def evaluate_all_gather_start(evaluator, instruction: Instruction, *operands: np.ndarray):
    """(operands, result)"""
    gathered = evaluate_all_gather(evaluator, _result_only(instruction), *operands)
    return (result_of(operands, instruction.shape.tuple_shapes[0]), gathered)


def _result_only(instruction: Instruction) -> Instruction:
    return instruction.copy(shape=instruction.shape.tuple_shapes[1])


def evaluate_all_to_all(evaluator, instruction: Instruction, *operands: np.ndarray):
    """Split along a dimension, part i goes to member i; or, without a dimension, operand i goes to member i."""
    held, own = exchanged(evaluator, instruction, operands)
    dimensions = instruction.get("dimensions")
    if dimensions:
        (axis,) = dimensions
        return np.concatenate([np.split(h[0], len(held), axis)[own] for h in held], axis)
    return tuple(h[own] for h in held) if instruction.shape.is_tuple else held[0][own]


def evaluate_collective_broadcast(evaluator, instruction: Instruction, *operands: np.ndarray):
    """The value of the group's first member; zeros for a device in no group."""
    if evaluator.device.number not in members(evaluator, instruction):
        return result_of([np.zeros_like(o) for o in operands], instruction.shape)
    held, _ = exchanged(evaluator, instruction, operands)
    return result_of(held[0], instruction.shape)


class PermutedSlice(NamedTuple):
    """A slice that a collective-permute sends: of which array of its operands, the how manieth of these, its sizes."""

    array: int
    number: int
    sizes: tuple[int, ...]


def permuted_slices(instruction: Instruction) -> list[PermutedSlice]:
    """The slices of a collective-permute that has `slice_sizes`, array by array. Raises UnsupportedError for sizes that
    do not fit its operands."""
    sizes = [tuple(s) for s in parse_groups(str(instruction.get("slice_sizes")))]
    source, starts = instruction.operands[0].shape, instruction.operands[2].shape
    arrays = source.tuple_shapes if source.is_tuple else (source,)
    given = starts.tuple_shapes if source.is_tuple else (starts,)
    found: list[PermutedSlice] = []
    for array_number, (shape, own) in enumerate(zip(arrays, given)):
        count = len(own.tuple_shapes) if own.is_tuple and own.tuple_shapes and own.tuple_shapes[0].is_tuple else 1
        for number in range(count):
            found.append(PermutedSlice(array_number, number, sizes[len(found)] if len(found) < len(sizes) else ()))
            if len(found[-1].sizes) != shape.rank or any(map(operator.gt, found[-1].sizes, shape.dimensions)):
                raise UnsupportedError(f"slice_sizes={instruction.get('slice_sizes')} do not fit {text(shape)}",
                                       instruction.span)
    if len(found) != len(sizes):
        raise UnsupportedError(f"{len(sizes)} slice_sizes for {len(found)} slices", instruction.span)
    return found


def pairs_of_slices(pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The pairs of each slice: those in which a source is named for the first time are of the first one, and so on."""
    named: Counter = Counter()
    found: list[list[tuple[int, int]]] = []
    for source, target in pairs:
        if named[source] == len(found):
            found.append([])
        found[named[source]].append((source, target))
        named[source] += 1
    return found


def _corner(starts, one: PermutedSlice, of_tuples: bool, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Where a slice lies; starts are clamped, as those of dynamic-slice."""
    own = starts[one.array] if of_tuples else starts
    own = own[one.number] if own and isinstance(own[0], tuple) else own
    places = [min(max(int(s), 0), whole - size) for s, size, whole in zip(own, one.sizes, shape)]
    return tuple(slice(p, p + size) for p, size in zip(places, one.sizes))


def evaluate_permute_of_slices(evaluator, instruction: Instruction, source, target, given, placed):
    """Slices of the source go to where the target device says, in its target; what it does not get stays."""
    device, of_tuples = evaluator.device, instruction.operands[0].shape.is_tuple
    sources, results = (source, [t.copy() for t in target]) if of_tuples else ((source,), [target.copy()])
    slices = permuted_slices(instruction)
    pairs = pairs_of_slices(device_pairs(instruction, device.replica_count, device.partition_count))
    own = tuple(sources[s.array][_corner(given, s, of_tuples, sources[s.array].shape)].copy() for s in slices)
    held = device.exchange(instruction, range(device.count), own)
    for k, one in enumerate(slices):
        for sender, receiver in pairs[one.number] if one.number < len(pairs) else ():
            if receiver == device.number:
                result = results[one.array]
                result[_corner(placed, one, of_tuples, result.shape)] = held[sender][k]
    return result_of(results, instruction.shape)


def evaluate_collective_permute(evaluator, instruction: Instruction, *operands):
    """Each pair {source, target} sends the source's value; a device that is no target gets zeros."""
    if instruction.get("slice_sizes") is not None:
        return evaluate_permute_of_slices(evaluator, instruction, *operands)
    device = evaluator.device
    pairs = device_pairs(instruction, device.replica_count, device.partition_count)
    held = device.exchange(instruction, range(device.count), operands)
    source = next((s for s, t in pairs if t == device.number), None)
    got = held[source] if source is not None else [np.zeros_like(o) for o in operands]
    return result_of(list(got), instruction.shape) if len(operands) > 1 or instruction.shape.is_tuple else got[0]


def evaluate_collective_permute_start(evaluator, instruction: Instruction, *operands):
    """(operand, result, handles ...)"""
    shape = instruction.shape
    result = evaluate_collective_permute(evaluator, instruction.copy(shape=shape.tuple_shapes[1]), *operands)
    handles = [np.zeros(s.dimensions, numpy_dtype(s.element_type)) for s in shape.tuple_shapes[2:]]
    given = operands[:1] if instruction.get("slice_sizes") is not None else operands
    return (result_of(given, shape.tuple_shapes[0]) if len(given) > 1 else given[0], result, *handles)


def evaluate_ragged_all_to_all(evaluator, instruction: Instruction, *operands: np.ndarray) -> np.ndarray:
    """Rows of the input go to rows of the members' outputs; other rows keep the output operand's values."""
    held, own = exchanged(evaluator, instruction, operands)
    result = operands[1].copy()
    for source, _, input_offsets, send_sizes, output_offsets, _ in held:
        per_member = len(send_sizes) // len(held)
        for k in range(own * per_member, (own + 1) * per_member):
            first, count, place = int(input_offsets[k]), int(send_sizes[k]), int(output_offsets[k])
            result[place:place + count] = source[first:first + count]
    return result


def check_rows(name: str, starts: np.ndarray, counts: np.ndarray, there: int) -> None:
    """Raises RunError where a ragged all-to-all, called `name`, moves rows that an array of so many does not have."""
    wrong = (starts < 0) | (counts < 0) | (starts + counts > there)
    if wrong.any():
        start, count = (int(a[wrong][0]) for a in (starts, counts))
        raise RunError(f"{name}: {count} rows from row {start} of {there} are not there")


def _same(evaluator, instruction: Instruction, value):
    return value


def _second(evaluator, instruction: Instruction, value):
    """The result that a -start holds after its operands."""
    return value[1]


def evaluate_partition_id(evaluator, instruction: Instruction) -> np.ndarray:
    return np.array(evaluator.device.partition, np.uint32)


def evaluate_replica_id(evaluator, instruction: Instruction) -> np.ndarray:
    return np.array(evaluator.device.replica, np.uint32)


# -- shapes ------------------------------------------------------------------------------------------------------------

def _shapes(instruction: Instruction) -> list[Shape]:
    return [array_operand(instruction, i) for i in range(len(instruction.operands))]


def _one_or_tuple(instruction: Instruction, shapes: Sequence[Shape]) -> Shape:
    written = instruction.shape
    one = len(shapes) == 1 and not (written is not None and written.is_tuple)
    return shapes[0] if one else Shape.tuple(shapes)


def infer_all_reduce(instruction: Instruction) -> Shape:
    """XLA's verifier does not check to_apply: errors are found when values are combined."""
    return _one_or_tuple(instruction, [s.with_default_layout() for s in _shapes(instruction)])


def check_reducer(instruction: Instruction) -> None:
    """Raises UnsupportedError if to_apply does not combine elements of the operands."""
    try:
        for shape in _shapes(instruction):
            check_combiner(instruction, "to_apply", [shape.element_type])
    except VerifyError as error:
        raise UnsupportedError(error.message, error.span) from None


def _written_part(instruction: Instruction, index: int) -> Shape | None:
    """The written shape of result `index`, which may depend on the number of devices."""
    written = instruction.shape
    if written is None:
        return None
    if written.is_tuple:
        return written.tuple_shapes[index] if index < len(written.tuple_shapes) else None
    return written if index == 0 else None


def _scaled_shapes(instruction: Instruction, larger_result: bool) -> list[Shape]:
    """Operand shapes whose gathered or scattered dimension has the written size, if that is a multiple."""
    shapes = _shapes(instruction)
    results = []
    for index, shape in enumerate(shapes):
        dimensions = dimension_list(instruction, "dimensions", shape.rank)
        require(len(dimensions) == 1, instruction, "dimensions must name one dimension")
        (axis,) = dimensions
        written = _written_part(instruction, index)
        if written is None or written.rank != shape.rank:
            fail(instruction, f"the result of {text(shape)} must have rank {shape.rank}"
                 + (f", is {text(written)}" if written is not None else " and be written"))
        size, given = written.dimensions[axis], shape.dimensions[axis]
        large, small = (size, given) if larger_result else (given, size)
        require(size == given or small > 0 and large % small == 0, instruction,
                f"dimension {axis} of {text(shape)} and the result {text(written)}: {large} is no multiple of {small}")
        results.append(shape.with_dimensions(shape.dimensions[:axis] + (size,) + shape.dimensions[axis + 1:]))
    return results


def infer_all_gather(instruction: Instruction) -> Shape:
    return _one_or_tuple(instruction, _scaled_shapes(instruction, True))


def infer_all_gather_start(instruction: Instruction) -> Shape:
    written = instruction.shape
    require(written is not None and written.is_tuple and len(written.tuple_shapes) == 2, instruction,
            "the result must be (operands, gathered)")
    operands = [s.with_default_layout() for s in _shapes(instruction)]
    single = len(operands) == 1 and not instruction.shape.tuple_shapes[0].is_tuple
    return Shape.tuple([operands[0] if single else Shape.tuple(operands), infer_all_gather(_result_only(instruction))])


def infer_reduce_scatter(instruction: Instruction) -> Shape:
    return _one_or_tuple(instruction, _scaled_shapes(instruction, False))


def infer_all_to_all(instruction: Instruction) -> Shape:
    shapes = [s.with_default_layout() for s in _shapes(instruction)]
    if not instruction.get("dimensions"):
        return Shape.tuple(shapes)
    require(len(shapes) == 1, instruction, f"with dimensions there is one operand, here are {len(shapes)}")
    dimension_list(instruction, "dimensions", shapes[0].rank)
    return shapes[0]


def infer_like_operands(instruction: Instruction) -> Shape:
    return _one_or_tuple(instruction, [s.with_default_layout() for s in _shapes(instruction)])


def infer_collective_permute(instruction: Instruction) -> Shape:
    attribute(instruction, "source_target_pairs")
    if instruction.get("slice_sizes") is not None:
        _check_slices(instruction)
        return instruction.operands[1].shape
    return infer_like_operands(instruction)


def _check_slices(instruction: Instruction) -> None:
    """A permute of slices has four operands: a source and a target of the same types and ranks, and for each array of
    both the starts of one slice, a tuple of integers, or of several, a tuple of those."""
    require(len(instruction.operands) == 4, instruction, "slices need the operands source, target and their starts")
    source, target, *starts = (o.shape for o in instruction.operands)
    arrays, into = ([*s.tuple_shapes] if s.is_tuple else [s] for s in (source, target))
    same = len(arrays) == len(into) and all(
        (a.is_tuple, a.element_type, a.rank) == (b.is_tuple, b.element_type, b.rank) for a, b in zip(arrays, into))
    require(same and source.is_tuple == target.is_tuple and not any(a.is_tuple for a in arrays), instruction,
            f"slices of {text(source)} do not fit {text(target)}")
    counts = []
    for places in starts:
        own = [*places.tuple_shapes] if source.is_tuple else [places]
        each = [o.tuple_shapes if o.is_tuple and o.tuple_shapes and o.tuple_shapes[0].is_tuple else (o,) for o in own]
        fits = len(own) == len(arrays) and all(
            one.is_tuple and len(one.tuple_shapes) == array.rank and
            all(not s.is_tuple and s.rank == 0 and s.kind in ("signed", "unsigned") for s in one.tuple_shapes)
            for array, several in zip(arrays, each) for one in several)
        require(fits, instruction, f"starts {text(places)} do not fit {text(source)}")
        counts.append([len(several) for several in each])
    require(counts[0] == counts[1], instruction, "source and target have different numbers of starts")


def infer_collective_permute_start(instruction: Instruction) -> Shape:
    written = instruction.shape
    require(written is not None and written.is_tuple and len(written.tuple_shapes) >= 2, instruction,
            "the result must be (operand, result)")
    if instruction.get("slice_sizes") is not None:
        _check_slices(instruction)
        return Shape.tuple([*(o.shape for o in instruction.operands[:2]), *written.tuple_shapes[2:]])
    operands = [s.with_default_layout() for s in _shapes(instruction)]
    part = operands[0] if len(operands) == 1 else Shape.tuple(operands)
    return Shape.tuple([part, part, *written.tuple_shapes[2:]])


def infer_same(instruction: Instruction) -> Shape:
    return instruction.operands[0].shape


def infer_second(instruction: Instruction) -> Shape:
    started = instruction.operands[0].shape
    require(started.is_tuple and len(started.tuple_shapes) >= 2, instruction,
            f"operand 0 must be (operands, result), is {text(started)}")
    return started.tuple_shapes[1]


def infer_ragged_all_to_all(instruction: Instruction) -> Shape:
    source, target = array_operand(instruction, 0), array_operand(instruction, 1)
    require(source.element_type == target.element_type and source.dimensions[1:] == target.dimensions[1:], instruction,
            f"rows differ: {text(source)} and {text(target)}")
    offsets = same_dimensions_all(instruction, range(2, 6))
    require(offsets.rank == 1 and offsets.kind in ("signed", "unsigned"), instruction,
            f"offsets and sizes must be vectors of integers, are {text(offsets)}")
    return array_shape(target.element_type, target.dimensions)


def infer_number(instruction: Instruction) -> Shape:
    return array("u32")


_GROUPS = ("replica_groups", "channel_id", "use_global_device_ids", "constrain_layout")
_SOME = (1, None)
_joined = rules.along(lambda i: i.get("dimensions"))
_reduce = partial(Op, required=("to_apply",), optional=_GROUPS + ("mode",), side_effect=True,
                  sharding=rules.elementwise)
_gather = partial(Op, required=("dimensions",), optional=_GROUPS, side_effect=True, sharding=_joined)
_permute = partial(Op, required=("source_target_pairs",), optional=("channel_id", "slice_sizes"), side_effect=True,
                   sharding=rules.elementwise)

ROWS: tuple[Op, ...] = (
    _reduce("all-reduce", _SOME, infer_all_reduce, evaluate_all_reduce),
    _reduce("all-reduce-start", _SOME, infer_all_reduce, evaluate_all_reduce),
    Op("all-reduce-done", 1, infer_same, _same),
    Op("reduce-scatter", _SOME, infer_reduce_scatter, evaluate_reduce_scatter, required=("dimensions", "to_apply"),
       optional=_GROUPS + ("mode",), side_effect=True, sharding=_joined),
    _gather("all-gather", _SOME, infer_all_gather, evaluate_all_gather),
    _gather("all-gather-start", _SOME, infer_all_gather_start, evaluate_all_gather_start),
    Op("all-gather-done", 1, infer_second, _second),
    Op("all-to-all", _SOME, infer_all_to_all, evaluate_all_to_all,
       optional=("replica_groups", "channel_id", "constrain_layout", "dimensions"), side_effect=True),
    Op("ragged-all-to-all", 6, infer_ragged_all_to_all, evaluate_ragged_all_to_all,
       optional=("replica_groups", "channel_id", "dimensions"), side_effect=True),
    Op("collective-broadcast", _SOME, infer_like_operands, evaluate_collective_broadcast,
       optional=("replica_groups", "channel_id"), side_effect=True),
    _permute("collective-permute", _SOME, infer_collective_permute, evaluate_collective_permute),
    _permute("collective-permute-start", _SOME, infer_collective_permute_start, evaluate_collective_permute_start),
    Op("collective-permute-done", 1, infer_second, _second),
    Op("partition-id", 0, infer_number, evaluate_partition_id),
    Op("replica-id", 0, infer_number, evaluate_replica_id),
)
