"""Transposes on the GPU: pointwise kernels that read an array across its rows use tiles in shared memory.

In: a loop Kernel, the edge of its tiles, and the arrays that are read across their rows. Out: a Tiling; its text. A
tile is square. Adjacent threads load its elements along one dimension, and use them along the other, so that reads and
writes are coalesced.

If positions and sizes allow it, a thread loads and stores vectors. The tile lies in groups of adjacent elements: a
vector, or a word of shared memory. Groups of a line change places with the number of the line, or of its vector (an
exclusive or), so that neither the stores of lines nor the loads of elements across them meet in one bank.
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, For, Kernel, Load, Var
from hloc.kernels.schedule.nest import Refused
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.loops.iteration_space import (
    Access,
    Space,
    counters,
    inside,
    is_along,
)
from hloc.targets.cuda.loops.printing import Pack, head, pack_type, print_pack
from hloc.targets.cuda.loops.vectors import VECTOR_BYTES, widest
from hloc.targets.printer import CUDA, StatementPrinter

BLOCKS_PER_SM = 8
WORD, BANKS = 4, 32             # of shared memory: bytes of a word
CHUNKS = 8                      # vectors of a line, which a quarter of a warp stores: 128 bytes; single ones: a warp
LARGEST_SHARED = 36 << 10


class Tiling(NamedTuple):
    """read: the dimension along which `loads` are contiguous (results are contiguous along the first one). width:
    adjacent elements that a thread loads and stores at once; along: loads of vectors along the first dimension."""

    space: Space
    read: int
    loads: dict[Load, Access]
    edge: int
    threads: int
    width: int = 1
    along: dict[Load, Access] = {}

    @property
    def tiles(self) -> int:
        return math.prod(-(-d.size // self.edge) if n in (0, self.read) else d.size
                         for n, d in enumerate(self.space.dimensions))

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return sum(self.edge ** 2 * ELEMENT_TYPES[load.type].bytes for load in self.loads)

    def place(self, load: Load, line: str, column: str) -> str:
        """The place of an element in the tile of a load. line: of what is read, across the results."""
        group = max(self.width, WORD // ELEMENT_TYPES[load.type].bytes)
        moved = f"{line} / {self.width} % {self.edge // group}"
        return f"({line}) * {self.edge} + (({column}) / {group} ^ {moved}) * {group} + ({column}) % {group}"


def across(kernel: Kernel, space: Space) -> dict[int, dict[Load, Access]]:
    """The loads that are contiguous along another dimension than the first, by this dimension."""
    found: dict[int, dict[Load, Access]] = {}
    for load, a in space.loads.items():
        if a.steps[0] not in (0, 1) and 1 in a.steps[1:] and inside(kernel, load, a, space.dimensions):
            found.setdefault(a.steps.index(1), {})[load] = a
    return found


def tiling_of(kernel: Kernel, space: Space, read: int, edge: int, width: int, threads: int,
              buffers: tuple[str, ...]) -> Tiling:
    """Tiles of these buffers, which are read along dimension `read`. Raises Refused."""
    dimensions, written = space.dimensions, list(space.stores.values())
    if len(written) != 1 or written[0].steps[0] != 1:
        raise Refused("not one result that is written along d0")
    loads = {load: a for load, a in across(kernel, space).get(read, {}).items() if load.buffer in buffers}
    if {load.buffer for load in loads} != set(buffers) or not buffers:
        raise Refused(f"not what is read along d{read}: {', '.join(buffers) or 'no buffer'}")
    if 2 * min(dimensions[0].size, dimensions[read].size) < edge:
        raise Refused("most of a tile would be empty")
    if edge * edge % (width * threads) or edge // width % (CHUNKS if width > 1 else BANKS) or edge & edge - 1:
        raise Refused(f"{threads} threads share no tile of {edge} by {edge}, {width} elements at once")
    along: dict[Load, Access] = {}
    if width > 1:
        whole = dimensions[0].size % width == 0 and dimensions[read].size % width == 0 and is_along(written[0], width)
        if not whole or not all(is_along(a, width, read) for a in loads.values()):
            raise Refused(f"rows are no vectors of {width}")
        if width * widest(kernel, space) > VECTOR_BYTES:
            raise Refused(f"an access to memory has {VECTOR_BYTES} bytes at most")
        along = {load: a for load, a in space.loads.items()
                 if load not in loads and is_along(a, width) and inside(kernel, load, a, dimensions)}
    tiling = Tiling(space, read, loads, edge, threads, width, along)
    if tiling.shared > LARGEST_SHARED:
        raise Refused(f"tiles of {tiling.shared >> 10} KiB: at most {LARGEST_SHARED >> 10}")
    return tiling


def print_tiled(kernel: Kernel, tiling: Tiling, name: str, index: str) -> str:
    """The whole kernel, as a function called `name`; index: the C type of positions."""
    printer, edge, width = StatementPrinter(CUDA, index=index), tiling.edge, tiling.width
    dimensions, loop = tiling.space.dimensions, kernel.body[0]
    assert isinstance(loop, For)
    head(printer, kernel, name, tiling.threads)
    for n, load in enumerate(tiling.loads):
        printer.line(1, f"__shared__ __align__({VECTOR_BYTES}) {c_type(load.type)} tile{n}[{edge * edge}];")
    outside = [f"{c} >= {dimensions[n].size}" for c, n in (("a", 0), ("d", tiling.read)) if dimensions[n].size % edge]
    printer.line(1, f"for ({index} work = blockIdx.x; work < {tiling.tiles}; work += gridDim.x) {{")
    rest = _decode(printer, tiling)
    chunks, together = edge // width, CHUNKS if width > 1 else BANKS
    line, chunk = f"n / {together} % {edge}", f"(n % {together} + n / {together * edge} * {together})"
    if chunks == together:
        line, chunk = f"n / {chunks}", f"n % {chunks}"
    printer.line(2, "__syncthreads();")
    _each(printer, tiling, f"across + {line}", f"down + {chunk} * {width}", outside)
    for n, (load, access) in enumerate(tiling.loads.items()):
        type = pack_type(load.type, width)
        printer.line(3, f"*({type} *)&tile{n}[{tiling.place(load, line, f'{chunk} * {width}')}] = "
                        f"*(const {type} *)&{load.buffer}[{_position(access, tiling, rest)}];")
    printer.line(2, "}")
    printer.line(2, "__syncthreads();")
    _each(printer, tiling, f"across + {chunk} * {width}", f"down + {line}", outside)
    pack = Pack(width, {load: _position(a, tiling, rest) for load, a in tiling.along.items()},
                {store: _position(a, tiling, rest) for store, a in tiling.space.stores.items()})
    print_pack(printer, pack, tiling.space.statements, counters(loop, _element("a + part", tiling, rest), index),
               kernel.buffers, 3, {load: Load(f"tile{n}", Var(tiling.place(load, f"({chunk} * {width} + part)", line),
                                                              INDEX), load.type)
                                   for n, load in enumerate(tiling.loads)})
    for indent in (2, 1, 0):
        printer.line(indent, "}")
    return "\n".join(printer.lines) + "\n"


def _position(access: Access, tiling: Tiling, rest: dict[int, str]) -> str:
    """The position of an access at a, d and the other counters."""
    names = {0: "a", tiling.read: "d", **rest}
    terms = [v if access.steps[k] == 1 else f"{v} * {access.steps[k]}" for k, v in names.items() if access.steps[k]]
    return " + ".join(terms + ([str(access.constant)] if access.constant else [])) or "0"


def _element(first: str, tiling: Tiling, rest: dict[int, str]) -> str:
    """The linear index of an element."""
    dimensions = tiling.space.dimensions
    return " + ".join([first, f"d * {dimensions[tiling.read].divisor}",
                       *(f"{v} * {dimensions[k].divisor}" for k, v in rest.items())])


def _each(printer: StatementPrinter, tiling: Tiling, a: str, d: str, outside: list[str]) -> None:
    """The head of an unrolled loop over a tile's elements or vectors: all loads of a thread are in flight at once."""
    steps = tiling.edge ** 2 // tiling.width // tiling.threads
    printer.line(2, f"#pragma unroll {steps}")
    printer.line(2, f"for (int step = 0; step < {steps}; step++) {{")
    printer.line(3, f"const int n = step * {tiling.threads} + threadIdx.x;")
    printer.line(3, f"const {printer.index} a = {a}, d = {d};")
    if outside:
        printer.line(3, f"if ({' || '.join(outside)}) continue;")


def _decode(printer: StatementPrinter, tiling: Tiling) -> dict[int, str]:
    """Prints the position of the tile, across and down; returns the names of the other dimensions' counters."""
    dimensions = tiling.space.dimensions
    columns, rows = (-(-dimensions[n].size // tiling.edge) for n in (0, tiling.read))
    printer.line(2, f"const {printer.index} across = work % {columns} * {tiling.edge}, "
                    f"down = work / {columns} % {rows} * {tiling.edge};")
    divisor, names = columns * rows, {}
    for n, dimension in enumerate(dimensions):
        if n not in (0, tiling.read):
            names[n] = f"r{n}"
            printer.line(2, f"const {printer.index} r{n} = work / {divisor} % {dimension.size};")
            divisor *= dimension.size
    return names
