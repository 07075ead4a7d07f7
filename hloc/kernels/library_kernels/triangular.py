"""Cholesky factors and triangular systems of real matrices as Tiles, for a target that has library kernels for these.

Tile "cholesky": buffers "in0", "out0"; parameters batch, size, lower as in HLO.
Tile "triangular-solve": buffers "in0", "in1", "out0"; parameters batch, size; sides: right sides, columns of "in1" if
left_side, else its rows; left_side, lower, unit_diagonal as in HLO; transpose: whether transpose_a transposes.
"""
from __future__ import annotations

import math

from hloc.errors import UnsupportedError
from hloc.kernels.group import Arg, Group, KernelCall, Lowered
from hloc.kernels.ir import Buffer, Cost, Tile
from hloc.machine import Machine

TYPES = ("f32", "f64")


def lower_cholesky(group: Group, machine: Machine) -> Lowered:
    cholesky = group.instruction
    batch, size = math.prod(cholesky.shape.dimensions[:-2]), cholesky.shape.dimensions[-1]
    parameters = (("batch", batch), ("size", size), ("lower", bool(cholesky.get("lower", False))))
    return _lowered(group, machine, parameters, batch * size ** 3 // 3)


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
    return _lowered(group, machine, parameters, batch * size ** 2 * sides)


def _lowered(group: Group, machine: Machine, parameters: tuple, work: int) -> Lowered:
    instruction = group.instruction
    type = instruction.shape.element_type
    if machine.kind != "cpu" or type not in TYPES:
        raise UnsupportedError(f"'{instruction.opcode}' of {type} on target {machine.kind}", instruction.span)
    if instruction.shape.num_elements == 0:
        return Lowered(())
    given = [operand.shape for operand in instruction.operands]
    buffers = (*(Buffer(f"in{n}", type, shape.num_elements) for n, shape in enumerate(given)),
               Buffer("out0", type, instruction.shape.num_elements, "write"))
    moved = sum(shape.num_bytes for shape in (*given, instruction.shape))
    tile = Tile(group.kernel_name, instruction.opcode, buffers, parameters, cost=Cost(moved, work),
                origin=group.origin)
    return Lowered((KernelCall(tile, (*(Arg("operand", n) for n in range(len(given))), Arg("result", 0))),))
