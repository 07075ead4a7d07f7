"""Removes loops that run zero times or once, and unused carried elements.

    w = (s32[], f32[4], f32[8]) while(tuple(i, x, y)), ...       // element 2 is never read
    =>
    w = (s32[], f32[4]) while(tuple(i, x)), ...

An element that the body returns unchanged is replaced after the loop by its initial value; if that is a constant, the
body reads the constant. No other loop may use the body and the condition.
"""
from __future__ import annotations

from hloc.analysis.effects import has_side_effect
from hloc.analysis.while_loops import Loop, call_sites, element_read, invariant_elements, loop_of, trip_count
from hloc.ir import Computation, Instruction, Module, Shape, reachable_computations, users
from hloc.passes.call_inliner import inline
from hloc.passes.context import PassContext
from hloc.passes.patterns import scalar_source
from hloc.passes.rewriter import Names, Rewriter, control_dependent, remove_dead, rewrite


def while_loop_simplifier(module: Module, context: PassContext) -> bool:
    """Remove loops that run at most once, and unused carried elements. True if anything changed."""
    computations = [c for c in reachable_computations(module.entry) if any(i.opcode == "while" for i in c.instructions)]
    if not computations:
        return False
    sites = call_sites(module)
    changed = False
    for computation in computations:
        readers = users(computation)

        def visit(instruction: Instruction, rewriter: Rewriter,
                  readers: dict[Instruction, list[Instruction]] = readers) -> Instruction | None:
            loop = loop_of(instruction, sites)
            if loop is None or instruction not in readers:
                return None
            return simplify_loop(loop, readers[instruction], rewriter)

        changed |= rewrite(computation, visit, opcodes=("while",))
    return changed


def simplify_loop(loop: Loop, readers: list[Instruction], rewriter: Rewriter) -> Instruction | None:
    """The replacement of the loop, or None."""
    count = trip_count(loop)
    if count == 0:
        return loop.instruction.operands[0]
    if count == 1 and not any(has_side_effect(i) for i in loop.condition.instructions):
        return inline(loop.body, loop.instruction.operands, rewriter)
    if sink_constants(loop):
        rewriter.changed = True
    return without_unread_elements(loop, readers, rewriter)


def sink_constants(loop: Loop) -> bool:
    """Give the body and the condition the constants that invariant elements start with. True if any could use one."""
    constants = {n: scalar_source(loop.initial[n]) for n in invariant_elements(loop)}
    in_body = sink_into(loop.body, constants)
    return sink_into(loop.condition, constants) or in_body


def sink_into(computation: Computation, constants: dict[int, Instruction | None]) -> bool:
    """Read a constant instead of the carried element of that value, but for the root, which hands the element on."""
    names = Names(i.name for i in computation.instructions)
    known: dict[Instruction, Instruction] = {}
    result: list[Instruction] = []
    changed = False
    for instruction in computation.instructions:
        if instruction is not computation.root and any(o in known for o in instruction.operands):
            instruction.operands = [known.get(o, o) for o in instruction.operands]
            changed = True
        result.append(instruction)
        element = element_read(instruction, computation)
        source = constants.get(element) if element is not None else None
        if source is not None:
            result.extend(copies := constant_like(instruction, source, names))
            known[instruction] = copies[-1]
    if changed:
        computation.instructions = result
        remove_dead(computation)
    return changed


def constant_like(instruction: Instruction, source: Instruction, names: Names) -> list[Instruction]:
    """The instructions that make a constant of one element, spread over the shape of `instruction`."""
    scalar = Instruction(names.fresh("constant"), "constant", source.shape.with_dimensions(()),
                         literal=source.elements.reshape(()), span=instruction.span)
    if not instruction.shape.dimensions:
        return [scalar]
    return [scalar, Instruction(names.fresh("broadcast"), "broadcast", instruction.shape, [scalar],
                                {"dimensions": ()}, span=instruction.span)]


def without_unread_elements(loop: Loop, readers: list[Instruction], rewriter: Rewriter) -> Instruction | None:
    """The loop with only the elements that it needs, put back into a tuple of the old shape."""
    if any(r.opcode != "get-tuple-element" for r in readers) or loop.instruction is rewriter.computation.root:
        return None
    invariant = invariant_elements(loop)
    read_outside = {r.get("index") for r in readers}
    needed = needed_elements(loop, read_outside - invariant)
    if len(needed) == len(loop.initial):
        return None if not read_outside & invariant else initial_where_invariant(loop, invariant, rewriter)
    kept = sorted(needed)
    shape = Shape.tuple(loop.initial[n].shape for n in kept)
    state = rewriter.add("tuple", shape, [loop.initial[n] for n in kept])
    initial = list(loop.initial)
    keep_elements(loop, kept)
    new = rewriter.change(loop.instruction, operands=[state], shape=shape, sharding=None)
    for position, n in enumerate(kept):
        if n not in invariant:
            initial[n] = rewriter.add("get-tuple-element", shape.tuple_shapes[position], [new], {"index": position})
    return rewriter.add("tuple", loop.instruction.shape, initial)


def needed_elements(loop: Loop, read_outside: set[int]) -> set[int]:
    """The elements read outside, by the condition, by side effects of the body or instructions that others wait for, or
    on the way to such an element."""
    live: set[Instruction] = set()
    work = [i for i in loop.body.instructions if has_side_effect(i)] + list(control_dependent(loop.body))
    needed: set[int] = set()
    reads = {n for i in loop.condition.instructions if (n := element_read(i, loop.condition)) is not None}
    waiting = list(read_outside | reads)
    while work or waiting:
        if waiting:
            index = waiting.pop()
            if index not in needed:
                needed.add(index)
                work.append(loop.updated[index])
            continue
        instruction = work.pop()
        if instruction not in live:
            live.add(instruction)
            work.extend(instruction.operands)
            read = element_read(instruction, loop.body)
            if read is not None:
                waiting.append(read)
    return needed


def initial_where_invariant(loop: Loop, invariant: set[int], rewriter: Rewriter) -> Instruction:
    """tuple(elements of the loop), with the initial value for each invariant one."""
    new = rewriter.change(loop.instruction)
    elements = [value if n in invariant else
                rewriter.add("get-tuple-element", value.shape, [new], {"index": n})
                for n, value in enumerate(loop.initial)]
    return rewriter.add("tuple", loop.instruction.shape, elements)


def keep_elements(loop: Loop, kept: list[int]) -> None:
    """Make body and condition carry only the elements `kept`."""
    position = {n: p for p, n in enumerate(kept)}
    loop.body.root.operands = [loop.updated[n] for n in kept]
    for computation in (loop.body, loop.condition):
        remove_dead(computation)
        state = computation.parameters[0]
        state.shape = Shape.tuple(state.shape.tuple_shapes[n] for n in kept)
        state.attributes.pop("sharding", None)
        for instruction in computation.instructions:
            if instruction.opcode == "get-tuple-element" and instruction.operands[0] is state:
                instruction.attributes = {**instruction.attributes, "index": position[instruction.get("index")]}
    root = loop.body.root
    root.shape = Shape.tuple(o.shape for o in root.operands)
    root.attributes.pop("sharding", None)
