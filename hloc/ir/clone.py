"""An independent copy of a module: new computations and instructions, the same immutable shapes, literals and spans.

    copy = clone_module(module)       passes may now rewrite `copy`; errors still point at the user's text
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hloc.ir.module import Computation, Instruction, Module


def clone_module(module: Module) -> Module:
    """Copy a whole module; linear in its instructions."""
    clones: dict[Computation, Computation] = {c: Computation(c.name, attributes=dict(c.attributes), span=c.span)
                                              for c in module.computations}
    for original, copy in clones.items():
        _fill(original, copy, clones)
    result = Module(module.name, clones.values(), clones[module.entry], dict(module.attributes), module.tables,
                    module.source)
    result.is_scheduled = module.is_scheduled
    result.default_inputs, result.faults = module.default_inputs, module.faults
    return result


def clone_computation(computation: Computation, name: str) -> Computation:
    """Copy one computation under a new name; it calls what the original calls."""
    copy = Computation(name, attributes=dict(computation.attributes), span=computation.span)
    _fill(computation, copy, {})
    return copy


def _fill(original: Computation, copy: Computation, clones: Mapping[Computation, Computation]) -> None:
    """Copy the instructions of one computation; operands stand before their users."""
    made: dict[Instruction, Instruction] = {}
    for instruction in original.instructions:
        new = Instruction(
            instruction.name, instruction.opcode, instruction.shape, [made[o] for o in instruction.operands],
            {key: translated(value, clones) for key, value in instruction.attributes.items()},
            parameter_number=instruction.parameter_number, literal=instruction.literal, span=instruction.span)
        made[instruction] = new
    for instruction in original.instructions:
        if instruction.control_predecessors:
            made[instruction].control_predecessors = tuple(made[p] for p in instruction.control_predecessors)
    copy.instructions = list(made.values())
    copy.root = made[original.root]


def translated(value: Any, clones: Mapping[Computation, Computation]) -> Any:
    """An attribute with its computations replaced by their copies."""
    if isinstance(value, Computation):
        return clones.get(value, value)
    if type(value) is tuple and value and isinstance(value[0], Computation):
        return tuple(clones.get(c, c) for c in value)
    return value
