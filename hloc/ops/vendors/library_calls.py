"""The library calls of optimized modules in NumPy: matmuls with fused steps, softmax, norms, sorts.

In: a custom-call and its operands. Out: its results; workspaces are zeros. Everything is computed in f64 (c128) and
rounded once, eight-bit floats saturate. hloc/ops/vendors/library_configs.py says what a call computes.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hloc.ir import ELEMENT_TYPES, Instruction, Shape, numpy_dtype
from hloc.ops.convolution import spread_and_pad, window_positions, window_slices
from hloc.ops.linalg import wide
from hloc.ops.products import dot
from hloc.ops.sorting import total_order
from hloc.ops.vendors.cudnn_attention import BACKWARD, FORWARD, attention_backward, attention_forward
from hloc.ops.vendors.cudnn_vectors import moved, reorder, without_vectors
from hloc.ops.vendors.library_configs import (
    FLOAT8,
    READERS,
    Convolution,
    LibraryCall,
    Matmul,
    Step,
    configuration,
    float_of_bits,
    inverse,
    library_call,
    refuse,
    result_array,
)
from hloc.ops.vendors.linear_algebra import fitted, result_shapes

erf = np.vectorize(math.erf, otypes=[np.float64])


def library_product(instruction: Instruction, *operands: np.ndarray):
    """A dot or convolution and its steps."""
    plain = without_vectors(instruction)
    if plain is not None:
        given = library_product(plain.instruction, *(moved(x, m) for x, m in zip(operands, plain.operands)))
        first, *rest = given if instruction.shape.is_tuple else (given,)
        return (moved(first, plain.result), *rest) if instruction.shape.is_tuple else moved(first, plain.result)
    call: LibraryCall = library_call(instruction)
    values = [_product(instruction, call.product, *(wide(o) for o in operands[:2]))]
    for step in call.steps:
        operand = wide(operands[step.operand]) if step.operand >= 0 else None
        values.append(_applied(step, [values[n] for n in step.inputs], operand))
    shapes = result_shapes(instruction)
    return fitted(instruction, [_rounded(values[n], shape) for n, shape in zip(call.results, shapes)])


def _rounded(x: np.ndarray, shape: Shape) -> np.ndarray:
    """Integers are rounded to the nearest, and saturate if a step may exceed them."""
    if shape.kind not in ("signed", "unsigned"):
        return x
    bits, signed = ELEMENT_TYPES[shape.element_type].bits, shape.kind == "signed"
    least = -(1 << (bits - 1)) if signed else 0
    return np.clip(np.rint(x), least, least + (1 << bits) - 1)


def _applied(step: Step, values: list[np.ndarray], operand: np.ndarray | None) -> np.ndarray:
    x = values[0]
    if operand is not None and step.dimensions is not None:
        order = np.argsort(step.dimensions)
        shape = [n if d in step.dimensions else 1 for d, n in enumerate(x.shape)]
        operand = operand.transpose(order).reshape(shape)
    if step.name == "round":
        largest = float(np.finfo(np.float64).max if step.element_type not in FLOAT8 else LARGEST[step.element_type])
        return wide(np.clip(x, -largest, largest).astype(numpy_dtype(step.element_type)))
    with np.errstate(all="ignore"):
        return STEPS[step.name](x, operand if operand is not None else values[-1], step.value)


LARGEST = {"f8e4m3fn": 448.0, "f8e5m2": 57344.0}
STEPS: dict[str, Callable] = {
    "scale": lambda x, _, value: x * value,
    "multiply": lambda x, y, _: x * y,
    "divide": lambda x, y, _: x / y,
    "add": lambda x, y, value: x + value * y,
    "sum": lambda x, y, _: x + y,
    "minimum": lambda x, y, _: np.minimum(x, y),
    "maximum": lambda x, y, _: np.maximum(x, y),
    "amax": lambda x, *_: np.max(np.abs(x)),
    "relu": lambda x, *_: np.maximum(x, 0),
    "relu6": lambda x, *_: np.clip(x, 0, 6),
    "leaky_relu": lambda x, _, value: np.where(x > 0, x, value * x),
    "elu": lambda x, *_: np.where(x > 0, x, np.expm1(x)),
    "tanh": lambda x, *_: np.tanh(x),
    "sigmoid": lambda x, *_: 1 / (1 + np.exp(-x)),
    "swish": lambda x, *_: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x, *_: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))),
    "gelu_erf": lambda x, *_: x / 2 * (1 + erf(x / math.sqrt(2))),
}


# -- products ----------------------------------------------------------------------------------------------------------

def _product(instruction: Instruction, product: Matmul | Convolution, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    if isinstance(product, Convolution):
        return _convolution(instruction, product, lhs, rhs)
    lhs = lhs.transpose(product.lhs_order or None) if product.lhs_order else lhs
    rhs = rhs.transpose(product.rhs_order) if product.rhs_order else rhs
    result = dot(lhs, rhs, product.dims, np.result_type(lhs, rhs))
    return result.transpose(inverse(product.result_order)) if product.result_order else result


def _convolution(instruction: Instruction, product: Convolution, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """One of input, kernel and output from the two others: each place of the kernel joins a slice of the padded input
    to the whole output. Arrays are [groups, batch or output feature, input or output feature, space]."""
    n, groups, result = product.numbers, product.groups, result_array(instruction).dimensions
    orders = {"input": (n.input_batch, n.input_feature, *n.input_spatial),
              "kernel": (n.kernel_output_feature, n.kernel_input_feature, *n.kernel_spatial),
              "output": (n.output_batch, n.output_feature, *n.output_spatial)}
    given = {"output": ("input", "kernel"), "input": ("output", "kernel"), "kernel": ("input", "output")}
    parts = {name: _grouped(a.transpose(orders[name]), groups, name)
             for name, a in zip(given[product.wanted], (lhs, rhs))}
    sizes = tuple(result[d] for d in orders[product.wanted])
    parts[product.wanted] = _grouped(np.zeros(sizes), groups, product.wanted)
    flipped = tuple(3 + d for d, w in enumerate(product.window) if w.reversal)
    kernel, output = np.flip(parts["kernel"], flipped), parts["output"]
    padded = spread_and_pad(parts["input"], 3, product.window, 0)
    positions = [window_positions(size, w) for size, w in zip(parts["input"].shape[3:], product.window)]
    for place, slices in window_slices(product.window, positions):
        of_padded: tuple[Any, ...] = (..., *slices)
        of_kernel: tuple[Any, ...] = (..., *place)
        seen, taps = padded[of_padded], kernel[of_kernel]
        if product.wanted == "output":
            output += np.einsum("gbi...,goi->gbo...", seen, taps)
        elif product.wanted == "input":
            seen += np.einsum("gbo...,goi->gbi...", output, taps)
        else:
            taps += np.einsum("gbis,gbos->goi", seen.reshape(*seen.shape[:3], -1),
                              output.reshape(*output.shape[:3], -1))
    if product.wanted == "input":
        inner = (slice(w.padding_low, w.padding_low + size)
                 for w, size in zip(product.window, parts["input"].shape[3:]))
        of_input: tuple[Any, ...] = (..., *inner)
        parts["input"] = padded[of_input]
    return _ungrouped(parts[product.wanted], product.wanted).transpose(np.argsort(orders[product.wanted]))


def _grouped(x: np.ndarray, groups: int, name: str) -> np.ndarray:
    """[batch, groups * features, ...], or of a kernel [groups * outputs, inputs, ...], with the groups in front."""
    axis = 0 if name == "kernel" else 1
    shape = x.shape[:axis] + (groups, x.shape[axis] // groups) + x.shape[axis + 1:]
    return np.ascontiguousarray(np.moveaxis(x.reshape(shape), axis, 0))


def _ungrouped(x: np.ndarray, name: str) -> np.ndarray:
    axis = 0 if name == "kernel" else 1
    x = np.moveaxis(x, 0, axis)
    return x.reshape(x.shape[:axis] + (x.shape[axis] * x.shape[axis + 1],) + x.shape[axis + 2:])


# -- products of scaled blocks -----------------------------------------------------------------------------------------

def block_scaled_dot(instruction: Instruction, lhs: np.ndarray, rhs: np.ndarray, *scales: np.ndarray):
    """lhs [batch, m, k] with rhs [batch, n, k] over k; a scale belongs to a block of elements. The scale of rhs may be
    missing, a fifth operand is a factor of the result."""
    check_block_scales(instruction)
    sides = [_scaled(x, s) for x, s in zip((lhs, rhs), (*scales[:2], np.ones((1,) * rhs.ndim)))]
    product = sides[0] @ np.swapaxes(sides[1], -1, -2)
    return fitted(instruction, [product * wide(scales[2]) if len(scales) > 2 else product])


def _scaled(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    factor = wide(scale)
    for axis, (size, blocks) in enumerate(zip(x.shape, scale.shape)):
        factor = np.repeat(factor, size // blocks, axis)
    return wide(x) * factor


def check_block_scales(instruction: Instruction) -> None:
    """Scales divide their operands; the result is [batch, m, n]."""
    shapes = [o.shape for o in instruction.operands]
    lhs, rhs, rank = shapes[0].dimensions, shapes[1].dimensions, shapes[0].rank
    if not 3 <= len(shapes) <= 5 or rank not in (2, 3) or len(rhs) != rank or lhs[-1] != rhs[-1]:
        refuse(instruction, "the operands are not lhs, rhs and their scales")
    if result_array(instruction).dimensions != (*lhs[:-1], rhs[-2]):
        refuse(instruction, "the result is not that of the operands")
    for shape, scale in zip(shapes[:2], shapes[2:4]):
        if scale.rank != rank or any(n == 0 or d % n for d, n in zip(shape.dimensions, scale.dimensions)):
            refuse(instruction, f"{scale.to_string(False)} are no scales of {shape.to_string(False)}")
    if len(shapes) == 5 and shapes[4].num_elements != 1:
        refuse(instruction, "the fifth operand must be one number")


# -- rows --------------------------------------------------------------------------------------------------------------

def onednn_softmax(instruction: Instruction, x: np.ndarray) -> np.ndarray:
    """Along softmax_axis (the last, if it is not said)."""
    axis = softmax_axis(instruction)
    value = wide(x)
    parts = np.exp(value - value.max(axis, keepdims=True))
    return (parts / parts.sum(axis, keepdims=True)).astype(x.dtype)


def softmax_axis(instruction: Instruction) -> int:
    rank = instruction.operands[0].shape.rank
    axis = configuration(instruction, "onednn_softmax_config").get("softmax_axis", rank - 1)
    if not isinstance(axis, int) or not 0 <= axis < rank:
        refuse(instruction, f"there is no dimension {axis}")
    return axis


def onednn_layer_norm(instruction: Instruction, x: np.ndarray, scale=None, shift=None) -> np.ndarray:
    """Normalized along the last dimension, times scale, plus shift."""
    value = wide(x)
    normal = (value - value.mean(-1, keepdims=True)) / np.sqrt(
        value.var(-1, keepdims=True) + layer_norm_epsilon(instruction))
    if scale is not None:
        normal = normal * wide(scale)
    return (normal if shift is None else normal + wide(shift)).astype(x.dtype)


def layer_norm_epsilon(instruction: Instruction) -> float:
    """The configuration holds it as the bits of an f32; without it, it is 0."""
    bits = configuration(instruction, "onednn_layer_norm_config").get("epsilon_typecast", 0)
    return float_of_bits(bits)


# -- cuDNN norm, radix sort --------------------------------------------------------------------------------------------

def cudnn_norm(instruction: Instruction, x: np.ndarray, scale: np.ndarray, *more: np.ndarray):
    """Layer norm over all dimensions but the first. Forward: x, scale, bias; y, then mean and 1/deviation where they
    are results. Backward: x, scale, dy, mean, 1/deviation; dx, dscale, dbias."""
    kind, epsilon = norm_configuration(instruction)
    value, scale, more = wide(x), wide(scale), tuple(map(wide, more))
    inner = tuple(range(1, x.ndim))
    if kind != "LAYER_BWD":
        mean = value.mean(inner, keepdims=True)
        factor = 1 / np.sqrt(value.var(inner, keepdims=True) + epsilon)
        parts = [(value - mean) * factor * scale + more[0], mean, factor]
        return fitted(instruction, parts[:3 if kind == "LAYER_FWD_TRAIN" else 1])
    dy, mean, factor = more[:3]
    normal, weighted = (value - mean) * factor, dy * scale
    dx = factor * (weighted - weighted.mean(inner, keepdims=True)
                   - normal * (weighted * normal).mean(inner, keepdims=True))
    return fitted(instruction, [dx, (dy * normal).sum(0, keepdims=True), dy.sum(0, keepdims=True)])


def norm_configuration(instruction: Instruction) -> tuple[str, float]:
    """The kind and epsilon. Refuses operands of other numbers."""
    config = configuration(instruction, "cudnn_norm_backend_config")
    kind = config.get("kind", "LAYER_FWD_INFER")
    if len(instruction.operands) != {"LAYER_FWD_INFER": 3, "LAYER_FWD_TRAIN": 3, "LAYER_BWD": 5}.get(kind, 0):
        refuse(instruction, f"{kind} with {len(instruction.operands)} operands is not known")
    return kind, float(config.get("epsilon", 0))


def radix_sort(instruction: Instruction, keys: np.ndarray, *values: np.ndarray):
    """Keys, and one array that goes with them, stable along the last dimension; floats in total order."""
    order = total_order(keys) if keys.dtype.kind not in "iub" else keys
    if sorts_down(instruction):
        order = ~order
    places = np.argsort(order, axis=-1, kind="stable")
    return fitted(instruction, [np.take_along_axis(a, places, -1) for a in (keys, *values)])


def sorts_down(instruction: Instruction) -> bool:
    return bool(configuration(instruction, "cub_sort_options").get("descending", False))


LIBRARY_CALLS: dict[str, Callable] = {
    **dict.fromkeys(READERS, library_product),
    **dict.fromkeys(["__cudnn$convReorderFilter", "__cudnn$convReorderFilterAndBias"], reorder),
    "__op$block_scaled_dot": block_scaled_dot,
    **dict.fromkeys(FORWARD, attention_forward),
    **dict.fromkeys(BACKWARD, attention_backward),
    "__onednn$softmax": onednn_softmax,
    "__onednn$layernorm": onednn_layer_norm,
    "__cudnn$norm": cudnn_norm,
    **dict.fromkeys(["__cub$DeviceRadixSort", "__cub$DeviceRadixSortUnassignedScratchSize"], radix_sort),
}
