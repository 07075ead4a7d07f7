"""Predicates on a producer, its readers, and a group that it might join."""
from __future__ import annotations

import math

from hloc.analysis.cost import operations
from hloc.analysis.fusible import RESHAPES, is_elemental, is_elementwise, is_hero, is_splat_constant
from hloc.analysis.reads import BASE
from hloc.ir import Computation, Instruction
from hloc.passes.fusion.group import Group

MOST_RECOMPUTED = 8              # operations per element that are recomputed for one more reader
MOST_LOOKED_AT = 64              # producers of an update's value
HEAVY = 10                       # operations for an element that are worth vectors of their own
SHORTEST_PIECE = 16              # elements side by side of a concatenate's operand


def is_slow_one_by_one(producer: Instruction, group: Group, readers: list[Instruction]) -> bool:
    """Whether a group cannot vectorize a producer: a reduce of several arrays compares one element with the next, a
    concatenate of short pieces branches for each element, a scatter of short windows computes each position."""
    if group.rows is not None and group.rows.alone and operations(producer) >= HEAVY:
        return True
    if scatters_pieces(group.first) and is_elementwise(producer):
        return producer.shape.num_elements >= SHORTEST_PIECE and operations_before(producer, HEAVY) >= HEAVY
    reads = [r for r in readers if r.opcode == "concatenate" or r.opcode in RESHAPES]
    if not reads or not is_elementwise(producer):
        return False
    pieces = [math.prod(o.shape.dimensions[m.get("dimensions")[0]:]) for m in group.members
              if m.opcode == "concatenate" for o in m.operands if producer in (o, behind_reshape(o))]
    return 0 < max(pieces, default=0) < SHORTEST_PIECE and operations_before(producer, HEAVY) >= HEAVY


def spreads_elsewhere(producer: Instruction, group: Group, readers: list[Instruction]) -> bool:
    """Whether elements of a pad with interior padding, as in scans by halves, would be read at shifted positions: at
    the group's own positions loops skip the padding, elsewhere each element needs a check."""
    near = [producer, *(producer.operands if is_elementwise(producer) else ())]
    if not any(o.opcode == "pad" and spreads_pieces(o) for o in near):
        return False
    own = {BASE} if group.rows is None else {BASE, group.rows.full}
    return not own.issuperset(group.asked(producer, readers))


def spreads_pieces(pad: Instruction) -> bool:
    """Whether it is a pad with interior padding along contiguous elements, unless there are few."""
    sizes = pad.shape.dimensions
    return any(p.interior > 0 and math.prod(sizes[d + 1:]) < SHORTEST_PIECE for d, p in enumerate(pad.get("padding")))


def scatters_pieces(root: Instruction) -> bool:
    """Whether it is a scatter with windows of a few elements."""
    if root.opcode != "scatter":
        return False
    updates = root.operands[-1].shape.dimensions
    return math.prod(updates[d] for d in root.get("update_window_dims", ())) < SHORTEST_PIECE


def behind_reshape(operand: Instruction) -> Instruction:
    """The operand of reshapes."""
    return operand.operands[0] if operand.opcode in RESHAPES else operand


def operations_before(producer: Instruction, most: int) -> float:
    """The operations for an element of a producer, with all elementwise ones before it; counted up to `most`."""
    total, stack, seen = 0.0, [producer], {producer}
    while stack and total < most:
        node = stack.pop()
        total += operations(node)
        inside = [o for o in dict.fromkeys(node.operands) if o not in seen
                  and (is_elementwise(o) or o.opcode in RESHAPES or o.opcode == "broadcast")]
        seen.update(inside)
        stack.extend(inside)
    return total


def reads_operands_of(producer: Instruction, group: Group, readers: list[Instruction]) -> bool:
    """Whether the group reads all operands of an elementwise producer anyway, at its own positions: recomputing it
    then needs no loads."""
    own = (BASE,) if group.rows is None else (group.rows.full,)
    if not is_elementwise(producer) or group.asked(producer, readers) != own:
        return False
    return all(is_splat_constant(o) or o in group.members or o in group.parameters for o in producer.operands)


def bytes_made_of(targets: list[Instruction], producer: Instruction) -> int:
    """Bytes read from `targets` directly to compute an elemental `producer`, within a few steps."""
    total, stack, seen = 0, [producer], {producer}
    while stack and len(seen) <= MOST_LOOKED_AT:
        node = stack.pop()
        if any(o in targets for o in node.operands):
            total += node.shape.num_bytes
            continue
        inside = [o for o in dict.fromkeys(node.operands) if is_elemental(o) and o not in seen]
        seen.update(inside)
        stack.extend(inside)
    return total


def loaded_bytes(operand: Instruction) -> int:
    """Bytes to load for all of an operand; broadcasts and iotas are computed."""
    while operand.opcode in ("broadcast", "reshape"):
        operand = operand.operands[0]
    return 0 if operand.opcode == "iota" or operand.shape.num_elements == 1 else operand.shape.num_bytes


def epilogue_chains(computation: Computation, readers: dict[Instruction, list[Instruction]], ends_wide: bool
                    ) -> set[Instruction]:
    """Elementwise instructions at the end of a chain from a matmul, each with one user. ends_wide: whether a chain may
    end with a conversion to a wider type. Otherwise its readers convert: half of the bytes are stored and read."""
    found: dict[Instruction, None] = {}
    for instruction in computation.instructions:
        if is_elementwise(instruction) and any(
                (is_hero(o) or o in found) and len(readers[o]) == 1
                and o.shape.dimensions == instruction.shape.dimensions for o in instruction.operands):
            found[instruction] = None
    if ends_wide:
        return set(found)
    kept: set[Instruction] = set()
    for last in reversed(found):
        if not widens(last) or len(readers[last]) == 1 and readers[last][0] in kept:
            kept.add(last)
    return kept


def widens(instruction: Instruction) -> bool:
    """Whether it is a conversion to a type with more bytes."""
    return instruction.opcode == "convert" and instruction.shape.num_bytes > instruction.operands[0].shape.num_bytes
