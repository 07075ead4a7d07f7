"""Facts about producers: what an update would read, and what may be an epilogue."""
from __future__ import annotations

from hloc.analysis.fusible import is_elemental, is_elementwise, is_hero
from hloc.ir import Computation, Instruction

MOST_LOOKED_AT = 64              # producers of an update's value


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
