"""Pads with interior padding in a row: each row of the result is filled, and the operand's elements are stored into it.

In: a pad with padding between the elements of its last dimension, alone or the root of a fusion. Out: one kernel with a
loop over the operand, which needs no test where an element of the result comes from:

    for rows of the result (PARALLEL):
        for j < 511 (VECTOR): out[row, j] = fill
        if the row has elements:  for k < 256 (VECTOR): out[row, 2 * k] = operand[source, k]

Other pads, and those of short rows or too few, are loops over the elements of the result (elemental/loop.py).
"""
from __future__ import annotations

import math

from hloc.ir import Instruction
from hloc.kernels import indexing, loops
from hloc.kernels.elemental.loop import cost_of, lower_loop
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.ir import VECTOR
from hloc.kernels.rules.elementwise import padded_index
from hloc.machine import Machine

SHORTEST_SPREAD_ROW = 8     # elements of a row of the result


def lower_pad(group: Group, machine: Machine) -> Lowered:
    """The kernel of a pad: rows are filled first, if that is faster on the CPU."""
    root = group.roots[0]
    if machine.kind != "cpu" or not _spreads_rows(root, machine.cores):
        return lower_loop(group, machine)
    return Lowered((_filled_rows(group, root),))


def _spreads_rows(pad: Instruction, fewest: int) -> bool:
    """Whether a pad spreads the elements of so many long rows, and cuts none off."""
    if pad.shape.rank == 0 or pad.operands[0].shape.num_elements == 0:
        return False
    padding, *rows, length = pad.get("padding")[-1], *pad.shape.dimensions
    return (math.prod(rows) >= fewest and length >= SHORTEST_SPREAD_ROW and padding.interior > 0
            and padding.low >= 0 and padding.high >= 0)


def _filled_rows(group: Group, pad: Instruction) -> KernelCall:
    operand, fill = pad.operands
    outline = Outline(group)
    b, padding, sizes = outline.builder, pad.get("padding"), operand.shape.dimensions
    *outer, length = pad.shape.dimensions
    with loops.parallel(b, outer) as counters:
        row = indexing.scale(indexing.linearize(counters, outer), length)
        with b.loop(length, VECTOR) as column:
            outline.store(0, indexing.add(row, column), outline.elements.value(fill, ()))
        source, conditions = padded_index(outline.elements, counters, padding[:-1], sizes[:-1])
        with b.guard(conditions), b.loop(sizes[-1], VECTOR) as column:
            place = indexing.shift(indexing.scale(column, padding[-1].interior + 1), padding[-1].low)
            outline.store(0, indexing.add(row, place), outline.elements.value(operand, (*source, column)))
    return outline.finish(cost=cost_of(outline, math.prod(pad.shape.dimensions), b))
