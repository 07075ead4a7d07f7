"""What passes on while loops share: a walk over the loops that may be changed, and loops with more carried elements.

    def change(loop, rewriter):                 # a value that is the same in all iterations is computed before the loop
        new, (read,) = carrying(loop, [value], rewriter)
        ...                                     # the body reads `read`
        return new

    changed = rewrite_loops(module, change)
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from hloc.analysis.while_loops import Loop, call_sites, loop_of
from hloc.ir import Instruction, Module, Shape
from hloc.passes.rewriter import Names, Rewriter, rewrite_module

Change = Callable[[Loop, Rewriter], "Instruction | None"]


def rewrite_loops(module: Module, change: Change, revisit: bool = False) -> bool:
    """Call `change` for each loop whose body and condition nobody else uses, so that it may change them, inner loops
    first. It returns what is used instead of the loop, or None. revisit: the loops that it makes, too."""
    sites = call_sites(module)

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        loop = loop_of(instruction, sites)
        return change(loop, rewriter) if loop is not None else None

    return rewrite_module(module, visit, revisit=revisit, opcodes=("while",))


def carrying(loop: Loop, values: Sequence[Instruction], rewriter: Rewriter) -> tuple[Instruction, list[Instruction]]:
    """The loop with `values` as further elements, which do not change, in a tuple of the old shape; and what reads them
    in the body."""
    old = loop.instruction
    shape = Shape.tuple([*old.shape.tuple_shapes, *(v.shape for v in values)])
    state = rewriter.add("tuple", shape, [*loop.initial, *values])
    carries = _carried(loop, shape, len(values))
    new = rewriter.change(old, operands=[state], shape=shape, sharding=None)
    elements = elements_of(new, rewriter)
    return rewriter.add("tuple", old.shape, elements[:len(elements) - len(values)]), carries


def elements_of(loop: Instruction, rewriter: Rewriter) -> list[Instruction]:
    """What reads each element of the state behind the loop."""
    return [rewriter.add("get-tuple-element", s, [loop], {"index": n}) for n, s in enumerate(loop.shape.tuple_shapes)]


def _carried(loop: Loop, shape: Shape, count: int) -> list[Instruction]:
    """Make body and condition carry the last `count` elements of `shape`, which do not change, too: what reads them in
    the body."""
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
