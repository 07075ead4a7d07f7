"""What collectives take on a network of several levels, by models of latency and bandwidth.

In: the levels of a network, who works together, and how many bytes. Out: an Exchange: seconds, the algorithm, and the
bytes that a device sends at each level.

    levels = (Level("NVLink", 8, 4e11, 2e-6), Level("InfiniBand", 32, 5e10, 5e-6))
    exchange(levels, "all-reduce", [0, 8, 16, 24], 1 << 20)      four devices of four nodes

Sending n bytes takes latency + n / bandwidth (Hockney 1994). Devices are numbered through: the first `joins` of them
are a unit of the innermost level, the first units a unit of the next. Algorithms, of which the fastest counts:

    ring           p-1 steps, all levels busy at once: the slowest bounds it. Patarasuk and Yuan, Bandwidth optimal
                   all-reduce algorithms, 2009
    hierarchical   level by level: scattered on the inner level first, so that less goes over the outer one. Cho et al.,
                   BlueConnect, 2019
    tree           up and down two binary trees, pipelined: logarithmic latency, all bytes twice. Sanders, Speck and
                   Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009; as NCCL 2.4 does
    doubling       recursive doubling and halving, for short messages. pairwise, Bruck: of all-to-all. Thakur,
                   Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005

Every device takes part in the same collective of its own group at the same time: those of a unit share its port.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

SHORT_MESSAGE = 512 << 10           # bytes: up to here MPICH doubles (MPIR_CVAR_ALLGATHER_LONG_MSG_SIZE)


class Level(NamedTuple):
    """One kind of link.

    joins       how many units of the level below (of the innermost: devices) it joins
    bandwidth   bytes a second in one direction that a port sends in practice
    latency     seconds that a message takes beside its bytes
    shared      a port belongs to a unit of the level below, whose devices share it; else each device has one
    """

    name: str
    joins: int
    bandwidth: float
    latency: float
    shared: bool = False


class Exchange(NamedTuple):
    """sent: bytes by each device over the links of each level."""

    seconds: float
    algorithm: str
    sent: tuple[float, ...]


class Group(NamedTuple):
    """Devices that work together. counts: of each level, how many units of the one below take part, the most in one
    unit; rates: bytes a second for each device at each level."""

    levels: tuple[Level, ...]
    size: int
    counts: tuple[int, ...]
    rates: tuple[float, ...]

    @property
    def used(self) -> list[int]:
        """Levels that the group crosses."""
        return [n for n, count in enumerate(self.counts) if count > 1]


def unit_sizes(levels: Sequence[Level]) -> list[int]:
    """Devices of a unit of each level."""
    return [math.prod(level.joins for level in levels[:n + 1]) for n in range(len(levels))]


def group_of(levels: Sequence[Level], devices: Sequence[int], total: int | None = None) -> Group:
    """total: devices in all, which share ports; None: as many as there can be."""
    numbers, counts, below = np.unique(np.asarray(devices, np.int64)), [], 1
    rates = []
    for level, size in zip(levels, unit_sizes(levels)):
        units = np.unique(numbers // below)
        counts.append(int(np.unique(units // (size // below), return_counts=True)[1].max()))
        sharing = min(below, total or below) if level.shared else 1
        rates.append(level.bandwidth / sharing)
        below = size
    return Group(tuple(levels), len(numbers), tuple(counts), tuple(rates))


def exchange(levels: Sequence[Level], opcode: str, devices: Sequence[int], size: int,
             total: int | None = None) -> Exchange:
    """A collective of `devices`, each of which gives `size` bytes: the operands of all but an all-gather's, of which
    it is the result."""
    group = group_of(levels, devices, total)
    if not group.used:
        return Exchange(0.0, "", (0.0,) * len(group.levels))
    return min(_ALGORITHMS[opcode](group, float(size)), key=lambda e: e.seconds)


def permutation(levels: Sequence[Level], pairs: Sequence[tuple[int, int]], size: int, total: int) -> Exchange:
    """A collective-permute: each pair (source, target) sends `size` bytes, all at once. The slowest counts."""
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    ends = ends[ends[:, 0] != ends[:, 1]]
    seconds, sent, below = 0.0, [0.0] * len(levels), 1
    for n, (level, unit) in enumerate(zip(levels, unit_sizes(levels))):
        crosses = (ends[:, 0] // below != ends[:, 1] // below) & (ends[:, 0] // unit == ends[:, 1] // unit)
        if crosses.any():
            sharing = np.unique(ends[crosses, 0] // below, return_counts=True)[1].max() if level.shared else 1
            seconds = max(seconds, level.latency + size * int(sharing) / level.bandwidth)
            sent[n] = float(size)
        below = unit
    return Exchange(seconds, "direct" if seconds else "", tuple(sent))


# -- algorithms --------------------------------------------------------------------------------------------------------

def _shares(group: Group) -> list[float]:
    """Of n bytes that are scattered level by level, the bytes over n that a device sends at each level."""
    shares, left = [], 1.0
    for count in group.counts:
        shares.append(left * (count - 1) / count)
        left /= count
    return shares


def _hops(group: Group) -> list[int]:
    """How many links of each level a ring through all devices has on its way from the first to the last."""
    hops, left = [], group.size
    for count in group.counts:
        after = -(-left // count)
        hops.append(left - after)
        left = after
    return hops


def _latency(group: Group, steps: Sequence[float]) -> float:
    return sum(level.latency * count for level, count in zip(group.levels, steps))


def _logarithms(group: Group) -> list[int]:
    return [max(0, count - 1).bit_length() for count in group.counts]


def _longest(group: Group, sent: Sequence[float]) -> float:
    """Seconds of the level that is busy longest."""
    return max(size / rate for size, rate in zip(sent, group.rates))


def _scattering(group: Group, size: float, rounds: int = 1) -> Iterator[Exchange]:
    """reduce-scatter and all-gather, and with two rounds both after one another."""
    sent = tuple(rounds * size * share for share in _shares(group))
    yield Exchange(rounds * _latency(group, _hops(group)) + _longest(group, sent), "ring", sent)
    in_turn = sum(size / rate for size, rate in zip(sent, group.rates))
    yield Exchange(rounds * _latency(group, [count - 1 for count in group.counts]) + in_turn, "hierarchical", sent)
    if size <= SHORT_MESSAGE:
        yield Exchange(rounds * _latency(group, _logarithms(group)) + in_turn, "doubling", sent)


def _all_reduce(group: Group, size: float) -> Iterator[Exchange]:
    yield from _scattering(group, size, 2)
    sent = tuple(2 * size * (count > 1) for count in group.counts)
    yield Exchange(2 * _latency(group, _logarithms(group)) + _longest(group, sent), "tree", sent)


def _broadcast(group: Group, size: float) -> Iterator[Exchange]:
    sent = tuple(size * (count > 1) for count in group.counts)
    yield Exchange(_latency(group, _logarithms(group)) + _longest(group, sent), "tree", sent)


def _all_to_all(group: Group, size: float) -> Iterator[Exchange]:
    reached, peers = 1, []
    for count in group.counts:
        peers.append(reached * (count - 1))
        reached *= count
    sent = tuple(size * n / reached for n in peers)
    yield Exchange(_latency(group, peers) + _longest(group, sent), "pairwise", sent)
    rounds = _logarithms(group)
    some = tuple(size / 2 * n for n in rounds)
    yield Exchange(_latency(group, rounds) + sum(s / r for s, r in zip(some, group.rates)), "Bruck", some)


_ALGORITHMS: dict[str, Callable[[Group, float], Iterator[Exchange]]] = {
    "all-reduce": _all_reduce, "all-gather": _scattering, "reduce-scatter": _scattering, "all-to-all": _all_to_all,
    "ragged-all-to-all": _all_to_all, "collective-broadcast": _broadcast}


# -- where no cluster is named -----------------------------------------------------------------------------------------

def plain_network(kind: str, devices: int) -> tuple[Level, ...]:
    """One level for devices of a kind ("cpu", "gpu"), about as fast as PCIe 5 or memory: for decisions that need an
    order of magnitude."""
    bandwidth, latency = (50e9, 5e-6) if kind == "gpu" else (5e9, 20e-6)
    return (Level("network", max(devices, 1), bandwidth, latency),)
