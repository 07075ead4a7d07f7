"""Transposes on the GPU: pointwise kernels that read an array across its rows use tiles in shared memory.

In: a loop Kernel. Out: a Tiling, or None if every array is read along its rows; its text. A tile is square. Adjacent
threads load its elements along one dimension, and use them along the other, so that reads and writes are coalesced.
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, Kernel, Load, Var
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.loops.iteration_space import Access, Space, counters, inside, replaced
from hloc.targets.printer import CUDA, StatementPrinter, comment, pointer_type

SHORTEST = 16                   # dimensions shorter than this are not worth a tile
THREADS = 256
BLOCKS_PER_SM = 8
LARGEST_SHARED = 36 << 10


class Tiling(NamedTuple):
    """read: the dimension along which `loads` are contiguous (results are contiguous along the first one)."""

    space: Space
    read: int
    loads: dict[Load, Access]
    edge: int

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
    width = max(ELEMENT_TYPES[load.type].bytes for load in loads)
    edge = 64 if width <= 2 else 32
    most = LARGEST_SHARED // (edge * (edge + 4) * width)
    return Tiling(space, read, dict(list(loads.items())[:most]), edge)


def tiled_geometry(tiling: Tiling, name: str, gpu: Machine) -> Geometry:
    return Geometry(name, (max(1, min(tiling.tiles, gpu.cores * BLOCKS_PER_SM)), 1, 1), (THREADS, 1, 1))


def print_tiled(kernel: Kernel, tiling: Tiling, name: str, index: str) -> str:
    """The whole kernel, as a function called `name`; index: the C type of positions."""
    printer, edge, dimensions = StatementPrinter(CUDA, index=index), tiling.edge, tiling.space.dimensions
    printer.lines.extend(comment(kernel.origin))
    parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in kernel.buffers)
    printer.line(0, f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}({parameters}) {{')
    for n, load in enumerate(tiling.loads):
        printer.line(1, f"__shared__ {c_type(load.type)} tile{n}[{edge * _pitch(load, edge)}];")
    outside = [f"{c} >= {dimensions[n].size}" for c, n in (("a", 0), ("d", tiling.read)) if dimensions[n].size % edge]
    printer.line(1, f"for ({printer.index} work = blockIdx.x; work < {tiling.tiles}; work += gridDim.x) {{")
    rest = _decode(printer, tiling)
    printer.line(2, "__syncthreads();")
    _each(printer, edge, outside, f"across + n / {edge}", f"down + n % {edge}")
    for n, (load, access) in enumerate(tiling.loads.items()):
        terms = [f"a * {access.steps[0]}", "d"]
        terms += [f"{v} * {access.steps[k]}" for k, v in rest.items() if access.steps[k]]
        place = " + ".join(terms + ([str(access.constant)] if access.constant else []))
        printer.line(3, f"tile{n}[n % {edge} * {_pitch(load, edge)} + n / {edge}] = {load.buffer}[{place}];")
    printer.line(2, "}")
    printer.line(2, "__syncthreads();")
    _each(printer, edge, outside, f"across + n % {edge}", f"down + n / {edge}")
    element = " + ".join(["a", f"d * {dimensions[tiling.read].divisor}",
                          *(f"{v} * {dimensions[k].divisor}" for k, v in rest.items())])
    for line in counters(kernel.body[0], element, index):
        printer.line(3, line)
    places = {load: Load(f"tile{n}", Var(f"n / {edge} * {_pitch(load, edge)} + n % {edge}", INDEX), load.type)
              for n, load in enumerate(tiling.loads)}
    printer.statements([replaced(s, places) for s in tiling.space.statements], 3)
    for indent in (2, 1, 0):
        printer.line(indent, "}")
    return "\n".join(printer.lines) + "\n"


def _each(printer: StatementPrinter, edge: int, outside: list[str], a: str, d: str) -> None:
    """The head of an unrolled loop over a tile's elements: all loads of a thread are in flight at once."""
    steps = edge * edge // THREADS
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
