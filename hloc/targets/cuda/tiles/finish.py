"""What becomes of a tile's sums: the epilogue as CUDA C, for several adjacent columns at once.

In: the statements of an epilogue. Out: a Finish, and its text: a function that loads, and returns a function that
computes and stores. A warp loads for many elements before it stores any of them, since a store may alias the next load,
and a branch on what was loaded would wait. Arrays that are contiguous along the columns are read and written 16 bytes
at a time.

    out0[row * 256 + column] = acc + in0[row * 256 + column]   ->   hloc_wide<4>([&](long row, long first, ...) { ... })
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import factor_of, stays_inside, without
from hloc.kernels.indexing import sum_parts
from hloc.kernels.ir import INDEX, Expr, Let, Load, Stmt, Store, Tile, Var
from hloc.kernels.walks import expressions, loads, parts, walk, with_parts, with_values
from hloc.targets.c_expressions import c_type, expression
from hloc.targets.printer import CUDA, StatementPrinter

VECTOR_BYTES = 16                   # of one load or store of a thread
FIRST, SUMS = "first", "sums"       # parameters of the function: the first column, and the sums


class Finish(NamedTuple):
    """body: the statements; inner: the name of the adjacent elements' index; width: how many are computed at once;
    loads: those that are read as vectors, with the position of the first element; stores: the same positions of all
    stores. stores is empty if the statements cannot be split into loads and stores."""

    body: tuple[Stmt, ...]
    inner: str
    width: int = 1
    loads: Mapping[Load, Expr] = {}
    stores: Mapping[Store, Expr] = {}


def finish_of(tile: Tile, body: tuple[Stmt, ...], extents: Mapping[str, int], inner: str = "column", most: int = 1
              ) -> Finish:
    """How to compute the epilogue of up to `most` adjacent elements at once. extents: of the INDEX names of a place;
    their positions are multiples of the width."""
    stored = [s for s in body if isinstance(s, Store)]
    written = {s.buffer for s in stored}
    if not all(isinstance(s, (Let, Store)) for s in body) or any(p.buffer in written for p in loads(body)):
        return Finish(body, inner)
    names = {s.name: s.value for s in body if isinstance(s, Let) and s.value.type == INDEX}
    buffers = {b.name: b for b in tile.buffers}
    places = {s: _whole(s.position, names) for s in stored}
    found = {p: _whole(p.position, names) for p in loads(body)
             if not any(isinstance(q, Load) for q in parts([p.position]))}
    safe = {p: place for p, place in found.items() if stays_inside(place, buffers[p.buffer].size, extents) or any(
        place == own and buffers[p.buffer].size >= buffers[s.buffer].size for s, own in places.items())}
    width = most
    while width > 1 and (extents[inner] % width or not all(
            _aligned(place, inner, width) and _bytes(buffers[s.buffer].type) * width <= VECTOR_BYTES
            for s, place in places.items())):
        width //= 2
    vectors = {p: place for p, place in safe.items()
               if _aligned(place, inner, width) and _bytes(p.type) * width <= VECTOR_BYTES}
    return Finish(body, inner, width, vectors, places)


def _bytes(type: str) -> float:
    return ELEMENT_TYPES[type].bytes


def _whole(position: Expr, names: Mapping[str, Expr]) -> Expr:
    """A position without names of Lets."""
    if isinstance(position, Var) and position.name in names:
        return _whole(names[position.name], names)
    return with_parts(position, lambda part: _whole(part, names))


def _aligned(position: Expr, inner: str, width: int) -> bool:
    """Whether adjacent elements are contiguous in memory, and every vector of them is aligned."""
    others = without(position, inner)
    terms, constant = sum_parts(others)
    return factor_of(position, inner) == 1 and constant % width == 0 and not any(n % width for _, n in terms) \
        and not any(isinstance(p, Var) and p.name == inner for p in parts([others]))


# -- text --------------------------------------------------------------------------------------------------------------

def finish_text(found: Finish, parameters: tuple[tuple[str, str], ...], tile: Tile, exchanged: bool = False) -> str:
    """The function `finish`. parameters: names and types, the last one the sum; exchanged: row and column are
    exchanged."""
    *places, (acc, total) = parameters
    if exchanged:
        places[1], places[2] = places[2], places[1]
    split, width = bool(found.stores), found.width
    printer = StatementPrinter(CUDA)
    names = [FIRST if n == found.inner and split else n for n, _ in places]
    arguments = ", ".join(f"{c_type(t)} {name}" for name, (_, t) in zip(names, places))
    printer.line(0, f"auto finish = hloc_wide<{width}>([&]({arguments}, const auto &{SUMS}) {{")
    if split:
        _split(printer, found, tile, acc, total)
    else:
        printer.line(1, f"return [=, {acc} = {SUMS}[0]] {{")
        printer.statements(found.body, 2)
    printer.line(1, "};")
    printer.line(0, "});")
    return "\n".join(printer.lines)


def _split(printer: StatementPrinter, found: Finish, tile: Tile, acc: str, total: str) -> None:
    """Loads, then the function that computes one element after the other, and stores all."""
    types = {b.name: b.type for b in tile.buffers}
    width = found.width

    def place(position: Expr) -> str:
        return expression(with_values(position, {Var(found.inner, INDEX): Var(FIRST, INDEX)}))
    for n, (load, position) in enumerate(found.loads.items()):
        pack = f"hloc_pack<{c_type(load.type)}, {width}>"
        printer.line(1, f"const {pack} x{n}_ = *(const {pack} *)&{load.buffer}[{place(position)}];")
    printer.line(1, f"return [=, all = {SUMS}] {{")
    stores = list(found.stores)
    for n, s in enumerate(stores):
        printer.line(2, f"hloc_pack<{c_type(types[s.buffer])}, {width}> y{n}_;")
    printer.line(0, "#pragma unroll")
    printer.line(2, f"for (int lane = 0; lane < {width}; lane++) {{")
    used = {p.name for s in walk(found.body) for p in parts(expressions(s)) if isinstance(p, Var)}
    if found.inner in used:
        printer.line(3, f"const long {found.inner} = {FIRST} + lane;")
    if acc in used:
        printer.line(3, f"const {c_type(total)} {acc} = all[lane];")
    values = {load: Load(f"x{n}_.at", Var("lane", INDEX), load.type) for n, load in enumerate(found.loads)}
    for statement in found.body:
        assert isinstance(statement, (Let, Store))
        value = with_values(statement.value, values)
        printer.statements([Store(f"y{stores.index(statement)}_.at", Var("lane", INDEX), value)
                            if isinstance(statement, Store) else Let(statement.name, value)], 3)
    printer.line(2, "}")
    for n, (s, position) in enumerate(found.stores.items()):
        printer.line(2, f"hloc_put(&{s.buffer}[{place(position)}], y{n}_);")
