"""Cumulative sums of parts: each device continues what the parts before its own come to.

    f32[8] in 4 parts     the sums within each part; its last one is gathered, f32[4]; the sum of those of earlier parts
                          is added
"""
from __future__ import annotations

import numpy as np

from hloc.ir import Instruction, WindowDim
from hloc.passes.spmd_partitioner.emitter import Emitter
from hloc.sharding.meshes import Axes


def window_along(window: tuple[WindowDim, ...], d: int, part: int, downward: bool) -> tuple[WindowDim, ...]:
    """The windows of a part, which has all elements up to one, or from one on."""
    own = WindowDim(part, 1, 0, part - 1) if downward else WindowDim(part, 1, part - 1, 0)
    return (*window[:d], own, *window[d + 1:])


def continued(emitter: Emitter, made: Instruction, d: int, axes: Axes, combiner: str, identity: np.ndarray,
              downward: bool) -> Instruction:
    """The sums of all, of a part's sums `made` along a dimension."""
    e, part = emitter.e, made.shape.dimensions[d]
    last = e.slice(made, {d: (0, 1) if downward else (part - 1, part)})
    ends = emitter.all_gather(last, d, axes)
    place = e.iota("s32", ends.shape.dimensions, d)
    own = e.spread(emitter.part_number(axes), place.shape)
    counts = e.compare(place, "GT" if downward else "LT", own)
    before = e.reduce(emitter.module, e.chosen(counts, ends, e.like(identity, ends)), combiner, (d,), identity)
    before = e.broadcast(before, [k for k in range(made.shape.rank) if k != d], made.shape.dimensions)
    return e.op(combiner, before, made)
