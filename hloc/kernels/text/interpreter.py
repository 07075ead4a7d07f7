"""Runs a kernel of the loop IR in Python: the reference for kernel passes.

In: a Kernel and flat NumPy arrays, one for each buffer; those that are written are changed. Out: nothing.

    interpret(kernel, {"a": np.float32([1, 2]), "out": np.zeros(2, np.float32)})

Scalar functions are those of the op table (hloc/ops), which the NumPy evaluator uses, too. A few more are created by
passes (hloc/kernels/operations.py); they are defined below. A position outside of an array is an InterpretationError.
The caller chooses the initial values of local arrays: results must not depend on them. An operation takes some 10 us:
kernels should be small.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from hloc.ir import Instruction, array, numpy_dtype
from hloc.kernels import ir
from hloc.kernels.vectors import MASKS, element_of, is_vector, lanes_of, vector
from hloc.ops.table import OPS

NEAR = 1 << 15          # largest magnitude for which `..._is_near` holds; the C functions have their own bounds
INDEX_MEANING: dict[str, Callable] = {
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: int(a / b) if abs(a) < 1 << 50 else a // b, "remainder": lambda a, b: a - b * int(a / b),
    "minimum": min, "maximum": max, "opaque": lambda a: a, "compare_eq": lambda a, b: a == b,
    "compare_ne": lambda a, b: a != b, "compare_lt": lambda a, b: a < b, "compare_le": lambda a, b: a <= b,
    "compare_gt": lambda a, b: a > b, "compare_ge": lambda a, b: a >= b, "select": lambda p, a, b: a if p else b,
}
# Names of scalar functions that equal another one: passes select among instruction sequences for the same value.
SAME_AS = {"exp2": "power", "remainder_by_power": "remainder", "remainder_of_few_bits": "remainder",
           "convert_held": "convert", "widen": "convert", "narrow": "convert"}


class InterpretationError(Exception):
    """An invalid access of a kernel: a defect of the lowering or pass that made it."""


def interpret(kernel: ir.Kernel, arrays: Mapping[str, np.ndarray], unwritten: int = 0) -> None:
    """Run all iterations of a kernel, in order. `arrays` holds a flat array for each buffer; unwritten: the initial
    value of elements of local arrays."""
    with np.errstate(all="ignore"):
        _Run(dict(arrays), unwritten).statements(kernel.body)


class _Run:
    """arrays: buffers and local arrays by name; values: of variables."""

    def __init__(self, arrays: dict[str, np.ndarray], unwritten: int) -> None:
        self.arrays = arrays
        self.unwritten = unwritten
        self.values: dict[str, Any] = {}
        self.arrived: dict[tuple[int, Any], int] = {}

    # -- statements

    def statements(self, body: Iterable[ir.Stmt]) -> None:
        for s in body:
            self.RUN[type(s)](self, s)

    def name(self, s: ir.Let | ir.Assign) -> None:
        self.values[s.name] = self.value(s.value)

    def mutable(self, s: ir.Mutable) -> None:
        self.values[s.name] = self.value(s.initial)

    def store(self, s: ir.Store) -> None:
        self.arrays[s.buffer][self.place(s.buffer, s.position, s.value.type)] = self.value(s.value)

    def atomic(self, s: ir.Atomic) -> None:
        type = s.value.type
        old = ir.Load(s.buffer, s.position, type)
        self.store(ir.Store(s.buffer, s.position, ir.Apply(s.op, (old, s.value), type)))

    def loop(self, s: ir.For) -> None:
        extent = s.extent if isinstance(s.extent, int) else self.value(s.extent)
        for i in range(extent):
            self.values[s.name] = i
            self.statements(s.body)

    def while_loop(self, s: ir.While) -> None:
        while self.value(s.condition):
            self.statements(s.body)

    def condition(self, s: ir.If) -> None:
        self.statements(s.then if self.value(s.condition) else s.otherwise)

    def local(self, s: ir.Local | ir.Shared) -> None:
        self.arrays[s.name] = np.full(s.size, self.unwritten).astype(numpy_dtype(s.type))

    def barrier(self, s: ir.Barrier) -> None:
        """Nothing: iterations run one after the other."""

    def last(self, s: ir.Last) -> None:
        group = id(s), self.value(s.position)
        self.arrived[group] = self.arrived.get(group, 0) + 1
        if self.arrived[group] == s.count:
            self.statements(s.body)

    RUN: dict[type, Callable[[_Run, Any], None]] = {
        ir.Let: name, ir.Assign: name, ir.Mutable: mutable, ir.Store: store, ir.Atomic: atomic, ir.For: loop,
        ir.While: while_loop, ir.If: condition, ir.Local: local, ir.Shared: local, ir.Barrier: barrier, ir.Last: last}

    # -- expressions

    def value(self, expr: ir.Expr) -> Any:
        if isinstance(expr, ir.Var):
            return self.values[expr.name]
        if isinstance(expr, ir.Const):
            return expr.value if expr.type == ir.INDEX else numpy_dtype(expr.type).type(expr.value)
        if isinstance(expr, ir.Load):
            return self.arrays[expr.buffer][self.place(expr.buffer, expr.position, expr.type)].copy()
        arguments = [self.value(a) for a in expr.arguments]
        if is_vector(expr.type) or is_vector(expr.arguments[0].type):
            return vector_value(expr, arguments)
        return meaning(expr.op, tuple(a.type for a in expr.arguments), expr.type, expr.immediate)(*arguments)

    def place(self, name: str, position: ir.Expr, type: str) -> int | slice:
        """The element at a position, or the adjacent ones of a vector."""
        place, size, lanes = self.value(position), self.arrays[name].size, lanes_of(type)
        if not 0 <= place <= size - lanes:
            raise InterpretationError(f"{name}[{place if place < 0 else place + lanes - 1}], which has {size} elements")
        return slice(place, place + lanes) if lanes > 1 else place


# -- vectors -----------------------------------------------------------------------------------------------------------

def vector_value(expr: ir.Apply, arguments: list) -> object:
    """The value of an operation on vectors, which are arrays: across lanes, or lane by lane as on elements."""
    lanes, element = lanes_of(expr.type), element_of(expr.type)
    dtype = np.dtype(bool) if element in MASKS else numpy_dtype(element)
    if expr.op == "splat":
        return np.full(lanes, arguments[0], dtype)
    if expr.op == "series":
        return np.asarray([arguments[0] + i * expr.immediate[0] for i in range(lanes)]).astype(dtype)
    if expr.op == "shuffle":
        return np.concatenate(arguments)[list(expr.immediate)]
    if expr.op == "lane":
        return arguments[0][expr.immediate[0]]
    types = tuple(vector(element_of(a.type), 1) for a in expr.arguments)
    one = meaning(expr.op, types, vector(element, 1), expr.immediate)
    return np.array([one(*each) for each in zip(*arguments)], dtype)


# -- operations --------------------------------------------------------------------------------------------------------

@cache
def meaning(op: str, arguments: tuple[str, ...], type: str, immediate: tuple[int, ...] = ()) -> Callable:
    """The function of an operation, over NumPy scalars; positions are Python's integers."""
    op = op.removeprefix("called_")
    op = SAME_AS.get(op, op)
    if op == "convert" and ir.INDEX in (arguments[0], type):
        return int if type == ir.INDEX else lambda value: numpy_dtype(type).type(value)
    if op == ir.SUM:
        *factors, constant = immediate
        return lambda *values: constant + sum(value * factor for value, factor in zip(values, factors))
    if arguments[-1] == ir.INDEX and op in INDEX_MEANING:
        return INDEX_MEANING[op]
    if op.endswith("_is_near"):
        return lambda *values: np.bool_(all(abs(v) < NEAR for v in values))
    return _of_row(op.removesuffix("_near").removesuffix("_far"), arguments, type, immediate)


def _of_row(op: str, arguments: tuple[str, ...], type: str, immediate: tuple[int, ...]) -> Callable:
    """The evaluator's function for one element."""
    opcode = _rows().get(op)
    attributes: dict[str, Any] = {}
    if op.startswith("compare_"):
        direction, _, order = op.removeprefix("compare_").partition("_")
        opcode, attributes = "compare", {"direction": direction.upper(), **({"type": "TOTALORDER"} if order else {})}
    elif op in ("convert", "bitcast"):
        opcode = {"convert": "convert", "bitcast": "bitcast-convert"}[op]
    elif op == "reduce_precision":
        attributes = dict(zip(("exponent_bits", "mantissa_bits"), immediate))
    if opcode is None:
        raise InterpretationError(f"no meaning of {op}")
    operands = [Instruction(f"a{n}", "parameter", array(t), parameter_number=n) for n, t in enumerate(arguments)]
    instruction, evaluate = Instruction(op, opcode, array(type), operands, attributes), OPS[opcode].evaluate
    assert evaluate is not None
    dtype = numpy_dtype(type).type
    return lambda *values: dtype(evaluate(None, instruction, *map(np.asarray, values)))


@cache
def _rows() -> dict[str, str]:
    """Opcodes by the names of their scalar functions."""
    return {row.scalar: opcode for opcode, row in OPS.items() if row.scalar}
