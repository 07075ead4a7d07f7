"""The rewriting of custom-calls, imported by custom_call_rewriter only for modules that have some."""
from __future__ import annotations

from collections.abc import Sequence

from hloc.ir import Instruction, Module, Shape
from hloc.ops.checks import target_of
from hloc.ops.custom_calls import as_written
from hloc.ops.known_calls import CUSTOM_CALLS, same
from hloc.ops.vendors.dynamic_convolutions import DYNAMIC_CONVOLUTIONS, plain_convolution
from hloc.ops.vendors.linear_algebra import (
    LINEAR_ALGEBRA,
    cublas_triangular_solve,
    cusolver_cholesky,
    is_lower,
    lower_triangle,
    option,
    potrf,
    result_shapes,
    threefry2x32,
    transposition,
    triangular_options,
    trsm,
)
from hloc.passes.cholesky_expander import real
from hloc.passes.compiler_calls import compiler_value
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.library_calls import library_value
from hloc.passes.memory_spaces import host_flags, mentions_host, with_flags
from hloc.passes.resize_calls import resized_value
from hloc.passes.rewriter import Rewriter, rewrite_module
from hloc.passes.rng_bit_generator_expander import threefry_words
from hloc.passes.vendor_calls import vendor_value
from hloc.verify import verify

SAME_VALUE = frozenset(name for name, meaning in CUSTOM_CALLS.items() if meaning is same)
# Into which memory a call moves an array: the host's or the device's. Source: xla/hlo/transforms/host_offloader.cc.
MOVES = {"MoveToHost": True, "MoveToDevice": False}
PLACEMENTS = {"pinned_host": True, "unpinned_host": True, "device": False}       # of annotate_device_placement
FRESH = frozenset(["AllocateBuffer", "CreateBuffer"])


def rewrite_known_calls(module: Module, context: PassContext) -> bool:
    """True if there was a custom-call with a known meaning."""
    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        e = Expressions(rewriter, instruction.span)
        if target_of(instruction) == "GetRngSeed" and instruction.shape.is_array:
            return e.full(context.options.get("seed", 0), instruction.shape)
        with as_written(instruction):
            value = (known_value(e, instruction) or library_value(module, e, instruction)
                     or compiler_value(module, e, instruction) or resized_value(module, e, instruction)
                     or factorization(module, e, instruction) or random_words(e, instruction)
                     or vendor_value(module, e, instruction))
            if value is not None and not value.shape.compatible(instruction.shape):
                raise ValueError(f"it gives {value.shape.to_string(False)}")
            return value

    changed = rewrite_module(module, visit, revisit=False, opcodes=("custom-call",), expands=True)
    if mentions_host(i.shape for i in module.instructions() if i.opcode == "copy"):
        for instruction, flags in host_flags(module).items():        # so that no rule takes a copy for one in place
            instruction.shape = with_flags(instruction.shape, flags)
    if changed and not module.faults:
        verify(module)                   # operands and options of the calls have not been verified
    return changed


def known_value(e: Expressions, instruction: Instruction) -> Instruction | None:
    """Calls about where a value is, fresh memory, convolutions of dynamic size, and top-k."""
    target, shape, operands = target_of(instruction), instruction.shape, instruction.operands
    to_host = moves_to_host(instruction)
    if to_host is not None and len(operands) == 1 and shape.is_array and operands[0].shape.compatible(shape):
        return e.op("copy", operands[0], shape=shape.in_space(to_host))
    if target in SAME_VALUE and operands and operands[0].shape.compatible(shape):
        return operands[0]
    if target == "xla.sdy.ShardingGroup" and shape.is_tuple and not shape.tuple_shapes:
        return e.op("tuple")
    if target in FRESH and shape.is_array:
        return e.full(0, shape)
    if target in DYNAMIC_CONVOLUTIONS:
        plain = plain_convolution(instruction)
        return e.op("convolution", *plain.operands, shape=shape, **plain.attributes)
    if target in ("TopK", "__gpu$TopK") and shape.is_tuple and len(shape.tuple_shapes) == 2 and len(operands) == 1:
        return e.op("topk", operands[0], shape=shape, k=shape.tuple_shapes[0].dimensions[-1], largest=True)
    return None


def moves_to_host(call: Instruction) -> bool | None:
    """Whether a custom-call moves its operand to the host (True) or to the device (False); None if it does neither."""
    target = target_of(call)
    if target == "annotate_device_placement":
        return next(
            (on_host for name, on_host in PLACEMENTS.items()
             if f'_xla_buffer_placement="{name}"' in str(call.get("frontend_attributes", ""))), None)
    return MOVES.get(target)


def factorization(module: Module, e: Expressions, instruction: Instruction) -> Instruction | None:
    """The calls of LAPACK and cuSOLVER that are ops of HLO, with options as in hloc/ops/vendors/linear_algebra.py."""
    meaning, operands = LINEAR_ALGEBRA.get(target_of(instruction)), instruction.operands
    shapes = result_shapes(instruction)
    if meaning in (potrf, cusolver_cholesky) and shapes[0].compatible(operands[0].shape):
        lower = is_lower(instruction) if meaning is potrf else lower_triangle(instruction)
        factor = e.op("cholesky", operands[0], lower=lower)
        workspace = [e.full(0, shapes[1])] if meaning is cusolver_cholesky else []
        return results(e, instruction, [factor, *workspace, failed(e, factor)], shapes)
    if meaning is trsm and shapes[0].compatible(operands[1].shape):
        x = e.op("triangular-solve", operands[0], operands[1],
                 left_side=option(instruction, "side", ord("L")) == ord("L"),
                 lower=is_lower(instruction), unit_diagonal=option(instruction, "diag", ord("N")) == ord("U"),
                 transpose_a=transposition(instruction))
        return results(e, instruction, [x], shapes)
    if meaning is cublas_triangular_solve and shapes[0].compatible(operands[1].shape):
        options = triangular_options(instruction)
        x = e.op("triangular-solve", *operands[:2], transpose_a=options.pop("transpose"), **options)
        return results(e, instruction, [x], shapes)
    return None


def random_words(e: Expressions, instruction: Instruction) -> Instruction | None:
    """JAX's call of Threefry: two key words and two counter words per element."""
    operands, shapes = instruction.operands, result_shapes(instruction)
    if LINEAR_ALGEBRA.get(target_of(instruction)) is not threefry2x32 or len(operands) != 4 or not all(
            o.shape.compatible(shapes[0]) for o in operands):
        return None
    return results(e, instruction, list(threefry_words(e, *operands)), shapes)


def failed(e: Expressions, factor: Instruction) -> Instruction:
    """1 for each matrix of nan, else 0: if a factorization fails, all of it is nan."""
    rank = factor.shape.rank
    first = real(e, e.slice(factor, {rank - 2: (0, 1), rank - 1: (0, 1)}))
    first = e.reshape(first, *factor.shape.dimensions[:-2])
    return e.convert(e.compare(first, "NE", first), "s32")


def results(e: Expressions, instruction: Instruction, parts: list[Instruction], shapes: Sequence[Shape]) -> Instruction:
    """The parts as the call's result has them; results behind them (workspaces) are zeros."""
    parts = parts[:len(shapes)] + [e.full(0, s) for s in shapes[len(parts):]]
    return e.op("tuple", *parts) if instruction.shape.is_tuple else parts[0]
