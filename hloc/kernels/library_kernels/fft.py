"""Fourier transforms: a Tile of the library kernel "fft".

Tile "fft": buffers "in0", "out0"; parameters
    kind     FFT, IFFT, RFFT, IRFFT
    batch    number of transforms
    lengths  the transformed (trailing) dimensions of the complex side's full size, as in fft_length
"""
from __future__ import annotations

import math

from hloc.kernels.group import Arg, Group, KernelCall, Lowered
from hloc.kernels.ir import Buffer, Cost, Tile
from hloc.machine import Machine


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
    tile = Tile(group.kernel_name, "fft", buffers, parameters, cost=Cost(source.num_bytes + target.num_bytes, work),
                origin=group.origin)
    return Lowered((KernelCall(tile, (Arg("operand", 0), Arg("result", 0))),))
