"""What the devices of a partitioned module send each other.

In: a module with collectives. Out: a Transfer per collective, with the bytes that each device of its group sends when
it is done as rings do it (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH):

    all-reduce of n bytes among d devices     2 n (d-1)/d          all-gather of results of n bytes   n (d-1)/d
    reduce-scatter of n bytes                   n (d-1)/d          all-to-all of n bytes              n (d-1)/d
    collective-permute of n bytes               n

Collectives in loops count once for each round, where the number of rounds is known.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hloc.analysis.asynchronous import base_of
from hloc.analysis.links import Exchange, Level, exchange, permutation
from hloc.analysis.loop_annotations import known_trip_count
from hloc.analysis.while_loops import loop_of, trip_count
from hloc.ir import Computation, Instruction, Module
from hloc.ops.collectives import EXCHANGES, device_groups, device_pairs
from hloc.ops.device_groups import parse_groups
from hloc.sharding.meshes import DeviceMesh

ACROSS_BOTH = frozenset(["all-reduce", "all-gather", "reduce-scatter"])     # with a channel: replicas' partitions, too


class Transfer(NamedTuple):
    """instruction: the collective; devices: of a group; sent: bytes by each device, each time; times: how often."""

    instruction: Instruction
    devices: int
    sent: float
    times: int

    @property
    def total(self) -> float:
        return self.sent * self.times


def transfers(module: Module) -> list[Transfer]:
    """All collectives that run, callees where they are called."""
    partitions = int(module.attributes.get("num_partitions", 1)) * int(module.attributes.get("replica_count", 1))
    return list(_transfers(module.entry, partitions, 1))


def bytes_sent(module: Module) -> float:
    """By each device, in one run."""
    return sum(one.total for one in transfers(module))


def _transfers(computation: Computation, partitions: int, times: int) -> Iterator[Transfer]:
    for instruction in computation.instructions:
        base = instruction.opcode.removesuffix("-start")
        if base in EXCHANGES:
            devices = _group_size(instruction, partitions)
            yield Transfer(instruction, devices, _sent(instruction, base, devices), times)
        rounds = times * rounds_of(instruction)
        for callee in instruction.called_computations if instruction.opcode in _CALLERS else ():
            yield from _transfers(callee, partitions, rounds)


_CALLERS = frozenset(["while", "call", "conditional", "fusion", "async-start"])


def rounds_of(instruction: Instruction) -> int:
    """How often a while runs its body, 1 where that is not known; 1 for other instructions."""
    if instruction.opcode != "while":
        return 1
    loop = loop_of(instruction)
    return known_trip_count(instruction) or (trip_count(loop) if loop is not None else None) or 1


def _group_size(instruction: Instruction, partitions: int) -> int:
    groups = parse_groups(str(instruction.get("replica_groups", "{}")))
    return max(map(len, groups), default=0) or partitions


def _sent(instruction: Instruction, opcode: str, devices: int) -> float:
    taken = instruction.operands[:1] if opcode == "collective-permute" else instruction.operands
    return sent_by_each(opcode, sum(o.shape.num_bytes for o in taken), devices)


def sent_by_each(opcode: str, size: int, devices: int) -> float:
    """What each of so many devices sends in a collective to which each gives `size`; in the unit of `size`. The
    partitioner counts by it, too, before the collectives are there."""
    if opcode == "collective-permute":
        return float(size)
    if opcode == "all-gather":
        return float(size * (devices - 1))
    return (2 if opcode == "all-reduce" else 1) * size * (devices - 1) / devices


# -- on a network ------------------------------------------------------------------------------------------------------

class Counts(NamedTuple):
    """replica_count and num_partitions. Device r * partitions + p is partition p of replica r."""

    replicas: int
    partitions: int

    @property
    def devices(self) -> int:
        return self.replicas * self.partitions


def counts_of(module: Module) -> Counts:
    return Counts(int(module.attributes.get("replica_count", 1)), int(module.attributes.get("num_partitions", 1)))


def largest_group(instruction: Instruction, counts: Counts) -> list[int]:
    """The devices of a collective's largest group; of a permute a device and whom it sends to, the first such pair."""
    if base_of(instruction) == "collective-permute":
        return next((list(pair) for pair in device_pairs(instruction, *counts) if pair[0] != pair[1]), [])
    return max(device_groups(instruction, *counts), key=len, default=[])


def axes_between(instruction: Instruction, counts: Counts, mesh: DeviceMesh | None) -> list[int]:
    """The axes of the mesh along which the devices of a collective differ; none without a mesh of all devices."""
    if mesh is None or mesh.size != counts.devices:
        return []
    places = np.argwhere(np.isin(mesh.grid(), largest_group(instruction, counts)))       # a row for each device
    return [axis for axis, along in enumerate(places.T) if len(np.unique(along)) > 1]


def exchange_of(instruction: Instruction, levels: Sequence[Level], counts: Counts) -> Exchange:
    """What a collective takes on a network of such levels; of groups that differ in size, the largest."""
    base = base_of(instruction)
    if base == "collective-permute":
        pairs = device_pairs(instruction, *counts)
        return permutation(levels, pairs, instruction.operands[0].shape.num_bytes, counts.devices)
    group = largest_group(instruction, counts)
    size = sum(o.shape.num_bytes for o in instruction.operands)
    if base == "all-gather":
        size *= len(group)
    return exchange(levels, base, group, size, counts.devices)
