"""custom-call: functions that are only named. Known ones are in hloc/ops/known_calls.py, which is large, and is
imported when a module has custom-calls.

In: a target name and operands. Out: the named function's result. `evaluate(..., custom_calls={"name": f})` adds
others: f(instruction, *operand values) -> value.

    y = f32[4] custom-call(f32[4] x), custom_call_target="Sharding"       y is x
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import Instruction
from hloc.ops.checks import attribute, target_of, text
from hloc.ops.op import Op
from hloc.sharding import rules


def evaluate_custom_call(evaluator, instruction: Instruction, *operands):
    from hloc.ops.known_calls import CUSTOM_CALLS
    from hloc.ops.vendors.tpu_compiler import WITH_COMPUTATION
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
    raise unknown(instruction, target)


# Why some targets have no meaning here.
_MOSAIC = "its body in backend_config is MLIR bytecode, a program for the compiler of that hardware"
_PACKED = "it lays memory out in an order that oneDNN keeps to itself"
_DROPOUT = "what it drops is up to cuDNN's own random numbers"
REASONS = {
    "tpu_custom_call": f"a kernel for TPUs (Mosaic, Pallas): {_MOSAIC}",
    "mosaic_gpu": f"a kernel for GPUs (Mosaic, Pallas): {_MOSAIC}",
    "mosaic_gpu_v2": f"a kernel for GPUs (Mosaic, Pallas): {_MOSAIC}",
    "__gpu$xla.gpu.triton": "a Triton kernel: its body in backend_config is Triton's IR",
    "triton_kernel_call": "a Triton kernel: its body in backend_config is compiled code",
    "CuteDSLRT_NvJaxCutlassCall": "a CuTe DSL kernel: its body is in the program that wrote the call",
    "__onednn$matmul_reorder": _PACKED,
    **dict.fromkeys([f"__cudnn$fmha{name}{way}" for name in ("SoftmaxDropout", "ScaleBiasSoftmaxDropout")
                     for way in ("", "Backward")], _DROPOUT),
}


def unknown(instruction: Instruction, target: str) -> UnsupportedError:
    """The error for a target that neither hloc nor the user has given a meaning."""
    reason = REASONS.get(target)
    return UnsupportedError(f"custom-call target {target!r} is not known" + (f": {reason}" if reason else ""),
                            instruction.span,
                            hint=f"give a Python function for it: --custom-call {target}=./my.py:function")


def call_known(instruction: Instruction, *operands):
    """The result of a target of CUSTOM_CALLS. Raises UnsupportedError if it does not support these operands."""
    from hloc.ops.known_calls import CUSTOM_CALLS
    with as_written(instruction):
        return CUSTOM_CALLS[target_of(instruction)](instruction, *operands)


@contextmanager
def as_written(instruction: Instruction) -> Iterator[None]:
    """A context for code that assumes a known call's operands, options and results to be valid. They are not verified:
    an exception becomes an error with the call's place."""
    try:
        yield
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError) as error:
        taken = ", ".join(text(o.shape) for o in instruction.operands)
        raise UnsupportedError(f"custom-call to {target_of(instruction)!r} from ({taken}) to {text(instruction.shape)} "
                               f"is not as the library has it: {error}", instruction.span) from error


def infer_custom_call(instruction: Instruction) -> None:
    """The written shape determines the result."""
    attribute(instruction, "custom_call_target")


def custom_call_rule(instruction: Instruction) -> rules.ShardingRule | None:
    """Matrices of a batch are independent of one another; of calls that hloc does not know, nothing is known."""
    from hloc.ops.known_calls import CUSTOM_CALLS, same, topk
    from hloc.ops.vendors.linear_algebra import LINEAR_ALGEBRA, threefry2x32
    target = target_of(instruction)
    known = CUSTOM_CALLS.get(target)
    arrays = [o.shape for o in instruction.operands]
    if known is same or known is threefry2x32:
        return rules.elementwise(instruction) if all(s.is_array and s.rank == arrays[0].rank for s in arrays) else None
    if known is topk:
        return rules.batched(1)(instruction)
    return rules.batched(2)(instruction) if target in LINEAR_ALGEBRA else None


ROWS: tuple[Op, ...] = (
    Op("custom-call", arity=(0, None), infer=infer_custom_call, evaluate=evaluate_custom_call,
       required=("custom_call_target",),
       optional=("api_version", "called_computations", "to_apply", "custom_call_has_side_effect", "literal", "schedule",
                 "operand_layout_constraints", "output_to_operand_aliasing", "window", "dim_labels",
                 "feature_group_count", "batch_group_count", "operand_precision", "padding_type"),
       sharding=custom_call_rule),
)
