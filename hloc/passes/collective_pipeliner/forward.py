"""Collectives of the previous iteration in this one: what is only written into an array that the loop does not read.

    forward(loop, rewriter, channels)       the first iteration, a loop that runs once less, the last collectives
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hloc.analysis.fusible import DATA_MOVEMENT, is_elementwise
from hloc.analysis.while_loops import Loop, compared_elements, element_read, reads_of, trip_count
from hloc.ir import Instruction, Shape, numpy_dtype
from hloc.ops.collectives import EXCHANGES
from hloc.passes.collective_combining import in_order, is_of_array
from hloc.passes.collective_pipeliner.predictable import after, counters, predictable
from hloc.passes.loop_rewriter import (
    CopiesInBody,
    copied,
    drop_hints,
    elements_of,
    extended,
    made_of,
    reads_replaced,
)
from hloc.passes.rewriter import Channels, Rewriter, control_dependent, count_uses, remove_dead


class Tail(NamedTuple):
    """What becomes of a collective: chain is the collective, what is computed of it, and the dynamic-update-slice of
    element `element`."""

    element: int
    chain: tuple[Instruction, ...]

    @property
    def given(self) -> Instruction:
        """The collective's operand."""
        return self.chain[0].operands[0]


def forward(loop: Loop, rewriter: Rewriter, channels: Channels) -> Instruction | None:
    """What stands for the loop, in a tuple of the old shape; None where there is nothing to move."""
    steps, values = trip_count(loop), predictable(loop)
    found = tails(loop, values)
    if not found or steps is None or steps < 2:
        return None
    moved = Moved(loop, found, values)
    first = moved.first_iteration(rewriter, channels)
    new, carries = extended(loop, moved.second_state(first, rewriter), [first[one.given] for one in found], rewriter)
    drop_hints(new)
    state = moved.last_tails(elements_of(new, rewriter), steps, rewriter, channels)
    moved.into_next_iteration(carries)
    return rewriter.add("tuple", loop.instruction.shape, state)


def tails(loop: Loop, values: Collection[Instruction]) -> list[Tail]:
    """Those that may move. values: what can be computed in another iteration."""
    uses, asked, pinned = count_uses(loop.body), compared_elements(loop), control_dependent(loop.body)
    found = []
    for element, update in enumerate(loop.updated):
        if update.opcode != "dynamic-update-slice" or uses[update] != 1 or element in asked or update in pinned:
            continue
        if element_read(update.operands[0], loop.body) != element or reads_of(loop, element, uses) != 1:
            continue
        chain = _chain(update, values, uses) if all(o in values for o in update.operands[2:]) else []
        if chain and pinned.isdisjoint(chain):
            one = Tail(element, tuple(chain))
            if one.given not in values and element_read(one.given, loop.body) is None:
                found.append(one)
    return found


def _chain(update: Instruction, values: Collection[Instruction], uses: Mapping[Instruction, int]) -> list[Instruction]:
    """From a collective on, what nobody else reads; [] where what is written comes from none."""
    chain, at = [update], update.operands[1]
    while uses[at] == chain[-1].operands.count(at) and (at.opcode in EXCHANGES | DATA_MOVEMENT or is_elementwise(at)):
        chain.append(at)
        others = {o for o in at.operands if o not in values}
        if len(others) != 1 or not at.shape.is_array:
            break
        (at,) = others
    while chain and chain[-1].opcode not in EXCHANGES:
        chain.pop()
    return chain[::-1] if chain and is_of_array(chain[-1], chain[-1].opcode) else []


class Moved:
    """The tails of a loop on their way to the next iteration. order: all of their instructions, and what these are made
    of."""

    def __init__(self, loop: Loop, found: list[Tail], values: Mapping[Instruction, bool]):
        self.loop, self.found, self.counting = loop, found, counters(loop)
        self.count = len(loop.updated)                        # of elements, without what is carried more
        self.chains = {i for one in found for i in one.chain}
        self.written = {one.chain[-1].operands[0] for one in found}
        self.order = made_of((one.chain[-1] for one in found), (
            i for i in loop.body.instructions if i in values or i in self.chains or i in self.written))
        self.same = {i: i for i in self.order if i in self.written or not values.get(i, True)}

    def first_iteration(self, rewriter: Rewriter, channels: Channels) -> dict[Instruction, Instruction]:
        """Copies before the loop, but for the tails."""
        rest = [i for i in self.loop.body.instructions
                if i not in self.chains and i.opcode != "parameter" and i is not self.loop.body.root]
        made = copied(rest, reads_replaced(rest, self.loop, self.loop.initial), rewriter.adopt)
        channels.renumber(made)
        return made

    def second_state(self, first: Mapping[Instruction, Instruction], rewriter: Rewriter) -> list[Instruction]:
        """What the loop starts with: what the first iteration leaves, and the arrays as they were before it."""
        state = [self._counter(n, 1, rewriter) or first.get(value, value) for n, value in enumerate(self.loop.updated)]
        for one in self.found:
            state[one.element] = self.loop.initial[one.element]
        return state

    def last_tails(self, state: list[Instruction], steps: int, rewriter: Rewriter,
                   channels: Channels) -> list[Instruction]:
        """The state behind the loop, in which the last collectives are written; `state` ends with their operands."""
        before = list(state[:self.count])
        for n, step in self.counting.items():
            known = self._counter(n, steps - 1, rewriter)
            before[n] = known or rewriter.add("subtract", state[n].shape, [
                state[n], rewriter.add("constant", state[n].shape, literal=_literal(step, state[n].shape))])
        given = {one.given: state[self.count + n] for n, one in enumerate(self.found)}
        made = copied(self.order, {**reads_replaced(self.order, self.loop, before), **given}, rewriter.adopt)
        channels.renumber(made)
        for one in self.found:
            before[one.element] = made[one.chain[-1]]
        return [before[n] if n not in self.counting else state[n] for n in range(self.count)]

    def into_next_iteration(self, carries: Sequence[Instruction]) -> None:
        """The tails of the iteration before in the body, instead of its own."""
        body, copies = self.loop.body, CopiesInBody(self.loop)
        known = {**self.same, **{one.given: carry for one, carry in zip(self.found, carries)}}
        for instruction in self.order:
            element = element_read(instruction, body)
            if element in self.counting and instruction not in known:
                known[instruction] = self._before(instruction, self.counting[element], copies)
        made = copied(self.order, known, copies.adopt)
        for one, carry in zip(self.found, carries):
            body.root.operands[one.element] = made[one.chain[-1]]
            body.root.operands[carry.get("index")] = one.given
        kept = [i for i in body.instructions if i not in self.chains and i is not body.root]
        body.instructions = in_order([*kept, *copies.made, body.root])
        remove_dead(body)

    def _before(self, counter: Instruction, step: int, copies: CopiesInBody) -> Instruction:
        """The counter in the iteration before."""
        shape = counter.shape
        one = Instruction(copies.names.fresh("constant"), "constant", shape, literal=_literal(step, shape),
                          span=counter.span)
        copies.made += [one, Instruction(copies.names.fresh("subtract"), "subtract", shape, [counter, one],
                                         span=counter.span)]
        return copies.made[-1]

    def _counter(self, element: int, iterations: int, rewriter: Rewriter) -> Instruction | None:
        """A counter after so many iterations, where its start is known."""
        value = after(self.loop, element, iterations) if element in self.counting else None
        shape = self.loop.instruction.shape.tuple_shapes[element]
        return None if value is None else rewriter.add("constant", shape, literal=_literal(value, shape))


def _literal(value: int, shape: Shape) -> np.ndarray:
    """Modulo what the type holds."""
    return np.asarray(value % (1 << 64), np.uint64).astype(numpy_dtype(shape.element_type))
