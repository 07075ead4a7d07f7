"""Inlines called computations.

    f { x = f32[4] parameter(0)  ROOT y = f32[4] negate(x) }
    c = f32[4] call(p), to_apply=f        =>   c is negate(p)

Callees are inlined before their callers. A module may grow to at most GROWTH times its size plus ALLOWANCE
instructions, because nested calls can describe exponentially many. A call is not inlined if its computation runs on
another execution thread, if it has inlineable="false", or if it is a control predecessor.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hloc.ir import Computation, Instruction, Module, Verbatim, reachable_computations
from hloc.passes.context import PassContext
from hloc.passes.dce import drop_unreachable
from hloc.passes.rewriter import Rewriter, rewrite
from hloc.source_lines import with_place_of

GROWTH = 4
ALLOWANCE = 20_000
CALLEE = {"call": "to_apply", "fusion": "calls"}


def call_inliner(module: Module, context: PassContext) -> bool:
    """Inline called computations. True if one was."""
    return inline_all(module, "call")


def inline_all(module: Module, opcode: str) -> bool:
    """Inline every instruction of `opcode` ("call" or "fusion") within the budget."""
    computations = reachable_computations(module.entry)
    sites = Counter(c for f in computations for i in f.instructions if i.opcode == opcode
                    for c in i.called_computations)
    if not sites:
        return False
    budget = ALLOWANCE + GROWTH * sum(len(c.instructions) for c in computations)

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        nonlocal budget
        callee = instruction.get(CALLEE[opcode])
        if not inlineable(instruction, callee):
            return None
        cost = len(callee.instructions) if sites[callee] > 1 else 0
        if cost > budget:
            return None
        budget -= cost
        return inline(callee, instruction.operands, rewriter, str(instruction.get("metadata", "")))

    changed = False
    for computation in computations:
        changed |= rewrite(computation, visit, opcodes=(opcode,))
    return drop_unreachable(module) or changed


def inlineable(instruction: Instruction, callee: Computation) -> bool:
    if 'inlineable="false"' in str(instruction.get("frontend_attributes", "")):
        return False
    thread = callee.attributes.get("execution_thread")
    return thread is None or str(thread).strip('"') == "main"


def inline(callee: Computation, arguments: Sequence[Instruction], rewriter: Rewriter, call: str = "") -> Instruction:
    """Copies of the instructions of `callee`, reading `arguments` for its parameters; the copy of its root. call: the
    metadata of the call, whose source line is given to instructions without one."""
    made: dict[Instruction, Instruction] = {}
    for old in callee.instructions:
        if old.opcode == "parameter":
            made[old] = arguments[old.number]
            continue
        made[old] = rewriter.adopt(old, [made[operand] for operand in old.operands])
        metadata = str(old.get("metadata", ""))
        if (placed := with_place_of(metadata, call)) != metadata:
            made[old].attributes["metadata"] = Verbatim(placed)
        if old.control_predecessors:
            made[old].control_predecessors = tuple(made[p] for p in old.control_predecessors)
    return made[callee.root]
