"""Element rules of control flow between scalars: while, conditional, call, and values that pass through tuples.

They serve computations that are applied element by element (the combiner of a reduce, the function of a map, a
comparator) and do more than arithmetic. State is kept in Mutables, one per scalar of the carried tuple:

    while((s32[], f32[]) init), condition=c, body=b   =>   v0 = .., v1 = ..; go = c(v0, v1)
                                                            while (go) { v0, v1 = b(v0, v1); go = c(v0, v1) }
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.analysis.aliasing import element_leaves
from hloc.analysis.control_flow import branches
from hloc.errors import UnsupportedError
from hloc.ir import Computation, Instruction, Shape, leaves
from hloc.kernels import scalars
from hloc.kernels.elements import Asking, Elements, Indices, Rule, Steps, always
from hloc.kernels.indexing import ZERO
from hloc.kernels.ir import INDEX, Apply, Const, Expr
from hloc.kernels.rules.elementwise import zero
from hloc.kernels.rules.loops import VALUES

HANDED_ON = frozenset(["opt-barrier", "domain", "copy", "add-dependency"])


def leaf_values(e: Elements, instruction: Instruction) -> Asking[list[Expr]]:
    """The scalars of an instruction's flattened result."""
    known = e.builder.known((e.serial, instruction))
    if known is None:
        known = yield from _leaf_values(e, instruction)
        e.builder.block.memo[e.serial, instruction] = known
    return known


def _leaf_values(e: Elements, instruction: Instruction) -> Asking[list[Expr]]:
    opcode = instruction.opcode
    if opcode in RUNS:
        return (yield from RUNS[opcode](e, instruction))
    if opcode == "tuple":
        found: list[Expr] = []
        for operand in instruction.operands:
            found += yield from leaf_values(e, operand)
        return found
    if opcode == "get-tuple-element":
        first, count = element_leaves(instruction)
        return (yield from leaf_values(e, instruction.operands[0]))[first:first + count]
    if instruction.shape.is_tuple:
        if opcode in HANDED_ON:
            return (yield from leaf_values(e, instruction.operands[0]))
        raise UnsupportedError(f"'{opcode}' inside a scalar computation", instruction.span)
    return [(yield instruction, (ZERO,) * instruction.shape.rank)] if instruction.shape.is_array else []


def applied(e: Elements, computation: Computation, arguments: Sequence[Sequence[Expr]]) -> list[Expr]:
    """The scalars of a computation's result; one list of scalars per parameter."""
    inner = e.nested(computation)
    for parameter, values in zip(computation.parameters, arguments):
        if parameter.shape.is_array:
            inner.sources[parameter] = always(values[0])
        e.builder.block.memo[inner.serial, parameter] = list(values)
    return inner.drive(leaf_values(inner, computation.root))


def check_scalars(instruction: Instruction, shape: Shape) -> None:
    if any(leaf.num_elements != 1 for leaf in leaves(shape)):
        raise UnsupportedError(f"'{instruction.opcode}' of arrays inside a scalar computation", instruction.span)


def run_while(e: Elements, instruction: Instruction) -> Asking[list[Expr]]:
    check_scalars(instruction, instruction.shape)
    b, condition, body = e.builder, instruction.get("condition"), instruction.get("body")
    initial = yield from leaf_values(e, instruction.operands[0])
    state = [b.mutable(v.type, v) for v in initial]
    going = b.mutable("pred", applied(e, condition, [state])[0], prefix="go")
    with b.while_loop(going), b.pinned([v.name for v in (*state, going)]):
        following = [b.bind(v) for v in applied(e, body, [state])]
        for variable, value in zip(state, following):
            b.assign(variable, value)
        b.assign(going, applied(e, condition, [state])[0])
    return list(state)


def run_conditional(e: Elements, instruction: Instruction) -> Asking[list[Expr]]:
    check_scalars(instruction, instruction.shape)
    b, selector = e.builder, instruction.operands[0]
    called = branches(instruction)
    chosen = b.let((yield selector, (ZERO,) * selector.shape.rank))
    results = [b.mutable(t, zero(t)) for t in (scalars.computation_type(s.element_type)
                                              for s in leaves(instruction.shape))]
    for number, (branch, argument) in enumerate(zip(called, instruction.operands[1:])):
        with b.guard([is_chosen(chosen, number, len(called))]), b.pinned([v.name for v in results]):
            values = yield from leaf_values(e, argument)
            for variable, value in zip(results, applied(e, branch, [values])):
                b.assign(variable, value)
    return list(results)


def is_chosen(selector: Expr, number: int, count: int) -> Expr:
    """Whether the selector chooses branch `number`; the last branch is also taken for numbers out of range."""
    if selector.type == "pred":
        return selector if number == 0 else Apply("not", (selector,), "pred")
    index = scalars.to_index(selector)
    if number < count - 1:
        return Apply("compare_eq", (index, Const(number, INDEX)), "pred")
    below, above = (Apply(op, (index, Const(bound, INDEX)), "pred")
                    for op, bound in (("compare_lt", 0), ("compare_ge", count - 1)))
    return Apply("or", (below, above), "pred")


def run_call(e: Elements, instruction: Instruction) -> Asking[list[Expr]]:
    arguments: list[list[Expr]] = []
    for operand in instruction.operands:
        check_scalars(instruction, operand.shape)
        arguments.append((yield from leaf_values(e, operand)))
    return applied(e, instruction.get("to_apply") or instruction.get("calls"), arguments)


RUNS = {"while": run_while, "conditional": run_conditional, "call": run_call, "fusion": run_call}


def only_leaf(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    """The element of a control-flow instruction that gives one scalar."""
    return (yield from leaf_values(e, instruction))[0]


def element(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    """get-tuple-element: of a variadic reduction, or arrays, at an index, or of scalars."""
    operand, number = instruction.operands[0], instruction.get("index")
    if operand.opcode in VALUES:
        return (yield from VALUES[operand.opcode](e, operand, index))[number]
    if operand.opcode == "tuple" and instruction.shape.rank:
        return (yield operand.operands[number], index)
    return (yield from leaf_values(e, instruction))[0]


CONTROL_RULES: dict[str, Rule] = {**dict.fromkeys(RUNS, only_leaf), "get-tuple-element": element}
