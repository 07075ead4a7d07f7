"""Convolutions of a dilated input, such as gradients of strided convolutions: one for each remainder of positions.

In: a "convolution" Tile whose base_dilation is not 1. Out: Tiles without it. An output position reads only those taps
of the window that meet elements of the input, not the zeros in between. Which taps these are depends on the remainder
of the position by the dilation. Each remainder is a phase: a dense convolution with some taps of the filter, whose
results are stored with a stride. With a dilation of 2 in two dimensions, four phases together have a quarter of the
multiplications.

    3 taps, dilation 2, padding 1: even positions read tap 1, odd ones taps 0 and 2

A Tile of a phase has two more parameters: "whole" (size, step, first) in each spatial dimension: position n is position
step * n + first of the whole result; and "is_empty": no tap meets an element, the sums are zeros.
"""
from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from hloc.kernels.ir import Tile

MOST = 16                       # phases


class Phase(NamedTuple):
    """One dimension of a phase: output positions, the step between them and the first one; taps, the first tap and the
    distance to the next; the padding."""

    size: int
    step: int
    first: int
    taps: int
    tap: int
    distance: int
    low: int


def phases_of(tile: Tile) -> tuple[Tile, ...]:
    """The phases of a convolution; none if its input is not dilated, or windows of a dilated dimension have a stride or
    a dilation of their own."""
    facts = dict(tile.parameters)
    bases = facts["base_dilation"]
    mixed = any(base > 1 and (stride > 1 or dilation > 1)
                for base, stride, dilation in zip(bases, facts["stride"], facts["window_dilation"]))
    if math.prod(bases) == 1 or math.prod(bases) > MOST or mixed or tile.prologues or "whole" in facts:
        return ()
    dimensions = [[phase(facts["size"][d], base, facts["window"][d], facts["padding_low"][d], first)
                   for first in range(min(base, facts["size"][d]))] for d, base in enumerate(bases)]
    return tuple(_tile(tile, facts, phases) for phases in itertools.product(*dimensions))


def phase(size: int, base: int, window: int, low: int, first: int) -> Phase:
    """One dimension of one phase: the output positions first, first + base ..."""
    if base == 1:
        return Phase(size, 1, 0, window, 0, 1, low)
    tap = (low - first) % base
    return Phase(-(-(size - first) // base), base, first, max(0, -(-(window - tap) // base)), tap, base,
                 (low - first - tap) // base)


def _tile(tile: Tile, facts: dict, phases: tuple[Phase, ...]) -> Tile:
    offset, across, along, *strides = facts["rhs"]
    for d, p in enumerate(phases):
        last = p.tap + p.distance * (p.taps - 1)
        tap = facts["window"][d] - 1 - last if facts["reversal"][d] else p.tap
        offset += tap * strides[d] if p.taps else 0
        strides[d] *= p.distance
    changed = {"size": tuple(p.size for p in phases), "window": tuple(max(1, p.taps) for p in phases),
               "padding_low": tuple(p.low for p in phases), "base_dilation": (1,) * len(phases),
               "rhs": (offset, across, along, *strides),
               "whole": tuple((size, p.step, p.first) for size, p in zip(facts["size"], phases)),
               "is_empty": not all(p.taps for p in phases)}
    return tile._replace(parameters=tuple({**facts, **changed}.items()))
