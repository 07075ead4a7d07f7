"""Evaluates instructions whose operands are constants.

    a = f32[2] constant({1, 2})
    b = f32[2] constant({10, 20})
    c = f32[2] add(a, b)            =>   c = f32[2] constant({11, 22})

The reference evaluator computes the value. To limit text and compile time, a result is kept only up to FOLDED_BYTES, or
if it replaces constants of at least its size without other users. An operand may also be an iota or a broadcast
constant; these themselves are not folded, because they are smaller than their values.
"""
from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hloc.analysis.fusible import is_transfer
from hloc.errors import HlocError
from hloc.ir import Instruction, Module, window_of
from hloc.ops.table import OPS
from hloc.passes.algebraic_simplifier.constants import all_same
from hloc.passes.context import PassContext
from hloc.passes.patterns import spread
from hloc.passes.rewriter import Rewriter, rewrite_module

if TYPE_CHECKING:
    from hloc.evaluate import Evaluator

FOLDED_BYTES = 1 << 16
REPLACED_BYTES = 1 << 28        # of constants that are only moved or converted
GENERATED_ELEMENTS = 1 << 13    # of iota and broadcast operands: their users may be cheaper to compute than to load
WORK = 1 << 20                  # multiply-adds of a dot, elements of a reduction

MOVEMENT = frozenset({"reshape", "transpose", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad",
                      "reverse", "gather", "copy"})
COMPUTED = frozenset({"reduce", "reduce-window", "dot", "convolution", "scatter", "sort", "map", "bitcast-convert"})
FOLDABLE = MOVEMENT | COMPUTED | {name for name, op in OPS.items() if op.is_elementwise}


def constant_folding(module: Module, context: PassContext) -> bool:
    """Evaluate instructions of constants. True if there was one."""
    @cache
    def evaluator() -> Evaluator:
        from hloc.evaluate import Evaluator  # most modules have nothing to fold
        return Evaluator()

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if not is_foldable(instruction, rewriter):
            return None
        return fold(instruction, rewriter, evaluator())

    return rewrite_module(module, visit, opcodes=FOLDABLE)


def is_foldable(instruction: Instruction, rewriter: Rewriter) -> bool:
    """True where all operands are known and the result is worth keeping."""
    if not instruction.operands or not all(is_known(o) for o in instruction.operands):
        return False
    shape = instruction.shape
    if is_transfer(instruction):
        return False
    if not shape.is_array or shape.dynamic_dimensions or any(o.shape.dynamic_dimensions for o in instruction.operands):
        return False
    if instruction.opcode not in MOVEMENT and work(instruction) > WORK:
        return False
    generated = sum(o.shape.num_elements for o in instruction.operands if o.opcode != "constant")
    if generated > GENERATED_ELEMENTS:
        return False
    return shape.num_bytes <= FOLDED_BYTES or replaces_as_much(instruction, rewriter)


def is_known(instruction: Instruction) -> bool:
    """A constant, a broadcast constant, or an iota."""
    if instruction.opcode == "broadcast":
        instruction = instruction.operands[0]
    if instruction.opcode == "constant":
        return instruction.literal is not None and instruction.shape.is_array
    return instruction.opcode == "iota"


def replaces_as_much(instruction: Instruction, rewriter: Rewriter) -> bool:
    freed = sum(o.shape.num_bytes for o in instruction.operands if o.opcode == "constant" and rewriter.uses(o) == 1)
    return instruction.opcode in MOVEMENT and instruction.shape.num_bytes <= min(freed, REPLACED_BYTES)


def work(instruction: Instruction) -> int:
    """Roughly how many scalar operations the evaluator would do."""
    elements = instruction.shape.num_elements
    if instruction.opcode == "dot":
        lhs = instruction.operands[0].shape.dimensions
        return elements * math.prod(lhs[d] for d in instruction.get("lhs_contracting_dims", ()))
    if instruction.opcode == "convolution":
        return elements * instruction.operands[1].shape.num_elements
    if instruction.opcode == "reduce-window":
        return elements * math.prod(d.size for d in window_of(instruction))
    return elements + sum(o.shape.num_elements for o in instruction.operands)


def fold(instruction: Instruction, rewriter: Rewriter, evaluator: Evaluator) -> Instruction | None:
    """The constant that `instruction` computes, as a broadcast of one value if all elements are equal."""
    try:
        value = evaluate_one(instruction, evaluator)
    except HlocError:
        return None                 # it is not folded; running it gives the error
    literal = np.ascontiguousarray(value).reshape(instruction.shape.dimensions)
    if literal.size > 1 and all_same(literal):
        scalar = rewriter.constant(literal.reshape(-1)[0], instruction.shape.element_type)
        return spread(rewriter, scalar, instruction.shape)
    return rewriter.add("constant", instruction.shape, literal=literal)


def evaluate_one(instruction: Instruction, evaluator: Evaluator) -> Any:
    """The value of an instruction whose operands are constants, broadcast constants or iotas."""
    values = [operand.literal if operand.opcode == "constant" else evaluate_one(operand, evaluator)
              for operand in instruction.operands]
    evaluate = OPS[instruction.opcode].evaluate
    assert evaluate is not None                      # of an op in FOLDABLE
    with np.errstate(all="ignore"):
        return evaluate(evaluator, instruction, *values)
