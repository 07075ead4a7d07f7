"""What passes on while loops share: a walk over the loops that may be changed, loops with more carried elements, copies
of iterations.

    def change(loop, rewriter):                 # a value that is the same in all iterations is computed before the loop
        new, (read,) = carrying(loop, [value], rewriter)
        ...                                     # the body reads `read`
        return new

    changed = rewrite_loops(module, change)
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from hloc.analysis.loop_annotations import without_hints
from hloc.analysis.while_loops import Loop, call_sites, element_read, induction_of, loop_of
from hloc.ir import Instruction, Module, Shape, numpy_dtype
from hloc.passes.rewriter import Names, Rewriter, remove_dead, rewrite_module

Change = Callable[[Loop, Rewriter], "Instruction | None"]


def rewrite_loops(module: Module, change: Change, revisit: bool = False) -> bool:
    """Call `change` for each loop whose body and condition nobody else uses, so that it may change them, inner loops
    first. It returns what is used instead of the loop, or None. revisit: the loops that it makes, too."""
    sites = call_sites(module)

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        loop = loop_of(instruction, sites)
        return change(loop, rewriter) if loop is not None else None

    return rewrite_module(module, visit, revisit=revisit, opcodes=("while",))


# -- carried elements --------------------------------------------------------------------------------------------------

def carrying(loop: Loop, values: Sequence[Instruction], rewriter: Rewriter) -> tuple[Instruction, list[Instruction]]:
    """The loop with `values` as further elements, which the body hands on, in a tuple of the old shape; and what reads
    them in the body."""
    shape = loop.instruction.shape
    new, carries = extended(loop, loop.initial, values, rewriter)
    return rewriter.add("tuple", shape, elements_of(new, rewriter)[:len(shape.tuple_shapes)]), carries


def extended(loop: Loop, initial: Sequence[Instruction], values: Sequence[Instruction],
             rewriter: Rewriter) -> tuple[Instruction, list[Instruction]]:
    """The loop from `initial` on, with `values` as further elements, which the body hands on, and what reads these
    there."""
    old = loop.instruction
    shape = Shape.tuple([*old.shape.tuple_shapes, *(v.shape for v in values)])
    state = rewriter.add("tuple", shape, [*initial, *values])
    carries = _carried(loop, shape, len(values))
    return rewriter.change(old, operands=[state], shape=shape, sharding=None), carries


def elements_of(loop: Instruction, rewriter: Rewriter) -> list[Instruction]:
    """What reads each element of the state behind the loop."""
    return [rewriter.add("get-tuple-element", s, [loop], {"index": n}) for n, s in enumerate(loop.shape.tuple_shapes)]


def _carried(loop: Loop, shape: Shape, count: int) -> list[Instruction]:
    """Make body and condition carry the last `count` elements of `shape`, too, which the body hands on: what reads them
    in the body."""
    body = loop.body
    state = body.parameters[0]
    first = len(shape.tuple_shapes) - count
    loop.condition.parameters[0].shape = state.shape = shape
    names = Names(i.name for i in body.instructions)
    elements = [Instruction(names.fresh("get-tuple-element"), "get-tuple-element", shape.tuple_shapes[n], [state],
                            {"index": n}, span=state.span) for n in range(first, first + count)]
    place = body.instructions.index(state) + 1
    body.instructions[place:place] = elements
    body.root.operands.extend(elements)
    body.root.shape = shape
    for instruction in (state, loop.condition.parameters[0], body.root):
        instruction.attributes.pop("sharding", None)
    return elements


# -- copies of what a body computes ------------------------------------------------------------------------------------

def made_of(values: Iterable[Instruction], among: Iterable[Instruction]) -> list[Instruction]:
    """Those of `among`, whose operands come first, that `values` are made of; these, too."""
    order, needed = list(among), set(values)
    for instruction in reversed(order):
        if instruction in needed:
            needed.update(instruction.operands)
    return [i for i in order if i in needed]


def copied(order: Iterable[Instruction], known: Mapping[Instruction, Instruction],
           adopt: Callable[[Instruction, list[Instruction]], Instruction]) -> dict[Instruction, Instruction]:
    """What each instruction is replaced by: `known`, else a copy that adopt(instruction, operands) makes."""
    made = dict(known)
    for instruction in order:
        if instruction not in made:
            made[instruction] = adopt(instruction, [made[o] for o in instruction.operands])
            made[instruction].control_predecessors = tuple(
                made[p] for p in instruction.control_predecessors if p in made)
    return made


def reads_replaced(instructions: Iterable[Instruction], loop: Loop,
                   state: Sequence[Instruction]) -> dict[Instruction, Instruction]:
    """For those that read an element of the loop's state, that element of `state`."""
    read = ((i, element_read(i, loop.body)) for i in instructions)
    return {i: state[element] for i, element in read if element is not None}


class CopiesInBody:
    """Makes copies for `copied` that belong into a body, but are not there yet."""

    def __init__(self, loop: Loop):
        self.names = Names(i.name for i in loop.body.instructions)
        self.made: list[Instruction] = []

    def adopt(self, instruction: Instruction, operands: list[Instruction]) -> Instruction:
        self.made.append(instruction.copy(operands=operands, control_predecessors=(),
                                          name=self.names.unique(instruction.name)))
        return self.made[-1]


# -- iterations --------------------------------------------------------------------------------------------------------

def end_one_earlier(loop: Loop) -> None:
    """Make the condition fail one iteration earlier. The loop runs a known number of times, twice or more, so that what
    the condition compares with is in the range of its type then, too."""
    induction, compare = induction_of(loop), loop.condition.root
    assert induction is not None
    side = 1 if element_read(compare.operands[0], loop.condition) == induction.element else 0
    shape = compare.operands[side].shape
    limit = np.asarray(induction.limit, numpy_dtype(shape.element_type))
    with np.errstate(over="ignore"):
        earlier = limit - np.asarray(induction.step).astype(limit.dtype)
    names = Names(i.name for i in loop.condition.instructions)
    constant = Instruction(names.fresh("constant"), "constant", shape,
                           literal=earlier.astype(limit.dtype).reshape(shape.dimensions), span=compare.span)
    loop.condition.instructions.insert(loop.condition.instructions.index(compare), constant)
    compare.operands[side] = constant
    remove_dead(loop.condition)


def drop_hints(loop: Instruction) -> None:
    """Take away what backend_config says of the iterations, which have changed."""
    loop.attributes = without_hints(loop)
