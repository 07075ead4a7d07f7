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
from functools import lru_cache
from typing import NamedTuple

from hloc.analysis.asynchronous import base_of
from hloc.analysis.links import Exchange, Level, exchange, permutation
from hloc.analysis.loop_annotations import known_trip_count
from hloc.analysis.while_loops import loop_of, trip_count
from hloc.ir import Computation, Instruction, Module
from hloc.ops.collectives import EXCHANGES
from hloc.ops.device_groups import parse_groups

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


def _sent(instruction: Instruction, base: str, devices: int) -> float:
    taken = sum(o.shape.num_bytes for o in instruction.operands)
    if base == "collective-permute":
        return float(instruction.operands[0].shape.num_bytes)
    part = (devices - 1) / devices
    if base == "all-reduce":
        return 2 * taken * part
    if base == "all-gather":
        return taken * (devices - 1)
    return taken * part


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


def device_groups(instruction: Instruction, counts: Counts) -> Sequence[Sequence[int]]:
    """The devices that work together in a collective, by their numbers in the whole program."""
    mode = "permute" if base_of(instruction) == "collective-permute" else "global"
    text = str(instruction.get("source_target_pairs" if mode == "permute" else "replica_groups", "{}"))
    channel = instruction.get("channel_id") is not None
    if mode == "permute":
        mode = "partitions" if channel else "replicas"
    elif not instruction.get("use_global_device_ids", False):
        across = channel and base_of(instruction) in ACROSS_BOTH
        mode = "both" if across else "partitions" if channel else "replicas"
    return _device_groups(text, mode, counts)


@lru_cache(maxsize=256)
def _device_groups(text: str, mode: str, counts: Counts) -> Sequence[Sequence[int]]:
    replicas, partitions = counts
    groups = parse_groups(text)
    if mode == "partitions":
        groups = groups or [list(range(partitions))]
        return [[r * partitions + p for p in group] for r in range(replicas) for group in groups]
    if mode == "replicas":
        groups = groups or [list(range(replicas))]
        return [[r * partitions + p for r in group] for p in range(partitions) for group in groups]
    if mode == "both":
        groups = groups or [list(range(replicas))]
        return [[r * partitions + p for r in group for p in range(partitions)] for group in groups]
    return groups or [list(range(counts.devices))]


def exchange_of(instruction: Instruction, levels: Sequence[Level], counts: Counts) -> Exchange:
    """What a collective takes on a network of such levels; of groups that differ in size, the largest."""
    base, groups = base_of(instruction), device_groups(instruction, counts)
    if base == "collective-permute":
        pairs = [(pair[0], pair[1]) for pair in groups if len(pair) == 2]
        return permutation(levels, pairs, instruction.operands[0].shape.num_bytes, counts.devices)
    group = max(groups, key=len, default=())
    size = sum(o.shape.num_bytes for o in instruction.operands)
    if base == "all-gather":
        size *= len(group)
    return exchange(levels, base, group, size, counts.devices)
