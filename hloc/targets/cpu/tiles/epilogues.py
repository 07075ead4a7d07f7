"""Epilogues of products and convolutions: C functions that turn a finished tile of sums into stores, each written once.

In: a Tile with an epilogue in loop IR. Out: an Epilogue. Its name comes from its text, and its text has names in place
of sizes, which the caller hands over: fifty convolutions followed by the same activation share one function.

    out0[row * 1024 + column] = ...   ->   sizes (1024,) and   out0[row * n0 + column] = ...

What is one for a row stands in front of the loop over its columns: compilers cannot tell that what they store is not
what is loaded there, and a place found in data would make gathers of loads that lie side by side.
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from hloc.kernels.ir import INDEX, Apply, Const, Expr, For, If, Let, Load, Stmt, Tile, Var
from hloc.kernels.walks import parts, with_expressions, with_parts
from hloc.targets.cpu.vector_loops.vector_width import computes_much
from hloc.targets.printer import C, buffer_declarations, c_type, print_statements

SMALL = 16            # such factors, and all divisors, stay in the text: compilers make shifts of them
PARAMETERS = ("long batch, long first_row, long first_column, long rows,",
              "    long columns, const void *tile, long tile_stride")


class Epilogue(NamedTuple):
    """name and text of the C function; sizes: what the caller's array of sizes holds."""

    name: str
    text: str
    sizes: tuple[int, ...]

    @property
    def declaration(self) -> str:
        return f"void {self.name}(void *const *given, {PARAMETERS[0]}\n{PARAMETERS[1]});\n"

    def arguments(self) -> str:
        """The statement of a caller that makes `given`: the buffers, then the sizes."""
        sizes = ", ".join(f"{n}L" for n in self.sizes) or "0"
        return f"void *const given[] = {{(void *)buffers, (void *)(const long[]){{{sizes}}}}};"


def epilogue_of(tile: Tile) -> Epilogue | None:
    """The epilogue of a product or convolution; whole tiles have a number of columns known to the compiler."""
    if not tile.epilogue:
        return None
    sizes: dict[int, str] = {}
    of_row, of_column = (with_names(part, sizes) for part in by_row(
        tile.epilogue, {b.name for b in tile.buffers if b.access == "read"}))
    total = dict(tile.parameters)["types"][1]
    columns = "\n".join([
        f"(void *const *given, {PARAMETERS[0]}", f"{PARAMETERS[1]}) {{",
        "  void *const *buffers = given[0];",
        *(f"  const long {name} = ((const long *)given[1])[{n}];" for n, name in enumerate(sizes.values())),
        *buffer_declarations(tile.buffers)[2:],
        f"  const {c_type(total)} *sums = tile;",
        "  (void)batch;",
        "  for (long i = 0; i < rows; i++) {",
        "    const long row = first_row + i;",
        *([print_statements(of_row, C, 2)] if of_row else []),
        "    #pragma omp simd",
        "    for (long j = 0; j < columns; j++) {",
        "      const long column = first_column + j;",
        f"      const {c_type(total)} acc = sums[i * tile_stride + j];",
        "      (void)row, (void)column;",
        print_statements(of_column, C, 3),
        "    }",
        "  }",
        "}"])
    name = f"epilogue_{hashlib.sha256(columns.encode()).hexdigest()[:10]}"
    call = f"{name}_columns(given, batch, first_row, first_column, rows, {{}}, tile, tile_stride);"
    wide = "HLOC_WIDE " if computes_much(tile.epilogue) else ""
    text = "\n".join([
        '#include "gemm.h"',
        f"static inline __attribute__((always_inline)) {wide}void {name}_columns{columns}",
        f"{wide}void {name}(void *const *given, {PARAMETERS[0]}", f"{PARAMETERS[1]}) {{",
        f"  if (columns == HLOC_GEMM_TILE_COLUMNS) {call.format('HLOC_GEMM_TILE_COLUMNS')}",
        f"  else {call.format('columns')}",
        "}", ""])
    return Epilogue(name, text, tuple(sizes))


def by_row(statements: Iterable[Stmt], read: set[str]) -> tuple[list[Stmt], list[Stmt]]:
    """The values that all columns of a row share, made of loads from the buffers `read`; and what is left.

    Names of sizes are not there yet.
    """
    shared: list[Stmt] = []
    left: list[Stmt] = []
    names = {"row", "batch"}
    for statement in statements:
        if isinstance(statement, Let) and all(
                part.name in names if isinstance(part, Var) else not isinstance(part, Load) or part.buffer in read
                for part in parts([statement.value])):
            names.add(statement.name)
            shared.append(statement)
        else:
            left.append(statement)
    return shared, left


# -- sizes become names ------------------------------------------------------------------------------------------------

def _named(value: Expr, sizes: dict[int, str]) -> Expr:
    """An expression with its large INDEX constants as variables; `sizes` collects them."""
    if isinstance(value, Const):
        if value.type != INDEX or abs(value.value) <= SMALL:
            return value
        return Var(sizes.setdefault(value.value, f"n{len(sizes)}"), INDEX)
    if isinstance(value, Apply) and value.type == INDEX and value.op in ("divide", "remainder"):
        return value._replace(arguments=(_named(value.arguments[0], sizes), value.arguments[1]))
    return with_parts(value, lambda part: _named(part, sizes))


def _statement(s: Stmt, sizes: dict[int, str]) -> Stmt:
    if isinstance(s, If):
        return If(_named(s.condition, sizes), with_names(s.then, sizes), with_names(s.otherwise, sizes))
    if isinstance(s, For):
        return s._replace(body=with_names(s.body, sizes))
    return with_expressions(s, lambda e: _named(e, sizes))


def with_names(statements: Iterable[Stmt], sizes: dict[int, str]) -> tuple[Stmt, ...]:
    """Statements with their large sizes as names, which `sizes` collects."""
    return tuple(_statement(s, sizes) for s in statements)
