"""Loop kernels as CUDA C, in the form of their schedules (forms.py).

In: a Form and the GPU. Out: its text and launch geometry. hloc/targets/printer.py prints everything that is the same as
in C; this file prints the statements of teams, and vectors of adjacent elements:

    const hloc_pack<float, 4> x0 = *(const hloc_pack<float, 4> *)&in0[d0_first];
    hloc_pack<float, 4> y0;
    for (int part = 0; part < 4; part++) { const int d0 = d0_first + part; y0.at[part] = hloc_exp_f32(x0.at[part]); }
    *(hloc_pack<float, 4> *)&out0[d0_first] = y0;
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.indexing import sum_of
from hloc.kernels.ir import INDEX, Expr, Load, Store, Var
from hloc.kernels.walks import expressions, parts, walk, with_expressions, with_values
from hloc.machine import Machine
from hloc.targets.c_expressions import ExpressionPrinter, c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.loops.cache_read import REGISTERS
from hloc.targets.cuda.loops.forms import geometry_of
from hloc.targets.cuda.loops.index_width import fits
from hloc.targets.cuda.loops.iteration_space import counters_of
from hloc.targets.cuda.loops.nest import LANES as WARP
from hloc.targets.cuda.loops.nest import LARGEST_BLOCK
from hloc.targets.cuda.loops.rows import Packs, Scan, Spread
from hloc.targets.cuda.loops.teams import LOOKED_AT, SLOT, Form, Total
from hloc.targets.functions import definitions
from hloc.targets.printer import CUDA, StatementPrinter, comment, kernel_start, pointer_type

VECTORS_AT_ONCE = 8                     # iterations of a loop around vectors that are unrolled
# Bytes of vectors that a thread loads at once, where two iterations load less. The sum of bf16[16384,4096] took 0.94 of
# the time with 64 in the place of 32 (H200, 2026-11-28).
IN_FLIGHT = 64
PART, VECTOR = Var("part", INDEX), Var("vector", INDEX)
HALVES = ("bf16", "f16")
Counters = Sequence[tuple[str, int]]


def kernel_source(form: Form, name: str, gpu: Machine) -> tuple[str, Geometry]:
    """Text and geometry of a loop kernel; positions have 32 bits if that is enough (index_width.py)."""
    geometry = geometry_of(form, name, gpu)
    printer = LoopPrinter(CUDA, index="int" if fits(form.kernel) else "long", form=form, arrived=f"{name}_arrived",
                          once=geometry.grid[0] == form.rows and form.teams == 1)
    printer.kernel(name)
    return "\n".join([*definitions(form.kernel.body, ExpressionPrinter()), *printer.lines, ""]), geometry


def pack_type(type: str, width: int) -> str:
    return f"hloc_pack<{c_type(type)}, {width}>"


def rounds_to_half(value: Expr) -> bool:
    """Whether f32 becomes bf16 or f16, which takes a fourth of the time in pairs (words.cuh)."""
    return isinstance(value, ir.Apply) and value.op == "convert" and value.type in HALVES and \
        value.arguments[0].type == "f32"


@dataclass
class LoopPrinter(StatementPrinter):
    """Prints a loop kernel. arrived: the name of its counters of teams that have finished; once: each row has a block
    of its own, and is in no loop, in which sums would take 10 to 15 registers more."""

    form: Form = field(kw_only=True)
    arrived: str = field(kw_only=True)
    once: bool = field(kw_only=True)

    def kernel(self, name: str) -> None:
        """The whole kernel, as a function called `name`."""
        form, kernel = self.form, self.form.kernel
        last = next((s for s in walk(form.body) if isinstance(s, ir.Last)), None)
        # without the 1 ptxas spills to fit more blocks into an SM
        bounds = f"{form.block}, 1" if form.block == LARGEST_BLOCK or last is not None else form.block
        self.lines += comment(kernel.origin)
        if last is not None:
            self.line(0, f"__device__ unsigned {self.arrived}[{last.groups}];")
        parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in kernel.buffers)
        self.line(0, f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({parameters}) {{')
        self.lines += kernel_start(kernel.buffers)
        if form.lanes:
            self.line(1, f"const {self.index} lane = threadIdx.x{f' % {WARP}' if form.lanes == WARP else ''};")
        if form.lanes > WARP and any(isinstance(s, Total) for s in walk(form.body)):
            self.line(1, f"__shared__ unsigned long long totals[{form.lanes // WARP}];")
        self.statements(form.before, 1)
        self.rows(form)
        self.line(0, "}")

    def rows(self, form: Form) -> None:
        """The loop over the rows of this team; the grid has one row."""
        i, index = form.counter, self.index
        if not i or self.once:
            self.statements([ir.Let(i, Var("blockIdx.x", INDEX))] if i else [], 1)
            self.statements(form.body, 1)
            return
        teams = f"{form.teams}L" if index == "long" else str(form.teams)
        start = "blockIdx.x" if form.teams == 1 else f"blockIdx.x * {teams} + threadIdx.x / {WARP}"
        step = "gridDim.x" if form.teams == 1 else f"gridDim.x * {teams}"
        self.line(1, f"for ({index} {i} = {start}; {i} < {form.rows}; {i} += {step}) {{")
        self.statements(form.body, 2)
        self.line(1, "}")

    def barrier(self, s: ir.Barrier, indent: int) -> None:
        self.line(indent, "__syncwarp();" if self.form.lanes == WARP else "__syncthreads();")

    def total(self, s: Total, indent: int) -> None:
        type = c_type(s.type)
        joined = self.expression(ir.Apply(s.op, (ir.Var("a", s.type), ir.Var("b", s.type)), s.type))
        join = f"[]({type} a, {type} b) -> {type} {{ return {joined}; }}"
        if self.form.lanes == WARP:
            self.line(indent, f"{s.name} = hloc_warp_total({s.name}, {join});")
        else:
            self.line(indent, f"{s.name} = hloc_block_total<{self.form.lanes // WARP}>({s.name}, {join}, totals);")

    def spread(self, s: Spread, indent: int) -> None:
        """A loop over the lanes, by vectors or elements; the counters of a nest are computed from one linear index."""
        if s.packs:
            depth = self.distributed(s, "vector", s.iterations, "some", indent)
            self.vector(s, s.packs, depth)
        else:
            is_nest = len(s.counters) != 1
            depth = self.distributed(s, *(("point", s.iterations) if is_nest else s.counters[0]), SLOT.name, indent)
            self.statements(counters_of("point", constant(s.counters)) if is_nest else (), depth)
            self.only(s, {}, depth)
            self.statements(s.body, depth)
        for n in range(depth - 1, indent - 1, -1):
            self.line(n, "}")

    def distributed(self, s: Spread, name: str, extent: int | ir.Expr, number: str, indent: int) -> int:
        """The head of a loop over the iterations of this lane, or of this thread of the grid, and how deep its body is.
        number: the name of those of a lane that has slots: the loop is unrolled if short, so that its arrays become
        registers."""
        lanes, limit = self.form.lanes, str(extent) if isinstance(extent, int) else f"({self.expression(extent)})"
        if not lanes:
            first = f"blockIdx.x * {self.to_index}blockDim.x + threadIdx.x"
            step = f"{self.to_index}gridDim.x * blockDim.x"
            self.line(indent, f"for ({self.index} {name} = {first}; {name} < {limit}; {name} += {step}) {{")
            return indent + 1
        if not s.slots:
            steps = min(in_flight(s.packs), s.iterations // lanes) if s.packs else 1
            if steps > 1:
                self.line(indent, f"#pragma unroll {steps}")
            self.line(indent, f"for ({self.index} {name} = lane; {name} < {limit}; {name} += {lanes}) {{")
            return indent + 1
        slots = -(-extent // lanes) if isinstance(extent, int) else s.slots
        if slots <= REGISTERS:
            self.line(indent, "#pragma unroll")
        self.line(indent, f"for ({self.index} {number} = 0; {number} < {slots}; {number}++) {{")
        self.line(indent + 1, f"const {self.index} {name} = {number} * {lanes} + lane;")
        if extent == slots * lanes:
            return indent + 1
        self.line(indent + 1, f"if ({name} < {limit}) {{")
        return indent + 2

    def only(self, s: Spread, first: Mapping[Var, Expr], indent: int) -> None:
        """Iterations that are not inside are left out. first: the value of a counter, if it is not known by its name.
        """
        if s.inside is not None:
            self.line(indent, f"if (!({self.expression(with_values(s.inside, first))})) continue;")

    def vector(self, s: Spread, packs: Packs, indent: int) -> None:
        """The elements of vector number `vector` of a loop."""
        (*outer, (name, inner)), width, number = constant(s.counters), packs.width, VECTOR
        if outer:
            number = Var(f"{name}_vector", INDEX)
            self.statements(counters_of("vector", [*outer, (number.name, inner // width)]), indent)
        first = sum_of([(number, width)], 0)
        lets = [ir.Let(name, sum_of([(first, 1), (PART, 1)], 0))]
        if s.slots and any(e == SLOT for i in walk(s.body) for e in parts(expressions(i))):
            lets.append(ir.Let(SLOT.name, sum_of([(Var("some", INDEX), width), (PART, 1)], 0)))
        self.only(s, {Var(name, INDEX): first}, indent)
        self.pack(packs, {Var(name, INDEX): first}, (*lets, *s.body), indent)

    def pack(self, packs: Packs, first: Mapping[Var, Expr], body: Sequence[ir.Stmt], indent: int) -> None:
        """The elements of one vector. first: the counter, and its value of the first element; body: of element number
        `part`."""
        known: dict[Expr, Expr] = {}
        for n, (load, position) in enumerate(packs.loads.items()):
            type, place = pack_type(load.type, packs.width), self.expression(with_values(position, first))
            self.line(indent, f"const {type} x{n} = *(const {type} *)&{load.buffer}[{place}];")
            known[load] = Load(f"x{n}.at", PART, load.type)
        stores = list(packs.stores)
        in_pairs = {s: packs.width > 1 and rounds_to_half(s.value) for s in stores}
        for n, store in enumerate(stores):
            self.line(indent, f"float y{n}[{packs.width}];" if in_pairs[store]
                      else f"{pack_type(store.value.type, packs.width)} y{n};")
        self.line(indent, "#pragma unroll")
        self.line(indent, f"for (int part = 0; part < {packs.width}; part++) {{")
        for statement in body:
            new = with_expressions(statement, lambda e: with_values(e, known))
            if isinstance(statement, Store) and isinstance(new, Store) and statement in stores:
                name, value = f"y{stores.index(statement)}", new.value
                new = Store(name, PART, value.arguments[0]) if in_pairs[statement] and isinstance(value, ir.Apply) \
                    else Store(f"{name}.at", PART, value)
            self.statements([new], indent + 1)
        self.line(indent, "}")
        for n, (store, position) in enumerate(packs.stores.items()):
            type, place = pack_type(store.value.type, packs.width), self.expression(with_values(position, first))
            rounded = f"hloc_rounded_all_{store.value.type}(y{n})" if in_pairs[store] else f"y{n}"
            self.line(indent, f"*({type} *)&{store.buffer}[{place}] = {rounded};")

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
        self.statements(counters_of("update", s.counters), indent + 3)
        self.statements(s.body[:-1], indent + 3)
        self.line(indent + 3, f"found = {self.expression(guard.condition)};")
        self.line(indent + 2, "}")
        self.line(indent + 2, f"left |= (unsigned long long)__ballot_sync(0xffffffffu, found) << part * {WARP};")
        self.line(indent + 1, "}")
        self.line(indent + 1, "for (; left; left &= left - 1) {")
        self.line(indent + 2, f"const {self.index} update = first + __ffsll((long long)left) - 1;")
        self.statements(counters_of("update", s.counters), indent + 2)
        self.statements((*s.body[:-1], *guard.then), indent + 2)
        self.line(indent + 1, "}")
        self.line(indent, "}")

    def last(self, s: ir.Last, indent: int) -> None:
        kind = "warp" if self.form.lanes == WARP else "block"
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

    WRITERS: ClassVar[dict[type, Callable[..., None]]] = {
        **StatementPrinter.WRITERS, ir.Barrier: barrier, Total: total, Spread: spread, Scan: scan, ir.Last: last,
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
