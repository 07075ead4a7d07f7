"""Transposes on the GPU: pointwise kernels that read an array across its rows use tiles in shared memory.

In: a loop Kernel, the edge of its tiles, and the arrays that are read across their rows. Out: a Tiling; its text. A
tile is square. Adjacent threads load its elements along one axis, and use them along the other, so that reads and
writes are coalesced.

If positions and sizes allow it, a thread loads and stores vectors. The tile lies in groups of adjacent elements: a
vector, or a word of shared memory. Groups of a line change places with the number of the line, or of its vector (an
exclusive or), so that neither the stores of lines nor the loads of elements across them meet in one bank.
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import factor_of, stays_inside
from hloc.kernels.ir import INDEX, Expr, Kernel, Load, Var
from hloc.kernels.schedule.steps import Refused
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.loops.iteration_space import Space, vectors_along
from hloc.targets.cuda.loops.printing import LoopPrinter, Packs, pack_type
from hloc.targets.cuda.loops.vector_accesses import VECTOR_BYTES, packs_of_space
from hloc.targets.printer import CUDA

BLOCKS_PER_SM = 8
WORD, BANKS = 4, 32             # of shared memory: bytes of a word
CHUNKS = 8                      # vectors of a line, which a quarter of a warp stores: 128 bytes; single ones: a warp
LARGEST_SHARED = 36 << 10


class Tiling(NamedTuple):
    """read: the axis along which `loads` are contiguous (results are contiguous along d0). packs: of the results, and
    of what else is read along d0."""

    space: Space
    read: str
    loads: dict[Load, Expr]
    edge: int
    threads: int
    packs: Packs

    @property
    def width(self) -> int:
        """Adjacent elements that a thread loads and stores at once."""
        return self.packs.width

    @property
    def counts(self) -> dict[str, int]:
        """The tiles along the axes, d0 and `read` first."""
        sizes = self.space.sizes
        return {name: -(-sizes[name] // self.edge) for name in ("d0", self.read)} | \
            {name: n for name, n in sizes.items() if name not in ("d0", self.read)}

    @property
    def tiles(self) -> int:
        return math.prod(self.counts.values())

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return sum(self.edge ** 2 * ELEMENT_TYPES[load.type].bytes for load in self.loads)

    def place(self, load: Load, line: str, column: str) -> str:
        """The place of an element in the tile of a load. line: of what is read, across the results."""
        group = max(self.width, WORD // ELEMENT_TYPES[load.type].bytes)
        moved = f"{line} / {self.width} % {self.edge // group}"
        return f"({line}) * {self.edge} + (({column}) / {group} ^ {moved}) * {group} + ({column}) % {group}"


def across(kernel: Kernel, space: Space) -> dict[str, dict[Load, Expr]]:
    """The loads that are contiguous along another axis than d0, by this axis."""
    found: dict[str, dict[Load, Expr]] = {}
    lengths = {b.name: b.size for b in kernel.buffers}
    for load, form in space.loads.items():
        along = [name for name in reversed(space.sizes) if factor_of(form, name) == 1]
        if factor_of(form, "d0") not in (0, 1) and along \
                and stays_inside(form, lengths[load.buffer], space.sizes):
            found.setdefault(along[0], {})[load] = form
    return found


def tiling_of(kernel: Kernel, space: Space, read: str, edge: int, width: int, threads: int,
              buffers: tuple[str, ...]) -> Tiling:
    """Tiles for arrays that are read along axis `read`. Raises Refused."""
    sizes, written = space.sizes, list(space.stores.values())
    if len(written) != 1 or factor_of(written[0], "d0") != 1:
        raise Refused("not one result that is written along d0")
    loads = {load: form for load, form in across(kernel, space).get(read, {}).items() if load.buffer in buffers}
    if {load.buffer for load in loads} != set(buffers) or not buffers:
        raise Refused(f"not what is read along {read}: {', '.join(buffers) or 'no buffer'}")
    if 2 * min(sizes["d0"], sizes[read]) < edge:
        raise Refused("most of a tile would be empty")
    if edge * edge % (width * threads) or edge // width % (CHUNKS if width > 1 else BANKS) or edge & edge - 1:
        raise Refused(f"{threads} threads share no tile of {edge} by {edge}, {width} elements at once")
    if sizes[read] % width or any(vectors_along(form, read, width) is None for form in loads.values()):
        raise Refused(f"rows are no vectors of {width}")
    tiling = Tiling(space, read, loads, edge, threads, packs_of_space(kernel, space, width))
    if tiling.shared > LARGEST_SHARED:
        raise Refused(f"tiles of {tiling.shared >> 10} KiB: at most {LARGEST_SHARED >> 10}")
    return tiling


def print_tiled(kernel: Kernel, tiling: Tiling, name: str, index: str) -> str:
    """The whole kernel, as a function called `name`; index: the C type of positions."""
    printer, edge, width, read = LoopPrinter(CUDA, index=index, kernel=kernel), tiling.edge, tiling.width, tiling.read
    printer.head(name, tiling.threads)
    for n, load in enumerate(tiling.loads):
        printer.line(1, f"__shared__ __align__({VECTOR_BYTES}) {c_type(load.type)} tile{n}[{edge * edge}];")
    printer.line(1, f"for ({index} work = blockIdx.x; work < {tiling.tiles}; work += gridDim.x) {{")
    counters = {"d0": "across", read: "down"}
    printer.line(2, printer.of_nest([(counters.get(c, c), n) for c, n in reversed(tiling.counts.items())], "work"))
    chunks, together = edge // width, CHUNKS if width > 1 else BANKS
    line, chunk = f"n / {together} % {edge}", f"(n % {together} + n / {together * edge} * {together})"
    if chunks == together:
        line, chunk = f"n / {chunks}", f"n % {chunks}"
    printer.line(2, "__syncthreads();")
    _each(printer, tiling, "d0", line, f"{chunk} * {width}")
    for n, (load, form) in enumerate(tiling.loads.items()):
        type = pack_type(load.type, width)
        printer.line(3, f"*({type} *)&tile{n}[{tiling.place(load, line, f'{chunk} * {width}')}] = "
                        f"*(const {type} *)&{load.buffer}[{printer.expression(form)}];")
    printer.line(2, "}")
    printer.line(2, "__syncthreads();")
    _each(printer, tiling, "d0_first", f"{chunk} * {width}", line)
    places = {load: Load(f"tile{n}", Var(tiling.place(load, f"({chunk} * {width} + part)", line), INDEX), load.type)
              for n, load in enumerate(tiling.loads)}
    printer.pack(tiling.packs, Var("d0_first", INDEX), tiling.space.body,
                 [f"const {index} d0 = d0_first + part;"], 3, places)
    return printer.end(2)


def _each(printer: LoopPrinter, tiling: Tiling, first: str, a: str, d: str) -> None:
    """The head of an unrolled loop over a tile's elements or vectors: all loads of a thread are in flight at once. a,
    d: their places in the tile along d0, which is named `first`, and along the axis that is read."""
    steps, edge, sizes = tiling.edge ** 2 // tiling.width // tiling.threads, tiling.edge, tiling.space.sizes
    printer.line(2, f"#pragma unroll {steps}")
    printer.line(2, f"for (int step = 0; step < {steps}; step++) {{")
    printer.line(3, f"const int n = step * {tiling.threads} + threadIdx.x;")
    printer.line(3, f"const {printer.index} {first} = across * {edge} + {a}, {tiling.read} = down * {edge} + {d};")
    outside = [f"{c} >= {sizes[name]}" for c, name in ((first, "d0"), (tiling.read, tiling.read)) if sizes[name] % edge]
    if outside:
        printer.line(3, f"if ({' || '.join(outside)}) continue;")
