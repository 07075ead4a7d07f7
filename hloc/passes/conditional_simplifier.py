"""Replaces a conditional with a known predicate, or with equal branches, by a branch.

    c = f32[] conditional(constant(true), a, b), true_computation=f, false_computation=g
    =>
    the instructions of f, reading a
"""
from __future__ import annotations

from hloc.analysis.structure import Structures
from hloc.ir import Computation, Instruction, Module
from hloc.passes.call_inliner import inline
from hloc.passes.context import PassContext
from hloc.passes.patterns import splat
from hloc.passes.rewriter import Rewriter, rewrite_module


def conditional_simplifier(module: Module, context: PassContext) -> bool:
    """Replace conditionals with a known branch. True if there was one."""
    structures = Structures(module)

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        index = taken_branch(instruction, structures)
        if index is None:
            return None
        return inline(branches(instruction)[index], [instruction.operands[1 + index]], rewriter)

    return rewrite_module(module, visit, opcodes=("conditional",))


def branches(instruction: Instruction) -> tuple[Computation, ...]:
    """The branches by index; for a pred, branch 0 is the true one."""
    if instruction.get("branch_computations"):
        return instruction.get("branch_computations")
    return instruction.get("true_computation"), instruction.get("false_computation")


def taken_branch(instruction: Instruction, structures: Structures) -> int | None:
    """The index of the branch that is taken whatever happens at run time, or None."""
    known = branches(instruction)
    value = splat(instruction.operands[0])
    if value is not None:
        if instruction.operands[0].shape.element_type == "pred":
            return 0 if value else 1
        return int(value) if 0 <= int(value) < len(known) else len(known) - 1
    inputs = instruction.operands[1:]
    same = all(structures.of.get(b) == structures.of.get(known[0]) is not None for b in known) \
        and all(x is inputs[0] for x in inputs)
    return 0 if same else None
