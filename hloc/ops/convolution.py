"""convolution: sliding a filter over an input, with strides, padding, dilation, groups and reversal.

In: input and kernel in any dimension order (dim_labels). Out: the sums of products at every window position.

    r = f32[1,4,4,8] convolution(f32[1,6,6,3] x, f32[3,3,3,8] k), window={size=3x3}, dim_labels=b01f_01io->b01f

The evaluation dilates and pads the input, takes a view of all windows, copies them as the rows, or the columns, of a
matrix, a part of the batch at a time, and multiplies it by the filter.
Padding and gaps are zeros that are multiplied: an infinite weight there gives NaN. Compiled code may omit them.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from hloc.ir import ConvolutionDimensionNumbers, Instruction, Shape, WindowDim, numpy_dtype, window_of
from hloc.ops.checks import array_operand, array_shape, attribute, fail, require, text
from hloc.ops.op import Op
from hloc.ops.products import compute_dtype, product_type, round_to
from hloc.sharding import window_rules

LARGEST_COPY = 1 << 24      # elements of the input that are copied for one matmul


def window_positions(size: int, window: WindowDim) -> int:
    """The number of window positions along a dimension of `size` elements."""
    spread = (size - 1) * window.base_dilation + 1 if size else 0
    padded = spread + window.padding_low + window.padding_high
    reach = (window.size - 1) * window.window_dilation + 1
    return 0 if padded < reach else (padded - reach) // window.stride + 1


def check_window(instruction: Instruction, window: Sequence[WindowDim], rank: int, what: str) -> None:
    require(len(window) == rank, instruction, f"the window has {len(window)} dimensions, {what} has {rank}")
    for number, w in enumerate(window):
        require(w.size > 0 and w.stride > 0 and w.base_dilation > 0 and w.window_dilation > 0, instruction,
                f"dimension {number} of the window: size, stride and dilation must be positive")


def spread_and_pad(array: np.ndarray, first_axis: int, window: Sequence[WindowDim], fill) -> np.ndarray:
    """`array` with holes of base dilation and padding filled in, from `first_axis` on; negative padding cuts."""
    for axis, w in enumerate(window, first_axis):
        size = array.shape[axis]
        spread = (size - 1) * w.base_dilation + 1 if size else 0
        total = max(0, spread + w.padding_low + w.padding_high)
        if total == size == spread and not w.padding_low:
            continue
        shape = array.shape[:axis] + (total,) + array.shape[axis + 1:]
        padded = np.full(shape, fill, array.dtype)
        first = max(0, -(w.padding_low // w.base_dilation)) if w.padding_low < 0 else 0      # first element that stays
        start = first * w.base_dilation + w.padding_low
        count = min(size - first, -(-(total - start) // w.base_dilation)) if total > start else 0
        if count > 0:
            places = slice(start, start + (count - 1) * w.base_dilation + 1, w.base_dilation)
            padded[(slice(None),) * axis + (places,)] = array[(slice(None),) * axis + (slice(first, first + count),)]
        array = padded
    return array


def window_slices(window: Sequence[WindowDim], positions: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple]]:
    """For each element of the window: its index, and the slices of the padded array that all positions read there."""
    for index in itertools.product(*(range(w.size) for w in window)):
        yield index, tuple(
            slice(i * w.window_dilation, i * w.window_dilation + (n - 1) * w.stride + 1, w.stride) if n else slice(0, 0)
            for i, w, n in zip(index, window, positions))


# -- evaluation --------------------------------------------------------------------------------------------------------

def evaluate_convolution(evaluator, instruction: Instruction, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    numbers: ConvolutionDimensionNumbers = instruction.get("dim_labels")
    window = window_of(instruction)
    groups, batch_groups = instruction.get("feature_group_count", 1), instruction.get("batch_group_count", 1)
    result = numpy_dtype(instruction.shape.element_type)
    depth = rhs.size // max(1, rhs.shape[numbers.kernel_output_feature])
    dtype = compute_dtype(lhs.dtype, rhs.dtype, result, depth, instruction.shape.num_elements * depth)
    x = lhs.transpose((numbers.input_batch, *numbers.input_spatial, numbers.input_feature)).astype(dtype, copy=False)
    kernel = rhs.transpose((numbers.kernel_input_feature, *numbers.kernel_spatial, numbers.kernel_output_feature))
    reversed_axes = tuple(1 + d for d, w in enumerate(window) if w.reversal)
    kernel = np.flip(kernel, reversed_axes).astype(dtype, copy=False)
    parts = [_grouped(a, k, window, groups)
             for a, k in zip(np.split(x, batch_groups), np.split(kernel, batch_groups, -1))]
    sums = np.concatenate(parts, axis=-1) if batch_groups > 1 else parts[0]        # [batch, space..., output feature]
    order = (numbers.output_batch, *numbers.output_spatial, numbers.output_feature)
    return round_to(sums, lhs.dtype, rhs.dtype, result).transpose(np.argsort(order))


def _grouped(x: np.ndarray, kernel: np.ndarray, window: Sequence[WindowDim], groups: int) -> np.ndarray:
    """Features in `groups` groups: x [B, space, G*I], kernel [I, places, G*O] -> [B, positions, G*O]."""
    positions = [window_positions(n, w) for n, w in zip(x.shape[1:-1], window)]
    outputs = kernel.shape[-1] // groups
    if not (x.size and kernel.size and math.prod(positions)):
        return np.zeros((x.shape[0], *positions, groups * outputs), x.dtype)
    kernel = np.moveaxis(kernel.reshape(*kernel.shape[:-1], groups, outputs), -2, 0)               # [G, I, places, O]
    by_rows = x.strides[-1] <= x.strides[0] or x.shape[0] == 1
    sums = (_windows_in_rows if by_rows else _windows_in_columns)(x, kernel, window, positions)
    return sums.reshape((x.shape[0], *positions, groups * outputs))


def _windows_in_rows(x: np.ndarray, kernel: np.ndarray, window, positions: Sequence[int]) -> np.ndarray:
    """Features lie next to each other in memory: [G, B*positions, places*I] times [G, places*I, O], some of B, or some
    of the first positions, at a time."""
    groups, inputs, *places, outputs = kernel.shape
    batch, rank, count = x.shape[0], len(positions), math.prod(positions)
    padded = spread_and_pad(x, 1, window, 0)
    seen = _views(padded.reshape(*padded.shape[:-1], groups, inputs), 1, window, positions)
    seen = np.moveaxis(seen, 1 + 2 * rank, 0)                                       # [G, B, positions, places, I]
    taps = np.moveaxis(kernel, 1, -2).reshape(groups, -1, outputs)
    sums = np.empty((batch, *positions, groups, outputs), x.dtype)
    first = positions[0] if rank else 1
    row = groups * taps.shape[1] * (count // first)                                 # elements for one first position
    some = max(1, LARGEST_COPY // (row * first))
    rows = first if row * first <= LARGEST_COPY else max(1, LARGEST_COPY // row)
    for start, place in itertools.product(range(0, batch, some), range(0, first, rows)):
        part = (slice(start, start + some), *([slice(place, place + rows)] if rank else []))
        matrix = seen[(slice(None), *part)].reshape(groups, -1, taps.shape[1])
        into = sums[part]
        into[...] = np.moveaxis(np.matmul(matrix, taps).reshape(groups, *into.shape[:-2], outputs), 0, -2)
    return sums


def _windows_in_columns(x: np.ndarray, kernel: np.ndarray, window, positions: Sequence[int]) -> np.ndarray:
    """Elements of the batch lie next to each other (gradients of kernels, where features are the batch): the sum, over
    some of I at a time, of [G, I*places, positions*B] transposed times [G, I*places, O]."""
    groups, inputs, *places, outputs = kernel.shape
    batch, rank = x.shape[0], len(positions)
    padded = spread_and_pad(np.swapaxes(x, 0, -1), 1, window, 0)
    seen = _views(padded.reshape(groups, inputs, *padded.shape[1:]), 2, window, positions)
    order = [0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank), 2 + 2 * rank]
    seen = seen.transpose(order)                                                    # [G, I, places, positions, B]
    count = math.prod(positions) * batch
    sums = np.zeros((groups, count, outputs), x.dtype)
    some = max(1, LARGEST_COPY // (groups * math.prod(places) * count))
    for start in range(0, inputs, some):
        matrix = seen[:, start:start + some].reshape(groups, -1, count)
        sums += np.matmul(np.swapaxes(matrix, 1, 2), kernel[:, start:start + some].reshape(groups, -1, outputs))
    return np.moveaxis(sums.reshape(groups, *positions, batch, outputs), (0, -2), (-2, 0))


def _views(x: np.ndarray, axis: int, window: Sequence[WindowDim], positions: Sequence[int]) -> np.ndarray:
    """The padded dimensions from `axis` on as positions..., places...: a view, in which elements stand many times."""
    rank = len(positions)
    strides = x.strides[axis:axis + rank]
    shape = (*x.shape[:axis], *positions, *(w.size for w in window), *x.shape[axis + rank:])
    steps = [s * w.stride for s, w in zip(strides, window)] + [s * w.window_dilation for s, w in zip(strides, window)]
    return np.lib.stride_tricks.as_strided(x, shape, (*x.strides[:axis], *steps, *x.strides[axis + rank:]),
                                           writeable=False)


# -- shape -------------------------------------------------------------------------------------------------------------

def infer_convolution(instruction: Instruction) -> Shape:
    lhs, rhs = array_operand(instruction, 0), array_operand(instruction, 1)
    numbers: ConvolutionDimensionNumbers = attribute(instruction, "dim_labels")
    spatial = len(numbers.input_spatial)
    for shape, side in ((lhs, "lhs"), (rhs, "rhs")):
        require(shape.rank == spatial + 2, instruction,
                f"dim_labels has {spatial} spatial dimensions, so {side} must have rank {spatial + 2}: {text(shape)}")
    named = {"lhs": (numbers.input_batch, numbers.input_feature, *numbers.input_spatial),
             "rhs": (numbers.kernel_input_feature, numbers.kernel_output_feature, *numbers.kernel_spatial),
             "the result": (numbers.output_batch, numbers.output_feature, *numbers.output_spatial)}
    for side, dimensions in named.items():
        require(max(dimensions) < spatial + 2, instruction,
                f"dim_labels names more dimensions of {side} than the {spatial + 2} that it has")
    window = window_of(instruction)
    check_window(instruction, window, spatial, "dim_labels")
    _check_features(instruction, lhs, rhs, numbers)
    for number, (w, d) in enumerate(zip(window, numbers.kernel_spatial)):
        require(rhs.dimensions[d] in (w.size, -1), instruction,
                f"dimension {number} of the window has size {w.size}, the kernel {text(rhs)} has {rhs.dimensions[d]}")
    sizes = [0] * lhs.rank
    sizes[numbers.output_batch] = lhs.dimensions[numbers.input_batch] // instruction.get("batch_group_count", 1)
    sizes[numbers.output_feature] = rhs.dimensions[numbers.kernel_output_feature]
    for w, source, target in zip(window, numbers.input_spatial, numbers.output_spatial):
        sizes[target] = window_positions(lhs.dimensions[source], w)
    return array_shape(product_type(instruction, lhs, rhs), sizes)


def _check_features(instruction: Instruction, lhs: Shape, rhs: Shape, numbers: ConvolutionDimensionNumbers) -> None:
    groups, batch_groups = instruction.get("feature_group_count", 1), instruction.get("batch_group_count", 1)
    require(groups > 0 and batch_groups > 0, instruction, "feature_group_count and batch_group_count must be positive")
    require(groups == 1 or batch_groups == 1, instruction,
            f"feature_group_count={groups} and batch_group_count={batch_groups} cannot both be more than 1")
    inputs, batch = lhs.dimensions[numbers.input_feature], lhs.dimensions[numbers.input_batch]
    kernel_inputs = rhs.dimensions[numbers.kernel_input_feature]
    outputs = rhs.dimensions[numbers.kernel_output_feature]
    if kernel_inputs * groups != inputs:
        fail(instruction, f"lhs {text(lhs)} has {inputs} input features, the kernel {text(rhs)} takes {kernel_inputs}"
             + (f" in each of {groups} groups" if groups > 1 else ""))
    require(outputs % groups == 0 and outputs % batch_groups == 0, instruction,
            f"{outputs} output features cannot be split into {max(groups, batch_groups)} groups")
    require(batch % batch_groups == 0, instruction, f"a batch of {batch} cannot be split into {batch_groups} groups")


ROWS: tuple[Op, ...] = (
    Op("convolution", arity=2, infer=infer_convolution, evaluate=evaluate_convolution, required=("dim_labels",),
       optional=("window", "feature_group_count", "batch_group_count", "operand_precision",
                 "convolution_kind", "sparsity_config", "padding_type"), sharding=window_rules.convolution),
)
