"""Ops with windows on parts: what a device needs of its neighbours' parts (halos.py), fetched and put around its own.

    Fetched     a device's elements for one dimension of an operand, as a Reach of the rule says
    concatenated, selected_and_scattered        ops that are written otherwise, once their operands have been fetched
"""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hloc.ir import Instruction
from hloc.passes.spmd_partitioner.emitter import Emitter, resized
from hloc.passes.spmd_partitioner.halos import Piece, reach_plan, spread
from hloc.sharding.meshes import Axes
from hloc.sharding.rules import Reach


class Fetched(NamedTuple):
    """value: the elements; low, high: positions before and behind; dilation: how far elements are apart; begin: where
    each part's positions begin."""

    value: Instruction
    low: int
    high: int
    dilation: int
    begin: tuple[int, ...]


def fetch(emitter: Emitter, x: Instruction, reach: Reach, size: int, factor: int, axes: Axes, is_divided: bool,
          fill: Instruction | None) -> Fetched:
    """What this device's part, along `axes`, of a factor of size `factor` reads of `x`; `fill` where that is outside of
    the array (None: it does not matter)."""
    e, d, count = emitter.e, reach.dimension, emitter.mesh.count(axes)
    firsts, length = reach.ranges(-(-factor // count), count)
    elements = spread(firsts, length, reach.dilation)
    how = reach_plan(reach, size, factor, count, is_divided)
    x = e.op("reverse", x, dimensions=(d,)) if reach.flipped else x
    pieces = [_sent(emitter, x, d, piece, axes, reach, is_divided) for piece in how.pieces]
    empty = fill if fill is not None else e.constant(0, x.shape.element_type)
    if not pieces:
        together = e.spread(empty, resized(x.shape, d, how.low + how.high))
    else:
        together = pieces[0] if len(pieces) == 1 else e.op("concatenate", *pieces, dimensions=(d,))
        if how.low or how.high:
            together = emitter.pad(together, empty, d, how.low, how.high)
    own = taken(emitter, together, d, how.starts, elements.number, axes)
    if fill is not None and how.is_masked:
        own = _inside(emitter, own, d, elements.firsts, size, axes, fill)
    if min(elements.before) < 0:                             # ranges begin at different places between elements
        own = emitter.pad(own, empty, d, 0, reach.dilation - 1, reach.dilation - 1)
        own = taken(emitter, own, d, tuple(-n for n in elements.before), length, axes)
        return Fetched(own, 0, 0, 1, tuple(firsts.tolist()))
    return Fetched(own, elements.before[0], elements.behind, reach.dilation, tuple(firsts.tolist()))


def rolled(emitter: Emitter, x: Instruction, d: int, first: int) -> Instruction:
    """All elements of a dimension from `first` on, behind them those before."""
    e, size = emitter.e, x.shape.dimensions[d]
    return e.op("concatenate", e.slice(x, {d: (first, size)}), e.slice(x, {d: (0, first)}), dimensions=(d,))


def taken(emitter: Emitter, x: Instruction, d: int, starts: Sequence[int], length: int, axes: Axes) -> Instruction:
    """Elements from this part's place in `starts` on."""
    if len(set(starts)) == 1:
        return emitter.e.slice(x, {d: (starts[0], starts[0] + length)})
    return emitter.slice_at(x, d, emitter.by_part(axes, starts), length)


def _sent(emitter: Emitter, x: Instruction, d: int, piece: Piece, axes: Axes, reach: Reach,
          is_divided: bool) -> Instruction:
    """A piece of another part; zeros where it is not needed."""
    cut = emitter.e.slice(x, {d: (piece.low, piece.high)})
    if not is_divided or not reach.flipped and piece.shift % emitter.mesh.count(axes) == 0:
        return cut
    groups = emitter.mesh.groups(axes)
    count = groups.shape[1]
    targets = np.array(piece.targets)
    sources = (targets + piece.shift) % count
    if reach.flipped:
        sources = count - 1 - sources
    return emitter.send(cut, np.stack([groups[:, sources], groups[:, targets]], -1).reshape(-1, 2).tolist())


def _inside(emitter: Emitter, x: Instruction, d: int, firsts: Sequence[int], size: int, axes: Axes,
            fill: Instruction) -> Instruction:
    """`x` where its places are within the array, `fill` elsewhere."""
    e = emitter.e
    place = e.iota("s32", x.shape.dimensions, d)
    place = e.op("add", place, e.spread(emitter.by_part(axes, firsts), place.shape))
    inside = e.op("and", e.compare(place, "GE", e.like(0, place)), e.compare(place, "LT", e.like(size, place)))
    return e.chosen(inside, x, e.spread(fill, x.shape))


# -- ops that become others --------------------------------------------------------------------------------------------

def concatenated(emitter: Emitter, fetched: Sequence[Fetched], sizes: Sequence[int], d: int, axes: Axes) -> Instruction:
    """This device's part of operands behind one another, each of which has been fetched for all of it."""
    e = emitter.e
    whole = fetched[0].value
    place = e.iota("s32", whole.shape.dimensions, d)
    first = emitter.part_number(axes, whole.shape.dimensions[d])
    place = e.op("add", place, e.spread(first, place.shape))
    end = 0
    for size, (_, one) in zip(sizes, pairwise(fetched)):
        end += size
        whole = e.chosen(e.compare(place, "LT", e.like(end, place)), whole, one.value)
    return whole


def selected_and_scattered(emitter: Emitter, made: Instruction, start: Instruction, d: int, part: int,
                           fetched: Fetched, axes: Axes) -> Instruction:
    """This device's elements of those that its windows cover; `start` where no window does."""
    covered = made.shape.dimensions[d]
    starts = [n * part - first for n, first in enumerate(fetched.begin)]
    behind = max(0, max(starts) + part - covered)
    before = max(0, -min(starts))
    if before or behind:
        made = emitter.pad(made, start, d, before, behind)
    return taken(emitter, made, d, [n + before for n in starts], part, axes)
