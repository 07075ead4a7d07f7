"""The Tile of the library kernel "gemm", of a product with one dimension of each kind.

Tile "gemm": C[b, i, j] = sum over k of A[b, i, k] B[b, k, j], b = outer * inner_batches + inner. Buffers: "lhs", "rhs",
what the epilogue reads, what is written. Parameters (strides in elements, offsets are of the first element):
    types      (element type of the operands (buffers say where rhs has another), type of the sums)
    sizes      (m, n, k)
    batches    (outer, inner)
    lhs        (offset, outer, inner, row, column)      column goes with k; with a prologue, strides as if contiguous
    rhs        (offset, outer, inner, row, column)      row goes with k
    result     (outer, inner, row, column) of buffer "out0", used without an epilogue
    algorithm  the dot's own attribute, if it has one and the machine is a GPU
Epilogue: statements over INDEX Vars "batch", "row", "column" and Var("acc", type of the sums), run for every element.
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.analysis.prologues import multiply_adds
from hloc.ir import Instruction
from hloc.kernels import indexing
from hloc.kernels.group import KernelCall, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Prologue
from hloc.kernels.products.epilogues import algorithm_fact, call_of, epilogue_statements, stores_itself
from hloc.kernels.products.operands import SIDES, Access, OperandKernels

Line = tuple[int, int, int, int]            # size, and strides in the left array, the right one and the result
Lines = tuple[Line, Line, Line, Line, Line]         # outer and inner batch, rows, columns, terms of sums


def lines_of(batch: list, rows: list, columns: list, summed: list) -> Lines | None:
    """Those of a product with such dimensions, outermost first; None if there are too many."""
    if len(batch) > 2 or max(map(len, (rows, columns, summed))) > 1:
        return None
    one = (1, 0, 0, 0)
    outer, inner = ([one, one] + batch)[-2:]
    return outer, inner, (rows or [one])[0], (columns or [one])[0], (summed or [one])[0]


def gemm_call(operands: OperandKernels, hero: Instruction, total: str, sides: Sequence[Access], lines: Lines,
              outline: Outline, prologues: Sequence[tuple[Prologue, Outline]] = (), more: tuple = ()) -> KernelCall:
    """total: the type of the sums; outline: with what else the tile reads; more: parameters."""
    (lhs, rhs), (outer, inner, row, column, summed), type = sides, lines, sides[0].type
    epilogue = () if stores_itself(outline, hero, type, total) else \
        epilogue_statements(outline, hero, total, _position(lines))
    parameters = (("types", (type, total)), ("sizes", (row[0], column[0], summed[0])),
                  ("batches", (outer[0], inner[0])),
                  ("lhs", (lhs.offset, outer[1], inner[1], row[1], summed[1])),
                  ("rhs", (rhs.offset, outer[2], inner[2], summed[2], column[2])),
                  ("result", (outer[3], inner[3], row[3], column[3])), *more,
                  *algorithm_fact(hero, operands.machine))
    return call_of(operands.group, "gemm", tuple(zip(SIDES, sides)), [*(own for _, own in prologues), outline],
                   parameters, epilogue, multiply_adds(hero), tuple(p for p, _ in prologues))


def _position(lines: Lines) -> Index:
    """The flat position in the result of (batch, row, column)."""
    outer, inner, row, column, _ = lines
    batch = indexing.variable("batch", outer[0] * inner[0])
    parts = (indexing.floor_divide(batch, inner[0]), indexing.modulo(batch, inner[0]),
             indexing.variable("row", row[0]), indexing.variable("column", column[0]))
    return indexing.strided(parts, (outer[3], inner[3], row[3], column[3]))
