"""What the devices of a partitioned module send each other.

In: a module with collectives. Out: a Transfer per collective, with the bytes that each device of its group sends when
it is done as rings do it (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH):

    all-reduce of n bytes among d devices     2 n (d-1)/d          all-gather of results of n bytes   n (d-1)/d
    reduce-scatter of n bytes                   n (d-1)/d          all-to-all of n bytes              n (d-1)/d
    collective-permute of n bytes               n

Collectives in loops count once for each round, where the number of rounds is known.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hloc.analysis.loop_annotations import known_trip_count
from hloc.analysis.while_loops import loop_of, trip_count
from hloc.ir import Computation, Instruction, Module
from hloc.ops.device_groups import parse_groups

GROUPED = frozenset(["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
                     "collective-broadcast"])


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
        if base in GROUPED or base == "collective-permute":
            devices = _group_size(instruction, partitions)
            yield Transfer(instruction, devices, _sent(instruction, base, devices), times)
        rounds = times * _rounds(instruction)
        for callee in instruction.called_computations if instruction.opcode in _CALLERS else ():
            yield from _transfers(callee, partitions, rounds)


_CALLERS = frozenset(["while", "call", "conditional", "fusion", "async-start"])


def _rounds(instruction: Instruction) -> int:
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
