"""What runs beside the collectives of an optimized module, and what of them is exposed.

    exposures(module, context)      [Exposure(all-reduce-start.0, devices=4, runs=1, seconds=3e-5, exposed=1e-5, ...)]

Times are rough: no cluster is named, so the network is one level (links.plain_network). hloc simulate takes clusters.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hloc.analysis.communication import counts_of, exchange_of, largest_group
from hloc.analysis.links import plain_network
from hloc.analysis.timeline import KERNEL, TRANSFER, Slice, replay, rough_seconds
from hloc.ir import Instruction, Module
from hloc.ir.clone import clone_module
from hloc.passes.context import PassContext
from hloc.passes.pipelines import OVERLAP
from hloc.passes.runner import run_passes
from hloc.tools.sharding_causes import Cause, Causes, causes_of

MOST_BESIDE = 3                     # kernels that are named for a collective


class Exposure(NamedTuple):
    """A collective. sent: bytes by a device each time; seconds, exposed: of all its runs; beside: kernels that run
    while it does, the first of them; causes: the annotations that it is there for, where they are known."""

    instruction: Instruction
    devices: int
    runs: int
    sent: float
    seconds: float
    exposed: float
    beside: tuple[str, ...]
    causes: tuple[Cause, ...] = ()


def exposures(module: Module, context: PassContext, causes: Causes | None = None,
              joined: Mapping[int, Iterable[int]] | None = None) -> list[Exposure]:
    """Those that take longest first. The module is left as it is. causes, joined: tools/sharding_causes.py."""
    own, counts = clone_module(module), counts_of(module)
    run_passes(own, OVERLAP, context, verify=False)
    line = replay(own.entry, rough_seconds(own, context.machine))
    levels = plain_network(context.machine.kind, counts.devices)
    beside = _overlapping_kernels(line.slices)
    found = [Exposure(i, len(largest_group(i, counts)), one.runs, sum(exchange_of(i, levels, counts).sent), one.seconds,
                      one.exposed, _first(beside[i]), causes_of(i, causes or {}, joined or {}))
             for i, one in line.transfers.items()]
    return sorted(found, key=lambda e: -e.seconds)


def _overlapping_kernels(slices: Sequence[Slice]) -> dict[Instruction, dict[str, None]]:
    """Of each collective the names of kernels, in their order. One of a computation that is called twice has two
    slices."""
    kernels = [s for s in slices if s.kind == KERNEL]
    found: dict[Instruction, dict[str, None]] = {}
    for s in slices:
        if s.kind == TRANSFER:
            names = (k.instruction.name for k in kernels if k.begin < s.end and s.begin < k.end)
            found.setdefault(s.instruction, {}).update(dict.fromkeys(names))
    return found


def _first(names: Iterable[str]) -> tuple[str, ...]:
    shown = tuple(names)
    return shown[:MOST_BESIDE] + (("...",) if len(shown) > MOST_BESIDE else ())
