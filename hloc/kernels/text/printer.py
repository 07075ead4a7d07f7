"""Kernel -> the text of the loop IR (grammar/loops.lark), which reader.py reads back.

    kernel add(a: f32[4096] read, b: f32[4096] read, out: f32[4096] write) {
      parallel i < 4096 {
        out[i] = a[i] + b[i]
      }
    }

Everything is kept except cost and origin; the HLO that a kernel computes is printed above it as comments.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hloc.errors import printable
from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.indexing import sum_text
from hloc.kernels.operations import result_type
from hloc.kernels.vectors import is_vector

ATOM, PRODUCT, ADDITION, COMPARISON = 4, 3, 2, 1
INFIX = {"add": ("+", ADDITION), "subtract": ("-", ADDITION), "multiply": ("*", PRODUCT), "divide": ("/", PRODUCT),
         "remainder": ("%", PRODUCT), "compare_eq": ("==", COMPARISON), "compare_ne": ("!=", COMPARISON),
         "compare_lt": ("<", COMPARISON), "compare_le": ("<=", COMPARISON), "compare_gt": (">", COMPARISON),
         "compare_ge": (">=", COMPARISON)}
PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")


def print_loops(kernels: Iterable[ir.Kernel]) -> str:
    """The text of kernels, separated by empty lines."""
    return "\n".join(map(_kernel, kernels))


def statement_lines(statements: Iterable[ir.Stmt]) -> list[str]:
    """The lines of statements, as in a kernel's body."""
    return _block(statements, 0)


def _kernel(kernel: ir.Kernel) -> str:
    name = kernel.name if PLAIN_NAME.fullmatch(kernel.name) else f'"{kernel.name}"'
    buffers = ", ".join(f"{b.name}: {b.type}[{b.size}] {b.access}" for b in kernel.buffers)
    lines = [f"// {printable(line)}" for line in kernel.origin]
    return "\n".join([*lines, f"kernel {name}({buffers}) {{", *_block(kernel.body, 1), "}", ""])


def _block(statements: Iterable[ir.Stmt], indent: int) -> list[str]:
    return [line for s in statements for line in _statement(s, indent)]


def _statement(s: ir.Stmt, indent: int) -> list[str]:
    space = "  " * indent
    if isinstance(s, (ir.For, ir.While, ir.Last)):
        return [f"{space}{_head(s)} {{", *_block(s.body, indent + 1), f"{space}}}"]
    if isinstance(s, ir.If):
        end = [f"{space}}} else {{", *_block(s.otherwise, indent + 1), f"{space}}}"] if s.otherwise else [f"{space}}}"]
        return [f"{space}if {expression_text(s.condition)} {{", *_block(s.then, indent + 1), *end]
    return [space + _simple(s)]


def _head(s: ir.For | ir.While | ir.Last) -> str:
    if isinstance(s, ir.While):
        return f"while {expression_text(s.condition)}"
    if isinstance(s, ir.Last):
        return f"last({s.count}, {s.groups}) {_inside(s.position, ADDITION)}"
    extent = str(s.extent) if isinstance(s.extent, int) else _inside(s.extent, ADDITION)
    return f"{s.kind} {s.name} < {extent}"


def _simple(s: ir.Stmt) -> str:
    if isinstance(s, ir.Let):
        return f"let {s.name} = {expression_text(s.value)}"
    if isinstance(s, ir.Mutable):
        reassociable = f" reassociable {s.reassociable}" if s.reassociable else ""
        return f"var {s.name} = {expression_text(s.initial)}{reassociable}"
    if isinstance(s, ir.Assign):
        return f"{s.name} = {expression_text(s.value)}"
    if isinstance(s, ir.Store):
        return f"{s.buffer}[{expression_text(s.position)}] = {expression_text(s.value)}"
    if isinstance(s, ir.Atomic):
        return f"atomic {s.op} {s.buffer}[{expression_text(s.position)}], {expression_text(s.value)}"
    if isinstance(s, (ir.Local, ir.Shared)):
        return f"{'local' if isinstance(s, ir.Local) else 'shared'} {s.name}: {s.type}[{s.size}]"
    assert isinstance(s, ir.Barrier)
    return "barrier"


def expression_text(expr: ir.Expr) -> str:
    """The text of an expression."""
    return _print(expr)[0]


def _inside(expr: ir.Expr, least: int) -> str:
    text, strength = _print(expr)
    return text if strength >= least else f"({text})"


def _print(expr: ir.Expr) -> tuple[str, int]:
    """The text, and its precedence."""
    if isinstance(expr, ir.Const):
        return constant_text(expr), ATOM
    if isinstance(expr, ir.Var):
        return expr.name, ATOM
    if isinstance(expr, ir.Load):
        lanes = f":{expr.type}" if is_vector(expr.type) else ""
        return f"{expr.buffer}[{expression_text(expr.position)}]{lanes}", ATOM
    if expr.op == ir.SUM:
        text, is_product = sum_text(expr, lambda atom: _inside(atom, PRODUCT))
        return text, PRODUCT if is_product else ADDITION
    types = [a.type for a in expr.arguments]
    if expr.op in INFIX and len(types) == 2 and expr.type == result_type(expr.op, types):
        sign, strength = INFIX[expr.op]
        left = max(strength, ADDITION)                              # a comparison compares sums
        return f"{_inside(expr.arguments[0], left)} {sign} {_inside(expr.arguments[1], strength + 1)}", strength
    return _call(expr, types), ATOM


def _call(expr: ir.Apply, types: Sequence[str]) -> str:
    type = "" if expr.type == result_type(expr.op, types) else f":{expr.type}"
    facts = f"; {', '.join(map(str, expr.immediate))}" if expr.immediate else ""
    return f"{expr.op}{type}({', '.join(map(expression_text, expr.arguments))}{facts})"


def constant_text(const: ir.Const) -> str:
    """A constant with its type: f32(1.5), s8(-1), pred(true), c64(1.0, -0.0); positions are bare integers."""
    value, type = const.value, const.type
    if type == ir.INDEX:
        return str(value)
    kind = ELEMENT_TYPES[type].kind
    if kind == "pred":
        text = "true" if value else "false"
    elif kind == "complex":
        text = f"{float(value.real)!r}, {float(value.imag)!r}"
    else:
        text = repr(float(const.real)) if kind == "float" else str(int(const.real))
    return f"{type}({text})"
