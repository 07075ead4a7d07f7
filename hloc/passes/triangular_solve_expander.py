"""Expands triangular-solve into loops over rows and matmuls; on the CPU only complex and small ones.

    x = f32[256,8] triangular-solve(a, b), left_side=true, lower=true   =>   four blocks of 64 rows; each subtracts a
                                                     dot with the rows known so far, and is solved by a while over rows

All forms come down to  a x = b  from the left: the right side transposes, transpose_a transposes, ADJOINT conjugates.
Row i of a block:  x[i] = (b[i] - a[i, known] @ x[known]) / a[i, i]. Only one triangle of `a` is read.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.passes.cholesky_expander import NARROW, by_library_kernel, conjugate
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module

BLOCK = 64


def triangular_solve_expander(module: Module, context: PassContext) -> bool:
    """True if there was a triangular-solve."""
    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if instruction.opcode != "triangular-solve" or instruction.shape.num_elements == 0:
            return None
        return by_library_kernel(instruction, context, rewriter,
                          lambda: TriangularSolve(module, instruction, rewriter).expand())
    return rewrite_module(module, visit, revisit=False, expands=True)


class TriangularSolve:
    """The expansion of one triangular-solve. `n` is the size of the matrix."""

    def __init__(self, module: Module, instruction: Instruction, rewriter: Rewriter):
        self.module, self.instruction = module, instruction
        self.e = Expressions(rewriter, instruction.span)
        self.type = "f32" if instruction.shape.element_type in NARROW else instruction.shape.element_type
        self.rank = instruction.shape.rank
        self.n = instruction.operands[0].shape.dimensions[-1]
        self.lower = instruction.get("lower", False)
        self.unit = instruction.get("unit_diagonal", False)

    def expand(self) -> Instruction:
        e, get = self.e, self.instruction.get
        a, b = (e.convert(o, self.type) for o in self.instruction.operands)
        left = get("left_side", False)
        transpose = get("transpose_a", "NO_TRANSPOSE")
        if transpose == "ADJOINT":
            a = conjugate(e, a)
        if (transpose != "NO_TRANSPOSE") == left:            # from the right, a is transposed once more
            a, self.lower = e.transpose_last(a), not self.lower
        x = self.blocks(a, b if left else e.transpose_last(b))
        return e.convert(x if left else e.transpose_last(x), self.instruction.shape.element_type)

    def blocks(self, a: Instruction, b: Instruction) -> Instruction:
        """x, block of rows by block of rows; an upper triangle is solved from below."""
        e = self.e
        ranges = [(start, min(self.n, start + BLOCK)) for start in range(0, self.n, BLOCK)]
        done: dict[tuple[int, int], Instruction] = {}
        for rows in ranges if self.lower else reversed(ranges):
            rest = e.slice(b, {self.rank - 2: rows})
            for known, x in done.items():
                part = e.slice(a, {self.rank - 2: rows, self.rank - 1: known})
                rest = e.op("subtract", rest, e.matrix_product(part, x))
            done[rows] = self.block(e.slice(a, {self.rank - 2: rows, self.rank - 1: rows}), rest)
        if len(ranges) == 1:
            return done[ranges[0]]
        return e.op("concatenate", *(done[r] for r in ranges), dimensions=(self.rank - 2,))

    def block(self, a: Instruction, b: Instruction) -> Instruction:
        """x for one diagonal block, row by row."""
        e, count = self.e, a.shape.dimensions[-1]
        rows = e.iota("s32", a.shape.dimensions, self.rank - 2)
        columns = e.iota("s32", a.shape.dimensions, self.rank - 1)
        strict = e.chosen(e.compare(rows, "GT" if self.lower else "LT", columns), a, e.like(0, a))
        constants = [strict, b]
        if not self.unit:
            constants.append(self.diagonal(a, rows, columns))
        return e.loop(self.module, count, [e.like(0, b)], self.row, constants)[0]

    def diagonal(self, a: Instruction, rows: Instruction, columns: Instruction) -> Instruction:
        """The diagonal as a column: [..., n, 1]."""
        e = self.e
        only = e.chosen(e.compare(rows, "EQ", columns), a, e.like(0, a))
        total = e.reduce(self.module, only, "add", (self.rank - 1,), 0)
        return e.reshape(total, *total.shape.dimensions, 1)

    def row(self, e: Expressions, step: Instruction, x: Instruction, strict: Instruction, b: Instruction,
            *diagonal: Instruction) -> list[Instruction]:
        """Compute one row of x. Later rows are still zero, so the matmul reads all of x."""
        last = strict.shape.dimensions[-1] - 1
        i = step if self.lower else e.op("subtract", e.constant(last, "s32"), step)
        known = e.matrix_product(e.take(strict, i, self.rank - 2), x)
        rest = e.op("subtract", e.take(b, i, self.rank - 2), known)
        for column in diagonal:
            pivot = e.take(column, i, self.rank - 2)
            flat = e.reshape(pivot, *pivot.shape.dimensions[:-2])
            rest = e.op("divide", rest, e.broadcast(flat, range(self.rank - 2), rest.shape.dimensions))
        return [e.put(x, rest, i, self.rank - 2)]
