"""Custom calls of AWS Neuron, as torch_neuronx and transformers_neuronx write them for Trainium and Inferentia.

    y = f32[4096] custom-call(f32[4096] x), custom_call_target="AwsNeuronTransferWithStaticRing"                y is x
    y = f32[8,64] custom-call(x, f32[64] weight, f32[] epsilon), custom_call_target="AwsNeuronRmsNorm",
        backend_config="1"

backend_config is a number: the dimension, or of AwsNeuronTopK how many. Defined as torch_neuronx defines them
(xla_impl/ops.py); a GeluBackward gives the derivative, which is multiplied by the gradient outside.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from hloc.ir import Instruction
from hloc.ops.checks import text, unquoted
from hloc.ops.linalg import wide
from hloc.ops.sorting import top_k
from hloc.ops.vendors.library_calls import erf
from hloc.ops.vendors.library_configs import refuse
from hloc.ops.vendors.linear_algebra import fitted, result_shapes
from hloc.ops.vendors.values import check_alike, elementwise, handed_on, softmax, step


def number(instruction: Instruction, what: str, most: int) -> int:
    """The number in backend_config, which must be below `most`. Raises UnsupportedError for anything else."""
    written = unquoted(str(instruction.get("backend_config", "")))
    found = re.fullmatch(r'[\s"\\]*(\d{1,9})[\s"\\]*', written)
    if found is None or int(found[1]) >= most:
        refuse(instruction, f"backend_config must be {what}, below {most}")
    return int(found[1])


def dimension(instruction: Instruction) -> int:
    return number(instruction, "a dimension of operand 0", instruction.operands[0].shape.rank)


def check_rms_norm(instruction: Instruction) -> int:
    """The dimension. The weight has its size, epsilon is one number."""
    axis, shapes = dimension(instruction), [o.shape for o in instruction.operands]
    size = shapes[0].dimensions[axis]
    if len(shapes) != 3 or shapes[1].dimensions != (size,) or shapes[2].num_elements != 1 \
            or instruction.shape.dimensions != shapes[0].dimensions or any(s.kind != "float" for s in shapes):
        refuse(instruction, f"{', '.join(map(text, shapes))} are not an array, a weight of {size} and an epsilon")
    return axis


def rms_norm(instruction: Instruction, x: np.ndarray, weight: np.ndarray, epsilon: np.ndarray):
    """x / sqrt(mean(x^2) + epsilon) * weight along a dimension."""
    axis, value = check_rms_norm(instruction), wide(x)
    along = [-1 if d == axis else 1 for d in range(x.ndim)]
    deviation = np.sqrt((value * value).mean(axis, keepdims=True) + wide(epsilon).reshape([1] * x.ndim))
    with np.errstate(all="ignore"):
        return fitted(instruction, [value / deviation * wide(weight).reshape(along)])


def neuron_softmax(instruction: Instruction, x: np.ndarray):
    check_alike(instruction)
    return fitted(instruction, [softmax(wide(x), dimension(instruction))])


def softmax_gradient(instruction: Instruction, gradient: np.ndarray, y: np.ndarray):
    """Of y = softmax(x): the gradient by x."""
    check_alike(instruction)
    gradient, y = wide(gradient), wide(y)
    return fitted(instruction, [y * (gradient - (gradient * y).sum(dimension(instruction), keepdims=True))])


def gelu_derivative(x: np.ndarray) -> np.ndarray:
    """Of x * Phi(x)."""
    return (1 + erf(x / math.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def place_of(choose: Callable) -> Callable:
    """The first place of the largest, or smallest, along a dimension; a NaN is both."""
    def call(instruction: Instruction, x: np.ndarray):
        if instruction.operands[0].shape.kind == "complex":
            refuse(instruction, "complex numbers have no order")
        return fitted(instruction, [choose(x if x.dtype.kind in "iub" else wide(x), dimension(instruction))])

    return call


def top_count(instruction: Instruction) -> int:
    """How many AwsNeuronTopK gives of each row."""
    shape, shapes = instruction.operands[0].shape, result_shapes(instruction)
    if shape.rank == 0 or len(shapes) != 2:
        refuse(instruction, "it takes rows, and gives values and places")
    count = number(instruction, "how many", shape.dimensions[-1] + 1)
    if any(s.dimensions != (*shape.dimensions[:-1], count) for s in shapes):
        refuse(instruction, f"{text(instruction.shape)} are not the first {count} of {text(shape)}")
    return count


def neuron_top_k(instruction: Instruction, x: np.ndarray):
    return fitted(instruction, list(top_k(x, top_count(instruction), largest=True)))


MARKERS = ("AwsNeuronTransferWithStaticRing", "AwsNeuronLNCShardingConstraint",
           *(f"AwsNeuronModuleMarker{end}-{way}" for end in ("Start", "End") for way in ("Forward", "Backward")),
           "NeuronBoundaryMarker-Start", "NeuronBoundaryMarker-End")
NEURON_CALLS: dict[str, Callable] = {
    **dict.fromkeys(MARKERS, handed_on),
    "AwsNeuronRmsNorm": rms_norm,
    "AwsNeuronSoftmax": neuron_softmax,
    "AwsNeuronSoftmaxBackward": softmax_gradient,
    "AwsNeuronErf": elementwise(erf),
    "AwsNeuronGelu": elementwise(step("gelu_erf")),
    "AwsNeuronGeluApprxTanh": elementwise(step("gelu_tanh")),
    "AwsNeuronGeluBackward": elementwise(gelu_derivative),
    "AwsNeuronSilu": elementwise(step("swish")),
    "AwsNeuronArgMax": place_of(np.argmax),
    "AwsNeuronArgMin": place_of(np.argmin),
    "AwsNeuronTopK": neuron_top_k,
}
