"""Dots that can be divided by the devices of a collective, and what that saves.

    windows_of(computation, ...)               {dot: Window(dot, all-gather, side=0, dimension=0, ring)}
    is_faster(window, computation, seconds)    the parts, each beside the sending of another, against all of it in turn
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from hloc.analysis.communication import Counts
from hloc.analysis.cost import flops
from hloc.analysis.fusible import HEROES
from hloc.ir import Computation, Instruction, Shape, Verbatim, array
from hloc.ops.collectives import device_groups
from hloc.passes.collective_combining import is_of_array
from hloc.passes.rewriter import control_dependent, count_uses
from hloc.sharding.rules import combiner_of

MOST_DEVICES = 256
WORTH = 0.95                        # of the time that it may take at most


class Ring(NamedTuple):
    """Devices that pass parts on: each to the one before it in its group."""

    groups: tuple[tuple[int, ...], ...]
    counts: Counts

    @property
    def size(self) -> int:
        return len(self.groups[0])

    @property
    def permute(self) -> dict:
        """Attributes of the collective-permute, but for its channel. Its numbers are devices: there is one replica, or
        one partition."""
        pairs = (f"{{{g[k]},{g[k - 1]}}}" for g in self.groups for k in range(self.size))
        return {"source_target_pairs": Verbatim("{" + ",".join(pairs) + "}")}

    def blocks(self, ahead: int, scale: int) -> np.ndarray:
        """Where the part begins that each device has at each step, [step, device]: part number place + step + ahead."""
        starts = np.zeros((self.size, self.counts.devices), np.int32)
        for group in self.groups:
            for place, device in enumerate(group):
                starts[:, device] = (np.arange(self.size) + place + ahead) % self.size * scale
        return starts


class Window(NamedTuple):
    """A dot, and the collective that gives operand `side` along `dimension` of it, or scatters the result along what
    comes from there."""

    dot: Instruction
    collective: Instruction
    side: int
    dimension: int
    ring: Ring

    @property
    def gathers(self) -> bool:
        return self.collective.opcode == "all-gather"

    @property
    def size(self) -> int:
        """Of a part, along the dimension."""
        return self.dot.operands[self.side].shape.dimensions[self.dimension] // self.ring.size

    @property
    def other_dimension(self) -> int | None:
        """The same dimension of the other operand: a batch dimension, or one that is summed over."""
        for kind in ("batch_dims", "contracting_dims"):
            own, other = (self.dot.get(f"{s}_{kind}") or () for s in self.order)
            if self.dimension in own:
                return other[own.index(self.dimension)]
        return None

    @property
    def result_dimension(self) -> int | None:
        """The same dimension of the result; None: it is summed over."""
        return result_dimension(self.dot, self.side, self.dimension)

    @property
    def order(self) -> tuple[str, str]:
        return ("lhs", "rhs") if self.side == 0 else ("rhs", "lhs")

    def part(self, operand: Shape, dimension: int | None) -> Shape:
        """Of an operand or result, cut along a dimension."""
        return array(operand.element_type, *(
            self.size if d == dimension else n for d, n in enumerate(operand.dimensions)))

    @property
    def part_of_result(self) -> Shape:
        return self.part(self.dot.shape, self.result_dimension)


def windows_of(computation: Computation, counts: Counts,
               seconds: Callable[[Instruction], float]) -> dict[Instruction, Window]:
    """Those that are worth it, by the instruction that they replace: a dot, or a reduce-scatter of one."""
    uses, pinned = count_uses(computation), control_dependent(computation)
    found: dict[Instruction, Window] = {}
    for instruction in computation.instructions:
        if instruction.opcode == "reduce-scatter" and instruction.operands[0] not in found:
            windows = [_scattered(instruction, uses, counts)]
        elif instruction.opcode == "dot":
            windows = [_gathered(instruction, side, uses, counts) for side in (0, 1)]
        else:
            continue
        possible = [w for w in windows if w is not None and pinned.isdisjoint((w.dot, w.collective))]
        largest = max(possible, key=lambda w: w.dot.operands[w.side].shape.num_bytes, default=None)
        if largest is not None and is_faster(largest, computation, seconds):
            found[instruction] = largest
    return found


def _gathered(dot: Instruction, side: int, uses: Mapping[Instruction, int], counts: Counts) -> Window | None:
    gather = dot.operands[side]
    if not is_of_array(gather, "all-gather") or uses[gather] != 1:
        return None
    ring = ring_of(gather, counts)
    return Window(dot, gather, side, gather.get("dimensions")[0], ring) if ring is not None else None


def _scattered(reduce: Instruction, uses: Mapping[Instruction, int], counts: Counts) -> Window | None:
    dot = reduce.operands[0]
    if not is_of_array(reduce, "reduce-scatter") or dot.opcode != "dot" or uses[dot] != 1 \
            or combiner_of(reduce) != "add":
        return None
    ring, along = ring_of(reduce, counts), reduce.get("dimensions")[0]
    if ring is None:
        return None
    return next(Window(dot, reduce, side, d, ring) for side in (0, 1)
                for d in range(dot.operands[side].shape.rank) if result_dimension(dot, side, d) == along)


def ring_of(collective: Instruction, counts: Counts) -> Ring | None:
    """Its groups, where each device is in one of the same size, and numbers of devices are those of replicas or of
    partitions."""
    groups = tuple(tuple(g) for g in device_groups(collective, *counts))
    by_partition = collective.get("channel_id") is not None
    if (counts.replicas if by_partition else counts.partitions) != 1 or not 2 <= len(groups[0]) <= MOST_DEVICES:
        return None
    whole = sorted(d for g in groups for d in g) == list(range(counts.devices)) and len({len(g) for g in groups}) == 1
    return Ring(groups, counts) if whole else None


def result_dimension(dot: Instruction, side: int, dimension: int) -> int | None:
    """Which dimension of the result is dimension `dimension` of an operand; None: it is summed over."""
    batch, free = [], []
    for name, operand in zip(("lhs", "rhs"), dot.operands):
        batch.append(tuple(dot.get(f"{name}_batch_dims") or ()))
        summed = dot.get(f"{name}_contracting_dims") or ()
        free.append([d for d in range(operand.shape.rank) if d not in batch[-1] and d not in summed])
    if dimension in batch[side]:
        return batch[side].index(dimension)
    if dimension not in free[side]:
        return None
    return len(batch[0]) + (len(free[0]) if side == 1 else 0) + free[side].index(dimension)


# -- what it saves -----------------------------------------------------------------------------------------------------

def is_faster(window: Window, computation: Computation, seconds: Callable[[Instruction], float]) -> bool:
    """Whether the parts take less than the dot and its collective in turn. Where other matmuls can run beside the
    collective, it is not in the way."""
    dot, collective = window.dot, window.collective
    product, sent = seconds(dot), seconds(collective)
    beside = sum(flops(i) for i in independent(computation, collective) if i.opcode in HEROES)
    if beside * product >= sent * flops(dot):
        return False
    part, permute, joining = (seconds(i) for i in drafts(window))
    steps = window.ring.size
    divided = part + joining + (steps - 1) * max(part + joining, permute)
    return divided < WORTH * (product + sent)


def drafts(window: Window) -> list[Instruction]:
    """The dot, the permute and the joining of one part, for their costs."""
    dot = window.dot
    operands = [Instruction("part", "parameter", window.part(o.shape, d)) for o, d in zip(
        dot.operands, (window.dimension, window.other_dimension)[::1 if window.side == 0 else -1])]
    product = Instruction("part", "dot", window.part_of_result, operands, dot.attributes, span=dot.span)
    moved = operands[window.side] if window.gathers else product
    permute = Instruction("moved", "collective-permute", moved.shape, [moved], dict(window.ring.permute))
    if window.collective.get("channel_id") is not None:
        permute.attributes["channel_id"] = window.collective.get("channel_id")
    if window.gathers and window.result_dimension is not None:
        joined = Instruction("joined", "dynamic-update-slice", dot.shape, [dot, product])
    else:
        joined = Instruction("joined", "add", product.shape, [product, product])
    return [product, permute, joined]


def independent(computation: Computation, instruction: Instruction) -> set[Instruction]:
    """What neither needs the instruction nor is needed for it."""
    before, stack = {instruction}, [instruction]
    while stack:
        for operand in stack.pop().operands:
            if operand not in before:
                before.add(operand)
                stack.append(operand)
    behind = {instruction}
    for other in computation.instructions:
        if not behind.isdisjoint(other.operands):
            behind.add(other)
    return set(computation.instructions) - before - behind
