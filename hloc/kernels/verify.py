"""The loop IR's verifier: every rule of hloc/kernels/ir.py, checked on one kernel.

In: a Kernel. Out: nothing, or a KernelError that names the kernel, the rule and the statement. Lowerings are trusted
code: this runs in tests and on request, not on every compilation.
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.indexing import sum_of, sum_parts
from hloc.kernels.operations import CONVERSIONS, result_type, takes_stored
from hloc.kernels.scalars import is_narrow
from hloc.kernels.vectors import ACROSS_LANES, element_of, fault, is_vector, lanes_of
from hloc.kernels.walks import bodies, expressions, parts


class KernelError(Exception):
    """A kernel breaks a rule of the loop IR: a defect of the lowering that made it."""


class _Verifier:
    """names: variables in scope -> type; arrays: buffers and locals -> (element type, may be written)."""

    def __init__(self, kernel: ir.Kernel):
        self.kernel = kernel
        self.names: dict[str, str] = {}
        self.mutable: set[str] = set()
        self.arrays = {b.name: (b.type, b.access != "read") for b in kernel.buffers}

    def fail(self, message: str, where: object) -> None:
        raise KernelError(f"kernel {self.kernel.name}: {message}: {str(where)[:200]}")

    def check(self, condition: bool, message: str, where: object) -> None:
        if not condition:
            self.fail(message, where)

    # -- expressions

    def expression(self, root: ir.Expr) -> None:
        for expr in parts([root]):
            if isinstance(expr, ir.Var):
                self.check(self.names.get(expr.name) == expr.type, "unknown name or wrong type", expr)
            elif isinstance(expr, ir.Load):
                self.check(expr.buffer in self.arrays, "unknown buffer", expr)
                self.check(self.arrays[expr.buffer][0] == element_of(expr.type), "wrong element type", expr)
                self.check(expr.position.type == ir.INDEX, "position is not an index", expr)
            elif isinstance(expr, ir.Apply):
                self.apply(expr)
            else:
                self.check(isinstance(expr, ir.Const), "not an expression", expr)

    def apply(self, expr: ir.Apply) -> None:
        """An operation, which on vectors does as on their elements, in all lanes; or goes across lanes."""
        types = [a.type for a in expr.arguments]
        self.check(bool(types), "no arguments", expr)
        of_vectors = any(map(is_vector, (*types, expr.type)))
        if of_vectors:
            wrong = fault(expr.op, types, expr.type, expr.immediate)
            self.check(not wrong, wrong, expr)
        if expr.op in CONVERSIONS:
            self.check(of_vectors or len(types) == 1 + (expr.op == "stochastic_convert"),
                       "wrong number of arguments", expr)
        if expr.op in CONVERSIONS or expr.op in ACROSS_LANES:
            return
        values = types[1:] if expr.op == "select" else types
        self.check(expr.op != "select" or of_vectors or types[0] == "pred", "select(pred, T, T) gives T", expr)
        self.check(len(set(values)) == 1, "arguments differ in type", expr)
        element = element_of(values[0])
        if element == ir.INDEX:
            self.check(expr.op in ir.INDEX_OPS, "not an index operation", expr)
            self.check(expr.op != ir.SUM or sum_of(*sum_parts(expr)) == expr, "not as indexing.sum_of makes it", expr)
            self.check(expr.op != "multiply" or not any(isinstance(a, ir.Const) for a in expr.arguments),
                       "a multiple that is not a sum", expr)
        else:
            self.check(takes_stored(expr.op) or element not in ELEMENT_TYPES or not is_narrow(element),
                       "arithmetic on a storage type", expr)
        self.check(expr.type == result_type(expr.op, types), "not the type that this operation gives", expr)

    # -- statements

    def statements(self, body: Iterable[ir.Stmt], parallel: bool = False, vector: bool = False,
                   loop: ir.For | None = None) -> None:
        """The body of a loop, if there is one, or other statements in a scope of their own. parallel: a PARALLEL loop
        may stand here; vector: inside a VECTOR loop."""
        names, mutable, arrays = dict(self.names), set(self.mutable), dict(self.arrays)
        if loop:
            self.define(loop.name, ir.INDEX, loop)
            self.mutable = set() if loop.kind == ir.PARALLEL else self.mutable
        for statement in body:
            self.statement(statement, parallel, vector)
        self.names, self.mutable, self.arrays = names, mutable, arrays

    def define(self, name: str, type: str, where: object) -> None:
        self.check(name not in self.names and name not in self.arrays, "name defined twice", where)
        self.names[name] = type

    def statement(self, s: ir.Stmt, parallel: bool, vector: bool) -> None:
        for e in expressions(s):
            self.expression(e)
        if isinstance(s, ir.Let):
            self.define(s.name, s.value.type, s)
        elif isinstance(s, ir.Mutable):
            self.define(s.name, s.initial.type, s)
            self.mutable.add(s.name)
        elif isinstance(s, ir.Assign):
            self.check(s.name in self.mutable, "assignment to what is not mutable", s)
            self.check(s.value.type == self.names[s.name], "assignment of another type", s)
        elif isinstance(s, (ir.Store, ir.Atomic)):
            self.store(s)
        elif isinstance(s, (ir.Local, ir.Shared)):
            self.check(s.name not in self.arrays and s.name not in self.names, "name defined twice", s)
            self.arrays[s.name] = (s.type, True)
        elif isinstance(s, ir.If):
            self.check(s.condition.type == "pred", "the condition is not a pred", s)
        elif isinstance(s, ir.Last):
            self.check(not vector and s.groups > 0 and s.count > 0, "a group of no iterations, or in a VECTOR loop", s)
            self.check(s.position.type == ir.INDEX, "the number of a group is not an index", s)
        elif isinstance(s, (ir.For, ir.While)):
            self.check(not vector, "a loop inside a VECTOR loop", s)
        else:
            self.check(isinstance(s, ir.Barrier), "not a statement", s)
        if isinstance(s, ir.For):
            self.loop(s, parallel)
            vector = s.kind == ir.VECTOR
        for body in bodies(s):
            self.statements(body, vector=vector, loop=s if isinstance(s, ir.For) else None)

    def store(self, s: ir.Store | ir.Atomic) -> None:
        self.check(s.buffer in self.arrays, "unknown buffer", s)
        type, writable = self.arrays[s.buffer]
        self.check(writable, "the buffer is read only", s)
        self.check(s.position.type == ir.INDEX, "position is not an index", s)
        self.check(element_of(s.value.type) == type, "value of another type than the buffer", s)
        self.check(isinstance(s, ir.Store) or lanes_of(s.value.type) == 1, "an atomic update by a vector", s)

    def loop(self, s: ir.For, parallel: bool) -> None:
        self.check(s.kind in (ir.PARALLEL, ir.SERIAL, ir.VECTOR), "unknown loop kind", s)
        self.check(s.kind != ir.PARALLEL or parallel, "a PARALLEL loop that is not outermost", s)
        if isinstance(s.extent, int):
            self.check(s.extent >= 0, "negative extent", s)
        else:
            self.check(s.kind != ir.PARALLEL, "a PARALLEL loop of unknown extent", s)
            self.check(s.extent.type == ir.INDEX, "extent is not an index", s)


def verify_kernel(kernel: ir.Kernel) -> None:
    """Raise KernelError where the kernel breaks a rule."""
    verifier = _Verifier(kernel)
    if sum(isinstance(s, ir.For) and s.kind == ir.PARALLEL for s in kernel.body) > 1:
        verifier.fail("more than one PARALLEL loop", kernel.name)
    verifier.statements(kernel.body, parallel=True)
