"""Makes one collective of several of the same kind: what the three combiners share.

    a = f32[8] all-reduce(x), ...        =>     t = (f32[8], f32[4]) all-reduce(x, y), ...
    b = f32[4] all-reduce(y), ...               a = f32[8] get-tuple-element(t), index=0
                                                b = f32[4] get-tuple-element(t), index=1

Only collectives of which none needs another are combined, and only those of equal keys, up to a number of bytes: one
larger than that stays alone. Each element is computed as before, so results are the same bit for bit. Source of method
and limits: xla/service/collective_combiner_utils.h, xla/service/collective_utils.h.
"""
from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence

from hloc.ir import Computation, Instruction, Module, Shape
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Names, control_dependent, remove_dead, unfused_computations
from hloc.sharding.rules import combiner_of

MOST_OPERANDS = 256
ALIKE = ("replica_groups", "use_global_device_ids", "constrain_layout", "mode", "dimensions")

Key = Callable[[Instruction], Hashable]


def groups_key(instruction: Instruction) -> tuple[Hashable, ...]:
    """Which devices work together, by which rule of counting them, and along which dimension."""
    return (instruction.get("channel_id") is not None, *(str(instruction.get(name)) for name in ALIKE))


def reduction_key(instruction: Instruction) -> tuple[Hashable, ...]:
    """The same, and how elements are joined."""
    joined = combiner_of(instruction) or instruction.get("to_apply")
    return (*groups_key(instruction), joined, instruction.operands[0].shape.element_type)


def combine(module: Module, opcode: str, key: Key, context: PassContext) -> bool:
    """Combine collectives of one opcode in every computation, up to the bytes of results that the option says. True if
    there were several of a kind."""
    changed, most = False, context.option("combine_bytes")
    for computation in unfused_computations(module):
        groups = _groups(computation, opcode, key, most)
        if not groups:
            continue
        names = Names(i.name for i in computation.instructions)
        for first, *others in groups:
            context.join(first, others)
        joined = [_joined(group, names) for group in groups]
        computation.instructions = in_order([*computation.instructions, *joined])
        changed = True
    return changed


def is_of_array(instruction: Instruction, opcode: str) -> bool:
    """A collective of one array."""
    return instruction.opcode == opcode and len(instruction.operands) == 1 and instruction.shape.is_array


def drop_replaced(module: Module, replaced: set[Instruction]) -> None:
    """Take out collectives that nobody reads any more, and what only they needed. Others that nobody reads stay:
    devices meet there."""
    for computation in unfused_computations(module):
        if not replaced.isdisjoint(computation.instructions):
            remove_dead(computation, replaced)


def _groups(computation: Computation, opcode: str, key: Key, most: int) -> list[list[Instruction]]:
    """Groups of collectives, each of which can be one collective."""
    pinned = control_dependent(computation)
    found = {i: n for n, i in enumerate(i for i in computation.instructions
                                        if is_of_array(i, opcode) and i not in pinned)}
    if len(found) < 2:
        return []
    needs, keys, left = _needs(computation, found), {i: key(i) for i in found}, dict(found)
    groups = []
    while group := _first_group(left, needs, keys, most):
        groups.append(group)
        bits = needed = 0
        for instruction in group:
            bits |= 1 << left.pop(instruction)
            needed |= needs[instruction]
        for instruction in left:                                     # who needs one of them, needs all
            if needs[instruction] & bits:
                needs[instruction] |= bits | needed
    return groups


def _first_group(found: Mapping[Instruction, int], needs: Mapping[Instruction, int],
                 keys: Mapping[Instruction, Hashable], most: int) -> list[Instruction]:
    """The first group of collectives that can be one; [] where there is none. found: the collectives that are in no
    group yet, and which bit of `needs` each has."""
    groups: dict[Hashable, list[tuple[int, int]]] = {}               # (members' bits, bytes) of each that is not full
    members: dict[int, list[Instruction]] = {}
    for instruction, n in found.items():
        size = instruction.shape.num_bytes
        open_groups = groups.setdefault(keys[instruction], [])
        for place, (bits, taken) in enumerate(open_groups):
            if taken + size <= most and bits.bit_count() < MOST_OPERANDS and not needs[instruction] & bits:
                members[bits | 1 << n] = [*members.pop(bits), instruction]
                open_groups[place] = (bits | 1 << n, taken + size)
                break
        else:
            open_groups.append((1 << n, size))
            members[1 << n] = [instruction]
    return next((one for one in members.values() if len(one) > 1), [])


def _needs(computation: Computation, found: Mapping[Instruction, int]) -> dict[Instruction, int]:
    """For each instruction the collectives that it depends on, as bits: bit found[c] of a collective c."""
    needs: dict[Instruction, int] = {}
    for instruction in computation.instructions:
        bits = 0
        for other in (*instruction.operands, *instruction.control_predecessors):
            bits |= needs[other] | (1 << found[other] if other in found else 0)
        needs[instruction] = bits
    return needs


def _joined(group: Sequence[Instruction], names: Names) -> Instruction:
    """One collective for all of the group; its members become elements of its result."""
    first = group[0]
    attributes = {k: v for k, v in first.attributes.items() if k != "sharding"}
    joined = Instruction(names.fresh(first.opcode), first.opcode, Shape.tuple([i.shape for i in group]),
                         [i.operands[0] for i in group], attributes, span=first.span)
    for n, member in enumerate(group):
        member.opcode, member.operands = "get-tuple-element", [joined]
        kept = {k: v for k, v in member.attributes.items() if k in ("metadata", "frontend_attributes")}
        member.attributes = {**kept, "index": n}
    return joined


def in_order(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The instructions, each behind what it needs, else as they stand."""
    position = {i: n for n, i in enumerate(instructions)}
    before = {i: set((*i.operands, *i.control_predecessors)) for i in instructions}
    followers: dict[Instruction, list[Instruction]] = {i: [] for i in instructions}
    for i, those in before.items():
        for other in those:
            followers[other].append(i)
    left = {i: len(those) for i, those in before.items()}
    ready = [position[i] for i in instructions if not left[i]]
    heapq.heapify(ready)
    order: list[Instruction] = []
    while ready:
        instruction = instructions[heapq.heappop(ready)]
        order.append(instruction)
        for other in followers[instruction]:
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, position[other])
    return order
