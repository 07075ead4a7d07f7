"""Transposes on the GPU: pointwise kernels that read an array across its rows go through tiles in shared memory.

In: a loop Kernel with one element per iteration. Out: a Tiling, or None where every array is read along its rows; its
text. A tile is square: its elements are loaded with neighbouring threads along one dimension, and used with
neighbouring threads along the other, so that both reads and writes are of whole rows.

    for i0 of 20000: out[i0] = in[i0 % 100 * 200 + i0 / 100]      -> dimensions 100 (written along), 200 (read along)
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, PARALLEL, VECTOR, Apply, Const, Expr, For, Kernel, Let, Load, Stmt, Store, Var
from hloc.machine import Machine
from hloc.targets.cuda import linear
from hloc.targets.cuda.container import Geometry
from hloc.targets.printer import CUDA, StatementPrinter, c_type, comment, pointer_type

SHORTEST = 16                   # dimensions shorter than this are not worth a tile
THREADS = 256
BLOCKS_PER_SM = 8
LARGEST_SHARED = 36 << 10


class Piece(NamedTuple):
    """position / divisor % modulus, of the number of the element."""

    divisor: int
    modulus: int


class Dimension(NamedTuple):
    """element number / divisor % size: one dimension of the space of elements, the fastest first."""

    divisor: int
    size: int


class Tiling(NamedTuple):
    """dimensions: of the space; read: the one that `loads` run along (index into dimensions; they are written along
    the first). factors: per load, what a step in each dimension adds to its position; constants: the rest."""

    dimensions: tuple[Dimension, ...]
    read: int
    loads: tuple[Load, ...]
    factors: tuple[tuple[int, ...], ...]
    constants: tuple[int, ...]
    edge: int

    @property
    def tiles(self) -> int:
        return math.prod(-(-d.size // self.edge) if n in (0, self.read) else d.size
                         for n, d in enumerate(self.dimensions))


# -- finding them ------------------------------------------------------------------------------------------------------

def find_tiling(kernel: Kernel) -> Tiling | None:
    """How to tile the kernel; None where no array is read across its rows, or the kernel is more than pointwise."""
    loop = kernel.body[0] if len(kernel.body) == 1 else None
    if not isinstance(loop, For) or loop.kind != PARALLEL:
        return None
    statements, pieces, count = _elements(loop)
    if not all(isinstance(s, (Let, Store)) for s in statements) or sum(isinstance(s, Store) for s in statements) != 1:
        return None
    forms = {name: linear.Form({name: 1}) for name in pieces}
    for statement in statements:
        if isinstance(statement, Let) and statement.value.type == INDEX:
            piece = _piece(statement.value, pieces)
            if piece is not None:
                pieces[statement.name] = piece
                forms[statement.name] = linear.Form({statement.name: 1})
    forms = linear.lets(statements, forms)
    store = next(s for s in statements if isinstance(s, Store))
    accesses = {load: linear.linear(load.position, forms) for load in linear.loads(statements)}
    target = linear.linear(store.position, forms)
    if target is None:
        return None
    dimensions = _dimensions(pieces, count)
    if dimensions is None:
        return None
    rows = {load: _factors(form, pieces, dimensions) for load, form in accesses.items() if form is not None}
    written = _factors(target, pieces, dimensions)
    known = {load: row for load, row in rows.items() if row is not None}
    if written is None:
        return None
    dimensions, written, known = _merged(dimensions, written, known)
    return _choose(kernel, dimensions, written, known, accesses)


def _elements(loop: For) -> tuple[tuple[Stmt, ...], dict[str, Piece], int]:
    """The statements of one element, the counters in terms of its number, and how many there are."""
    inner = loop.body[0] if len(loop.body) == 1 else None
    if isinstance(inner, For) and inner.kind == VECTOR and isinstance(inner.extent, int):
        pieces = {loop.name: Piece(inner.extent, loop.extent), inner.name: Piece(1, inner.extent)}
        return inner.body, pieces, loop.extent * inner.extent
    return loop.body, {loop.name: Piece(1, loop.extent)}, loop.extent


def _piece(value: Expr, pieces: Mapping[str, Piece]) -> Piece | None:
    """x / c or x % c of a piece x, where that is a piece."""
    if not isinstance(value, Apply) or value.op not in ("divide", "remainder"):
        return None
    whole, by = value.arguments
    if not isinstance(whole, Var) or whole.name not in pieces or not isinstance(by, Const):
        return None
    outer, size = pieces[whole.name], by.value
    if size <= 0 or outer.modulus % size:
        return None
    return Piece(outer.divisor * size, outer.modulus // size) if value.op == "divide" else Piece(outer.divisor, size)


def _dimensions(pieces: Mapping[str, Piece], count: int) -> tuple[Dimension, ...] | None:
    """The space that all pieces are made of."""
    bounds = sorted({1, count, *(p.divisor for p in pieces.values()),
                     *(p.divisor * p.modulus for p in pieces.values())})
    if any(b % a for a, b in zip(bounds, bounds[1:])):
        return None
    return tuple(Dimension(a, b // a) for a, b in zip(bounds, bounds[1:]))


def _factors(form: linear.Form, pieces: Mapping[str, Piece], dimensions: tuple[Dimension, ...]) -> list[int] | None:
    """What a step in each dimension adds to a position; None where it moves with something else."""
    if not form.factors.keys() <= pieces.keys():
        return None
    row = [0] * len(dimensions)
    for name, factor in form.factors.items():
        piece = pieces[name]
        for n, dimension in enumerate(dimensions):
            if piece.divisor <= dimension.divisor < piece.divisor * piece.modulus:
                row[n] += factor * (dimension.divisor // piece.divisor)
    return row


def _merged(dimensions: tuple[Dimension, ...], written: list[int], known: dict[Load, list[int]]):
    """Neighbours as one dimension where every access goes on from one into the next."""
    rows = [written, *known.values()]
    kept, new = [dimensions[0]], [[row[0]] for row in rows]
    for n in range(1, len(dimensions)):
        if all(row[n] == own[-1] * kept[-1].size for row, own in zip(rows, new)):
            kept[-1] = Dimension(kept[-1].divisor, kept[-1].size * dimensions[n].size)
        else:
            kept.append(dimensions[n])
            for row, own in zip(rows, new):
                own.append(row[n])
    return tuple(kept), new[0], dict(zip(known, new[1:]))


def _choose(kernel: Kernel, dimensions: tuple[Dimension, ...], written: list[int], known: dict[Load, list[int]],
            accesses: Mapping[Load, linear.Form]) -> Tiling | None:
    if written[0] != 1 or dimensions[0].size < SHORTEST:
        return None
    across = [load for load, row in known.items() if row[0] not in (0, 1) and 1 in row[1:]
              and _inside(kernel, load, row, accesses[load], dimensions)]
    read = next((known[load].index(1) for load in across), 0)
    loads = [load for load in across if known[load][read] == 1]
    if not loads or dimensions[read].size < SHORTEST:
        return None
    width = max(ELEMENT_TYPES[load.type].bytes for load in loads)
    edge = 64 if width <= 2 else 32
    fitting = loads[:LARGEST_SHARED // (edge * (edge + 4) * width)]
    return Tiling(dimensions, read, tuple(fitting), tuple(tuple(known[load]) for load in fitting),
                  tuple(accesses[load].constant for load in fitting), edge)


def _inside(kernel: Kernel, load: Load, row: list[int], form: linear.Form, dimensions: tuple[Dimension, ...]) -> bool:
    """Every position lies in the buffer, so that it may be read whether or not its value is wanted."""
    size = next((b.size for b in kernel.buffers if b.name == load.buffer), 0)
    steps = [factor * (d.size - 1) for factor, d in zip(row, dimensions)]
    return form.constant + sum(min(s, 0) for s in steps) >= 0 and form.constant + sum(max(s, 0) for s in steps) < size


# -- printing ----------------------------------------------------------------------------------------------------------

def tiled_geometry(tiling: Tiling, name: str, gpu: Machine) -> Geometry:
    return Geometry(name, (max(1, min(tiling.tiles, gpu.cores * BLOCKS_PER_SM)), 1, 1), (THREADS, 1, 1))


def print_tiled(kernel: Kernel, tiling: Tiling, name: str) -> str:
    """The whole kernel, as a function called `name`."""
    printer, edge = StatementPrinter(CUDA), tiling.edge
    printer.lines.extend(comment(kernel.origin))
    parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in kernel.buffers)
    printer.line(0, f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}({parameters}) {{')
    for n, load in enumerate(tiling.loads):
        printer.line(1, f"__shared__ {c_type(load.type)} tile{n}[{edge * _pitch(load, edge)}];")
    first, read = tiling.dimensions[0], tiling.dimensions[tiling.read]
    printer.line(1, f"for (long work = blockIdx.x; work < {tiling.tiles}; work += gridDim.x) {{")
    rest = _decode(printer, tiling)
    printer.line(2, "__syncthreads();")
    printer.line(2, f"for (int n = threadIdx.x; n < {edge * edge}; n += {THREADS}) {{")
    printer.line(3, f"const long a = across + n / {edge}, d = down + n % {edge};")
    printer.line(3, f"if (a >= {first.size} || d >= {read.size}) continue;")
    for n, (load, row, constant) in enumerate(zip(tiling.loads, tiling.factors, tiling.constants)):
        terms = [f"a * {row[0]}L", "d", *(f"{v} * {row[k]}L" for k, v in rest.items() if row[k])]
        place = " + ".join([*terms, *([str(constant)] if constant else [])])
        printer.line(3, f"tile{n}[n % {edge} * {_pitch(load, edge)} + n / {edge}] = {load.buffer}[{place}];")
    printer.line(2, "}")
    printer.line(2, "__syncthreads();")
    printer.line(2, f"for (int n = threadIdx.x; n < {edge * edge}; n += {THREADS}) {{")
    printer.line(3, f"const long a = across + n % {edge}, d = down + n / {edge};")
    printer.line(3, f"if (a >= {first.size} || d >= {read.size}) continue;")
    element = " + ".join(["a", f"d * {read.divisor}L",
                          *(f"{v} * {tiling.dimensions[k].divisor}L" for k, v in rest.items())])
    _counters(printer, kernel.body[0], element)
    statements, _, _ = _elements(kernel.body[0])
    places = {load: Load(f"tile{n}", Var(f"n / {edge} * {_pitch(load, edge)} + n % {edge}", INDEX), load.type)
              for n, load in enumerate(tiling.loads)}
    printer.statements([_replaced(s, places) for s in statements], 3)
    for indent in (2, 1, 0):
        printer.line(indent, "}")
    return "\n".join(printer.lines) + "\n"


def _pitch(load: Load, edge: int) -> int:
    """Elements from one row of a tile to the next: one word more than a row, so that columns lie in different banks."""
    return edge + max(1, 4 // ELEMENT_TYPES[load.type].bytes)


def _decode(printer: StatementPrinter, tiling: Tiling) -> dict[int, str]:
    """Where the tile lies: across and down, and the other dimensions' names."""
    first, read = tiling.dimensions[0], tiling.dimensions[tiling.read]
    columns, rows = (-(-d.size // tiling.edge) for d in (first, read))
    printer.line(2, f"const long across = work % {columns} * {tiling.edge}, "
                    f"down = work / {columns} % {rows} * {tiling.edge};")
    divisor, names = columns * rows, {}
    for n, dimension in enumerate(tiling.dimensions):
        if n in (0, tiling.read):
            continue
        names[n] = f"r{n}"
        printer.line(2, f"const long r{n} = work / {divisor} % {dimension.size};")
        divisor *= dimension.size
    return names


def _counters(printer: StatementPrinter, loop: For, element: str) -> None:
    inner = loop.body[0] if len(loop.body) == 1 else None
    if isinstance(inner, For):
        printer.line(3, f"const long thread = {element};")
        printer.line(3, f"const long {loop.name} = thread / {inner.extent}, {inner.name} = thread % {inner.extent};")
    else:
        printer.line(3, f"const long {loop.name} = {element};")


def _replaced(statement: Let | Store, places: Mapping[Load, Load]) -> Let | Store:
    return statement._replace(value=_with(statement.value, places))


def _with(expr: Expr, places: Mapping[Load, Load]) -> Expr:
    if isinstance(expr, Load):
        return places.get(expr, expr)
    if isinstance(expr, Apply):
        return expr._replace(arguments=tuple(_with(a, places) for a in expr.arguments))
    return expr
