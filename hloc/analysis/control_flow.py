"""Which computations run step by step, and which are only functions of one op.

In: a module. Out: its entry and every while body, while condition, conditional branch and called computation; not the
scalar functions of reduce, sort, scatter and map, nor fused computations.

    entry calls while(x), body=b, condition=c; b holds reduce(...), to_apply=add   ->   c, b, entry
"""
from __future__ import annotations

from hloc.ir import Computation, Instruction, Module, topological_order

CONTROL_FLOW = frozenset(["while", "conditional", "call"])


def is_control_flow(instruction: Instruction) -> bool:
    """True for ops that run whole computations step by step."""
    return instruction.opcode in CONTROL_FLOW


def executed_computations(module: Module) -> list[Computation]:
    """The entry and all computations that control flow reaches from it, callees first."""
    return topological_order([module.entry], lambda computation: [
        c for i in computation.instructions if is_control_flow(i) for c in i.called_computations])


def branches(conditional: Instruction) -> tuple[Computation, ...]:
    """The branch computations of a conditional, in the order in which its selector counts them."""
    named = conditional.get("branch_computations")
    return named or (conditional.get("true_computation"), conditional.get("false_computation"))
