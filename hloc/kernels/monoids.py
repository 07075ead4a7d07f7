"""Which reducers may be taken apart: the op and its identity.

In: a reduce's to_apply. Out: "add", "maximum" ... where it is one binary operation of its two parameters that may be
done in any order; None for everything else (argmax pairs and such), which then keeps one chain of updates.
"""
from __future__ import annotations

import math

import numpy as np

from hloc.ir import ELEMENT_TYPES, Computation, Instruction
from hloc.kernels.ir import Const
from hloc.kernels.scalars import computation_type, literal

MONOIDS = frozenset(["add", "multiply", "maximum", "minimum", "and", "or", "xor"])


def monoid(computation: Computation) -> str | None:
    """The op, where the reducer is op(parameter 0, parameter 1) in either order, conversions between floats aside."""
    root = _skip_conversions(computation.root)
    if root is None or root.opcode not in MONOIDS:
        return None
    operands = [_skip_conversions(o) for o in root.operands]
    if any(o is None or o.opcode != "parameter" for o in operands):
        return None
    return root.opcode if {o.parameter_number for o in operands} == {0, 1} else None


def _skip_conversions(node: Instruction) -> Instruction | None:
    """The value behind conversions that do not matter to an accumulator in f32 (bf16 to f32 and back)."""
    while node.opcode in ("convert", "copy", "bitcast", "reshape") and node.operands:
        source = node.operands[0]
        if computation_type(source.shape.element_type) != computation_type(node.shape.element_type):
            return None
        node = source
    return node


def identity(op: str, element_type: str) -> Const:
    """The value that op leaves everything else alone with, in computation form."""
    type = computation_type(element_type)
    kind = ELEMENT_TYPES[type].kind
    if op == "multiply" or (op in ("and", "minimum") and kind == "pred"):
        return Const({"pred": True, "float": 1.0, "complex": 1 + 0j}.get(kind, 1), type)
    if op in ("maximum", "minimum") and kind == "float":
        return Const(-math.inf if op == "maximum" else math.inf, type)
    if op in ("maximum", "minimum") and kind in ("signed", "unsigned"):
        limits = np.iinfo(ELEMENT_TYPES[type].dtype)
        return Const(int(limits.min if op == "maximum" else limits.max), type)
    if op == "and":
        return Const(-1 if kind == "signed" else int(np.iinfo(ELEMENT_TYPES[type].dtype).max), type)
    return Const({"pred": False, "float": 0.0, "complex": 0j}.get(kind, 0), type)


def is_identity(initial: Instruction, op: str) -> bool:
    """The initial value is a literal that op can leave out (an infinite bound may also be the type's least value)."""
    if initial.opcode != "constant" or initial.literal is None or initial.shape.num_elements != 1:
        return False
    return literal(initial.literal, initial.shape.element_type) == identity(op, initial.shape.element_type)


def can_reassociate(op: str | None, element_type: str) -> bool:
    """A VECTOR loop can keep one partial result per lane."""
    return op is not None and ELEMENT_TYPES[element_type].kind != "complex"
