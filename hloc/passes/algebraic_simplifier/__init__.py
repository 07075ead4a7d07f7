"""Simplifies by algebra: many small rules, each with its equation as docstring.

    m = f32[4] multiply(x, broadcast(constant(1)))        =>   m is x

The rules are grouped by theme: arithmetic, logic, selects, converts, shapes (reshape, transpose, broadcast), slices
(slice, pad, concatenate, dynamic-slice), updates, selected updates, products (dot), reductions, windows (convolution,
reduce-window), constants.
A rule looks at one instruction whose operands are already simplified, and returns its replacement, or None. It never
adds work: the replacement costs at most as much as the instruction. Floating point has the semantics of XLA's
AlgebraicSimplifier: x + 0 is x (the result may be -0.0 instead of 0.0), but sums are not reordered, and 0 * x stays,
since x may be NaN.
"""
from __future__ import annotations

from collections.abc import Callable

from hloc.ir import Instruction, Module
from hloc.passes.algebraic_simplifier import (
    arithmetic,
    constants,
    converts,
    logic,
    products,
    reductions,
    selected_places,
    selected_updates,
    selects,
    shapes,
    slices,
    updates,
    windows,
)
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module

Rule = Callable[[Instruction, Rewriter], "Instruction | None"]

THEMES = (constants, arithmetic, logic, selects, converts, shapes, slices, updates, selected_updates, selected_places,
          products, reductions, windows)


def rules_by_opcode() -> dict[str, tuple[Rule, ...]]:
    """All rules by the opcodes that they look at, in the order of THEMES."""
    table: dict[str, list[Rule]] = {}
    for theme in THEMES:
        for opcode, rules in theme.RULES.items():
            table.setdefault(opcode, []).extend(rules)
    return {opcode: tuple(rules) for opcode, rules in table.items()}


RULES = rules_by_opcode()


def algebraic_simplifier(module: Module, context: PassContext) -> bool:
    """Simplify by algebra: x * 1, transposes of transposes, slices of pads, and many more. True if one applied."""
    return rewrite_module(module, simplify, opcodes=RULES)


def simplify(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """The replacement of `instruction` by the first rule that applies. Dynamic shapes are not changed."""
    if is_dynamic(instruction):
        return None
    for rule in RULES[instruction.opcode]:
        new = rule(instruction, rewriter)
        if new is not None:
            return new
    return None


def is_dynamic(instruction: Instruction) -> bool:
    shape = instruction.shape
    return bool(shape.dynamic_dimensions) or any(o.shape.dynamic_dimensions for o in instruction.operands)
