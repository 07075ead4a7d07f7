"""What a device gets from its neighbours, so that it has a range of elements of its own along a dimension.

In: an array of `size` elements along a dimension, divided in `count` parts; where each device's range begins, and how
long all ranges are. Out: pieces of parts, each sent by all devices to those so many places before them; where in the
pieces, one behind another, the range begins.

    8 elements in 4 parts, ranges of 4 from 2i-1 on (a window of 3, padded by 1)
        the last element of the part before, the own part, the first of the part behind; from 0 on
"""
from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hloc.analysis.communication import sent_by_each
from hloc.sharding.rules import Reach


class Piece(NamedTuple):
    """Elements low to high of the part `shift` places behind; targets: the parts that need it."""

    shift: int
    low: int
    high: int
    targets: tuple[int, ...]


class Plan(NamedTuple):
    """low, high: padding before and behind the pieces; starts: where in that each part's range begins; is_masked:
    whether some range goes beyond the array; sent: elements along the dimension that a device sends."""

    pieces: tuple[Piece, ...]
    low: int
    high: int
    starts: tuple[int, ...]
    is_masked: bool
    sent: int


@lru_cache(maxsize=1024)
def plan(size: int, count: int, firsts: tuple[int, ...], length: int, is_divided: bool, flipped: bool = False,
         wraps: bool = False) -> Plan:
    """How each of `count` parts comes to `length` elements from its place in `firsts` on. is_divided: False where each
    device has all of the array. flipped: the array and its parts are counted from the end. wraps: behind the end comes
    the beginning."""
    part = max(1, -(-size // count) if is_divided else size)
    begin = np.array(firsts)
    low, high = (begin, begin + length) if wraps else (np.maximum(begin, 0), np.minimum(begin + length, size))
    if flipped and is_divided:
        begin = begin + part * count - size                    # what pads the last part comes first
        low, high = low + part * count - size, high + part * count - size
    is_some = high > low
    own = np.arange(count) if is_divided else np.zeros(count, np.int64)
    first, last = low // part - own, (high - 1) // part - own                  # in places from the own part
    pieces = _pieces(part, low - low // part * part, high - (high - 1) // part * part, first, last, is_some)
    base = (own + pieces[0].shift) * part + pieces[0].low if pieces else begin
    together = sum(p.high - p.low for p in pieces)
    starts = np.where(is_some, begin - base, 0)
    before = max(0, -int(starts.min()))
    starts = np.where(is_some, starts + before, 0)
    behind = max(0, int(starts.max()) + length - before - together)
    sent = sum(p.high - p.low for p in pieces if (p.shift % count or flipped) and is_divided)
    is_masked = bool(np.any(high - low < length))
    return Plan(tuple(pieces), before, behind, tuple(starts.tolist()), is_masked, sent)


def _pieces(part: int, low: np.ndarray, high: np.ndarray, first: np.ndarray, last: np.ndarray,
            is_some: np.ndarray) -> list[Piece]:
    """low: where a range begins in its first part; high: where it ends in its last."""
    if not is_some.any():
        return []
    lowest, highest = int(first[is_some].min()), int(last[is_some].max())
    found = []
    for shift in range(lowest, highest + 1):
        targets = np.flatnonzero(is_some & (first <= shift) & (shift <= last))
        begin = int(low[is_some & (first == shift)].min()) if shift == lowest else 0
        end = int(high[is_some & (last == shift)].max()) if shift == highest else part
        found.append(Piece(shift, begin, end, tuple(targets.tolist())))
    return found


def sent_for_all(size: int, count: int) -> float:
    """Elements along the dimension that each device sends until all have all."""
    return sent_by_each("all-gather", -(-size // count), count)


class Spread(NamedTuple):
    """Ranges of positions, in elements: the first of each and how many; positions between elements before the first,
    by part, and behind the last."""

    firsts: tuple[int, ...]
    number: int
    before: tuple[int, ...]
    behind: int


def spread(firsts: np.ndarray, length: int, dilation: int) -> Spread:
    """Ranges of `length` positions, of which every `dilation`-th is an element. Where ranges begin at different places
    between elements, those before them are taken, too: `before` is negative then."""
    before = -firsts % dilation
    if (before == before[0]).all() and before[0] < length:
        number = (length - int(before[0]) - 1) // dilation + 1
        behind = length - int(before[0]) - (number - 1) * dilation - 1
        return Spread(tuple((-(-firsts // dilation)).tolist()), number, tuple(before.tolist()), behind)
    return Spread(tuple((firsts // dilation).tolist()), (length - 1) // dilation + 2,
                  tuple((-(firsts % dilation)).tolist()), 0)


def reach_plan(reach: Reach, size: int, factor: int, count: int, is_divided: bool) -> Plan:
    """How a device comes to what a part of a factor reads of an operand with `size` elements."""
    firsts, length = reach.ranges(-(-factor // count), count)
    elements = spread(firsts, length, reach.dilation)
    return plan(size, count, elements.firsts, elements.number, is_divided, reach.flipped, reach.wraps)
