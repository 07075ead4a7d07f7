"""Counters of counted loops: integers that a loop steps by a constant, from a constant on. Their value in each round is
known when the program is planned, so no kernel computes it.

In: a `while` whose number of rounds is known. Out: for each counter the instruction of the body that steps it, and its
values, as many as there are rounds and the one after the last.

    i = 0;  while (i < 3) { ...; n = add(i, 2) }       ->  {0: Counted(n, [0, 2, 4, 6])}

The plan has the values of all rounds as one constant (plan.Counter).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from hloc.analysis.loop_annotations import known_trip_count
from hloc.analysis.while_loops import integer, loop_of, step_of
from hloc.ir import Computation, Instruction, numpy_dtype, users
from hloc.ir.types import ELEMENT_TYPES

MOST_ROUNDS = 20_000            # of a loop; one with more is not a part of one CUDA graph (execution/graphs.py)
Uses = dict[Instruction, list[Instruction]]
WORD = 64                       # bits in which values are computed; they wrap as narrower ones do


class Counted(NamedTuple):
    """element: of the loop's state; stepped: the instruction of the body whose result is the value in the next round,
    which returned copies, or is; first: the copy before the loop that only gave the counter memory of its own, if there
    is one; is_read: whether anything reads the counter after the loop; steps_read: whether the body reads the next
    value."""

    element: int
    stepped: Instruction
    returned: Instruction
    values: np.ndarray
    first: Instruction | None
    is_read: bool
    steps_read: bool


def counted_loops(computation: Computation) -> dict[Instruction, tuple[Counted, ...]]:
    """The loops of a computation that have counters."""
    loops = [i for i in computation.instructions if i.opcode == "while"]
    uses = users(computation) if loops else {}
    found = {loop: tuple(_counters(loop, computation, uses)) for loop in loops}
    return {loop: counters for loop, counters in found.items() if counters}


def counted_steps(computations: Iterable[Computation]) -> frozenset[Instruction]:
    """The instructions that step the counters of all loops: no kernel need compute them."""
    return frozenset(one.stepped for computation in computations for found in counted_loops(computation).values()
                     for one in found)


def _counters(instruction: Instruction, computation: Computation, uses: Uses) -> Iterator[Counted]:
    trips, loop = known_trip_count(instruction), loop_of(instruction)
    if loop is None or trips is None or not 0 < trips <= MOST_ROUNDS:
        return
    inside = users(loop.body)
    for element, shape in enumerate(instruction.shape.tuple_shapes):
        if not shape.is_array or shape.dimensions or ELEMENT_TYPES[shape.element_type].bits not in (8, 16, 32, 64):
            continue
        first, state, returned = loop.initial[element], instruction.operands[0], loop.updated[element]
        stepped = _origin(returned)
        start, step = integer(_origin(first)), step_of(loop, element, stepped)
        if start is None or step is None or inside[returned] != [loop.body.root] and returned is not stepped:
            continue
        is_own = first.opcode == "copy" and uses[first] == [state] and uses[state] == [instruction]
        after = [u for u in uses[instruction] if u.opcode != "get-tuple-element" or u.get("index") == element]
        yield Counted(element, stepped, returned, _values(start, step, trips, shape.element_type),
                      first if is_own else None, bool(after) or computation.root is instruction,
                      any(u not in (returned, loop.body.root) for u in inside[stepped])
                      or inside[returned] != [loop.body.root])


def _origin(instruction: Instruction) -> Instruction:
    """What is copied, through all copies."""
    while instruction.opcode == "copy":
        instruction = instruction.operands[0]
    return instruction


def _values(start: int, step: int, trips: int, element_type: str) -> np.ndarray:
    """start, start + step ... start + trips * step, as the type wraps."""
    first, by = (np.uint64(n % (1 << WORD)) for n in (start, step))
    dtype = np.dtype(numpy_dtype(element_type))
    wide = first + by * np.arange(trips + 1, dtype=np.uint64)
    return wide.astype(f"u{dtype.itemsize}").view(dtype)

