"""Expressions of the loop IR -> C or CUDA C.

In: expressions. Out: their text, with no more parentheses than needed; of an ExpressionPrinter also which C functions
that text calls, so that nobody has to look for them in it.

    printer = ExpressionPrinter()
    printer.expression(Apply("exp", (x,), "f32"))       ->  "hloc_exp_f32(x)"
    printer.calls                                       ->  Counter({"exp_f32": 1})
"""
from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from hloc.ir import ELEMENT_TYPES, holds, numpy_dtype
from hloc.kernels.indexing import sum_text
from hloc.kernels.ir import INDEX, SUM, Apply, Const, Expr, Load, Var
from hloc.kernels.scalars import computation_type, is_narrow
from hloc.targets.vectors import has_vectors, vector_text

SIMPLE_TYPES = {INDEX: "long", "f32": "float", "f64": "double", "s32": "int", "u32": "unsigned"}
INFIX = {"add": ("+", 12), "subtract": ("-", 12), "multiply": ("*", 13), "divide": ("/", 13), "remainder": ("%", 13)}
COMPARISONS = {"compare_eq": ("==", 9), "compare_ne": ("!=", 9), "compare_lt": ("<", 10), "compare_le": ("<=", 10),
               "compare_gt": (">", 10), "compare_ge": (">=", 10)}
PREDICATES = {"and": ("&", 8), "or": ("|", 6), "xor": ("^", 7)}
ATOM, UNARY, PRODUCT, ADDITION, COMPARED, TERNARY = 16, 14, 13, 12, 11, 2
ROUNDED = frozenset(                      # rounding an f32 to it and back is one function
    name for name, type in ELEMENT_TYPES.items() if type.kind == "float" and is_narrow(name))
EXACT_IN_BF16 = frozenset(name for name, type in ELEMENT_TYPES.items() if type.kind in ("float", "signed", "unsigned")
                          and type.bits <= 8 and computation_type(name) != "f64" and holds("bf16", name))


Call = tuple[str, ...]          # a C function, without the prefix hloc_, and its arguments


def c_type(type: str) -> str:
    return SIMPLE_TYPES.get(type, f"hloc_{type}")


def expression(expr: Expr) -> str:
    """An expression by itself, with positions of 64 bits."""
    return ExpressionPrinter().expression(expr)


@dataclass
class ExpressionPrinter:
    """Prints expressions of one function. index: the C type of positions, "long" or "int"; calls: how often the text
    calls each C function, without the prefix hloc_."""

    index: str = field(default="long", kw_only=True)
    calls: Counter[str] = field(default_factory=Counter, kw_only=True)

    def expression(self, expr: Expr) -> str:
        """An expression with no more parentheses than needed."""
        return self.bound(expr)[0]

    def inside(self, expr: Expr, least: int) -> str:
        """An operand: in parentheses if it binds less than `least`."""
        text, strength = self.bound(expr)
        return text if strength >= least else f"({text})"

    def extent(self, extent: int | Expr) -> str:
        """The number of iterations of a loop."""
        return str(extent) if isinstance(extent, int) else self.expression(extent)

    def c_type(self, type: str) -> str:
        return self.index if type == INDEX else c_type(type)

    @property
    def to_index(self) -> str:
        """The cast of an integer to a position."""
        return "(long)" if self.index == "long" else ""

    def call(self, function: str, *arguments: str) -> str:
        """The call of a C function."""
        self.calls[function] += 1
        return f"hloc_{function}({', '.join(arguments)})"

    def bound(self, expr: Expr) -> tuple[str, int]:
        """Text and binding strength."""
        if isinstance(expr, Const):
            return self.literal(expr)
        if isinstance(expr, Var):
            return expr.name, ATOM
        if has_vectors(expr):
            return vector_text(expr, self.expression), ATOM
        if isinstance(expr, Load):
            return f"{expr.buffer}[{self.expression(expr.position)}]", ATOM
        if expr.op == SUM:
            text, is_product = sum_text(expr, lambda atom: self.inside(atom, PRODUCT))
            return text, PRODUCT if is_product else ADDITION
        if expr.op == "convert":
            return self._convert(expr.arguments[0], expr.type)
        if expr.op == "convert_held":
            return self.call("f32_to_bf16_held", self.expression(expr.arguments[0])), ATOM
        if expr.op == "bitcast":
            return self._bitcast(expr.arguments[0], expr.type), ATOM
        if expr.op == "select":
            return self._select(*expr.arguments)
        if expr.type == INDEX and expr.op in ("minimum", "maximum"):
            a, b = (self.inside(x, COMPARED) for x in expr.arguments)
            return f"({a} {'<' if expr.op == 'minimum' else '>'} {b} ? {a} : {b})", ATOM
        return self._infix(expr) or (self._function(expr), ATOM)

    def _select(self, which: Expr, yes: Expr, no: Expr) -> tuple[str, int]:
        """`which ? yes : no`. An integer to which a constant is added if it is negative, as for indices, is an addition
        without a branch: add(x, which ? c : 0). Parts of complex numbers are selected separately: gcc does not
        vectorize a select of a whole one."""
        if yes.type in ("c64", "c128"):
            return self._function(Apply("select", (which, yes, no), yes.type)), ATOM
        if (isinstance(yes, Apply) and yes.op == "add" and yes.type in ("s32", "s64") and isinstance(no, Var)
                and yes.arguments[0] == no and isinstance(yes.arguments[1], Const)):
            raised = Apply("select", (which, yes.arguments[1], Const(0, no.type)), no.type)
            return self._function(Apply("add", (no, raised), no.type)), ATOM
        condition, on_true, on_false = (self.inside(a, TERNARY + 1) for a in (which, yes, no))
        return f"{condition} ? {on_true} : {on_false}", TERNARY

    def _infix(self, expr: Apply) -> tuple[str, int] | None:
        type = expr.arguments[-1].type
        if expr.op in INFIX and (type == INDEX or (type in ("f32", "f64") and expr.op != "remainder")):
            sign, strength = INFIX[expr.op]
        elif expr.op in COMPARISONS and type not in ("c64", "c128"):
            sign, strength = COMPARISONS[expr.op]
        elif expr.op in PREDICATES and type in ("pred", INDEX):
            sign, strength = PREDICATES[expr.op]
        elif expr.op == "negate" and type in ("f32", "f64"):
            text = self.inside(expr.arguments[0], UNARY)
            return ("- " if text.startswith("-") else "-") + text, UNARY
        else:
            return None
        left_strength = 11 if strength < 9 else strength      # & and | around comparisons: parentheses, for readers
        right_strength = 11 if strength < 9 else strength + 1
        left, right = self.inside(expr.arguments[0], left_strength), self.inside(expr.arguments[1], right_strength)
        return f"{left} {sign} {right}", strength

    def _function(self, expr: Apply) -> str:
        arguments = [self.expression(a) for a in expr.arguments] + [str(i) for i in expr.immediate]
        if expr.op == "stochastic_convert":
            return self.call(f"stochastic_convert_{expr.arguments[0].type}_{expr.type}", *arguments)
        return self.call(f"{expr.op}_{expr.arguments[-1].type}", *arguments)

    def _convert(self, value: Expr, target: str) -> tuple[str, int]:
        """A conversion between element types; narrow types go through their computation type."""
        source = value.type
        if target == "f32" and source in ROUNDED and isinstance(value, Apply) and value.op.startswith("convert"):
            inner, held = value.arguments[0], "_held" if value.op == "convert_held" else ""
            if inner.type == "f32":
                return self.call(f"round_{source}_f32{held}", self.expression(inner)), ATOM
        if target == "bf16" and isinstance(value, Apply) and value.op == "convert" and source == "f32" \
                and value.arguments[0].type in EXACT_IN_BF16:
            return self.call("exact_f32_to_bf16", self.expression(value)), ATOM
        if target == INDEX:
            return f"{self.to_index}{self.inside(value, UNARY)}", UNARY
        if source == INDEX or {source, target} == {"f32", "f64"}:
            return f"({c_type(target)}){self.inside(value, UNARY)}", UNARY
        if source == "pred" and (is_narrow(target) and ELEMENT_TYPES[target].kind == "float"
                                 or target in SIMPLE_TYPES and not isinstance(value, Load)):
            one, zero = (self.literal(Const(x, target))[0] for x in (1, 0))      # avoids bytes in vector code
            return f"{self.inside(value, TERNARY + 1)} ? {one} : {zero}", TERNARY
        return self._in_steps(self.expression(value), source, target), ATOM

    def _in_steps(self, text: str, source: str, target: str) -> str:
        """Conversions by functions: from a narrow type to the one beside it, to that beside the target, to the target.
        """
        if is_narrow(source):
            wide = _form_next_to(source, target)
            text, source = self.call(f"{source}_to_{wide}", text), wide
        if not is_narrow(target):
            return text if source == target else self.call(f"convert_{source}_{target}", text)
        wide = _form_next_to(target, source)
        if source == "f64" and wide == "f32":
            text = self.call("f64_to_f32_odd", text)
        elif source != wide:
            text = self.call(f"convert_{source}_{wide}", text)
        return self.call(f"{wide}_to_{target}", text)

    def _bitcast(self, value: Expr, target: str) -> str:
        """The same bits as another type of the same width."""
        text, source = self.expression(value), value.type
        if source in ("f32", "f64"):
            text = self.call(f"bits_{source}", text)
        if target in ("f32", "f64"):
            return self.call(f"from_bits_{target}", text)
        return f"({c_type(target)})({text})"

    def literal(self, const: Const) -> tuple[str, int]:
        """A C literal of exactly the constant's value, and its binding strength."""
        value, type = const.value, const.type
        if type == INDEX:
            return str(value), ATOM if const.integer >= 0 else UNARY
        kind = ELEMENT_TYPES[type].kind
        if kind == "pred":
            return ("1" if value else "0"), ATOM
        if kind == "complex":
            part = "f32" if type == "c64" else "f64"
            return self.call(f"complex_{part}", _float(value.real, part), _float(value.imag, part)), ATOM
        if kind in ("signed", "unsigned"):
            text = _integer(const.integer, type)
        elif is_narrow(type):
            stored = np.asarray(value, numpy_dtype(type))
            text = hex(int(stored.reshape(1).view(np.uint16 if stored.itemsize == 2 else np.uint8)[0]))
        else:
            text = _float(float(const.real), type)
        return text, UNARY if text.startswith("-") else ATOM


def _form_next_to(narrow: str, other: str) -> str:
    """The type through which a narrow type is converted to or from another: f32 if it is computed in f32, which holds
    all its values (f8e8m0fnu is computed in f64)."""
    return "f32" if computation_type(other) == "f32" else computation_type(narrow)


def _integer(value: int, type: str) -> str:
    if type == "u32":
        return f"{value}u"
    if type == "u64":
        return f"{value}ull"
    if value == -(1 << 31) or value == -(1 << 63):
        ending = "ll" if type == "s64" else ""
        return f"({value + 1}{ending} - 1)"
    return f"{value}ll" if type == "s64" else str(value)


def _float(value: float, type: str) -> str:
    if math.isnan(value):
        return f"HLOC_NAN_{type.upper()}"
    if math.isinf(value):
        return ("-" if value < 0 else "") + f"HLOC_INF_{type.upper()}"
    text = str(np.float32(value)) if type == "f32" else repr(float(value))
    return text + ("" if "." in text or "e" in text else ".0") + ("f" if type == "f32" else "")
