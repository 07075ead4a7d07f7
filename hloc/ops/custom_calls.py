"""custom-call: functions that are named, not described. Those with a known meaning are evaluated here.

In: a target name and operands. Out: what the named function gives. `evaluate(..., custom_calls={"name": f})` adds
others: f(instruction, *operand values) -> value.

    y = f32[4] custom-call(f32[4] x), custom_call_target="Sharding"       y is x
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import Instruction
from hloc.ops.checks import attribute, text
from hloc.ops.compiler_calls import COMPILER_CALLS, WITH_COMPUTATION
from hloc.ops.custom_linalg import LINEAR_ALGEBRA
from hloc.ops.library_calls import LIBRARY_CALLS
from hloc.ops.library_configs import unquoted
from hloc.ops.op import Op
from hloc.ops.sorting import top_k
from hloc.ops.values import zeros


def target_of(instruction: Instruction) -> str:
    return unquoted(attribute(instruction, "custom_call_target"))


def evaluate_custom_call(evaluator, instruction: Instruction, *operands):
    target = target_of(instruction)
    if target in evaluator.custom_calls:
        return evaluator.custom_calls[target](instruction, *operands)
    if target in WITH_COMPUTATION:
        with as_written(instruction):
            return WITH_COMPUTATION[target](evaluator, instruction, *operands)
    if target in CUSTOM_CALLS:
        return call_known(instruction, *operands)
    if target == "GetRngSeed":
        return np.array(evaluator.options.seed).astype(np.uint64)
    raise UnsupportedError(f"custom-call to {target!r}, which hloc does not know; "
                           "a Python function for it can be given as custom_calls", instruction.span)


def call_known(instruction: Instruction, *operands):
    """What a target of CUSTOM_CALLS gives. Raises UnsupportedError where it cannot take these operands."""
    with as_written(instruction):
        return CUSTOM_CALLS[target_of(instruction)](instruction, *operands)


@contextmanager
def as_written(instruction: Instruction) -> Iterator[None]:
    """Around code that takes a known call's operands, options and results to be as the library has them. Nothing
    verifies that, and a text may say anything: what then goes wrong is told with the call's place."""
    try:
        yield
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError) as error:
        taken = ", ".join(text(o.shape) for o in instruction.operands)
        raise UnsupportedError(f"custom-call to {target_of(instruction)!r} from ({taken}) to {text(instruction.shape)} "
                               f"is not as the library has it: {error}", instruction.span) from error


def infer_custom_call(instruction: Instruction) -> None:
    """The written shape is the truth."""
    attribute(instruction, "custom_call_target")


# -- known targets -----------------------------------------------------------------------------------------------------

def same(instruction: Instruction, operand, *_):
    """Says something about its operand, and is it. Where the shapes differ, one device does not suffice."""
    if not instruction.shape.compatible(instruction.operands[0].shape):
        pinned = {instruction.shape.element_type, instruction.operands[0].shape.element_type} & {"buffer"}
        if not pinned:
            raise UnsupportedError(f"custom-call to {target_of(instruction)!r} from "
                                   f"{text(instruction.operands[0].shape)} to {text(instruction.shape)}",
                                   instruction.span)
    return operand


def nothing(instruction: Instruction, *_) -> tuple:
    """Says something about its operands, and has no result."""
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
    """A dynamic array filled up to its bounds, and its sizes."""
    bounds = instruction.shape.tuple_shapes[0].dimensions
    padded = np.zeros(bounds, operand.dtype)
    padded[tuple(slice(0, n) for n in operand.shape)] = operand
    return padded, *(np.array(n, np.int32) for n in operand.shape)


CUSTOM_CALLS: dict[str, Callable] = {
    **dict.fromkeys([
        "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.FuncResultSharding",
        "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape", "annotate_device_placement", "MoveToHost",
        "MoveToDevice", "PinToDevice", "PinToDeviceSram", "LayoutConstraint", "SetBound", "Pin", "Unpin",
        "AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked",
    ], same),
    "xla.sdy.ShardingGroup": nothing,
    "AllocateBuffer": fresh,
    "CreateBuffer": fresh,
    "TopK": topk,
    "__gpu$TopK": topk,
    "SliceToDynamic": slice_to_dynamic,
    "PadToStatic": pad_to_static,
    **COMPILER_CALLS,
    **LIBRARY_CALLS,
    **LINEAR_ALGEBRA,
}

ROWS: tuple[Op, ...] = (
    Op("custom-call", arity=(0, None), infer=infer_custom_call, evaluate=evaluate_custom_call,
       required=("custom_call_target",),
       optional=("api_version", "called_computations", "to_apply", "custom_call_has_side_effect", "literal", "schedule",
                 "operand_layout_constraints", "output_to_operand_aliasing", "window", "dim_labels",
                 "feature_group_count", "batch_group_count", "operand_precision", "padding_type")),
)
