"""Writes cholesky as loops over columns and matrix products.

    l = f32[256,256] cholesky(a), lower=true      =>   four panels of 64 columns; each is a dot with the panels before
                                                      it, and a while over its columns

Column j of a panel:  v = a[:, j] - l[:, :j] @ l[j, :j]^H,  l[:, j] = v / sqrt(v[j]). Only one triangle of `a` is read.
A matrix that is not positive definite becomes nan throughout.
"""
from __future__ import annotations

import numpy as np

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
        return Cholesky(module, instruction, rewriter).expand()
    return rewrite_module(module, visit, revisit=False)


class Cholesky:
    """One cholesky being written out. Matrices are the last two dimensions; `n` is their size."""

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
        if not lower:
            a = conjugate(e, e.transpose_last(a))
        factor = e.op("concatenate", *self.panels(a), dimensions=(self.rank - 1,)) if self.n > PANEL \
            else self.panels(a)[0]
        factor = self.nan_where_undefined(self.lower_part(e, factor))
        if not lower:
            factor = conjugate(e, e.transpose_last(factor))
        return e.convert(factor, self.instruction.shape.element_type)

    def panels(self, a: Instruction) -> list[Instruction]:
        """The factor, panel by panel, each with all n rows; rows above the diagonal hold no sense yet."""
        e, done = self.e, []
        for start in range(0, self.n, PANEL):
            limit = min(self.n, start + PANEL)
            rest = e.slice(a, {self.rank - 2: (start, self.n), self.rank - 1: (start, limit)})
            for before in done:
                rows = e.slice(before, {self.rank - 2: (start, self.n)})
                block = e.slice(before, {self.rank - 2: (start, limit)})
                rest = e.op("subtract", rest, e.matrix_product(rows, conjugate(e, e.transpose_last(block))))
            panel = self.columns(rest)
            done.append(e.pad(panel, 0, [(0, 0)] * (self.rank - 2) + [(start, 0), (0, 0)]) if start else panel)
        return done

    def columns(self, a: Instruction) -> Instruction:
        """The factor of a panel whose diagonal block is its upper end, column by column."""
        empty = self.e.like(0, a)
        count = a.shape.dimensions[-1]
        return self.e.loop(self.module, count, [empty], self.column, [a])[0]

    def column(self, e: Expressions, j: Instruction, factor: Instruction, a: Instruction) -> list[Instruction]:
        """Put column `j` in. Columns that are not there yet are zero, so the product takes the whole panel."""
        row = conjugate(e, e.transpose_last(e.take(factor, j, self.rank - 2)))
        value = e.op("subtract", e.take(a, j, self.rank - 1), e.matrix_product(factor, row))
        square = e.take(value, j, self.rank - 2)
        diagonal = e.op("sqrt", real(e, square))
        whole = as_type(e, diagonal, self.type)
        scaled = e.op("divide", value, e.broadcast(e.reshape(whole, *self.batch), range(len(self.batch)),
                                                   value.shape.dimensions))
        place = e.iota("s32", value.shape.dimensions, self.rank - 2)
        here = e.spread(j, place.shape)
        below = e.chosen(e.compare(place, "GT", here), scaled, e.like(0, value))
        pivot = e.broadcast(e.reshape(whole, *self.batch), range(len(self.batch)), value.shape.dimensions)
        filled = e.chosen(e.compare(place, "EQ", here), pivot, below)
        return [e.put(factor, filled, j, self.rank - 1)]

    def lower_part(self, e: Expressions, factor: Instruction) -> Instruction:
        rows = e.iota("s32", factor.shape.dimensions, self.rank - 2)
        columns = e.iota("s32", factor.shape.dimensions, self.rank - 1)
        return e.chosen(e.compare(rows, "GE", columns), factor, e.like(0, factor))

    def nan_where_undefined(self, factor: Instruction) -> Instruction:
        """All of a matrix nan where its diagonal is not positive: the root of something negative was taken."""
        e, last = self.e, (self.rank - 2, self.rank - 1)
        rows = e.iota("s32", factor.shape.dimensions, last[0])
        columns = e.iota("s32", factor.shape.dimensions, last[1])
        values = real(e, factor)
        good = e.op("or", e.compare(rows, "NE", columns), e.compare(values, "GT", e.like(0, values)))
        every = e.reduce(self.module, good, "and", last, True)
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
