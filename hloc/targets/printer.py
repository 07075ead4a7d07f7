"""Loop IR -> C or CUDA C.

In: a Kernel (hloc/kernels/ir.py). Out: one function. The differences of C and CUDA C are in a Dialect record.

    print_kernel(kernel, "k0_add")
      void k0_add(void *const *buffers, long begin, long end) {
        const float *in0 = buffers[0];
        ...
        for (long i0 = begin; i0 < end; i0++) {

Parameters are not `restrict`: a result may share the memory of an operand (an element is read before it is written).
VECTOR loops have `omp simd`, which allows compilers to vectorize them.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.vectors import is_vector
from hloc.kernels.walks import assigned, walk
from hloc.targets.c_expressions import COMPARED, ExpressionPrinter, c_type
from hloc.targets.vectors import store_text


class Dialect(NamedTuple):
    """The syntax of one C-family language.

    threads   of a GPU: its kernels are printed by cuda/loops/kernels.py
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
CUDA = Dialect("cuda", threads=True, vector_pragma=False, shared="__shared__ __align__(16)", barrier="__syncthreads();",
               atomics=tuple((op, f"hloc_atomic_{op}(&{{0}}, {{1}});")
                             for op in ("add", "minimum", "maximum", "and", "or", "xor")), zeroed=64)

SIMD_REDUCTIONS = {"add": "+", "multiply": "*", "and": "&", "or": "|", "xor": "^"}
SIMD_EXTREMA = {"maximum": "max", "minimum": "min"}         # of integers: those of floats keep NaN


@dataclass
class StatementPrinter(ExpressionPrinter):
    """Prints statements of one function, line by line. reassociable: Mutables that a VECTOR loop may reduce; loops: how
    many were printed."""

    dialect: Dialect
    lines: list[str] = field(default_factory=list)
    reassociable: dict[str, tuple[str, str]] = field(default_factory=dict)
    loops: int = 0

    def line(self, indent: int, text: str) -> None:
        self.lines.append("  " * indent + text)

    def statements(self, statements: Iterable[ir.Stmt], indent: int) -> None:
        for statement in statements:
            self.WRITERS[type(statement)](self, statement, indent)

    def block(self, statements: Iterable[ir.Stmt], indent: int) -> str:
        """Statements as text, which is not one of the printer's lines."""
        first = len(self.lines)
        self.statements(statements, indent)
        lines, self.lines = self.lines[first:], self.lines[:first]
        return "\n".join(lines)

    def let(self, s: ir.Let, indent: int) -> None:
        self.line(indent, f"const {self.c_type(s.value.type)} {s.name} = {self.expression(s.value)};")

    def mutable(self, s: ir.Mutable, indent: int) -> None:
        if s.reassociable:
            self.reassociable[s.name] = (s.reassociable, s.initial.type)
        self.line(indent, f"{self.c_type(s.initial.type)} {s.name} = {self.expression(s.initial)};")

    def assign(self, s: ir.Assign, indent: int) -> None:
        self.line(indent, f"{s.name} = {self.expression(s.value)};")

    def store(self, s: ir.Store, indent: int) -> None:
        if is_vector(s.value.type):
            self.line(indent, store_text(s.buffer, s.position, s.value, self.expression))
            return
        self.line(indent, f"{s.buffer}[{self.expression(s.position)}] = {self.expression(s.value)};")

    def local(self, s: ir.Local, indent: int) -> None:
        aligned = "" if self.dialect.threads else " __attribute__((aligned(64)))"
        zeros = " = {}" if s.size <= self.dialect.zeroed else ""
        self.line(indent, f"{self.c_type(s.type)} {s.name}[{s.size}]{aligned}{zeros};")

    def condition(self, s: ir.If, indent: int) -> None:
        self.line(indent, f"if ({self.expression(s.condition)}) {{")
        self.statements(s.then, indent + 1)
        if s.otherwise:
            self.line(indent, "} else {")
            self.statements(s.otherwise, indent + 1)
        self.line(indent, "}")

    def while_(self, s: ir.While, indent: int) -> None:
        self.line(indent, f"while ({self.expression(s.condition)}) {{")
        self.statements(s.body, indent + 1)
        self.line(indent, "}")

    def loop(self, s: ir.For, indent: int) -> None:
        self.loops += 1
        if s.kind == ir.PARALLEL:
            self.parallel(s, indent)
            return
        if s.kind == ir.VECTOR and self.dialect.vector_pragma:
            self.line(indent, f"#pragma omp simd{self.reductions(s)}")
        extent = str(s.extent) if isinstance(s.extent, int) else self.inside(s.extent, COMPARED)
        self.line(indent, f"for ({self.index} {s.name} = 0; {s.name} < {extent}; {s.name}++) {{")
        self.statements(s.body, indent + 1)
        self.line(indent, "}")

    def reductions(self, loop: ir.For) -> str:
        """The reduction clauses for the reassociable Mutables that the loop assigns."""
        clauses = []
        for name in sorted(assigned(loop.body) & self.reassociable.keys()):
            op, type = self.reassociable[name]
            clauses.append(f" reduction({simd_reduction(op, type) or f'hloc_{op}_{type}'}:{name})")
        return "".join(clauses)

    def parallel(self, s: ir.For, indent: int) -> None:
        self.line(indent, f"for (long {s.name} = begin; {s.name} < end; {s.name}++) {{")
        self.statements(s.body, indent + 1)
        self.line(indent, "}")

    def shared(self, s: ir.Shared, indent: int) -> None:
        self._needs(self.dialect.shared, "shared memory")
        self.line(indent, f"{self.dialect.shared} {self.c_type(s.type)} {s.name}[{s.size}];")

    def barrier(self, s: ir.Barrier, indent: int) -> None:
        self._needs(self.dialect.barrier, "a barrier")
        self.line(indent, self.dialect.barrier)

    def atomic(self, s: ir.Atomic, indent: int) -> None:
        place = ir.Load(s.buffer, s.position, s.value.type)
        if not self.dialect.threads:
            self.store(ir.Store(s.buffer, s.position, ir.Apply(s.op, (place, s.value), s.value.type)), indent)
            return
        form = dict(self.dialect.atomics).get(s.op, "")
        self._needs(form, f"an atomic {s.op}")
        self.line(indent, form.format(self.expression(place), self.expression(s.value)))

    def last(self, s: ir.Last, indent: int) -> None:
        self._needs("", "the last iteration of a group")

    def _needs(self, text: str, what: str) -> None:
        if not text:
            raise UnsupportedError(f"{what} on target {self.dialect.name}")

    WRITERS: ClassVar[dict[type, Callable[..., None]]] = {
        ir.Let: let, ir.Mutable: mutable, ir.Assign: assign, ir.Store: store, ir.Local: local, ir.If: condition,
        ir.While: while_, ir.For: loop, ir.Shared: shared, ir.Barrier: barrier, ir.Atomic: atomic, ir.Last: last}


def simd_reduction(op: str, type: str) -> str | None:
    """OpenMP's name of a reduction, whose lanes compilers join by shuffles, not one by one; None if it has none."""
    is_integer = ELEMENT_TYPES[type].kind in ("signed", "unsigned")
    return SIMD_REDUCTIONS.get(op) or (SIMD_EXTREMA.get(op) if is_integer else None)


def print_statements(statements: Iterable[ir.Stmt], dialect: Dialect, indent: int = 1) -> str:
    """Statements as text, for templates that hold an epilogue or a comparator."""
    return StatementPrinter(dialect).block(statements, indent)


# -- kernels -----------------------------------------------------------------------------------------------------------

def print_kernel(kernel: ir.Kernel, name: str, printer: StatementPrinter | None = None) -> str:
    """A whole kernel as a C function called `name`. printer: the target's class."""
    lines = [*comment(kernel.origin), signature(name), *kernel_body(kernel, printer or StatementPrinter(C))]
    return "\n".join(lines) + "\n"


def signature(name: str) -> str:
    """The first line of a kernel's function."""
    return f"void {name}(void *const *buffers, long begin, long end) {{"


def kernel_start(buffers: Iterable[ir.Buffer]) -> list[str]:
    """What a kernel of a GPU does first, before it touches any memory (cuda/early_start.py)."""
    return ["  hloc_let_next_start();", *(f"  hloc_prefetch({b.name}, {b.fetched}L);" for b in buffers if b.fetched),
            "  hloc_await_previous();"]


def kernel_body(kernel: ir.Kernel, printer: StatementPrinter) -> list[str]:
    """The other lines, which do not depend on its name."""
    printer.lines.extend(buffer_declarations(kernel.buffers))
    if not any(isinstance(s, ir.For) and s.kind == ir.PARALLEL for s in kernel.body):
        printer.line(1, "(void)begin, (void)end;")
    declare_reductions(kernel, printer)
    printer.statements(kernel.body, 1)
    return [*printer.lines, "}"]


def declare_reductions(kernel: ir.Kernel, printer: StatementPrinter) -> None:
    """OpenMP has no maximum that keeps NaN: declare those that the kernel's VECTOR loops use."""
    for op, type in sorted(_own_reductions(kernel.body)):
        joined = printer.call(f"{op}_{type}", "omp_out", "omp_in")
        printer.line(0, f"#pragma omp declare reduction(hloc_{op}_{type} : {c_type(type)} : omp_out = {joined}) "
                        "initializer(omp_priv = omp_orig)")


def _own_reductions(statements: Iterable[ir.Stmt]) -> set[tuple[str, str]]:
    return {(s.reassociable, s.initial.type) for s in walk(statements)
            if isinstance(s, ir.Mutable) and s.reassociable and not simd_reduction(s.reassociable, s.initial.type)}


def pointer_type(buffer: ir.Buffer) -> str:
    return f"{'const ' if buffer.access == 'read' else ''}{c_type(buffer.type)} *"


def buffer_declarations(buffers: Iterable[ir.Buffer]) -> list[str]:
    """Typed names for the entries of `buffers`."""
    return [f"  {pointer_type(b)}{b.name} = ({pointer_type(b).rstrip()})buffers[{n}];" for n, b in enumerate(buffers)]


def comment(lines: Iterable[str]) -> list[str]:
    """Text of the user's module as C comments: nothing in it can end the comment or join lines."""
    return [f"/* {escaped(line)} */" for line in lines]


def escaped(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    text = text.replace("\\", "/").replace("*/", "* /").replace("/*", "/ *")
    return re.sub(r"\?(?=\?)", "? ", text)                 # no trigraphs either
