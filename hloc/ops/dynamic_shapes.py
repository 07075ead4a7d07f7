"""Marks dynamic dimensions in shapes of older modules, which set a dimension's size without a bound in the shape.

    q = s32[5] set-dimension-size(p, n), dimensions={0}      =>      q = s32[<=5] set-dimension-size(p, n)
    r = s32[5] negate(q)                                             r = s32[<=5] negate(q)

In: a module. Out: whether its shapes changed; which dimensions are dynamic follows from the operands, as in XLA's
DynamicDimensionInference. Parameters of a computation follow from its caller, a loop's state from both ends.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hloc.errors import UnsupportedError
from hloc.ir import Computation, Instruction, Module, Shape, reachable_computations
from hloc.ops.checks import dynamic_of
from hloc.ops.table import OPS

_CALLEES = {"call": ("to_apply",), "fusion": ("calls",), "async-start": ("calls",), "while": ("condition", "body"),
            "conditional": ("true_computation", "false_computation", "branch_computations")}
_LIKE_OPERAND = frozenset(["convert", "bitcast-convert", "reduce-precision", "copy", "opt-barrier", "domain"])


def sets_silently(module: Module) -> bool:
    """Whether a set-dimension-size gives an array that is written without a bound."""
    return any(i.opcode == "set-dimension-size" and not i.shape.is_dynamic
               for c in reachable_computations(module.entry) for i in c.instructions)


def write_dynamic_shapes(module: Module) -> bool:
    """Propagate dynamic dimensions. True if something changed. Raises UnsupportedError if the operands of an op do not
    determine which of its dimensions are dynamic."""
    if not sets_silently(module):
        return False
    _mark(module.entry, {})
    return True


def _mark(computation: Computation, taken: dict[Computation, list[Shape]]) -> None:
    """One computation whose parameters are marked, and what it calls. `taken`: what computations were called with."""
    marked = {i for i in computation.instructions if i.opcode == "parameter" and _has_dynamic(i.shape)}
    for i in computation.instructions:
        if i.opcode == "set-dimension-size" or any(o in marked for o in i.operands) or i.opcode in _CALLEES:
            shape = _marked_shape(i, taken)
            if shape != i.shape:
                i.shape = shape
            if _has_dynamic(i.shape):
                marked.add(i)


def _has_dynamic(shape: Shape) -> bool:
    return shape.is_dynamic or any(map(_has_dynamic, shape.tuple_shapes))


def _marked_shape(i: Instruction, taken: dict[Computation, list[Shape]]) -> Shape:
    operands = [o.shape for o in i.operands]
    if i.opcode in _CALLEES:
        return _called(i, operands, taken)
    if i.opcode == "tuple":
        return replace(i.shape, tuple_shapes=tuple(map(_merged, i.shape.tuple_shapes, operands)))
    if i.opcode == "get-tuple-element":
        return _merged(i.shape, operands[0].tuple_shapes[i.get("index")])
    if i.opcode in _LIKE_OPERAND:
        return _merged(i.shape, operands[0])
    if i.opcode == "broadcast":
        flags = [False] * i.shape.rank
        for dimension, flag in zip(i.get("dimensions", ()), dynamic_of(operands[0])):
            flags[dimension] = flag
        return _with_flags(i.shape, flags)
    if i.opcode == "reshape":
        return _with_flags(i.shape, _reshaped(i, operands[0]))
    if OPS[i.opcode].is_elementwise and i.shape.is_array:
        alike = [s for s in operands if s.dimensions == i.shape.dimensions]
        return _with_flags(i.shape, [any(f) for f in zip(*map(dynamic_of, alike))]) if alike else i.shape
    if i.opcode == "reduce-window":
        flags = [any(f) for f in zip(*map(dynamic_of, operands[:len(operands) // 2]))]
        if not i.shape.is_aggregate:
            return _with_flags(i.shape, flags)
        return replace(i.shape, tuple_shapes=tuple(_with_flags(s, flags) for s in i.shape.tuple_shapes))
    inferred = OPS[i.opcode].infer(i)
    return i.shape if inferred is None else _merged(i.shape, inferred)


def _called(i: Instruction, operands: list[Shape], taken: dict[Computation, list[Shape]]) -> Shape:
    """The shape of a call, with its computations marked."""
    named = i.get("branch_computations") or [i.get(k) for k in _CALLEES[i.opcode]]
    callees = [c for c in named if isinstance(c, Computation)]
    shape = i.shape
    if i.opcode == "while":
        shape = _merged(shape, operands[0])
    while True:
        before = shape
        for number, callee in enumerate(callees):
            given = [before] if i.opcode == "while" else operands[1 + number:2 + number] if i.opcode == "conditional" \
                else operands
            _mark_callee(i, callee, given, taken)
            if callee is not i.get("condition"):
                shape = _merged(shape, callee.root.shape) if i.opcode != "async-start" else shape
        if i.opcode != "while" or shape == before:
            return shape


def _mark_callee(i: Instruction, callee: Computation, given: Sequence[Shape],
                 taken: dict[Computation, list[Shape]]) -> None:
    parameters = callee.parameters
    shapes = [_merged(p.shape, s) for p, s in zip(parameters, given)]
    if i.opcode != "while" and taken.setdefault(callee, shapes) != shapes:
        raise UnsupportedError(f"%{callee.name} is called with arrays of fixed and of dynamic size", i.span)
    for parameter, shape in zip(parameters, shapes):
        parameter.shape = shape
    _mark(callee, taken)


def _merged(shape: Shape, other: Shape) -> Shape:
    """The shape, dynamic also where the other one is."""
    if shape.is_aggregate and other.is_aggregate:
        return replace(shape, tuple_shapes=tuple(map(_merged, shape.tuple_shapes, other.tuple_shapes)))
    if not other.is_dynamic or shape.dimensions != other.dimensions:
        return shape
    return _with_flags(shape, dynamic_of(other))


def _with_flags(shape: Shape, flags: Sequence[bool]) -> Shape:
    flags = tuple(a or b for a, b in zip(dynamic_of(shape), flags))
    return replace(shape, dynamic_dimensions=flags) if any(flags) else shape


def _reshaped(i: Instruction, operand: Shape) -> list[bool]:
    """A dimension of the result is dynamic where it holds a dynamic one of the operand, alone or with others."""
    flags, old, new = [False] * i.shape.rank, operand.dimensions, i.shape.dimensions
    for d, flag in enumerate(dynamic_of(operand)):
        if not flag:
            continue
        before, after = math.prod(old[:d]), math.prod(old[:d + 1])
        if old[d] == 1:
            inside = [k for k, n in enumerate(new) if n == 1 and math.prod(new[:k]) == before]
        else:
            inside = [k for k, n in enumerate(new) if n > 1 and math.prod(new[:k]) < after
                      and math.prod(new[:k + 1]) > before]
        inside = inside or [k for k, n in enumerate(new) if math.prod(new[:k]) <= before < math.prod(new[:k + 1])]
        if i.get("inferred_dimension") in inside:
            inside = [i.get("inferred_dimension")]
        if len(inside) > 1:
            raise UnsupportedError(f"reshape divides dimension {d}, which is dynamic: inferred_dimension= must tell "
                                   "which part is", i.span)
        for k in inside:
            flags[k] = True
    return flags
