"""The rules of a module for several devices: groups of collectives, pairs of permutes, shardings.

In: an instruction, and the numbers of replicas and partitions of its module (1 if the header has none: then groups may
name any). Out: the error, or None.

    f32[4] all-reduce(x), replica_groups={{0,1}}   of 4 replicas    "the groups name 2 of 4 devices"

Source: xla/service/hlo_verifier.cc (CheckReplicaGroups, HandleCollectivePermute ...).
"""
from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from hloc.errors import UnsupportedError, VerifyError
from hloc.ir import Computation, Instruction, Module
from hloc.ops.annotations import sharding_problem
from hloc.ops.device_groups import check_groups, parse_groups
from hloc.ops.meshes import axes_problem

# Collectives whose groups must name every device once, and those of them whose groups are of one size.
GROUPED = frozenset({"all-gather", "all-reduce", "all-to-all", "ragged-all-to-all", "reduce-scatter"})
OF_ONE_SIZE = GROUPED - {"all-reduce"}
# Those that include all partitions of a group's replicas if they have a channel.
BOTH_MODES = frozenset({"all-gather", "all-reduce", "reduce-scatter"})


def device_errors(module: Module, reachable: list[Computation]) -> Iterator[VerifyError]:
    """The errors of all instructions that may run."""
    replicas, partitions = (int(module.attributes.get(key, 1)) for key in ("replica_count", "num_partitions"))
    constrained: set[bool] = set()
    for computation in reachable:
        for instruction in computation.instructions:
            problem = device_problem(instruction, replicas, partitions)
            if instruction.opcode in ("all-reduce", "all-reduce-start"):
                constrained.add(bool(instruction.get("constrain_layout", False)))
                if len(constrained) == 2:
                    problem = problem or "some all-reduce have constrain_layout=true, others not"
                    constrained.clear()
            if problem:
                yield VerifyError(problem, instruction.span)


def device_problem(instruction: Instruction, replicas: int, partitions: int) -> str | None:
    """The error of one instruction, or None."""
    base = instruction.opcode.removesuffix("-start")
    if "sharding" in instruction.attributes and base != "outfeed":       # there it is the operand's
        problem = sharding_problem(str(instruction.get("sharding")), instruction.shape, partitions)
        if problem:
            return f"sharding: {problem}"
    if base in GROUPED:
        return groups_problem(instruction, base, replicas, partitions)
    if base == "collective-permute":
        limit = replicas if instruction.get("channel_id") is None else partitions
        return pairs_problem(str(instruction.get("source_target_pairs")), limit, _slices(instruction))
    return None


def groups_problem(instruction: Instruction, base: str, replicas: int, partitions: int) -> str | None:
    """The groups name all participating devices once; sizes fit the operands."""
    text = str(instruction.get("replica_groups", "{}"))
    try:
        problem = axes_problem(text)
        if problem:
            return f"replica_groups: {problem}"
        problem, groups = check_groups(text), parse_groups(text)
    except UnsupportedError:
        return _mesh_problem(instruction, base, text, replicas, partitions)
    if problem:
        return f"replica_groups: {problem}"
    total, inside = device_counts(instruction, base, replicas, partitions)
    sizes = {len(group) for group in groups}
    named = sum(map(len, groups))
    if not groups and instruction.get("use_global_device_ids", False):
        return "use_global_device_ids=true needs replica_groups"
    if groups and total not in (1, named):
        return f"replica_groups: the groups name {named} of {total} devices"
    if base in OF_ONE_SIZE and len(sizes) > 1:
        return f"replica_groups: groups of {min(sizes)} and of {max(sizes)} devices"
    size = next(iter(sizes)) * inside if groups else total * inside
    if base in ("all-gather", "reduce-scatter") and size != 1:
        parts = shard_count(instruction)
        if parts is not None and parts != size:
            return f"the operand is a part of {parts}, the group has {size} devices"
    return _all_to_all_problem(instruction, size) if base == "all-to-all" else None


def _mesh_problem(instruction: Instruction, base: str, text: str, replicas: int, partitions: int) -> str | None:
    """Groups along parts of axes: they name all participating devices."""
    if "mesh" not in text:
        return f"replica_groups={text} cannot be read"
    named = math.prod(int(n) for n in re.findall(r"=\s*(\d+)", text.partition("]")[0]))
    total, _ = device_counts(instruction, base, replicas, partitions)
    return f"replica_groups: the mesh has {named} of {total} devices" if total not in (1, named) else None


def _all_to_all_problem(instruction: Instruction, size: int) -> str | None:
    """Equal parts for all devices of a group: operands that are alike, or one whose dimension is divided."""
    first = instruction.operands[0].shape
    if instruction.get("dimensions"):
        length = first.dimensions[instruction.get("dimensions")[0]]
        return f"dimension of size {length} is not divided by {size} devices" if length % max(size, 1) else None
    if len(instruction.operands) not in (1, size):
        return f"{len(instruction.operands)} operands, the group has {size} devices"
    other = next((o.shape for o in instruction.operands if o.shape != first), None)
    return f"operands differ: {first} and {other}" if other is not None else None


def _slices(instruction: Instruction) -> int:
    """The number of slices that a permute of slices sends, each between its own devices; else 1."""
    if len(instruction.operands) != 4 or not instruction.operands[2].shape.is_tuple:
        return 1
    starts = instruction.operands[2].shape
    return len((starts.tuple_shapes[0] if instruction.operands[0].shape.is_tuple else starts).tuple_shapes or (0,))


def device_counts(instruction: Instruction, base: str, replicas: int, partitions: int) -> tuple[int, int]:
    """The number of devices that groups name, and the number of actual devices for each."""
    if instruction.get("use_global_device_ids", False):
        return replicas * partitions, 1
    if instruction.get("channel_id") is None:
        return replicas, 1
    return (replicas, partitions) if base in BOTH_MODES else (partitions, 1)


def shard_count(instruction: Instruction) -> int | None:
    """How many operands make a result of all-gather (or results an operand of reduce-scatter)."""
    whole = instruction.shape
    if instruction.opcode.endswith("-start") and whole.is_tuple and len(whole.tuple_shapes) > 1:
        whole = whole.tuple_shapes[1]
    shape = whole.tuple_shapes[0] if whole.is_tuple and whole.tuple_shapes else whole
    operand, (axis,) = instruction.operands[0].shape, instruction.get("dimensions")
    sizes = operand.dimensions[axis], shape.dimensions[axis]
    return max(sizes) // min(sizes) if min(sizes) > 0 else None


def pairs_problem(text: str, limit: int, slices: int = 1) -> str | None:
    """No device gives or gets more often than there are slices, and all are there."""
    if "-" in text:
        return "source_target_pairs: a device number is negative"
    try:
        pairs = parse_groups(text)
    except UnsupportedError:
        return f"source_target_pairs={text} cannot be read"
    for what, place in (("source", 0), ("target", 1)):
        number, count = next(iter(Counter(pair[place] for pair in pairs).most_common(1)), (0, 0))
        if count > slices:
            return f"source_target_pairs: {number} is a {what} {'twice' if slices == 1 else f'{count} times'}"
    highest = max((n for pair in pairs for n in pair), default=0)
    if limit > 1 and highest >= limit:
        return f"source_target_pairs: device {highest} of {limit}"
    return None
