"""Gives each conditional its own copy of a shared branch that returns or updates an array.

    c = conditional(p, x, x), true_computation=f, false_computation=g
    d = conditional(q, y, y), true_computation=f, false_computation=g
    =>
    d = conditional(q, y, y), true_computation=f.1, false_computation=g.1

Whether a branch may overwrite its operand depends on one conditional (hloc/passes/copy_insertion.py). A module grows to
at most GROWTH times its size plus ALLOWANCE instructions, because nested branches can describe exponentially many.
"""
from __future__ import annotations

from hloc.analysis.aliasing import branch_origins, module_invariants
from hloc.analysis.control_flow import branches, is_control_flow
from hloc.ir import Computation, Instruction, Module
from hloc.ir.clone import clone_computation
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Names

GROWTH = 1
ALLOWANCE = 20_000


def flatten_call_graph(module: Module, context: PassContext) -> bool:
    """Copy branches that several conditionals share. True if one was copied."""
    origins = branch_origins(module, module_invariants(module))
    if not origins:
        return False
    budget = ALLOWANCE + GROWTH * sum(len(c.instructions) for c in module.computations)
    names = Names(c.name for c in module.computations)
    called: set[Computation] = set()
    changed = False
    work, seen = [module.entry], {module.entry}
    while work:
        for instruction in filter(is_control_flow, work.pop().instructions):
            if instruction.opcode == "conditional" and any(o is not None for b in branches(instruction)
                                                           for o in origins[b]):
                own = list(branches(instruction))
                for n, branch in enumerate(own):
                    if branch in called and len(branch.instructions) <= budget:
                        budget -= len(branch.instructions)
                        own[n] = clone_computation(branch, names.unique(branch.name))
                        origins[own[n]] = origins[branch]
                        module.computations.insert(module.computations.index(branch) + 1, own[n])
                        changed = True
                    called.add(branch)
                set_branches(instruction, own)
            called.update(instruction.called_computations)
            new = [c for c in instruction.called_computations if c not in seen]
            seen.update(new)
            work.extend(new)
    return changed


def set_branches(conditional: Instruction, own: list[Computation]) -> None:
    if conditional.get("branch_computations"):
        conditional.attributes["branch_computations"] = tuple(own)
    else:
        conditional.attributes.update(zip(("true_computation", "false_computation"), own))
