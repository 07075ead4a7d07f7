"""Dynamic dimensions: get-dimension-size, set-dimension-size, dynamic-reshape.

A value of f32[<=4] has its run-time size (hloc/ops/values.py), so that most ops need no special code.

    s = f32[<=4] set-dimension-size(f32[4] x, s32[] n), dimensions={0}     the first n elements
    n = s32[] get-dimension-size(f32[<=4] s), dimensions={0}
"""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from hloc.errors import RunError
from hloc.ir import Instruction, Shape, array, default_layout
from hloc.ops.checks import array_operand, dimension_list, dynamic_of, fail, require, text
from hloc.ops.op import Op


def _dimension(instruction: Instruction, shape: Shape) -> int:
    dimensions = dimension_list(instruction, "dimensions", shape.rank)
    require(len(dimensions) == 1, instruction, "dimensions must name one dimension")
    return dimensions[0]


def evaluate_get_dimension_size(evaluator, instruction: Instruction, operand: np.ndarray) -> np.ndarray:
    (axis,) = instruction.get("dimensions")
    return np.array(operand.shape[axis], np.int32)


def infer_get_dimension_size(instruction: Instruction) -> Shape:
    _dimension(instruction, array_operand(instruction, 0))
    return array("s32")


def evaluate_set_dimension_size(evaluator, instruction: Instruction, operand: np.ndarray, size) -> np.ndarray:
    """A larger size pads with zeros; more than the bound is an error."""
    (axis,) = instruction.get("dimensions")
    wanted, bound = int(size), instruction.shape.dimensions[axis]
    if not 0 <= wanted <= bound:
        raise RunError(f"set-dimension-size to {wanted}, but dimension {axis} of {text(instruction.shape)} "
                       f"holds 0 to {bound}", instruction.span)
    have = operand.shape[axis]
    if wanted <= have:
        return operand[(slice(None),) * axis + (slice(0, wanted),)]
    more = operand.shape[:axis] + (wanted - have,) + operand.shape[axis + 1:]
    return np.concatenate([operand, np.zeros(more, operand.dtype)], axis)


def infer_set_dimension_size(instruction: Instruction) -> Shape:
    """Dynamic in that dimension, unless the size is a constant equal to the bound."""
    operand, size = array_operand(instruction, 0), array_operand(instruction, 1)
    axis = _dimension(instruction, operand)
    require(size.rank == 0 and size.element_type == "s32", instruction, f"the size must be s32[], is {text(size)}")
    literal = instruction.operands[1].array_literal
    whole = literal is not None and int(literal) == operand.dimensions[axis]
    dynamic = [not whole if d == axis else flag for d, flag in enumerate(dynamic_of(operand))]
    return replace(operand, dynamic_dimensions=tuple(dynamic) if any(dynamic) else (),
                   layout=default_layout(operand.rank))


def evaluate_dynamic_reshape(evaluator, instruction: Instruction, operand: np.ndarray, *sizes) -> np.ndarray:
    wanted = [int(s) for s in sizes]
    try:
        return operand.reshape(wanted)
    except ValueError:
        raise RunError(f"cannot reshape {list(operand.shape)} to {wanted}", instruction.span) from None


def infer_dynamic_reshape(instruction: Instruction) -> Shape:
    operand, written = array_operand(instruction, 0), instruction.shape
    if written is None or not written.is_array:
        fail(instruction, "the result shape must be written")
    require(written.element_type == operand.element_type, instruction,
            f"element types differ: {text(operand)} and {text(written)}")
    require(len(instruction.operands) == 1 + written.rank, instruction,
            f"{text(written)} needs {written.rank} sizes, {len(instruction.operands) - 1} are given")
    for index in range(1, len(instruction.operands)):
        size = array_operand(instruction, index)
        require(size.rank == 0 and size.kind == "signed", instruction,
                f"operand {index} must be s32[], is {text(size)}")
    return written


ROWS: tuple[Op, ...] = (
    Op("get-dimension-size", 1, infer_get_dimension_size, evaluate_get_dimension_size, required=("dimensions",)),
    Op("set-dimension-size", 2, infer_set_dimension_size, evaluate_set_dimension_size, required=("dimensions",)),
    Op("dynamic-reshape", (1, None), infer_dynamic_reshape, evaluate_dynamic_reshape),
)
