"""The shared counter of random draws, passed through loops, branches and functions as two more values.

    while(s), body=b, condition=c      =>     w = while((s, low, high)), body=b', condition=c'
    b(s) = f(s, draw)                         b'((s, low, high)) = (f(s, draw), low', high')

In: the computations of a module. Out: those that draw (or must return the counter because another branch
draws), rewritten.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import Computation, Instruction, Module, Shape, array, reachable_computations
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Names, Rewriter, Visit

DRAWS = frozenset(["rng", "rng-get-and-update-state"])
CALLERS = frozenset(["while", "conditional", "call"])
WORD = array("u64")
MASK64 = (1 << 64) - 1


class Counter:
    """128 bits as two u64 scalars, the low one first; `draw` returns them and advances."""

    def __init__(self) -> None:
        self.words: tuple[Instruction, ...] = ()

    def draw(self, e: Expressions, delta: int) -> tuple[Instruction, ...]:
        now = low, high = self.words
        following = e.op("add", low, e.constant(delta & MASK64, "u64"))
        carry = e.convert(e.compare(following, "LT", low), "u64")
        above = e.op("add", high, carry)
        self.words = following, e.op("add", above, e.constant(delta >> 64, "u64")) if delta >> 64 else above
        return now


def computations_that_draw(module: Module) -> set[Computation]:
    """All that draw themselves, call one that does, or are a branch beside one that does."""
    computations = reachable_computations(module.entry)
    drawing = {c for c in computations if any(i.opcode in DRAWS for i in c.instructions)}
    size = -1
    while drawing and size != len(drawing):
        size = len(drawing)
        for computation in computations:
            for i in computation.instructions:
                callees = i.called_computations
                if drawing.isdisjoint(callees):
                    continue
                check_caller(i, drawing)
                drawing.add(computation)
                if i.opcode == "conditional":
                    drawing.update(callees)
    return drawing


def check_caller(i: Instruction, drawing: set[Computation]) -> None:
    if i.opcode not in CALLERS:
        raise UnsupportedError(f"random numbers inside the computation of '{i.opcode}' cannot be compiled", i.span)
    if i.opcode == "while" and i.get("condition") in drawing:
        raise UnsupportedError("random numbers inside the condition of a loop cannot be compiled", i.span)


def thread(module: Module, computation: Computation, drawing: set[Computation],
           expander: Callable[[Counter], Visit], first: int) -> None:
    """Rewrite one computation: it takes the counter and returns it; the entry begins with `first`."""
    counter = Counter()
    expand = expander(counter)
    rewriter = Rewriter(computation)
    end = None
    if computation is module.entry:
        e = Expressions(Front(rewriter), computation.span)
        counter.words = e.constant(first & MASK64, "u64"), e.constant(first >> 64, "u64")
    else:
        counter.words = take_counter(rewriter)
        root = computation.root
        end = computation.root = Instruction(rewriter.names.fresh("tuple"), "tuple",
                                             Shape.tuple([root.shape, WORD, WORD]), [root, *counter.words])
        computation.instructions.append(end)

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if instruction is end:
            return rewriter.add("tuple", end.shape, [end.operands[0], *counter.words])
        if instruction.opcode in CALLERS and not drawing.isdisjoint(instruction.called_computations):
            return with_counter(module, Expressions(rewriter, instruction.span), instruction, counter)
        return expand(instruction, rewriter)
    rewriter.run(visit, revisit=False, opcodes=DRAWS | CALLERS | {"tuple"}, expands=True)


class Front:
    """Puts new instructions before all others of a computation."""

    def __init__(self, rewriter: Rewriter):
        self.rewriter = rewriter

    def add(self, opcode: str, shape: Shape, operands: Iterable[Instruction] = (),
            attributes: dict[str, Any] | None = None, *, literal: np.ndarray | tuple | None = None) -> Instruction:
        new = Instruction(self.rewriter.names.fresh(opcode), opcode, shape, operands, attributes, literal=literal)
        self.rewriter.computation.instructions.insert(0, new)
        return new


def take_counter(rewriter: Rewriter) -> tuple[Instruction, Instruction]:
    """One parameter (operands, low, high) in place of the old parameters; the counter."""
    computation = rewriter.computation
    old = computation.parameters
    shape = Shape.tuple([*(p.shape for p in old), WORD, WORD])
    parameter = Instruction(rewriter.names.fresh("parameter"), "parameter", shape, parameter_number=0)
    parts = [Instruction(rewriter.names.fresh("get-tuple-element"), "get-tuple-element", s, [parameter], {"index": n})
             for n, s in enumerate(parameter.shape.tuple_shapes)]
    rest = [i for i in computation.instructions if i.opcode != "parameter"]
    table = dict(zip(old, parts))
    for instruction in rest:
        instruction.operands = [table.get(o, o) for o in instruction.operands]
    computation.root = table.get(computation.root, computation.root)
    computation.instructions = [parameter, *parts, *rest]
    return parts[-2], parts[-1]


def with_counter(module: Module, e: Expressions, i: Instruction, counter: Counter) -> Instruction:
    """The same call with the counter among its operands and results."""
    if i.opcode == "conditional":
        operands = [i.operands[0], *(e.op("tuple", o, *counter.words) for o in i.operands[1:])]
    else:
        operands = [e.op("tuple", *i.operands, *counter.words)]
    attributes = {k: v for k, v in i.attributes.items() if k != "sharding"}
    if i.opcode == "while":
        attributes["condition"] = condition_of(module, i.get("condition"))
    whole = e.builder.add(i.opcode, Shape.tuple([i.shape, WORD, WORD]), operands, attributes)
    result, *words = (e.op("get-tuple-element", whole, index=n) for n in range(3))
    counter.words = tuple(words)
    return result


def condition_of(module: Module, condition: Computation) -> Computation:
    """A copy of a loop's condition that takes the counter too."""
    made: dict[Instruction, Instruction] = {i: i.copy() for i in condition.instructions}
    for instruction in made.values():
        instruction.operands = [made[o] for o in instruction.operands]
        instruction.control_predecessors = tuple(made[p] for p in instruction.control_predecessors)
    names = Names(c.name for c in module.computations)
    copy = Computation(names.unique(f"{condition.name}.counted"), made.values(), made[condition.root],
                       dict(condition.attributes), condition.span)
    take_counter(Rewriter(copy))
    module.computations.insert(0, copy)
    return copy
