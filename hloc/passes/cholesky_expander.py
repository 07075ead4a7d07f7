"""Expands cholesky into loops over rows and matmuls; on the CPU only complex and small ones, others have a kernel.

    u = f32[256,256] cholesky(a)      =>   four panels of 64 rows; each is a dot with the panels before it, and a while
                                           over its rows

Row j of a panel:  v = a[j, :] - u[:j, j]^H @ u[:j, :],  u[j, :] = v / sqrt(v[j]): all accesses are along the rows. The
lower factor is found as the upper one of the transposed matrix. Only one triangle of `a` is read. A matrix that is not
positive definite becomes nan throughout. For the library kernel, types under f32 are converted to f32 and back.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloc.analysis.triangular import library_kernel_type
from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module

PANEL = 64
REAL = {"c64": "f32", "c128": "f64"}
NARROW = frozenset(["bf16", "f16"])


def cholesky_expander(module: Module, context: PassContext) -> bool:
    """True if there was a cholesky."""
    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if instruction.opcode != "cholesky" or instruction.shape.num_elements == 0:
            return None
        return by_library_kernel(instruction, context, rewriter,
                                 lambda: Cholesky(module, instruction, rewriter).expand())
    return rewrite_module(module, visit, revisit=False, expands=True)


def by_library_kernel(instruction: Instruction, context: PassContext, rewriter: Rewriter,
               expand: Callable[[], Instruction]) -> Instruction | None:
    """The instruction in a type of the CPU's library kernel, None if it has one; all others expanded."""
    type = instruction.shape.element_type
    wide = library_kernel_type(instruction) if context.target == "cpu" else None
    if wide is None:
        return expand()
    if wide == type:
        return None
    e = Expressions(rewriter, instruction.span)
    operands = [e.convert(operand, wide) for operand in instruction.operands]
    return e.convert(e.op(instruction.opcode, *operands, **instruction.attributes), type)


class Cholesky:
    """The expansion of one cholesky. Matrices are the last two dimensions; `n` is their size."""

    def __init__(self, module: Module, instruction: Instruction, rewriter: Rewriter):
        self.module, self.instruction = module, instruction
        self.e = Expressions(rewriter, instruction.span)
        self.type = "f32" if instruction.shape.element_type in NARROW else instruction.shape.element_type
        self.batch = instruction.shape.dimensions[:-2]
        self.rank = instruction.shape.rank
        self.n = instruction.shape.dimensions[-1]

    def expand(self) -> Instruction:
        e, lower = self.e, self.instruction.get("lower", False)
        a = e.convert(self.instruction.operands[0], self.type)
        if lower:
            a = conjugate(e, e.transpose_last(a))
        factor = e.op("concatenate", *self.panels(a), dimensions=(self.rank - 2,)) if self.n > PANEL \
            else self.panels(a)[0]
        factor = self.nan_where_undefined(self.upper_part(e, factor))
        if lower:
            factor = conjugate(e, e.transpose_last(factor))
        return e.convert(factor, self.instruction.shape.element_type)

    def panels(self, a: Instruction) -> list[Instruction]:
        """The factor, panel by panel, each with all n columns; elements left of the diagonal are not valid yet."""
        e = self.e
        done: list[Instruction] = []
        for start in range(0, self.n, PANEL):
            limit = min(self.n, start + PANEL)
            rest = e.slice(a, {self.rank - 2: (start, limit), self.rank - 1: (start, self.n)})
            for before in done:
                columns = e.slice(before, {self.rank - 1: (start, self.n)})
                block = e.slice(before, {self.rank - 1: (start, limit)})
                rest = e.op("subtract", rest, e.matrix_product(conjugate(e, e.transpose_last(block)), columns))
            panel = self.rows(rest)
            done.append(e.pad(panel, 0, [(0, 0)] * (self.rank - 1) + [(start, 0)]) if start else panel)
        return done

    def rows(self, a: Instruction) -> Instruction:
        """The factor of a panel whose diagonal block is its left end, row by row."""
        empty = self.e.like(0, a)
        count = a.shape.dimensions[-2]
        return self.e.loop(self.module, count, [empty], self.row, [a])[0]

    def row(self, e: Expressions, j: Instruction, factor: Instruction, a: Instruction) -> list[Instruction]:
        """Compute row `j`. Later rows are still zero, so the matmul reads the whole panel."""
        column = conjugate(e, e.transpose_last(e.take(factor, j, self.rank - 1)))
        value = e.op("subtract", e.take(a, j, self.rank - 2), e.matrix_product(column, factor))
        square = e.take(value, j, self.rank - 1)
        diagonal = e.op("sqrt", real(e, square))
        whole = as_type(e, diagonal, self.type)
        scaled = e.op("divide", value, e.broadcast(e.reshape(whole, *self.batch), range(len(self.batch)),
                                                   value.shape.dimensions))
        place = e.iota("s32", value.shape.dimensions, self.rank - 1)
        here = e.spread(j, place.shape)
        behind = e.chosen(e.compare(place, "GT", here), scaled, e.like(0, value))
        pivot = e.broadcast(e.reshape(whole, *self.batch), range(len(self.batch)), value.shape.dimensions)
        filled = e.chosen(e.compare(place, "EQ", here), pivot, behind)
        return [e.put(factor, filled, j, self.rank - 2)]

    def upper_part(self, e: Expressions, factor: Instruction) -> Instruction:
        rows = e.iota("s32", factor.shape.dimensions, self.rank - 2)
        columns = e.iota("s32", factor.shape.dimensions, self.rank - 1)
        return e.chosen(e.compare(rows, "LE", columns), factor, e.like(0, factor))

    def nan_where_undefined(self, factor: Instruction) -> Instruction:
        """Set a whole matrix to nan if its diagonal is not positive: a root of a negative number was taken."""
        e, last = self.e, self.rank - 2
        flat = real(e, e.reshape(factor, *self.batch, self.n * self.n))
        diagonal = e.slice(flat, {last: (0, self.n * self.n, self.n + 1)})
        good = e.compare(diagonal, "GT", e.like(0, diagonal))
        every = e.reduce(self.module, good, "and", (last,), True)
        nan = complex(np.nan, np.nan) if self.type in REAL else np.nan
        every = e.broadcast(every, range(len(self.batch)), factor.shape.dimensions)
        return e.chosen(every, factor, e.like(nan, factor))


def conjugate(e: Expressions, x: Instruction) -> Instruction:
    """The complex conjugate; real arrays as they are."""
    if x.shape.element_type not in REAL:
        return x
    return e.op("complex", e.op("real", x), e.op("negate", e.op("imag", x)))


def real(e: Expressions, x: Instruction) -> Instruction:
    return e.op("real", x) if x.shape.element_type in REAL else x


def as_type(e: Expressions, x: Instruction, element_type: str) -> Instruction:
    """Real numbers as complex ones, where the matrix is complex."""
    return e.op("complex", x, e.like(0, x)) if element_type in REAL else x
