"""Transposes on the GPU: pointwise kernels that read an array across its rows use tiles in shared memory.

In: a loop Kernel. Out: a Tiling, or None if every array is read along its rows; its text. A tile is square. Adjacent
threads load its elements along one dimension, and use them along the other, so that reads and writes are coalesced.

If positions and sizes allow it, a thread loads and stores 16 bytes at a time. The tile then lies in chunks of so many
elements. Chunks of a line change places with the number of its group of lines (an exclusive or), so that neither the
stores of chunks nor the loads of elements across them meet in one bank of shared memory.
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, For, Kernel, Load, Store, Var
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.loops.iteration_space import (
    Access,
    Dimension,
    Space,
    counters,
    inside,
    is_along,
    replaced,
)
from hloc.targets.printer import CUDA, StatementPrinter, comment, kernel_start, pointer_type

SHORTEST = 16                   # dimensions shorter than this are not worth a tile
THREADS = 256
BLOCKS_PER_SM = 8
VECTOR_BYTES = 16
CHUNKS = 8                      # of a line, which a quarter of a warp stores: 128 bytes
FEWEST_LINES, MANY = 32, 1 << 22        # of a tile of vectors; elements for which tiles are larger
LARGEST_SHARED = 36 << 10


class Tiling(NamedTuple):
    """read: the dimension along which `loads` are contiguous (results are contiguous along the first one). width:
    adjacent elements that a thread loads and stores at once; along: loads of vectors along the first dimension."""

    space: Space
    read: int
    loads: dict[Load, Access]
    edge: int
    width: int = 1
    along: dict[Load, Access] = {}

    @property
    def tiles(self) -> int:
        return math.prod(-(-d.size // self.edge) if n in (0, self.read) else d.size
                         for n, d in enumerate(self.space.dimensions))


def find_tiling(kernel: Kernel, space: Space) -> Tiling | None:
    """How to tile the kernel; None if no array is read across its rows."""
    dimensions = space.dimensions
    written = list(space.stores.values())
    if len(written) != 1 or written[0].steps[0] != 1 or dimensions[0].size < SHORTEST:
        return None
    across = {load: a for load, a in space.loads.items() if a.steps[0] not in (0, 1) and 1 in a.steps[1:]
              and inside(kernel, load, a, dimensions)}
    read = next((a.steps.index(1) for a in across.values()), 0)
    loads = {load: a for load, a in across.items() if a.steps[read] == 1}
    if not loads or dimensions[read].size < SHORTEST:
        return None
    bytes_each = max(ELEMENT_TYPES[load.type].bytes for load in loads)
    stored = next(b.type for s in space.stores for b in kernel.buffers if b.name == s.buffer)
    width = max(1, VECTOR_BYTES // max(bytes_each, ELEMENT_TYPES[stored].bytes))
    edge = max(FEWEST_LINES * (1 + (space.elements >= MANY)), CHUNKS * width)
    if width > 1 and _in_vectors(loads, written[0], dimensions, read, width) \
            and edge * edge * sum(ELEMENT_TYPES[load.type].bytes for load in loads) <= LARGEST_SHARED:
        along = {load: a for load, a in space.loads.items()
                 if load not in loads and is_along(a, width) and inside(kernel, load, a, dimensions)}
        return Tiling(space, read, loads, edge, width, along)
    edge = 64 if bytes_each <= 2 else 32
    most = LARGEST_SHARED // (edge * (edge + 4) * bytes_each)
    return Tiling(space, read, dict(list(loads.items())[:most]), edge)


def _in_vectors(loads: dict[Load, Access], stored: Access, dimensions: tuple[Dimension, ...], read: int,
                width: int) -> bool:
    """Whether tiles can be loaded and stored in vectors of this width: all of them are aligned, and whole."""
    whole = dimensions[0].size % width == 0 and dimensions[read].size % width == 0
    return whole and is_along(stored, width) and all(
        a.constant % width == 0 and all(s % width == 0 for n, s in enumerate(a.steps) if n != read)
        for a in loads.values())


def tiled_geometry(tiling: Tiling, name: str, gpu: Machine) -> Geometry:
    return Geometry(name, (max(1, min(tiling.tiles, gpu.cores * BLOCKS_PER_SM)), 1, 1), (THREADS, 1, 1))


def print_tiled(kernel: Kernel, tiling: Tiling, name: str, index: str) -> str:
    """The whole kernel, as a function called `name`; index: the C type of positions."""
    printer, edge, dimensions = StatementPrinter(CUDA, index=index), tiling.edge, tiling.space.dimensions
    printer.lines.extend(comment(kernel.origin))
    parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in kernel.buffers)
    printer.line(0, f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}({parameters}) {{')
    printer.lines.extend(kernel_start(kernel.buffers))
    for n, load in enumerate(tiling.loads):
        size = edge * (edge if tiling.width > 1 else _pitch(load, edge))
        aligned = f" __align__({VECTOR_BYTES})" if tiling.width > 1 else ""
        printer.line(1, f"__shared__{aligned} {c_type(load.type)} tile{n}[{size}];")
    outside = [f"{c} >= {dimensions[n].size}" for c, n in (("a", 0), ("d", tiling.read)) if dimensions[n].size % edge]
    printer.line(1, f"for ({printer.index} work = blockIdx.x; work < {tiling.tiles}; work += gridDim.x) {{")
    rest = _decode(printer, tiling)
    (_vectors if tiling.width > 1 else _elements)(printer, kernel, tiling, outside, rest)
    for indent in (2, 1, 0):
        printer.line(indent, "}")
    return "\n".join(printer.lines) + "\n"


def _elements(printer: StatementPrinter, kernel: Kernel, tiling: Tiling, outside: list[str],
              rest: dict[int, str]) -> None:
    """The two loops over a tile, one element at a time."""
    edge = tiling.edge
    printer.line(2, "__syncthreads();")
    _each(printer, edge * edge, f"across + n / {edge}", f"down + n % {edge}", outside)
    for n, (load, access) in enumerate(tiling.loads.items()):
        printer.line(3, f"tile{n}[n % {edge} * {_pitch(load, edge)} + n / {edge}] = "
                        f"{load.buffer}[{_position(access, tiling, rest)}];")
    printer.line(2, "}")
    printer.line(2, "__syncthreads();")
    _each(printer, edge * edge, f"across + n % {edge}", f"down + n / {edge}", outside)
    loop = kernel.body[0]
    assert isinstance(loop, For)
    for line in counters(loop, _element("a", tiling, rest), printer.index):
        printer.line(3, line)
    places = {load: Load(f"tile{n}", Var(f"n / {edge} * {_pitch(load, edge)} + n % {edge}", INDEX), load.type)
              for n, load in enumerate(tiling.loads)}
    printer.statements([replaced(s, places) for s in tiling.space.statements], 3)


def _vectors(printer: StatementPrinter, kernel: Kernel, tiling: Tiling, outside: list[str],
             rest: dict[int, str]) -> None:
    """The two loops over a tile, `width` elements at a time."""
    edge, width = tiling.edge, tiling.width
    chunks, line, chunk = edge // width, f"n / {CHUNKS} % {edge}", f"n % {CHUNKS}"
    if chunks > CHUNKS:
        chunk = f"({chunk} + n / {CHUNKS * edge} * {CHUNKS})"
    else:
        line = f"n / {CHUNKS}"
    types = {b.name: b.type for b in kernel.buffers}
    printer.line(2, "__syncthreads();")
    _each(printer, edge * chunks, f"across + {line}", f"down + {chunk} * {width}", outside)
    for n, (load, access) in enumerate(tiling.loads.items()):
        type = f"hloc_pack<{c_type(load.type)}, {width}>"
        place = f"{line} * {edge} + ({chunk} ^ {line} / {width}) * {width}"
        printer.line(3, f"*({type} *)&tile{n}[{place}] = *(const {type} *)&{load.buffer}"
                        f"[{_position(access, tiling, rest)}];")
    printer.line(2, "}")
    printer.line(2, "__syncthreads();")
    _each(printer, edge * chunks, f"across + {chunk} * {width}", f"down + {line}", outside)
    for n, (load, access) in enumerate(tiling.along.items()):
        type = f"hloc_pack<{c_type(load.type)}, {width}>"
        printer.line(3, f"const {type} x{n} = *(const {type} *)&{load.buffer}[{_position(access, tiling, rest)}];")
    (store, stored), = tiling.space.stores.items()
    type = f"hloc_pack<{c_type(types[store.buffer])}, {width}>"
    printer.line(3, f"{type} y;")
    printer.line(3, "#pragma unroll")
    printer.line(3, f"for (int part = 0; part < {width}; part++) {{")
    loop = kernel.body[0]
    assert isinstance(loop, For)
    for text in counters(loop, _element("a + part", tiling, rest), printer.index):
        printer.line(4, text)
    column = f"({line} / {width} ^ {chunk}) * {width} + {line} % {width}"
    places = {load: Load(f"tile{n}", Var(f"({chunk} * {width} + part) * {edge} + {column}", INDEX), load.type)
              for n, load in enumerate(tiling.loads)}
    places |= {load: Load(f"x{n}.at", Var("part", INDEX), load.type) for n, load in enumerate(tiling.along)}
    for statement in tiling.space.statements:
        new = replaced(statement, places)
        printer.statements([Store("y.at", Var("part", INDEX), new.value) if statement is store else new], 4)
    printer.line(3, "}")
    printer.line(3, f"*({type} *)&{store.buffer}[{_position(stored, tiling, rest)}] = y;")


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


def _each(printer: StatementPrinter, count: int, a: str, d: str, outside: list[str]) -> None:
    """The head of an unrolled loop over a tile's elements or vectors: all loads of a thread are in flight at once."""
    steps = count // THREADS
    printer.line(2, f"#pragma unroll {steps}")
    printer.line(2, f"for (int step = 0; step < {steps}; step++) {{")
    printer.line(3, f"const int n = step * {THREADS} + threadIdx.x;")
    printer.line(3, f"const {printer.index} a = {a}, d = {d};")
    if outside:
        printer.line(3, f"if ({' || '.join(outside)}) continue;")


def _pitch(load: Load, edge: int) -> int:
    """The row stride of a tile, in elements: a row and one word of padding, which avoids bank conflicts of columns."""
    return edge + max(1, 4 // ELEMENT_TYPES[load.type].bytes)


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
