"""Custom calls of Graphcore's TensorFlow for IPUs, as its Poplar driver names them: markers and activations.

    y = f16[10,20] custom-call(f16[10,20] x), custom_call_target="Gelu"
    dx = f32[5,6] custom-call(f32[5,6] y, f32[5,6] dy), custom_call_target="ReluGrad"        y is relu's result

The functions are those of Poplibs (popnn/NonLinearity.hpp): Gelu by tanh, HardSigmoid 0.2 x + 0.5 between 0 and 1.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloc.ir import Instruction
from hloc.ops.linalg import wide
from hloc.ops.vendors.library_configs import refuse
from hloc.ops.vendors.linear_algebra import fitted
from hloc.ops.vendors.values import check_alike, elementwise, handed_on, softmax, step


def last_softmax(instruction: Instruction, x: np.ndarray):
    check_rows(instruction)
    return fitted(instruction, [softmax(wide(x), -1)])


def check_rows(instruction: Instruction) -> None:
    check_alike(instruction)
    if instruction.shape.rank == 0:
        refuse(instruction, "a scalar has no rows")


POPLAR_CALLS: dict[str, Callable] = {
    "AssumeEqualAcrossReplicas": handed_on,
    "Barrier": handed_on,
    "Relu": elementwise(step("relu")),
    "Gelu": elementwise(step("gelu_tanh")),
    "GeluErf": elementwise(step("gelu_erf")),
    "Sigmoid": elementwise(step("sigmoid")),
    "HardSigmoid": elementwise(lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "Swish": elementwise(step("swish")),
    "Softmax": last_softmax,
    "StableSoftmax": last_softmax,
    "ReluGrad": elementwise(lambda y, dy: np.where(y > 0, dy, 0)),
    "SigmoidGrad": elementwise(lambda y, dy: dy * y * (1 - y)),
    "TanhGrad": elementwise(lambda y, dy: dy * (1 - y * y)),
}
