"""Small ones: bitcast-convert between widths, and FFT as a Tile.

A bitcast-convert leaves the bytes as they are: its kernel reads the operand's memory as the result's type.

Tile "fft": buffers "in0", "out0"; parameters
    kind     FFT, IFFT, RFFT, IRFFT
    batch    number of transforms
    lengths  the transformed (trailing) dimensions of the complex side's full size, as in fft_length
"""
from __future__ import annotations

import math

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES
from hloc.kernels import indexing
from hloc.kernels.group import Arg, Group, KernelCall, Lowered, Outline, kernel_name, origin_lines
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Buffer, Cost, Tile
from hloc.kernels.lower_loop import loop_kernel, lower_loop
from hloc.machine import Machine


def lower_bitcast_convert(group: Group, machine: Machine) -> Lowered:
    instruction = group.instruction
    source, target = instruction.operands[0].shape, instruction.shape
    widths = {ELEMENT_TYPES[s.element_type].bits for s in (source, target)}
    if instruction.opcode == "fusion" or len(widths) == 1:
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


def lower_fft(group: Group, machine: Machine) -> Lowered:
    fft = group.instruction
    lengths = tuple(fft.get("fft_length"))
    source, target = fft.operands[0].shape, fft.shape
    if target.num_elements == 0:
        return Lowered(())
    kind = fft.get("fft_type")
    full = source if kind in ("FFT", "IFFT", "RFFT") else target
    size = math.prod(lengths)
    parameters = (("kind", kind), ("batch", math.prod(full.dimensions) // size), ("lengths", lengths))
    buffers = (Buffer("in0", source.element_type, source.num_elements),
               Buffer("out0", target.element_type, target.num_elements, "write"))
    work = math.prod(full.dimensions) * 5 * max(1, size.bit_length())
    tile = Tile(kernel_name(group), "fft", buffers, parameters, cost=Cost(source.num_bytes + target.num_bytes, work),
                origin=origin_lines(group))
    return Lowered((KernelCall(tile, (Arg("operand", 0), Arg("result", 0))),))
