"""What the texts of all loop kernels of a GPU have: the head of the function, and vectors of adjacent elements.

    const hloc_pack<float, 4> x0 = *(const hloc_pack<float, 4> *)&in0[d0_first];
    hloc_pack<float, 4> y0;
    for (int part = 0; part < 4; part++) { const int d0 = d0_first + part; y0.at[part] = hloc_exp_f32(x0.at[part]); }
    *(hloc_pack<float, 4> *)&out0[d0_first] = y0;
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Kernel, Load, Stmt, Store, Var
from hloc.kernels.walks import with_expressions, with_values
from hloc.targets.c_expressions import c_type
from hloc.targets.printer import StatementPrinter, comment, kernel_start, pointer_type

PART, VECTOR = Var("part", INDEX), Var("vector", INDEX)
HALVES = ("bf16", "f16")
Counters = Sequence[tuple[str, int]]


class Packs(NamedTuple):
    """Adjacent elements that a thread loads, computes and stores at once. loads, stores: those that are one access to
    memory, with its position where the counter along the elements is 0."""

    width: int
    loads: Mapping[Load, Expr]
    stores: Mapping[Store, Expr]


def pack_type(type: str, width: int) -> str:
    return f"hloc_pack<{c_type(type)}, {width}>"


def rounds_to_half(value: Expr) -> bool:
    """Whether f32 becomes bf16 or f16, which takes a fourth of the time in pairs (words.cuh)."""
    return isinstance(value, Apply) and value.op == "convert" and value.type in HALVES and \
        value.arguments[0].type == "f32"


@dataclass
class LoopPrinter(StatementPrinter):
    """Prints a loop kernel, and its elements by vectors."""

    kernel: Kernel = field(kw_only=True)

    def head(self, name: str, bounds: int | str, declared: Iterable[str] = ()) -> None:
        """The first lines. bounds: arguments of its launch bounds; declared: lines before the function."""
        self.lines += [*comment(self.kernel.origin), *declared]
        parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in self.kernel.buffers)
        self.line(0, f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({parameters}) {{')
        self.lines += kernel_start(self.kernel.buffers)

    def end(self, indent: int = 0) -> str:
        """Closes so many blocks and the function; the whole text."""
        for n in range(indent, -1, -1):
            self.line(n, "}")
        return "\n".join(self.lines) + "\n"

    def of_nest(self, counters: Counters, number: str = "point") -> str:
        """A line with the counters of a nest of loops, from the number of the iteration."""
        total = rest = math.prod(extent for _, extent in counters)
        pieces = []
        for name, extent in counters:
            outer, rest = rest, rest // extent
            value = number if outer == total else f"{number} % {outer}"
            pieces.append(f"{name} = {value}" if rest == 1 else f"{name} = {value} / {rest}")
        return f"const {self.index} {', '.join(pieces)};"

    def vector(self, packs: Packs, counters: Counters, body: Sequence[Stmt], indent: int,
               more: Sequence[str] = ()) -> None:
        """The elements of vector number `vector` of a nest of loops. more: lines for each element."""
        width, (name, inner) = packs.width, counters[-1]
        first: Expr = index_apply("multiply", VECTOR, Const(width, INDEX))
        if len(counters) == 1 or inner % width == 0:        # a vector lies in one line of the nest
            if len(counters) > 1:
                self.line(indent, f"const {self.index} point = {self.expression(first)};")
                self.line(indent, self.of_nest([*counters[:-1], (f"{name}_first", inner)]))
                first = Var(f"{name}_first", INDEX)
            lines = [f"const {self.index} {name} = {self.expression(first)} + part;"]
        else:
            lines = [f"const {self.index} point = {self.expression(first)} + part;", self.of_nest(counters)]
        self.pack(packs, first, body, [*lines, *more], indent)

    def pack(self, packs: Packs, first: Expr, body: Sequence[Stmt], counters: Sequence[str], indent: int,
             places: Mapping[Load, Expr] | None = None) -> None:
        """The elements of one vector. first: the counter of its first element; counters: lines with those of each,
        from `part`; places: of loads that are not from memory."""
        types = {b.name: pack_type(b.type, packs.width) for b in self.kernel.buffers}
        known = dict(places or {})

        def at(start: Expr) -> str:
            return self.expression(index_apply("add", start, first))
        for n, (load, start) in enumerate(packs.loads.items()):
            type = pack_type(load.type, packs.width)
            self.line(indent, f"const {type} x{n} = *(const {type} *)&{load.buffer}[{at(start)}];")
            known[load] = Load(f"x{n}.at", PART, load.type)
        stores = list(packs.stores)
        in_pairs = {s: packs.width > 1 and rounds_to_half(s.value) for s in stores}
        for n, store in enumerate(stores):
            self.line(indent, f"float y{n}[{packs.width}];" if in_pairs[store] else f"{types[store.buffer]} y{n};")
        self.line(indent, "#pragma unroll")
        self.line(indent, f"for (int part = 0; part < {packs.width}; part++) {{")
        for line in counters:
            self.line(indent + 1, line)
        for statement in body:
            new = with_expressions(statement, lambda e: with_values(e, known))
            if isinstance(statement, Store) and isinstance(new, Store) and statement in stores:
                name, value = f"y{stores.index(statement)}", new.value
                new = Store(name, PART, value.arguments[0]) if in_pairs[statement] and isinstance(value, Apply) else \
                    Store(f"{name}.at", PART, value)
            self.statements([new], indent + 1)
        self.line(indent, "}")
        for n, (store, start) in enumerate(packs.stores.items()):
            rounded = f"hloc_rounded_all_{store.value.type}(y{n})" if in_pairs[store] else f"y{n}"
            self.line(indent, f"*({types[store.buffer]} *)&{store.buffer}[{at(start)}] = {rounded};")
