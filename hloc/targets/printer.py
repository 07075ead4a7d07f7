"""Loop IR -> C or CUDA C.

In: a Kernel (hloc/kernels/ir.py). Out: one function. The differences of C and CUDA C are in a Dialect record.

    print_kernel(kernel, C, "k0_add")
      void k0_add(void *const *buffers, long begin, long end) {
        const float *in0 = buffers[0];
        ...
        for (long i0 = begin; i0 < end; i0++) {

Parameters are not `restrict`: a result may share the memory of an operand (an element is read before it is written).
VECTOR loops have `omp simd`, which allows compilers to vectorize them.
"""
from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, numpy_dtype
from hloc.kernels.ir import (
    INDEX,
    PARALLEL,
    VECTOR,
    Apply,
    Assign,
    Atomic,
    Barrier,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    Shared,
    Stmt,
    Store,
    Var,
    While,
)
from hloc.kernels.scalars import computation_type, is_narrow
from hloc.kernels.walks import walk


class Dialect(NamedTuple):
    """The syntax of one C-family language.

    threads   PARALLEL loops are a grid-stride loop (with the VECTOR loop directly inside), not a range begin..end
    atomics   op -> format of an atomic update of an address
    zeroed    Local arrays of up to this many elements, which compilers keep in registers, start as zeros: a
              loop-carried register must have an initial value (docs/gpu.md)
    """

    name: str
    threads: bool
    vector_pragma: bool
    shared: str = ""
    barrier: str = ""
    atomics: tuple[tuple[str, str], ...] = ()
    zeroed: int = 0


C = Dialect("c", threads=False, vector_pragma=True)
CUDA = Dialect("cuda", threads=True, vector_pragma=False, shared="__shared__", barrier="__syncthreads();",
               atomics=tuple((op, f"hloc_atomic_{op}(&{{0}}, {{1}});")
                             for op in ("add", "minimum", "maximum", "and", "or", "xor")), zeroed=64)

SIMPLE_TYPES = {INDEX: "long", "f32": "float", "f64": "double", "s32": "int", "u32": "unsigned"}
INFIX = {"add": ("+", 12), "subtract": ("-", 12), "multiply": ("*", 13), "divide": ("/", 13), "remainder": ("%", 13)}
COMPARISONS = {"compare_eq": ("==", 9), "compare_ne": ("!=", 9), "compare_lt": ("<", 10), "compare_le": ("<=", 10),
               "compare_gt": (">", 10), "compare_ge": (">=", 10)}
PREDICATES = {"and": ("&", 8), "or": ("|", 6), "xor": ("^", 7)}
ATOM, UNARY, TERNARY = 16, 14, 2
ROUNDED = frozenset(                      # rounding an f32 to it and back is one function
    name for name, type in ELEMENT_TYPES.items() if type.kind == "float" and is_narrow(name))
EXACT_IN_BF16 = frozenset(["f8e3m4", "f8e4m3", "f8e4m3fn", "f8e4m3fnuz", "f8e4m3b11fnuz", "f8e5m2", "f8e5m2fnuz", "s8",
                           "u8"])
SIMD_REDUCTIONS = {"add": "+", "multiply": "*", "and": "&", "or": "|", "xor": "^"}
SIMD_EXTREMA = {"maximum": "max", "minimum": "min"}         # of integers: those of floats keep NaN


def c_type(type: str) -> str:
    return SIMPLE_TYPES.get(type, f"hloc_{type}")


# -- expressions -------------------------------------------------------------------------------------------------------

def expression(expr: Expr) -> str:
    """An expression with no more parentheses than needed."""
    return _print(expr)[0]


def _print(expr: Expr) -> tuple[str, int]:
    """Text and binding strength."""
    if isinstance(expr, Const):
        return literal(expr)
    if isinstance(expr, Var):
        return expr.name, ATOM
    if isinstance(expr, Load):
        return f"{expr.buffer}[{expression(expr.position)}]", ATOM
    if expr.op == "convert":
        return _convert(expr.arguments[0], expr.type)
    if expr.op == "convert_held":
        return f"hloc_f32_to_bf16_held({expression(expr.arguments[0])})", ATOM
    if expr.op == "bitcast":
        return _bitcast(expr.arguments[0], expr.type), ATOM
    if expr.op == "bits_read":
        return _bits_read(expr.arguments[0])
    if expr.op == "select":
        return _select(*expr.arguments)
    if expr.type == INDEX and expr.op in ("minimum", "maximum"):
        a, b = (_inside(x, 11) for x in expr.arguments)
        return f"({a} {'<' if expr.op == 'minimum' else '>'} {b} ? {a} : {b})", ATOM
    return _infix(expr) or (_call(expr), ATOM)


def _select(which: Expr, yes: Expr, no: Expr) -> tuple[str, int]:
    """`which ? yes : no`. An integer to which a constant is added if it is negative, as for indices, is an addition
    without a branch: add(x, which ? c : 0). Parts of complex numbers are selected separately: gcc does not vectorize a
    select of a whole one."""
    if yes.type in ("c64", "c128"):
        return _call(Apply("select", (which, yes, no), yes.type)), ATOM
    if (isinstance(yes, Apply) and yes.op == "add" and yes.type in ("s32", "s64") and isinstance(no, Var)
            and yes.arguments[0] == no and isinstance(yes.arguments[1], Const)):
        raised = Apply("select", (which, yes.arguments[1], Const(0, no.type)), no.type)
        return _call(Apply("add", (no, raised), no.type)), ATOM
    condition, on_true, on_false = (_inside(a, TERNARY + 1) for a in (which, yes, no))
    return f"{condition} ? {on_true} : {on_false}", TERNARY


def _infix(expr: Apply) -> tuple[str, int] | None:
    type = expr.arguments[-1].type
    if expr.op in INFIX and (type == INDEX or (type in ("f32", "f64") and expr.op != "remainder")):
        sign, strength = INFIX[expr.op]
    elif expr.op in COMPARISONS and type not in ("c64", "c128"):
        sign, strength = COMPARISONS[expr.op]
    elif expr.op in PREDICATES and type == "pred":
        sign, strength = PREDICATES[expr.op]
    elif expr.op == "negate" and type in ("f32", "f64"):
        text = _inside(expr.arguments[0], UNARY)
        return ("- " if text.startswith("-") else "-") + text, UNARY
    else:
        return None
    left_strength = 11 if strength < 9 else strength          # & and | around comparisons: parentheses, for readers
    right_strength = 11 if strength < 9 else strength + 1
    return f"{_inside(expr.arguments[0], left_strength)} {sign} {_inside(expr.arguments[1], right_strength)}", strength


def _inside(expr: Expr, least: int) -> str:
    text, strength = _print(expr)
    return text if strength >= least else f"({text})"


def _call(expr: Apply) -> str:
    arguments = [expression(a) for a in expr.arguments] + [str(i) for i in expr.immediate]
    if expr.op == "stochastic_convert":
        return f"hloc_stochastic_convert_{expr.arguments[0].type}_{expr.type}({', '.join(arguments)})"
    return f"hloc_{expr.op}_{expr.arguments[-1].type}({', '.join(arguments)})"


def _convert(value: Expr, target: str) -> tuple[str, int]:
    """A conversion between element types; narrow types go through their computation type."""
    source = value.type
    if target == "f32" and source in ROUNDED and isinstance(value, Apply) and value.op.startswith("convert"):
        inner, held = value.arguments[0], "_held" if value.op == "convert_held" else ""
        if inner.type == "f32":
            return f"hloc_round_{source}_f32{held}({expression(inner)})", ATOM
    if target == "bf16" and isinstance(value, Apply) and value.op == "convert" and source == "f32" \
            and value.arguments[0].type in EXACT_IN_BF16:
        return f"hloc_exact_f32_to_bf16({expression(value)})", ATOM
    if INDEX in (source, target) or {source, target} == {"f32", "f64"}:
        return f"({c_type(target)}){_inside(value, UNARY)}", UNARY
    if source == "pred" and (is_narrow(target) and ELEMENT_TYPES[target].kind == "float"
                             or target in SIMPLE_TYPES and not isinstance(value, Load)):
        one, zero = (literal(Const(x, target))[0] for x in (1, 0))      # avoids bytes in vector code
        return f"{_inside(value, TERNARY + 1)} ? {one} : {zero}", TERNARY
    text = expression(value)
    if is_narrow(source):
        wide = _form_beside(source, target)
        text, source = f"hloc_{source}_to_{wide}({text})", wide
    if not is_narrow(target):
        return (text if source == target else f"hloc_convert_{source}_{target}({text})"), ATOM
    wide = _form_beside(target, source)
    if source == "f64" and wide == "f32":
        text = f"hloc_f64_to_f32_odd({text})"
    elif source != wide:
        text = f"hloc_convert_{source}_{wide}({text})"
    return f"hloc_{wide}_to_{target}({text})", ATOM


def _form_beside(narrow: str, other: str) -> str:
    """The type through which a narrow type is converted to or from another: f32 if it is computed in f32, which holds
    all its values (f8e8m0fnu is computed in f64)."""
    return "f32" if computation_type(other) == "f32" else computation_type(narrow)


def _bitcast(value: Expr, target: str) -> str:
    """The same bits as another type of the same width."""
    text, source = expression(value), value.type
    if source in ("f32", "f64"):
        text = f"hloc_bits_{source}({text})"
    if target in ("f32", "f64"):
        return f"hloc_from_bits_{target}({text})"
    return f"({c_type(target)})({text})"


def _bits_read(load: Load) -> tuple[str, int]:
    """An integer that is loaded as a float of its size."""
    float_type = f"f{ELEMENT_TYPES[load.type].bits}"
    text = f"hloc_bits_{float_type}(((const hloc_any_{float_type} *){load.buffer})[{expression(load.position)}])"
    return f"({c_type(load.type)}){text}", UNARY


def literal(const: Const) -> tuple[str, int]:
    """A C literal of exactly the constant's value."""
    value, type = const
    if type == INDEX:
        return str(value), ATOM if value >= 0 else UNARY
    kind = ELEMENT_TYPES[type].kind
    if kind == "pred":
        return ("1" if value else "0"), ATOM
    if kind == "complex":
        part = "f32" if type == "c64" else "f64"
        return f"hloc_complex_{part}({_float(value.real, part)}, {_float(value.imag, part)})", ATOM
    if kind in ("signed", "unsigned"):
        text = _integer(int(value), type)
    elif is_narrow(type):
        stored = np.asarray(value, numpy_dtype(type))
        text = hex(int(stored.reshape(1).view(np.uint16 if stored.itemsize == 2 else np.uint8)[0]))
    else:
        text = _float(float(value), type)
    return text, UNARY if text.startswith("-") else ATOM


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


# -- statements --------------------------------------------------------------------------------------------------------

@dataclass
class StatementPrinter:
    """Prints statements of one function, line by line. `reassociable`: Mutables that a VECTOR loop may reduce."""

    dialect: Dialect
    lines: list[str] = field(default_factory=list)
    reassociable: dict[str, tuple[str, str]] = field(default_factory=dict)

    def line(self, indent: int, text: str) -> None:
        self.lines.append("  " * indent + text)

    def statements(self, statements: Iterable[Stmt], indent: int) -> None:
        for statement in statements:
            self.WRITERS[type(statement)](self, statement, indent)

    def let(self, s: Let, indent: int) -> None:
        self.line(indent, f"const {c_type(s.value.type)} {s.name} = {expression(s.value)};")

    def mutable(self, s: Mutable, indent: int) -> None:
        if s.reassociable:
            self.reassociable[s.name] = (s.reassociable, s.initial.type)
        self.line(indent, f"{c_type(s.initial.type)} {s.name} = {expression(s.initial)};")

    def assign(self, s: Assign, indent: int) -> None:
        self.line(indent, f"{s.name} = {expression(s.value)};")

    def store(self, s: Store, indent: int) -> None:
        self.line(indent, f"{s.buffer}[{expression(s.position)}] = {expression(s.value)};")

    def local(self, s: Local, indent: int) -> None:
        aligned = "" if self.dialect.threads else " __attribute__((aligned(64)))"
        zeros = " = {}" if s.size <= self.dialect.zeroed else ""
        self.line(indent, f"{c_type(s.type)} {s.name}[{s.size}]{aligned}{zeros};")

    def condition(self, s: If, indent: int) -> None:
        self.line(indent, f"if ({expression(s.condition)}) {{")
        self.statements(s.then, indent + 1)
        if s.otherwise:
            self.line(indent, "} else {")
            self.statements(s.otherwise, indent + 1)
        self.line(indent, "}")

    def while_(self, s: While, indent: int) -> None:
        self.line(indent, f"while ({expression(s.condition)}) {{")
        self.statements(s.body, indent + 1)
        self.line(indent, "}")

    def loop(self, s: For, indent: int) -> None:
        if s.kind == PARALLEL:
            self.parallel(s, indent)
            return
        if s.kind == VECTOR and self.dialect.vector_pragma:
            lanes = f" simdlen({s.lanes})" if s.lanes else ""
            self.line(indent, f"#pragma omp simd{lanes}{self.reductions(s)}")
        extent = str(s.extent) if isinstance(s.extent, int) else _inside(s.extent, 11)
        self.line(indent, f"for (long {s.name} = 0; {s.name} < {extent}; {s.name}++) {{")
        self.statements(s.body, indent + 1)
        self.line(indent, "}")

    def reductions(self, loop: For) -> str:
        """The reduction clauses for the reassociable Mutables that the loop assigns."""
        clauses = []
        for name in sorted(assigned(loop.body) & self.reassociable.keys()):
            op, type = self.reassociable[name]
            clauses.append(f" reduction({simd_reduction(op, type) or f'hloc_{op}_{type}'}:{name})")
        return "".join(clauses)

    def parallel(self, s: For, indent: int) -> None:
        if not self.dialect.threads:
            self.line(indent, f"for (long {s.name} = begin; {s.name} < end; {s.name}++) {{")
            self.statements(s.body, indent + 1)
        else:
            self.grid(s, indent)
        self.line(indent, "}")

    def grid(self, s: For, indent: int) -> None:
        """A grid-stride loop, collapsed with a VECTOR loop that is its whole body, so that each thread has one
        element."""
        start, step = "blockIdx.x * (long)blockDim.x + threadIdx.x", "(long)gridDim.x * blockDim.x"
        inner = s.body[0] if len(s.body) == 1 and isinstance(s.body[0], For) else None
        if inner is None or inner.kind != VECTOR or not isinstance(inner.extent, int):
            self.line(indent, f"for (long {s.name} = {start}; {s.name} < {s.extent}; {s.name} += {step}) {{")
            self.statements(s.body, indent + 1)
            return
        total = s.extent * inner.extent
        self.line(indent, f"for (long thread = {start}; thread < {total}; thread += {step}) {{")
        self.line(indent + 1, f"const long {s.name} = thread / {inner.extent}, {inner.name} = thread % {inner.extent};")
        self.statements(inner.body, indent + 1)

    def shared(self, s: Shared, indent: int) -> None:
        self._needs(self.dialect.shared, "shared memory")
        self.line(indent, f"{self.dialect.shared} {c_type(s.type)} {s.name}[{s.size}];")

    def barrier(self, s: Barrier, indent: int) -> None:
        self._needs(self.dialect.barrier, "a barrier")
        self.line(indent, self.dialect.barrier)

    def atomic(self, s: Atomic, indent: int) -> None:
        place = Load(s.buffer, s.position, s.value.type)
        if not self.dialect.threads:
            self.store(Store(s.buffer, s.position, Apply(s.op, (place, s.value), s.value.type)), indent)
            return
        form = dict(self.dialect.atomics).get(s.op, "")
        self._needs(form, f"an atomic {s.op}")
        self.line(indent, form.format(expression(place), expression(s.value)))

    def _needs(self, text: str, what: str) -> None:
        if not text:
            raise UnsupportedError(f"{what} on target {self.dialect.name}")

    WRITERS = {Let: let, Mutable: mutable, Assign: assign, Store: store, Local: local, If: condition, While: while_,
               For: loop, Shared: shared, Barrier: barrier, Atomic: atomic}


def simd_reduction(op: str, type: str) -> str | None:
    """OpenMP's name of a reduction, whose lanes compilers join by shuffles, not one by one; None if it has none."""
    is_integer = ELEMENT_TYPES[type].kind in ("signed", "unsigned")
    return SIMD_REDUCTIONS.get(op) or (SIMD_EXTREMA.get(op) if is_integer else None)


def assigned(statements: Iterable[Stmt]) -> set[str]:
    """Names of the Mutables that statements assign, nested ones too."""
    found: set[str] = set()
    stack = list(statements)
    while stack:
        top = stack.pop()
        if isinstance(top, Assign):
            found.add(top.name)
        elif isinstance(top, If):
            stack.extend(top.then + top.otherwise)
        elif isinstance(top, (For, While)):
            stack.extend(top.body)
    return found


def print_statements(statements: Iterable[Stmt], dialect: Dialect, indent: int = 1) -> str:
    """Statements as text, for templates that hold an epilogue or a comparator."""
    printer = StatementPrinter(dialect)
    printer.statements(statements, indent)
    return "\n".join(printer.lines)


# -- kernels -----------------------------------------------------------------------------------------------------------

def print_kernel(kernel: Kernel, dialect: Dialect, name: str, qualifier: str = "",
                 printer: StatementPrinter | None = None) -> str:
    """A whole kernel as a function called `name`; `qualifier` precedes its type, in C. printer: the target's class."""
    printer = printer or StatementPrinter(dialect)
    ranged = any(isinstance(s, For) and s.kind == PARALLEL for s in kernel.body)
    printer.lines.extend(comment(kernel.origin))
    if dialect.threads:
        parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in kernel.buffers)
        printer.line(0, f'extern "C" __global__ void {name}({parameters}) {{')
        if not ranged:
            printer.line(1, "if (blockIdx.x != 0 || threadIdx.x != 0) return;")
    else:
        printer.line(0, f"{qualifier}void {name}(void *const *buffers, long begin, long end) {{")
        printer.lines.extend(buffer_declarations(kernel.buffers))
        if not ranged:
            printer.line(1, "(void)begin, (void)end;")
    declare_reductions(kernel, printer)
    printer.statements(kernel.body, 1)
    printer.line(0, "}")
    return "\n".join(printer.lines) + "\n"


def declare_reductions(kernel: Kernel, printer: StatementPrinter) -> None:
    """OpenMP has no maximum that keeps NaN: declare those that the kernel's VECTOR loops use."""
    if not printer.dialect.vector_pragma:
        return
    for op, type in sorted(_own_reductions(kernel.body)):
        c, function = c_type(type), f"hloc_{op}_{type}"
        printer.line(0, f"#pragma omp declare reduction({function} : {c} : omp_out = {function}(omp_out, omp_in)) "
                        "initializer(omp_priv = omp_orig)")


def _own_reductions(statements: Iterable[Stmt]) -> set[tuple[str, str]]:
    return {(s.reassociable, s.initial.type) for s in walk(statements)
            if isinstance(s, Mutable) and s.reassociable and not simd_reduction(s.reassociable, s.initial.type)}


def pointer_type(buffer: Buffer) -> str:
    return f"{'const ' if buffer.access == 'read' else ''}{c_type(buffer.type)} *"


def buffer_declarations(buffers: Iterable[Buffer]) -> list[str]:
    """Typed names for the entries of `buffers`."""
    return [f"  {pointer_type(b)}{b.name} = ({pointer_type(b).rstrip()})buffers[{n}];" for n, b in enumerate(buffers)]


def comment(lines: Iterable[str]) -> list[str]:
    """Text of the user's module as C comments: nothing in it can end the comment or join lines."""
    return [f"/* {escaped(line)} */" for line in lines]


def escaped(text: str) -> str:
    text = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    text = text.replace("\\", "/").replace("*/", "* /").replace("/*", "/ *")
    return re.sub(r"\?(?=\?)", "? ", text)                 # no trigraphs either
