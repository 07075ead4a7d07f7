"""Known custom-call targets in NumPy: CUSTOM_CALLS["TopK"](instruction, *operands).

hloc/ops/custom_calls.py imports this file only for modules with custom-calls.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import Instruction
from hloc.ops.checks import target_of, text
from hloc.ops.sorting import top_k
from hloc.ops.values import zeros
from hloc.ops.vendors.dynamic_convolutions import DYNAMIC_CONVOLUTIONS
from hloc.ops.vendors.library_calls import LIBRARY_CALLS
from hloc.ops.vendors.linear_algebra import LINEAR_ALGEBRA
from hloc.ops.vendors.neuron import NEURON_CALLS
from hloc.ops.vendors.poplar import POPLAR_CALLS
from hloc.ops.vendors.resizing import RESIZE_CALLS
from hloc.ops.vendors.tpu_compiler import COMPILER_CALLS


def same(instruction: Instruction, operand, *_):
    """An annotation: the result is the operand. If the shapes differ, it needs several devices."""
    if not instruction.shape.compatible(instruction.operands[0].shape):
        pinned = {instruction.shape.element_type, instruction.operands[0].shape.element_type} & {"buffer"}
        if not pinned:
            raise UnsupportedError(f"custom-call to {target_of(instruction)!r} from "
                                   f"{text(instruction.operands[0].shape)} to {text(instruction.shape)}",
                                   instruction.span)
    return operand


def nothing(instruction: Instruction, *_) -> tuple:
    """An annotation without a result."""
    return ()


def fresh(instruction: Instruction, *_):
    """Memory without content; zeros here, so that runs repeat."""
    shape = instruction.shape
    return zeros(shape.tuple_shapes[0] if shape.element_type == "buffer" else shape)


def topk(instruction: Instruction, operand: np.ndarray, *_):
    """Values and places of the largest elements of each row."""
    return top_k(operand, instruction.shape.tuple_shapes[0].dimensions[-1], largest=True)


def slice_to_dynamic(instruction: Instruction, operand: np.ndarray, *sizes: np.ndarray) -> np.ndarray:
    """The part of a padded array that has the given sizes."""
    return operand[tuple(slice(0, int(s)) for s in sizes)]


def pad_to_static(instruction: Instruction, operand: np.ndarray):
    """A dynamic array padded to its bounds, and its sizes."""
    bounds = instruction.shape.tuple_shapes[0].dimensions
    padded = np.zeros(bounds, operand.dtype)
    padded[tuple(slice(0, n) for n in operand.shape)] = operand
    return padded, *(np.array(n, np.int32) for n in operand.shape)


CUSTOM_CALLS: dict[str, Callable] = {
    **dict.fromkeys([
        "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.FuncResultSharding",
        "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape", "annotate_device_placement", "MoveToHost",
        "MoveToDevice", "PinToDevice", "PinToDeviceSram", "LayoutConstraint", "SetBound", "Pin", "Unpin",
        "AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked", "ShardBarrierFrom", "ShardBarrierTo",
    ], same),
    "xla.sdy.ShardingGroup": nothing,
    "AllocateBuffer": fresh,
    "CreateBuffer": fresh,
    "TopK": topk,
    "__gpu$TopK": topk,
    "SliceToDynamic": slice_to_dynamic,
    "PadToStatic": pad_to_static,
    **COMPILER_CALLS,
    **RESIZE_CALLS,
    **LIBRARY_CALLS,
    **LINEAR_ALGEBRA,
    **NEURON_CALLS,
    **POPLAR_CALLS,
    **DYNAMIC_CONVOLUTIONS,
}
