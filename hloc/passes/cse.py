"""Common subexpression elimination: merges equal instructions.

    a = f32[4] negate(p)
    b = f32[4] negate(p)
    ROOT s = f32[4] add(a, b)        =>   ROOT s = f32[4] add(a, a)

Two instructions are equal if opcode, shape, operands and attributes are, and the computations that they call have the
same structure. Random numbers, side effects, collectives and the halves of asynchronous operations are never merged.
"""
from __future__ import annotations

from typing import Any

from hloc.analysis.effects import NOT_MERGEABLE, acts_by_itself
from hloc.analysis.structure import Structures
from hloc.ir import Computation, Instruction, Module, reachable_computations
from hloc.ops.collectives import EXCHANGES
from hloc.passes.context import PassContext
from hloc.passes.patterns import COMMUTATIVE
from hloc.passes.rewriter import Rewriter, Visit, rewrite

ASYNCHRONOUS = ("-start", "-update", "-done")


def cse(module: Module, context: PassContext) -> bool:
    """Merge equal instructions of each computation. True if any were."""
    structures = Structures(module)
    mergeable_callee: dict[Computation, bool] = {}
    changed = False
    for computation in reachable_computations(module.entry):
        changed |= rewrite(computation, merge_equal(structures, mergeable_callee))
        mergeable_callee[computation] = all(is_mergeable(i, mergeable_callee) for i in computation.instructions
                                            if i.opcode != "parameter")
    return changed


def merge_equal(structures: Structures, mergeable_callee: dict[Computation, bool]) -> Visit:
    """A visit that replaces each instruction by the first equal one; fresh for every computation."""
    first: dict[Any, Instruction] = {}

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if not is_mergeable(instruction, mergeable_callee):
            return None
        operands = [id(o) for o in instruction.operands]
        if instruction.opcode in COMMUTATIVE:
            operands.sort()
        found = first.setdefault((structures.key(instruction), tuple(operands)), instruction)
        return None if found is instruction else found

    return visit


def is_mergeable(instruction: Instruction, mergeable_callee: dict[Computation, bool]) -> bool:
    """Whether running it once is equivalent to running it twice."""
    opcode = instruction.opcode
    if opcode in NOT_MERGEABLE or opcode in EXCHANGES or opcode.endswith(ASYNCHRONOUS):
        return False
    if acts_by_itself(instruction):
        return False
    return all(mergeable_callee[c] for c in instruction.called_computations)
