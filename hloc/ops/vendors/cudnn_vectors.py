"""cuDNN's convolutions of int8 with vectorized features, and the order that it wants their filters in.

In: a call whose arrays have one dimension more than dim_labels names: features lie in vectors of 4 or 32 along it. Out:
the call without it, and the moves (reshapes, transposes) that take operands there and the result back.

    s8[2,3,8,8,32] with bf01: s8[2,96,8,8]              moves: transpose {0,1,4,2,3}, reshape [2,96,8,8]

A filter for vectors of 32 may have been reordered for the tensor cores of GPUs (__cudnn$convReorderFilter), its bias
too; then `reordered_int8_nchw_vect` is true in the configuration, and the moves undo it.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hloc.ir import ConvolutionDimensionNumbers, Instruction, Shape, array
from hloc.ops.checks import text
from hloc.ops.vendors.library_configs import configuration, inverse, refuse, result_array

WIDEST = 32                 # features in a vector of a reordered filter
# Filter [O/8, 4, 2, I/32, H, W, 8, 4] and bias [O/32, 4, 2, 4] in the order of __cudnn$convReorderFilterAndBias.
FILTER_ORDER = (3, 4, 5, 0, 2, 6, 1, 7)
BIAS_ORDER = (0, 2, 1, 3)

Move = tuple[str, tuple[int, ...]]          # ("reshape", sizes) or ("transpose", order)


class Plain(NamedTuple):
    """The call with features in one dimension; moves of each operand to it, and of its first result back."""

    instruction: Instruction
    operands: tuple[tuple[Move, ...], ...]
    result: tuple[Move, ...]


def moved(x: np.ndarray, moves: Sequence[Move]) -> np.ndarray:
    """An array after some moves."""
    for name, numbers in moves:
        x = x.reshape(numbers) if name == "reshape" else x.transpose(numbers)
    return x


def without_vectors(instruction: Instruction) -> Plain | None:
    """None where the features are not vectorized."""
    numbers: ConvolutionDimensionNumbers | None = instruction.get("dim_labels")
    shapes = [o.shape for o in instruction.operands]
    if numbers is None or len(shapes) < 2 or shapes[0].rank != len(numbers.input_spatial) + 3:
        return None
    n, result = numbers, result_array(instruction)
    sides = [(shapes[0], (n.input_batch, n.input_feature, *n.input_spatial), 1),
             (shapes[1], (n.kernel_input_feature, n.kernel_output_feature, *n.kernel_spatial), 0),
             (result, (n.output_batch, n.output_feature, *n.output_spatial), 1)]
    (x, x_places), (kernel, kernel_places), (_, places) = (_joined(instruction, *side) for side in sides)
    moves = [x, _plain_filter(instruction, numbers) + kernel]
    for shape in shapes[2:]:
        moves.append(_joined(instruction, shape, sides[2][1], 1)[0] if shape.rank == result.rank else
                     _plain_bias(instruction, shape))
    plain = ConvolutionDimensionNumbers(x_places[0], x_places[1], x_places[2:], kernel_places[0], kernel_places[1],
                                        kernel_places[2:], places[0], places[1], places[2:])
    operands = [Instruction(o.name, "parameter", _shape_after(o.shape, m)) for o, m in zip(instruction.operands, moves)]
    joined = _joined(instruction, *sides[2])[0]
    first = _shape_after(result, joined)
    shape = Shape.tuple([first, *instruction.shape.tuple_shapes[1:]]) if instruction.shape.is_tuple else first
    made = instruction.copy(operands=operands, shape=shape)
    made.attributes["dim_labels"] = plain
    back = (("reshape", tuple(result.dimensions[d] for d in joined[0][1])), ("transpose", inverse(joined[0][1])))
    return Plain(made, tuple(moves), back)


def _joined(instruction: Instruction, shape: Shape, named: tuple[int, ...],
            feature: int) -> tuple[tuple[Move, ...], tuple[int, ...]]:
    """The moves that put the dimension without a name behind that of the features, named[feature], and join them; and
    where the named ones are then."""
    (vector,) = set(range(shape.rank)) - set(named) if shape.rank == len(named) + 1 else refuse(
        instruction, f"{text(shape)} has not one dimension more than dim_labels names")
    order = [d for d in range(shape.rank) if d != vector]
    order.insert(order.index(named[feature]) + 1, vector)
    sizes = tuple(n * shape.dimensions[vector] if d == named[feature] else n
                  for d, n in enumerate(shape.dimensions) if d != vector)
    return (("transpose", tuple(order)), ("reshape", sizes)), tuple(d - (d > vector) for d in named)


def _shape_after(shape: Shape, moves: Sequence[Move]) -> Shape:
    sizes = shape.dimensions
    for name, numbers in moves:
        sizes = numbers if name == "reshape" else tuple(sizes[d] for d in numbers)
    return array(shape.element_type, *sizes)


# -- reordered filters -------------------------------------------------------------------------------------------------

def filter_moves(instruction: Instruction, shape: Shape, back: bool = False) -> tuple[Move, ...]:
    """A filter [O, I/32, H, W, 32] as it was, into the order for tensor cores, or back from there."""
    if shape.rank != 5 or shape.dimensions[4] != WIDEST or shape.dimensions[0] % WIDEST:
        refuse(instruction, f"{text(shape)} is no filter [O, I/32, H, W, 32] with O a multiple of 32")
    outputs, inputs, height, width, _ = shape.dimensions
    return _order_moves((outputs // 8, 4, 2, inputs, height, width, 8, 4), FILTER_ORDER, shape, back)


def bias_moves(instruction: Instruction, shape: Shape, back: bool = False) -> tuple[Move, ...]:
    """The same for a bias [O]."""
    if shape.rank != 1 or shape.dimensions[0] % WIDEST:
        refuse(instruction, f"{text(shape)} is no bias of a multiple of 32 features")
    return _order_moves((shape.dimensions[0] // WIDEST, 4, 2, 4), BIAS_ORDER, shape, back)


def _order_moves(split: tuple[int, ...], order: tuple[int, ...], shape: Shape, back: bool) -> tuple[Move, ...]:
    if back:
        split, order = tuple(split[d] for d in order), inverse(order)
    return ("reshape", split), ("transpose", order), ("reshape", shape.dimensions)


def is_reordered(instruction: Instruction) -> bool:
    return bool(configuration(instruction, "cudnn_conv_backend_config").get("reordered_int8_nchw_vect"))


def _plain_filter(instruction: Instruction, numbers: ConvolutionDimensionNumbers) -> tuple[Move, ...]:
    if not is_reordered(instruction):
        return ()
    places = (numbers.kernel_output_feature, numbers.kernel_input_feature, *numbers.kernel_spatial)
    if places != (0, 1, 2, 3):
        refuse(instruction, "a reordered filter must be oi01")
    return filter_moves(instruction, instruction.operands[1].shape, back=True)


def _plain_bias(instruction: Instruction, shape: Shape) -> tuple[Move, ...]:
    return bias_moves(instruction, shape, back=True) if is_reordered(instruction) and shape.rank == 1 else ()


def reorder_moves(instruction: Instruction) -> list[tuple[Move, ...]]:
    """Of the operands of __cudnn$convReorderFilter, or ...AndBias, to its results."""
    shapes = [o.shape for o in instruction.operands]
    if not 1 <= len(shapes) <= 2:
        refuse(instruction, "takes a filter, and perhaps a bias")
    return [filter_moves(instruction, shapes[0]), *(bias_moves(instruction, s) for s in shapes[1:])]


def reorder(instruction: Instruction, *operands: np.ndarray):
    """The filter and the bias in the order for tensor cores."""
    made = tuple(moved(x, moves) for x, moves in zip(operands, reorder_moves(instruction)))
    return made if instruction.shape.is_tuple else made[0]
