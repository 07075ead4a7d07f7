"""Merges equal scalar functions: frameworks write a new `add` for every reduce.

    a = f32[] reduce(x, zero), dimensions={0}, to_apply=add_1
    b = f32[] reduce(y, zero), dimensions={0}, to_apply=add_2      =>   both to_apply=add_1

Only functions of scalars are shared (of reduce, sort, scatter, map ...): bodies of loops and branches are changed in
place by other passes, and so belong to one caller each.
"""
from __future__ import annotations

from hloc.analysis.effects import ARITHMETIC_CALLERS
from hloc.analysis.structure import Structures
from hloc.ir import Computation, Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.dce import drop_unreachable


def hlo_computation_deduplicator(module: Module, context: PassContext) -> bool:
    """Merge equal scalar functions. True if there were any."""
    structures = Structures(module)
    first: dict[int, Computation] = {}
    for computation in module.computations:             # in this order, so that a callee stays before its callers
        if computation in structures.of:
            first.setdefault(structures.of[computation], computation)
    for instruction in module.instructions():
        if instruction.opcode in ARITHMETIC_CALLERS:
            share(instruction, structures, first)
    return drop_unreachable(module)


def share(instruction: Instruction, structures: Structures, first: dict[int, Computation]) -> None:
    """Let `instruction` call the first computation of each structure."""
    for key, value in instruction.attributes.items():
        if isinstance(value, Computation) and value in structures.of:
            same = first[structures.of[value]]
            if same is not value:
                instruction.attributes = {**instruction.attributes, key: same}
