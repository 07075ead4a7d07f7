"""bitcast-convert between widths: the operand's memory is read as the result's type, without conversion.

In: a Group of one bitcast-convert or bitcast, or of a fusion around it. Out: one loop over the result's elements.
"""
from __future__ import annotations

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES
from hloc.kernels import indexing
from hloc.kernels.elemental.loop import loop_kernel, lower_loop
from hloc.kernels.group import Arg, Group, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.machine import Machine


def lower_bitcast_convert(group: Group, machine: Machine) -> Lowered:
    instruction = group.instruction
    if instruction.opcode == "fusion":
        return lower_loop(group, machine)
    source, target = instruction.operands[0].shape, instruction.shape
    widths = {ELEMENT_TYPES[s.element_type].bits for s in (source, target)}
    if len(widths) == 1:
        return lower_loop(group, machine)
    if min(widths) < 8:
        raise UnsupportedError("bitcast-convert of types under a byte", instruction.span)
    if target.num_elements == 0:
        return Lowered(())

    def emit(outline: Outline, index: tuple[Index, ...]) -> None:
        outline.known["in0"] = (Arg("operand", 0), target.element_type, target.num_elements, "read")
        position = indexing.linearize(index, target.dimensions)
        name = outline.result_buffer(0)
        outline.builder.store(name, position, outline.builder.load("in0", target.element_type, position))
    return Lowered((loop_kernel(group, machine, target.dimensions, emit),))
