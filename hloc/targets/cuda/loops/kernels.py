"""Loop kernels as CUDA C: a thread, a warp or a block per iteration of the PARALLEL loop.

In: a Kernel and the GPU. Out: its text and launch geometry. hloc/targets/printer.py prints everything that is the same
as in C; this file prints the statements that only teams (teams.py) have.

    kernel_source(kernel, "k0_reduce_add", GPUS["h100"])

Pointwise kernels use tiles (transposes.py) or vectors (vectors.py) if their accesses allow it.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.affine import Affine
from hloc.kernels.indexing import index_apply
from hloc.kernels.walks import loads, walk, with_expressions
from hloc.machine import Machine
from hloc.targets.c_expressions import ExpressionPrinter, c_type, expression
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.loops.atomics import with_atomics
from hloc.targets.cuda.loops.cache_read import REGISTERS, with_cache_read
from hloc.targets.cuda.loops.fast_division import with_fast_division
from hloc.targets.cuda.loops.index_width import fits
from hloc.targets.cuda.loops.iteration_space import space_of, with_loads
from hloc.targets.cuda.loops.scatter_owners import with_scatter_owners
from hloc.targets.cuda.loops.teams import (
    BLOCKS_PER_SM,
    LOOKED_AT,
    WARP,
    Scan,
    Spread,
    TeamKernel,
    Total,
    team_kernel,
)
from hloc.targets.cuda.loops.transposes import Tiling, find_tiling, print_tiled, tiled_geometry
from hloc.targets.cuda.loops.vector_accesses import Packs, Widths
from hloc.targets.cuda.loops.vectors import Vectors, find_vectors, print_vectors, vector_geometry
from hloc.targets.functions import definitions, with_calls
from hloc.targets.printer import CUDA, StatementPrinter, comment, kernel_start, pointer_type, print_kernel

THREADS = 256
AT_ONCE, USUALLY_UNROLLED = 16, 4       # bytes that a thread loads at once; iterations that compilers unroll by default
VECTORS_AT_ONCE = 8                     # iterations of a loop around vectors that are unrolled
LARGEST_BLOCK = 1024
MOST_INLINED = 32                       # functions of a kernel: ptxas takes 11 ms for each


def kernel_source(kernel: ir.Kernel, name: str, gpu: Machine) -> tuple[str, Geometry]:
    """Text and geometry of a loop kernel; positions have 32 bits if that is enough (index_width.py)."""
    kernel = distributed(kernel, gpu)
    form = form_of(kernel, gpu)
    text = _printed(form, name, "int" if fits(kernel) else "long")
    return "\n".join([*definitions(kernel.body, ExpressionPrinter()), text]), geometry_of(form, name, gpu)


def distributed(kernel: ir.Kernel, gpu: Machine) -> ir.Kernel:
    """The kernel rewritten for threads: scatters by owners or atomics, quotients by multiplication."""
    return with_scatter_owners(with_atomics(with_fast_division(with_calls(kernel, MOST_INLINED))), gpu)


class Form(NamedTuple):
    """How a kernel is distributed over threads: by tiles, by vectors or by teams; else one thread per iteration."""

    kernel: ir.Kernel
    tiling: Tiling | None = None
    vectors: Vectors | None = None
    team: TeamKernel | None = None


def form_of(kernel: ir.Kernel, gpu: Machine) -> Form:
    """The form in which a kernel of distributed() is printed."""
    space = space_of(kernel)
    tiling = find_tiling(kernel, space) if space else None
    if tiling is not None:
        return Form(kernel, tiling=tiling)
    vectors = find_vectors(kernel, space, gpu) if space else None
    if vectors is not None:
        return Form(kernel, vectors=vectors)
    team = team_kernel(kernel, gpu)
    if team is None:
        return Form(kernel)
    kept = with_cache_read(kernel, team.threads)
    return Form(kept, team=team if kept is kernel else team_kernel(kept, gpu))


def _printed(form: Form, name: str, index: str) -> str:
    """The text. index: the C type of positions."""
    kernel, tiling, vectors, team = form
    if tiling is not None:
        return print_tiled(kernel, tiling, name, index)
    if vectors is not None:
        return print_vectors(kernel, vectors, name, index)
    if team is not None:
        return print_team_kernel(kernel, team, name, index)
    return print_kernel(kernel, CUDA, name, printer=StatementPrinter(CUDA, index=index))


def geometry_of(form: Form, name: str, gpu: Machine) -> Geometry:
    """The launch geometry of a kernel of this form."""
    if form.tiling is not None:
        return tiled_geometry(form.tiling, name, gpu)
    if form.vectors is not None:
        return vector_geometry(form.vectors, name, gpu)
    return team_geometry(form.team, name, gpu) if form.team else thread_geometry(form.kernel, name, gpu)


def team_geometry(team: TeamKernel, name: str, gpu: Machine) -> Geometry:
    """A team for each row, up to a few blocks per SM."""
    blocks = max(1, min(-(-team.rows // team.teams), gpu.cores * BLOCKS_PER_SM))
    return Geometry(name, (blocks, 1, 1), (team.threads * team.teams, 1, 1))


def thread_geometry(kernel: ir.Kernel, name: str, gpu: Machine) -> Geometry:
    """A thread per iteration, up to a few blocks per SM; a grid-stride loop covers the remaining iterations."""
    threads = threads_of(kernel)
    blocks = max(1, min((threads + THREADS - 1) // THREADS, gpu.cores * BLOCKS_PER_SM))
    return Geometry(name, (blocks, 1, 1), (min(THREADS, -(-max(1, threads) // WARP) * WARP), 1, 1))


def threads_of(kernel: ir.Kernel) -> int:
    """Iterations of the PARALLEL loop, times those of a VECTOR loop that is its whole body: the printer fuses them."""
    loop = next((s for s in kernel.body if isinstance(s, ir.For) and s.kind == ir.PARALLEL), None)
    if loop is None:
        return 1
    inner = loop.body[0] if len(loop.body) == 1 and isinstance(loop.body[0], ir.For) else None
    joined = inner is not None and inner.kind == ir.VECTOR and isinstance(inner.extent, int)
    return loop.trip_count * (inner.trip_count if inner is not None and joined else 1)


def print_team_kernel(kernel: ir.Kernel, team: TeamKernel, name: str, index: str) -> str:
    """A whole kernel for teams, as a function called `name`."""
    printer = TeamPrinter(CUDA, index=index, team=team, kernel=kernel)
    printer.lines.extend(comment(kernel.origin))
    parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in kernel.buffers)
    last = next((s for s in walk(team.body) if isinstance(s, ir.Last)), None)
    if last is not None:
        printer.arrived = f"{name}_arrived"
        printer.line(0, f"__device__ unsigned {printer.arrived}[{last.groups}];")
    block = team.threads * team.teams
    # without the 1 ptxas spills to fit more blocks into an SM
    bounds = f"{block}, 1" if block == LARGEST_BLOCK or last is not None else block
    printer.line(0, f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({parameters}) {{')
    printer.lines.extend(kernel_start(kernel.buffers))
    lane = f"threadIdx.x % {WARP}" if team.threads == WARP else "threadIdx.x"
    printer.line(1, f"const {index} lane = {lane};")
    if team.threads > WARP and any(isinstance(s, Total) for s in walk(team.body)):
        printer.line(1, f"__shared__ unsigned long long totals[{team.threads // WARP}];")
    printer.statements(team.before, 1)
    if not team.counter:
        printer.statements(team.body, 1)
    else:
        _rows(printer, team)
    printer.line(0, "}")
    return "\n".join(printer.lines) + "\n"


def _rows(printer: TeamPrinter, team: TeamKernel) -> None:
    """The loop over the rows of this team."""
    i, teams = team.counter, f"{team.teams}L" if printer.index == "long" else str(team.teams)
    if team.once:
        printer.line(1, f"const {printer.index} {i} = blockIdx.x;")
        printer.statements(team.body, 1)
        return
    start = "blockIdx.x" if team.teams == 1 else f"blockIdx.x * {teams} + threadIdx.x / {WARP}"
    step = "gridDim.x" if team.teams == 1 else f"gridDim.x * {teams}"
    printer.line(1, f"for ({printer.index} {i} = {start}; {i} < {team.rows}; {i} += {step}) {{")
    printer.statements(team.body, 2)
    printer.line(1, "}")


@dataclass
class TeamPrinter(StatementPrinter):
    """Prints the statements that the lanes of a team execute together."""

    team: TeamKernel = field(kw_only=True)
    kernel: ir.Kernel = field(kw_only=True)
    arrived: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self.buffers = {b.name: b for b in self.kernel.buffers}
        self.widths = Widths(self.team, self.buffers)

    def barrier(self, s: ir.Barrier, indent: int) -> None:
        self.line(indent, "__syncwarp();" if self.team.threads == WARP else "__syncthreads();")

    def total(self, s: Total, indent: int) -> None:
        type = c_type(s.type)
        joined = self.expression(ir.Apply(s.op, (ir.Var("a", s.type), ir.Var("b", s.type)), s.type))
        join = f"[]({type} a, {type} b) -> {type} {{ return {joined}; }}"
        if self.team.threads == WARP:
            self.line(indent, f"{s.name} = hloc_warp_total({s.name}, {join});")
        else:
            self.line(indent, f"{s.name} = hloc_block_total<{self.team.threads // WARP}>({s.name}, {join}, totals);")

    def spread(self, s: Spread, indent: int) -> None:
        """A loop over the lanes; the counters of a nest are computed from one linear index."""
        extent = s.counters[0][1] if len(s.counters) == 1 else _product(s.counters)
        name = s.counters[0][0] if len(s.counters) == 1 else "point"
        if packs := self.widths.of(s):
            assert isinstance(extent, int)              # as `widths` says
            self.packed(s, packs, extent, indent)
            return
        if not s.slots:
            if (steps := self.unrolled(s, extent)) > USUALLY_UNROLLED:
                self.line(indent, f"#pragma unroll {steps}")
            limit = str(extent) if isinstance(extent, int) else f"({self.expression(extent)})"
            self.line(indent, f"for ({self.index} {name} = lane; {name} < {limit}; {name} += {self.team.threads}) {{")
            self.counters(s, indent + 1)
            self.statements(s.body, indent + 1)
        else:
            self.slotted(s, name, extent, indent)
        self.line(indent, "}")

    def scan(self, s: Scan, indent: int) -> None:
        """Each lane evaluates the condition of its iterations; a ballot gives the results to all lanes."""
        count, guard = _product(s.counters), s.body[-1]
        assert isinstance(guard, ir.If)
        parts = LOOKED_AT // WARP
        self.line(indent, f"for ({self.index} first = 0; first < {count}; first += {LOOKED_AT}) {{")
        self.line(indent + 1, "unsigned long long left = 0;")
        self.line(indent + 1, "#pragma unroll")
        self.line(indent + 1, f"for (int part = 0; part < {parts}; part++) {{")
        self.line(indent + 2, f"const {self.index} update = first + part * {WARP} + lane;")
        self.line(indent + 2, "bool found = false;")
        self.line(indent + 2, f"if (update < {count}) {{")
        self.counters(s, indent + 3)
        self.statements(s.body[:-1], indent + 3)
        self.line(indent + 3, f"found = {self.expression(guard.condition)};")
        self.line(indent + 2, "}")
        self.line(indent + 2, f"left |= (unsigned long long)__ballot_sync(0xffffffffu, found) << part * {WARP};")
        self.line(indent + 1, "}")
        self.line(indent + 1, "for (; left; left &= left - 1) {")
        self.line(indent + 2, f"const {self.index} update = first + __ffsll((long long)left) - 1;")
        self.counters(s, indent + 2)
        self.statements((*s.body[:-1], *guard.then), indent + 2)
        self.line(indent + 1, "}")
        self.line(indent, "}")

    def last(self, s: ir.Last, indent: int) -> None:
        kind = "warp" if self.team.threads == WARP else "block"
        place = f"&{self.arrived}[{self.expression(s.position)}]"
        self.line(indent, f"if (hloc_last_{kind}({place}, {s.count})) {{")
        self.statements(s.body, indent + 1)
        self.line(indent, "}")

    def loop(self, s: ir.For, indent: int) -> None:
        """A loop that all lanes run together; the vectors of several iterations are loaded at once."""
        inside = [i for i in s.body if not isinstance(i, ir.Let)]
        if len(inside) == 1 and isinstance(inside[0], Spread) and (packs := self.widths.of(inside[0])) and packs.loads \
                and isinstance(s.extent, int):
            self.line(indent, f"#pragma unroll {min(s.extent, VECTORS_AT_ONCE)}")
        super().loop(s, indent)

    def packed(self, s: Spread, packs: Packs, extent: int, indent: int) -> None:
        """A loop whose lanes load and store several adjacent elements at once."""
        width, lanes = packs.width, self.team.threads
        vectors = extent // width
        if s.slots:
            self.line(indent, "#pragma unroll")
            self.line(indent, f"for ({self.index} some = 0; some < {-(-vectors // lanes)}; some++) {{")
            self.line(indent + 1, f"const {self.index} vector = some * {lanes} + lane;")
        else:
            if vectors >= 2 * lanes:
                self.line(indent, "#pragma unroll 2")
            self.line(indent, f"for ({self.index} vector = lane; vector < {vectors}; vector += {lanes}) {{")
        if guarded := s.slots > 0 and vectors % lanes > 0:
            self.line(indent + 1, f"if (vector < {vectors}) {{")
        self.vector(s, packs, extent, indent + 1 + guarded)
        if guarded:
            self.line(indent + 1, "}")
        self.line(indent, "}")

    def vector(self, s: Spread, packs: Packs, extent: int, indent: int) -> None:
        """The elements of one vector."""
        width, (name, inner) = packs.width, s.counters[-1]
        assert isinstance(inner, int)                       # as `widths` says
        along = len(s.counters) == 1 or inner % width == 0      # whether a vector lies in one line of the nest
        first = index_apply("multiply", ir.Var("vector", ir.INDEX), ir.Const(width, ir.INDEX))
        if len(s.counters) > 1 and along:
            self.line(indent, f"const {self.index} point = {self.expression(first)};")
            self.counters(s._replace(counters=(*s.counters[:-1], (f"{name}_first", inner))), indent)
            first = ir.Var(f"{name}_first", ir.INDEX)
        places: dict[ir.Load, ir.Expr] = {}
        for n, (load, form) in enumerate(packs.loads.items()):
            type = f"hloc_pack<{c_type(load.type)}, {width}>"
            self.line(indent, f"const {type} x{n} = *(const {type} *)&{load.buffer}[{_place(form, first)}];")
            places[load] = ir.Load(f"x{n}.at", ir.Var("part", ir.INDEX), load.type)
        stores = list(packs.stores)
        types = [f"hloc_pack<{c_type(self.buffers[store.buffer].type)}, {width}>" for store in stores]
        for n, type in enumerate(types):
            self.line(indent, f"{type} y{n};")
        self.line(indent, "#pragma unroll")
        self.line(indent, f"for (int part = 0; part < {width}; part++) {{")
        if along:
            self.line(indent + 1, f"const {self.index} {name} = {self.expression(first)} + part;")
        else:
            self.line(indent + 1, f"const {self.index} point = vector * {width} + part;")
            self.counters(s, indent + 1)
        if s.slots:
            self.line(indent + 1, f"const {self.index} slot = some * {width} + part;")
        for statement in s.body:
            new = with_expressions(statement, lambda e: with_loads(e, places))
            if isinstance(statement, ir.Store) and isinstance(new, ir.Store) and statement in packs.stores:
                new = ir.Store(f"y{stores.index(statement)}.at", ir.Var("part", ir.INDEX), new.value)
            self.statements([new], indent + 1)
        self.line(indent, "}")
        for n, (store, form) in enumerate(packs.stores.items()):
            self.line(indent, f"*({types[n]} *)&{store.buffer}[{_place(form, first)}] = y{n};")

    def unrolled(self, s: Spread, extent) -> int:
        """The unroll factor: enough iterations that their loads in flight are AT_ONCE bytes, also for narrow types."""
        if not isinstance(extent, int) or any(isinstance(inner, (ir.For, ir.While)) for inner in walk(s.body)):
            return 1
        widths = [ELEMENT_TYPES[load.type].bytes for load in loads(s.body)]
        return min(extent // self.team.threads, AT_ONCE // min(widths)) if widths else 1

    def slotted(self, s: Spread, name: str, extent, indent: int) -> None:
        """A loop over the slots of this lane; unrolled if short, so that split arrays become registers."""
        if s.slots <= REGISTERS:
            self.line(indent, "#pragma unroll")
        self.line(indent, f"for ({self.index} slot = 0; slot < {s.slots}; slot++) {{")
        self.line(indent + 1, f"const {self.index} {name} = slot * {self.team.threads} + lane;")
        whole = isinstance(extent, int) and extent == s.slots * self.team.threads
        if not whole:
            limit = str(extent) if isinstance(extent, int) else f"({self.expression(extent)})"
            self.line(indent + 1, f"if ({name} < {limit}) {{")
        self.counters(s, indent + 1 + (not whole))
        self.statements(s.body, indent + 1 + (not whole))
        if not whole:
            self.line(indent + 1, "}")

    def counters(self, s: Spread | Scan, indent: int) -> None:
        """The counters of a nest, computed from the linear index of the iteration."""
        number = "update" if isinstance(s, Scan) else "point"
        if len(s.counters) == 1:
            if isinstance(s, Scan):
                self.line(indent, f"const {self.index} {s.counters[0][0]} = {number};")
            return
        rest, pieces = _product(s.counters), []
        for name, extent in s.counters:
            assert isinstance(extent, int)              # of a nest
            outer = rest
            rest //= extent
            value = number if outer == _product(s.counters) else f"{number} % {outer}"
            pieces.append(f"{name} = {value}" if rest == 1 else f"{name} = {value} / {rest}")
        self.line(indent, f"const {self.index} {', '.join(pieces)};")

    WRITERS: ClassVar[dict[type, Callable[..., None]]] = {
        **StatementPrinter.WRITERS, ir.Barrier: barrier, Total: total, Spread: spread, Scan: scan, ir.Last: last,
        ir.For: loop}


def _place(start: Affine, first: ir.Expr) -> str:
    """The position of a vector's first element, from that of its loop's."""
    return expression(index_apply("add", start.expression(), first))


def _product(counters: Sequence[tuple[str, int | ir.Expr]]) -> int:
    """The iterations of a nest, all of whose extents are constants."""
    result = 1
    for _, extent in counters:
        assert isinstance(extent, int)
        result *= extent
    return result


def describe(launches: tuple[Geometry, ...], kernel: ir.Kernel | ir.Tile) -> str:
    """A comment for readers: the launch geometry of the kernels, the bytes they move, the operations they compute."""
    starts = ", ".join("a library call" if g.product else f"grid {g.grid[0]} x block {g.block[0]}" for g in launches)
    return f"/* {starts}; {kernel.cost.bytes:,} bytes, {kernel.cost.flops:,} flops */\n"
