"""Scores of attention: C functions that change a tile of sums in place, each written once.

In: an attention Tile, whose epilogue computes the score from a sum in loop IR (hloc/kernels/attention/attention.py).
Out: a Score: the C function (see runtime/attention.h) and the orientation of its tiles. If the score is one of two
values by a mask that does not depend on the sum, there is a second function: whether any element of a tile is unmasked.

    select(in3[column], acc * 0.125, -1e30)   ->   hloc_score_1f2e(...), masked = -1e30, hloc_score_1f2e_live(...)
"""
from __future__ import annotations

import hashlib
from typing import NamedTuple

from hloc.kernels.attention.score_masks import is_needed, mask_of, names_in
from hloc.kernels.indexing import sum_parts
from hloc.kernels.ir import INDEX, Expr, Let, Tile, Var
from hloc.kernels.walks import loads
from hloc.targets.c_function import c_function
from hloc.targets.cpu.tiles.epilogues import Epilogue, with_names
from hloc.targets.printer import C, StatementPrinter, buffer_declarations

OPERANDS = 3                     # buffers before those that the score reads
LARGEST_INT = (1 << 31) - 1
TILE = "float *tile, long row_stride, long column_stride"
PLACE = "long batch, long first_row, long first_column, long rows, long columns"


class Score(NamedTuple):
    """function: its name is the base of both; masked: the value of masked elements, or None; by_columns: a tile's
    columns should be contiguous, since those of the arrays read are."""

    function: Epilogue
    masked: float | None
    by_columns: bool

    @property
    def declaration(self) -> str:
        name = self.function.name
        live = f"int {name}_live(void *const *given, {PLACE});\n" if self.masked is not None else ""
        return f"void {name}(void *const *given, {PLACE},\n    {TILE});\n{live}"


def score_of(tile: Tile) -> Score | None:
    """The score of an attention; None if it is the sum itself."""
    if tile.epilogue == (Let("score", Var("acc", "f32")),):
        return None
    sizes: dict[int, str] = {}
    statements = with_names(tile.epilogue, sizes)
    mask = mask_of(statements)
    used = [s for s in statements[:-1] if mask and isinstance(s, Let) and is_needed(s, statements, mask[0])]
    head = ["  void *const *buffers = given[0];",
            *(f"  const long {name} = ((const long *)given[1])[{n}];" for n, name in enumerate(sizes.values())),
            *buffer_declarations(tile.buffers)[OPERANDS:-1], "  (void)batch, (void)buffers;"]
    counter = "int" if max(dict(tile.parameters)["sizes"]) <= LARGEST_INT else "long"
    printer = StatementPrinter(C)
    score = _function(head, counter, printer.block(statements, 3))
    live = _live(head, counter, printer.block(used, 3), printer.expression(mask[0])) if mask else ""
    printer.loops = 6 if mask else 4
    name = f"hloc_score_{hashlib.sha256((score + live).encode()).hexdigest()[:10]}"
    text = f"void {name}{score}" + (f"int {name}_live{live}" if mask else "")
    by_columns = any(_walks(load.position, statements) for load in loads(statements))
    return Score(Epilogue(c_function(name, [text], printer), tuple(sizes)), mask[1] if mask else None, by_columns)


def _function(head: list[str], counter: str, statements: str) -> str:
    """In a tile either rows or columns are contiguous: there is a loop for each."""
    lines = [f"(void *const *given, {PLACE},", f"    {TILE}) {{", *head]
    for outer, inner in (("row", "column"), ("column", "row")):
        lines += [
            f"  {'if (column_stride == 1) ' if inner == 'column' else 'else '}for (long o = 0; o < {outer}s; o++) {{",
            f"    float *line = tile + o * {outer}_stride;",
            f"    const {counter} {outer} = first_{outer} + o, first = first_{inner}, count = {inner}s;",
            "    #pragma omp simd",
            f"    for ({counter} i = 0; i < count; i++) {{",
            f"      const {counter} {inner} = first + i;",
            "      const float acc = line[i];",
            statements,
            "      line[i] = score;",
            "      (void)row, (void)column;",
            "    }",
            "  }"]
    return "\n".join([*lines, "}", ""])


def _live(head: list[str], counter: str, statements: str, condition: str) -> str:
    """Whether the mask is true anywhere in a tile."""
    return "\n".join([
        f"(void *const *given, {PLACE}) {{", *head,
        "  for (long o = 0; o < rows; o++) {",
        f"    const {counter} row = first_row + o, first = first_column, count = columns;",
        "    int any = 0;",
        "    (void)row;",
        "    #pragma omp simd reduction(|:any)",
        f"    for ({counter} i = 0; i < count; i++) {{",
        f"      const {counter} column = first + i;",
        "      (void)column;",
        statements,
        f"      any |= {condition} ? 1 : 0;",
        "    }",
        "    if (any) return 1;",
        "  }",
        "  return 0;",
        "}", ""])


# -- analysis of the statements ----------------------------------------------------------------------------------------

def _walks(position: Expr, statements: tuple) -> bool:
    """Whether a position moves with the row, and by more than one element."""
    lets = {s.name: s.value for s in statements if isinstance(s, Let)}
    return "row" in names_in(position, lets) and not _is_row_itself(position)


def _is_row_itself(position: Expr) -> bool:
    """row, or row plus an expression that does not depend on it."""
    holding = [(atom, factor) for atom, factor in sum_parts(position)[0] if "row" in names_in(atom, {})]
    return holding == [(Var("row", INDEX), 1)]
