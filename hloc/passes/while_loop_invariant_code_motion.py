"""Hoists computations that are the same in every iteration out of the loop.

    body { p = (s32[], f32[2,3], ...) parameter(0)  w = f32[2,3] get-tuple-element(p), index=1     // never changes
           t = f32[3,2] transpose(w) ... }
    =>
    t is computed before the loop, and carried unchanged as one more element

A computation moves only if it needs no more memory than its invariant operands, or little memory if it is expensive,
and if it is real work: constants, broadcasts, iotas and reshapes alone are cheaper to recompute than to carry. Inner
loops with a known number of iterations move, too: JAX converts the pivots of an LU factorization to a permutation by
such a loop wherever it solves a system.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

from hloc.analysis.cost import operations
from hloc.analysis.effects import NOT_MERGEABLE, has_side_effect
from hloc.analysis.while_loops import Loop, element_read, invariant_elements, loop_of, trip_count
from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.loop_rewriter import carrying, copied, made_of, reads_replaced, rewrite_loops
from hloc.passes.rewriter import Rewriter, control_dependent, remove_dead

CHEAP = frozenset({"constant", "broadcast", "iota", "reshape", "bitcast", "tuple", "get-tuple-element", "slice"})
SMALL, MUCH = 1 << 20, 10           # bytes, and operations for an element (analysis/cost.py)
NEVER = NOT_MERGEABLE | {"while", "conditional", "call", "custom-call", "add-dependency", "rng-bit-generator"}


def while_loop_invariant_code_motion(module: Module, context: PassContext) -> bool:
    """Hoist invariant computations. True if anything moved."""
    return rewrite_loops(module, hoist, revisit=True)


def hoist(loop: Loop, rewriter: Rewriter) -> Instruction | None:
    """The loop after its invariant work, in a tuple of the old shape; None if there is none."""
    made_from = invariant_values(loop)
    frontier = worth_moving(loop, made_from)
    if not frontier:
        return None
    new, carries = carrying(loop, copy_outside(loop, frontier, made_from, rewriter), rewriter)
    instead = dict(zip(frontier, carries))
    for instruction in loop.body.instructions:
        instruction.operands = [instead.get(o, o) for o in instruction.operands]
    remove_dead(loop.body)
    return new


def invariant_values(loop: Loop) -> dict[Instruction, frozenset[int]]:
    """The instructions of the body with one value for all iterations, and the elements that they are made from."""
    same = invariant_elements(loop)
    pinned = control_dependent(loop.body) | {loop.body.root}
    made_from: dict[Instruction, frozenset[int]] = {}
    for instruction in loop.body.instructions:
        index = element_read(instruction, loop.body)
        if index is not None:
            if index in same:
                made_from[instruction] = frozenset((index,))
        elif instruction not in pinned and all(o in made_from for o in instruction.operands) \
                and (can_move(instruction) or is_loop_that_ends(instruction)):
            made_from[instruction] = frozenset().union(*(made_from[o] for o in instruction.operands))
    return made_from


def is_loop_that_ends(instruction: Instruction) -> bool:
    """Whether this is a loop of known length, of nothing but what can move."""
    loop = loop_of(instruction)
    return loop is not None and trip_count(loop) is not None and all(
        i.opcode == "parameter" or can_move(i) for c in (loop.body, loop.condition) for i in c.instructions)


def can_move(instruction: Instruction) -> bool:
    opcode = instruction.opcode
    if not (instruction.shape.is_array or opcode == "tuple") or opcode in NEVER or has_side_effect(instruction):
        return False
    return not opcode.startswith(("all-", "async-", "collective-")) \
        and not opcode.endswith(("-start", "-done", "-update"))


def worth_moving(loop: Loop, made_from: dict[Instruction, frozenset[int]]) -> list[Instruction]:
    """The invariant instructions with work in them that what stays in the body reads. What is larger than its sources
    stays, unless it is small and costs much, while what it is made of may move."""
    laborious, costly = marked(made_from, has_work), marked(made_from, costs_much)
    read = {o for i in loop.body.instructions if i not in made_from for o in i.operands}
    found = []
    for instruction, sources in reversed(made_from.items()):
        if instruction not in read:
            continue
        size, given = instruction.shape.num_bytes, sum(loop.initial[n].shape.num_bytes for n in sources)
        fits = instruction.shape.is_array and (0 < size <= given or (instruction in costly and size <= SMALL))
        if instruction in laborious and fits:
            found.append(instruction)
        else:
            read.update(instruction.operands)
    return found[::-1]


def marked(made_from: Iterable[Instruction], is_such: Callable[[Instruction], bool]) -> set[Instruction]:
    """Those that are such, or made of such."""
    found: set[Instruction] = set()
    for instruction in made_from:
        if is_such(instruction) or any(o in found for o in instruction.operands):
            found.add(instruction)
    return found


def has_work(instruction: Instruction) -> bool:
    return instruction.opcode not in CHEAP


def costs_much(instruction: Instruction) -> bool:
    """Conversions to f64, too: products read none of narrower numbers."""
    is_wide = instruction.opcode == "convert" and instruction.shape.element_type in ("f64", "c128")
    return is_wide or operations(instruction) >= MUCH or instruction.opcode in ("dot", "convolution", "while")


def copy_outside(loop: Loop, frontier: list[Instruction], made_from: Iterable[Instruction],
                 rewriter: Rewriter) -> list[Instruction]:
    """Copies of `frontier` before the loop, with all their operands."""
    order = made_of(frontier, made_from)
    made = copied(order, reads_replaced(order, loop, loop.initial), rewriter.adopt)
    return [made[i] for i in frontier]
