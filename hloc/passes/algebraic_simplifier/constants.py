"""Rules for constants: one canonical form for each value, which the other rules match."""
from __future__ import annotations

import numpy as np

from hloc.ir import Instruction
from hloc.passes.patterns import is_integer, spread
from hloc.passes.rewriter import Rewriter

LOOKED_AT = 64                 # elements that are compared before the whole array


def tuple_constant(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """constant((a, b)) => tuple(constant(a), constant(b))"""
    shapes = instruction.shape.tuple_shapes
    if not isinstance(instruction.literal, tuple):
        return None
    parts = [rewriter.add("constant", shape, literal=literal) for shape, literal in zip(shapes, instruction.literal)]
    return rewriter.add("tuple", instruction.shape, parts)


def constant_of_one_value(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """constant({c, c, c}) => broadcast(constant(c))"""
    literal = instruction.array_literal
    if not instruction.shape.is_array or literal is None or literal.size <= 1:
        return None
    if not all_same(literal):
        return None
    scalar = rewriter.constant(literal.reshape(-1)[0], instruction.shape.element_type)
    return spread(rewriter, scalar, instruction.shape)


def all_same(literal: np.ndarray) -> bool:
    """True if all elements have the same bytes (0.0 and -0.0 differ; equal NaNs do not)."""
    flat = np.ascontiguousarray(literal).reshape(-1)
    rows = flat.view(np.uint8).reshape(flat.size, -1)
    return bool((rows[:LOOKED_AT] == rows[0]).all() and (rows[LOOKED_AT:] == rows[0]).all())


def constant_that_counts(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """constant({0, 1, 2, 3}) => iota"""
    literal = instruction.array_literal
    if not instruction.shape.is_array or literal is None or literal.ndim != 1 or literal.size < 3:
        return None
    if not is_integer(instruction) or literal.size > np.iinfo(np.int32).max or int(literal[2]) != 2:
        return None
    if not np.array_equal(literal.astype(np.int64), np.arange(literal.size)):
        return None
    return rewriter.add("iota", instruction.shape, (), {"iota_dimension": 0})


RULES = {"constant": (tuple_constant, constant_of_one_value, constant_that_counts)}
