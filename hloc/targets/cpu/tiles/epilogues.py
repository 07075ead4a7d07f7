"""Epilogues of matmuls and convolutions: C functions that compute stores from a finished tile of sums.

In: a Tile with an epilogue in loop IR. Out: an Epilogue. Each function is written once. Its name comes from its text.
Sizes are names in the text, and the caller passes them: fifty convolutions followed by the same activation share one
function.

    out0[row * 1024 + column] = ...   ->   sizes (1024,) and   out0[row * n0 + column] = ...

Values that are equal for a line of a tile are hoisted out of the loop along it. Compilers cannot do that, since they do
not know that stores do not alias the loads. An index that is loaded would turn contiguous loads into gathers. Scores of
attention are loops over tiles, too (scores.py).
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hloc.kernels.indexing import index_apply, sum_of, sum_parts
from hloc.kernels.ir import (
    INDEX,
    SUM,
    VECTOR,
    Apply,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Stmt,
    Tile,
    Var,
)
from hloc.kernels.schedule.hoisting import hoisted
from hloc.kernels.walks import with_all_expressions, with_parts
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.c_function import CFunction, c_function, includes
from hloc.targets.cpu.vector_loops.call_printer import headers_of
from hloc.targets.cpu.vector_loops.loop_schedules import loop_schedules
from hloc.targets.cpu.vector_loops.scalar_conversions import scalar_conversions
from hloc.targets.printer import C, StatementPrinter, buffer_declarations
from hloc.targets.vectors import vector_definitions

SMALL = 16            # factors up to this, and all divisors, stay constants: compilers make shifts of them
AREA = "long batch, long first_row, long first_column, long rows, long columns"
PARAMETERS = f"{AREA},\n    const void *tile, long tile_stride"
PLACE = index_apply("add", index_apply("multiply", Var("i", INDEX), Var("tile_stride", INDEX)), Var("j", INDEX))


class Epilogue(NamedTuple):
    """function: in C, with its declaration; sizes: the contents of the caller's array of sizes; masked: of a score, the
    value of masked elements (scores.py)."""

    function: CFunction
    sizes: tuple[int, ...]
    declaration: str
    masked: float | None = None

    @property
    def name(self) -> str:
        return self.function.name

    def arguments(self) -> str:
        """The statement of a caller that makes `given`: the buffers, then the sizes."""
        sizes = ", ".join(f"{n}L" for n in self.sizes) or "0"
        return f"void *const given[] = {{(void *)buffers, (void *)(const long[]){{{sizes}}}}};"


def epilogue_of(tile: Tile, machine: Machine) -> Epilogue | None:
    """The epilogue of a matmul or convolution."""
    if not tile.epilogue:
        return None
    sizes, total, printer = dict[int, str](), dict(tile.parameters)["types"][1], StatementPrinter(C)
    loops = line_of_tile((Let("acc", Load("sums", PLACE, total)), *tile.epilogue), tile, sizes, "column")
    line = scalar_conversions(loop_schedules(Kernel("line", tile.buffers, loops), machine), machine).body
    head = [*buffer_declarations(tile.buffers)[2:], f"  const {c_type(total)} *sums = tile;"]
    text = "\n".join([f"(void *const *given, {PARAMETERS})", *lines_of_tile(line, head, sizes, "row", printer), "}"])
    name = f"hloc_epilogue_{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    printer.loops += 1
    vectors, headers = vector_definitions(line, printer), headers_of(printer.calls)
    function = c_function(name, [*includes(headers), *vectors, f"void {name}{text}", ""], printer, headers=headers,
                          vectors=vectors)
    return Epilogue(function, tuple(sizes), f"void {name}(void *const *given, {PARAMETERS});\n")


# -- loops over tiles --------------------------------------------------------------------------------------------------

def line_of_tile(statements: Sequence[Stmt], tile: Tile, sizes: dict[int, str], along: str) -> tuple[Stmt, ...]:
    """The statements for one line of a tile, along its columns or its rows: the values that its elements share, and the
    loop. Large sizes become names."""
    read = {b.name for b in tile.buffers if b.access == "read"}
    shared, others = (with_names(part, sizes) for part in hoisted(statements, {along}, read))
    j = Var("j", INDEX)
    loop = For("j", Var(f"{along}s", INDEX), VECTOR,
               (Let(along, index_apply("add", Var(f"first_{along}", INDEX), j)), *others))
    return (*shared, loop)


def lines_of_tile(line: Iterable[Stmt], head: Iterable[str], sizes: dict[int, str], across: str,
                  printer: StatementPrinter, after: Iterable[str] = ()) -> list[str]:
    """The body of a function that goes through a tile line by line. after: C after each line."""
    return ["{", "  void *const *buffers = given[0];",
            *(f"  const long {name} = ((const long *)given[1])[{n}];" for n, name in enumerate(sizes.values())),
            *head, "  (void)batch, (void)buffers;",
            f"  for (long i = 0; i < {across}s; i++) {{",
            f"    const {printer.index} {across} = first_{across} + i;",
            f"    (void){across};",
            printer.block(line, 2), *after,
            "  }"]


# -- sizes become names ------------------------------------------------------------------------------------------------

def _named(value: Expr, sizes: dict[int, str]) -> Expr:
    """An expression with its large INDEX constants as variables; `sizes` collects them."""
    if isinstance(value, Const):
        if value.type != INDEX or abs(value.integer) <= SMALL:
            return value
        return Var(sizes.setdefault(value.integer, f"n{len(sizes)}"), INDEX)
    if isinstance(value, Apply) and value.op == SUM:
        terms, constant = sum_parts(value)
        whole = _named(Const(constant, INDEX), sizes)
        return sum_of([*((index_apply("multiply", _named(atom, sizes), _named(Const(factor, INDEX), sizes)), 1)
                         for atom, factor in terms), (whole, 1)], 0)
    if isinstance(value, Apply) and value.type == INDEX and value.op in ("divide", "remainder"):
        return value._replace(arguments=(_named(value.arguments[0], sizes), value.arguments[1]))
    return with_parts(value, lambda part: _named(part, sizes))


def with_names(statements: Iterable[Stmt], sizes: dict[int, str]) -> tuple[Stmt, ...]:
    """Statements with their large sizes as names, which `sizes` collects."""
    return with_all_expressions(statements, lambda e: _named(e, sizes))
