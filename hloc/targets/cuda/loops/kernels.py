"""Loop kernels as CUDA C, in the form of their schedules (forms.py).

In: a Form and the GPU. Out: its text and launch geometry. hloc/targets/printer.py prints everything that is the same as
in C; this file prints the statements that only teams (teams.py) have.

    kernel_source(form_of(nest, steps, gpu), "k0_reduce_add", gpu)
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.walks import loads, walk
from hloc.machine import Machine
from hloc.targets.c_expressions import ExpressionPrinter, c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.loops.cache_read import REGISTERS
from hloc.targets.cuda.loops.forms import Form, geometry_of
from hloc.targets.cuda.loops.index_width import fits
from hloc.targets.cuda.loops.nest import LANES as WARP
from hloc.targets.cuda.loops.nest import LARGEST_BLOCK
from hloc.targets.cuda.loops.printing import Counters, LoopPrinter, Packs
from hloc.targets.cuda.loops.rows import Scan, Spread
from hloc.targets.cuda.loops.teams import LOOKED_AT, TeamKernel, Total
from hloc.targets.cuda.loops.transposes import print_tiled
from hloc.targets.functions import definitions
from hloc.targets.printer import CUDA, StatementPrinter, print_kernel

AT_ONCE, USUALLY_UNROLLED = 16, 4       # bytes that a thread loads at once; iterations that compilers unroll by default
VECTORS_AT_ONCE = 8                     # iterations of a loop around vectors that are unrolled
# Bytes of vectors that a thread loads at once, where two iterations load less. The sum of bf16[16384,4096] took 0.94 of
# the time with 64 in the place of 32 (H200, 2026-11-28).
IN_FLIGHT = 64


def kernel_source(form: Form, name: str, gpu: Machine) -> tuple[str, Geometry]:
    """Text and geometry of a loop kernel; positions have 32 bits if that is enough (index_width.py)."""
    kernel = form.kernel
    text = _printed(form, name, "int" if fits(kernel) else "long")
    return "\n".join([*definitions(kernel.body, ExpressionPrinter()), text]), geometry_of(form, name, gpu)


def _printed(form: Form, name: str, index: str) -> str:
    """The text. index: the C type of positions."""
    if form.tiling is not None:
        return print_tiled(form.kernel, form.tiling, name, index)
    if form.vectors is not None:
        return print_vectors(form, form.vectors, name, index)
    if form.team is not None:
        return print_team_kernel(form, form.team, name, index)
    return print_kernel(form.kernel, CUDA, name, printer=StatementPrinter(CUDA, index=index))


def print_vectors(form: Form, packs: Packs, name: str, index: str) -> str:
    """A pointwise kernel by vectors, as a function called `name`."""
    assert form.space is not None
    printer = LoopPrinter(CUDA, index=index, kernel=form.kernel)
    printer.head(name, form.threads)
    printer.line(1, f"for ({index} vector = {printer.first_thread}; vector < {form.iterations}; "
                    f"vector += {printer.all_threads}) {{")
    printer.vector(packs, form.space.counters, form.space.body, 2)
    return printer.end(1)


def print_team_kernel(form: Form, team: TeamKernel, name: str, index: str) -> str:
    """A whole kernel for teams, as a function called `name`."""
    printer = TeamPrinter(CUDA, index=index, kernel=form.kernel, team=team)
    last = next((s for s in walk(team.body) if isinstance(s, ir.Last)), None)
    printer.arrived = f"{name}_arrived"
    block = team.threads * team.teams
    # without the 1 ptxas spills to fit more blocks into an SM
    bounds = f"{block}, 1" if block == LARGEST_BLOCK or last is not None else block
    printer.head(name, bounds, [f"__device__ unsigned {printer.arrived}[{last.groups}];"] if last is not None else [])
    lane = f"threadIdx.x % {WARP}" if team.threads == WARP else "threadIdx.x"
    printer.line(1, f"const {index} lane = {lane};")
    if team.threads > WARP and any(isinstance(s, Total) for s in walk(team.body)):
        printer.line(1, f"__shared__ unsigned long long totals[{team.threads // WARP}];")
    printer.statements(team.before, 1)
    if not team.counter:
        printer.statements(team.body, 1)
    else:
        _rows(printer, team)
    return printer.end()


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
class TeamPrinter(LoopPrinter):
    """Prints the statements that the lanes of a team execute together."""

    team: TeamKernel = field(kw_only=True)
    arrived: str = field(default="", kw_only=True)

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
        """A loop over the lanes, by vectors or elements; the counters of a nest are computed from one linear index."""
        packs, known = s.packs, constant(s.counters)
        total = math.prod(n for _, n in known)
        if packs:
            depth = self.lanes("vector", total // packs.width, "some", s.slots, in_flight(packs), indent)
        elif len(s.counters) > 1:
            depth = self.lanes("point", total, "slot", s.slots, self.unrolled(s), indent)
        else:
            depth = self.lanes(*s.counters[0], "slot", s.slots, self.unrolled(s), indent)
        if packs:
            slot = [f"const {self.index} slot = some * {packs.width} + part;"] if s.slots else []
            self.vector(packs, known, s.body, depth, slot)
        else:
            self.counters(s, depth)
            self.statements(s.body, depth)
        for n in range(depth - 1, indent - 1, -1):
            self.line(n, "}")

    def lanes(self, name: str, extent: int | ir.Expr, number: str, slots: int, unrolled: int, indent: int) -> int:
        """The head of a loop over the iterations of this lane, and how deep its body is. slots: of arrays of its own,
        whose loop counts them as `number`, and is unrolled if short, so that these arrays become registers."""
        threads, limit = self.team.threads, str(extent) if isinstance(extent, int) else f"({self.expression(extent)})"
        if not slots:
            steps = min(unrolled, extent // threads) if isinstance(extent, int) else 1
            if steps > 1:
                self.line(indent, f"#pragma unroll {steps}")
            self.line(indent, f"for ({self.index} {name} = lane; {name} < {limit}; {name} += {threads}) {{")
            return indent + 1
        slots = -(-extent // threads) if isinstance(extent, int) else slots
        if slots <= REGISTERS:
            self.line(indent, "#pragma unroll")
        self.line(indent, f"for ({self.index} {number} = 0; {number} < {slots}; {number}++) {{")
        self.line(indent + 1, f"const {self.index} {name} = {number} * {threads} + lane;")
        if extent == slots * threads:
            return indent + 1
        self.line(indent + 1, f"if ({name} < {limit}) {{")
        return indent + 2

    def scan(self, s: Scan, indent: int) -> None:
        """Each lane evaluates the condition of its iterations; a ballot gives the results to all lanes."""
        count, guard = math.prod(n for _, n in s.counters), s.body[-1]
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
        if len(inside) == 1 and isinstance(spread := inside[0], Spread) and spread.packs and spread.packs.loads \
                and isinstance(s.extent, int):
            self.line(indent, f"#pragma unroll {min(s.extent, VECTORS_AT_ONCE)}")
        super().loop(s, indent)

    def unrolled(self, s: Spread) -> int:
        """How many iterations are unrolled: enough that their loads in flight are AT_ONCE bytes, also for narrow types;
        1: as many as compilers do."""
        if any(isinstance(inner, (ir.For, ir.While)) for inner in walk(s.body)):
            return 1
        widths = [ELEMENT_TYPES[load.type].bytes for load in loads(s.body)]
        steps = AT_ONCE // min(widths) if widths else 1
        return steps if steps > USUALLY_UNROLLED else 1

    def counters(self, s: Spread | Scan, indent: int) -> None:
        """The counters of a nest, computed from the linear index of the iteration."""
        number = "update" if isinstance(s, Scan) else "point"
        if len(s.counters) > 1 or isinstance(s, Scan):
            self.line(indent, self.of_nest(constant(s.counters), number))

    WRITERS: ClassVar[dict[type, Callable[..., None]]] = {
        **LoopPrinter.WRITERS, ir.Barrier: barrier, Total: total, Spread: spread, Scan: scan, ir.Last: last,
        ir.For: loop}


def in_flight(packs: Packs) -> int:
    """How many iterations of a loop around vectors, whose values are not kept, a thread begins at once."""
    loaded = sum(packs.width * ELEMENT_TYPES[load.type].bytes for load in packs.loads)
    return max(2, IN_FLIGHT // loaded) if loaded else 2


def constant(counters: Sequence[tuple[str, int | ir.Expr]]) -> Counters:
    """The counters of a nest, all of whose extents are constants."""
    return [(name, extent) for name, extent in counters if isinstance(extent, int)]


def describe(launches: tuple[Geometry, ...], kernel: ir.Kernel | ir.Tile) -> str:
    """A comment for readers: the launch geometry of the kernels, the bytes they move, the operations they compute."""
    starts = ", ".join("a library call" if g.product else f"grid {g.grid[0]} x block {g.block[0]}" for g in launches)
    return f"/* {starts}; {kernel.cost.bytes:,} bytes, {kernel.cost.flops:,} flops */\n"
