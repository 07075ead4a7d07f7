"""Convolutions of arrays of dynamic size, which TensorFlow writes as custom calls for XLA's dynamic padder.

    y = f32[1,<=6,1] custom-call(f32[1,<=8,1] x, f32[3,1,1] k), custom_call_target="DynamicConvolutionForward",
        window={size=3}, dim_labels=b0f_0io->b0f, padding_type=PADDING_VALID

In: such a call. Out: the convolution that it is. The gradients' operands are already those of a convolution;
DynamicConvolutionInputGrad has the result's sizes before them. What depends on sizes that are only known at run
time is refused: PADDING_SAME of dynamic windows, and gradients by dynamic windows.
"""
from __future__ import annotations

import numpy as np

from hloc.ir import ConvolutionDimensionNumbers, Instruction
from hloc.ops.checks import target_of, text
from hloc.ops.convolution import evaluate_convolution, infer_convolution
from hloc.ops.vendors.library_configs import refuse

OPERANDS = {"DynamicConvolutionForward": 2, "DynamicConvolutionKernelGrad": 2, "DynamicConvolutionInputGrad": 3}
ATTRIBUTES = ("window", "dim_labels", "feature_group_count", "batch_group_count", "operand_precision")


def plain_convolution(instruction: Instruction) -> Instruction:
    """The convolution, not part of any computation. Raises VerifyError or UnsupportedError for what is none."""
    count = OPERANDS[target_of(instruction)]
    if len(instruction.operands) != count or "dim_labels" not in instruction.attributes:
        refuse(instruction, f"it takes {count} operands, and dim_labels")
    plain = Instruction(instruction.name, "convolution", instruction.shape, instruction.operands[-2:],
                        {k: instruction.attributes[k] for k in ATTRIBUTES if k in instruction.attributes},
                        span=instruction.span)
    inferred = infer_convolution(plain)
    if inferred.dimensions != instruction.shape.dimensions:
        refuse(instruction, f"it gives {text(inferred)}, not {text(instruction.shape)}")
    _refuse_dynamic_windows(instruction, plain)
    return plain


def _refuse_dynamic_windows(instruction: Instruction, plain: Instruction) -> None:
    numbers: ConvolutionDimensionNumbers = plain.get("dim_labels")
    is_forward = target_of(instruction) == "DynamicConvolutionForward"
    if is_forward and str(instruction.get("padding_type", "PADDING_VALID")) != "PADDING_SAME":
        return
    sides = zip((*plain.operands, plain), (numbers.input_spatial, numbers.kernel_spatial, numbers.output_spatial))
    for array, dimensions in sides:
        if any(array.shape.dynamic_dimensions[d] for d in dimensions if array.shape.dynamic_dimensions):
            refuse(instruction, f"{text(array.shape)} has windows of dynamic size"
                   + (" and PADDING_SAME" if is_forward else ""))


def dynamic_convolution(instruction: Instruction, *operands: np.ndarray) -> np.ndarray:
    return evaluate_convolution(None, plain_convolution(instruction), *operands[-2:])


DYNAMIC_CONVOLUTIONS = dict.fromkeys(OPERANDS, dynamic_convolution)
