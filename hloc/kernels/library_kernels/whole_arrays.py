"""Tiles that take whole arrays: Fourier transforms, top-k, Cholesky factors and triangular systems.

Each is one instruction. Buffers are its operands "in0" ..., then its results "out0" ... Parameters:

    fft               kind: FFT, IFFT, RFFT, IRFFT; batch: number of transforms; lengths: the transformed (trailing)
                      dimensions of the complex side's full size, as in fft_length
    topk              rows, length, k, largest; results are the values and their positions
    cholesky          batch, size; lower as in HLO. Of real matrices, for a target that has a library kernel
    triangular-solve  likewise: batch, size; sides: right sides, columns of "in1" if left_side, else its rows;
                      left_side, lower, unit_diagonal as in HLO; transpose: whether transpose_a transposes
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels.group import Arg, Group, KernelCall, Lowered
from hloc.kernels.ir import Buffer, Cost, Tile
from hloc.machine import Machine

TYPES = ("f32", "f64")                      # of matrices


def tile_of(group: Group, name: str, library_kernel: str, parameters: tuple, work: int, comparator: Any = None,
            operands: Sequence[Instruction] = ()) -> Lowered:
    """A Tile of whole operands (those of the instruction, if not of another one inside it) and results; nothing if they
    are empty."""
    given = operands or group.instruction.operands
    shapes = [*(o.shape for o in given), *group.result_shapes]
    if 0 in (shape.num_elements for shape in shapes):
        return Lowered(())
    names = [*(f"in{n}" for n in range(len(given))), *(f"out{n}" for n in range(len(group.result_shapes)))]
    buffers = tuple(Buffer(name, shape.element_type, shape.num_elements, "write" if name[0] == "o" else "read")
                    for name, shape in zip(names, shapes))
    moved = sum(b.size * ELEMENT_TYPES[b.type].bytes for b in buffers)
    tile = Tile(name, library_kernel, buffers, parameters, comparator=comparator, cost=Cost(moved, work),
                origin=group.origin)
    results = (Arg("result", n) for n in range(len(group.result_shapes)))
    arguments = (*(Arg("operand", group.parameters[o]) for o in given), *results)
    return Lowered((KernelCall(tile, arguments),))


def lower_fft(group: Group, machine: Machine) -> Lowered:
    fft = group.instruction
    kind, lengths = fft.get("fft_type"), tuple(fft.get("fft_length"))
    full, size = (fft if kind == "IRFFT" else fft.operands[0]).shape.num_elements, math.prod(lengths)
    parameters = (("kind", kind), ("batch", full // max(1, size)), ("lengths", lengths))
    return tile_of(group, group.kernel_name, "fft", parameters, full * 5 * max(1, size.bit_length()))


def lower_topk(group: Group, machine: Machine) -> Lowered:
    topk = group.instruction
    shape = topk.operands[0].shape
    if not topk.shape.is_tuple or len(topk.shape.tuple_shapes) != 2 or shape.rank == 0:
        raise UnsupportedError("topk of this form", topk.span)
    length = shape.dimensions[-1]
    parameters = (("rows", shape.num_elements // max(1, length)), ("length", length), ("k", topk.get("k")),
                  ("largest", topk.get("largest", True) not in (False, "false")))
    return tile_of(group, group.kernel_name, "topk", parameters, shape.num_elements * 4)


def lower_cholesky(group: Group, machine: Machine) -> Lowered:
    cholesky = group.instruction
    batch, size = math.prod(cholesky.shape.dimensions[:-2]), cholesky.shape.dimensions[-1]
    parameters = (("batch", batch), ("size", size), ("lower", bool(cholesky.get("lower", False))))
    return _of_matrices(group, machine, parameters, batch * size ** 3 // 3)


def lower_triangular_solve(group: Group, machine: Machine) -> Lowered:
    solve = group.instruction
    left = bool(solve.get("left_side", False))
    rows, columns = solve.shape.dimensions[-2:]
    batch, size = math.prod(solve.shape.dimensions[:-2]), solve.operands[0].shape.dimensions[-1]
    sides = columns if left else rows
    parameters = (("batch", batch), ("size", size), ("sides", sides), ("left_side", left),
                  ("lower", bool(solve.get("lower", False))),
                  ("transpose", solve.get("transpose_a", "NO_TRANSPOSE") != "NO_TRANSPOSE"),
                  ("unit_diagonal", bool(solve.get("unit_diagonal", False))))
    return _of_matrices(group, machine, parameters, batch * size ** 2 * sides)


def _of_matrices(group: Group, machine: Machine, parameters: tuple, work: int) -> Lowered:
    instruction = group.instruction
    if machine.kind != "cpu" or instruction.shape.element_type not in TYPES:
        raise UnsupportedError(f"'{instruction.opcode}' of {instruction.shape.element_type} on target {machine.kind}",
                               instruction.span)
    return tile_of(group, group.kernel_name, instruction.opcode, parameters, work)
