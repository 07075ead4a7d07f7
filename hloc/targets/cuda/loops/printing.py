"""What the texts of all loop kernels of a GPU have: the head of the function, and vectors of adjacent elements.

    Pack(4, {load: "vector * 4"}, {store: "vector * 4"})
      const hloc_pack<float, 4> x0 = *(const hloc_pack<float, 4> *)&in0[vector * 4];
      hloc_pack<float, 4> y0;
      for (int part = 0; part < 4; part++) { ... y0.at[part] = hloc_exp_f32(x0.at[part]); }
      *(hloc_pack<float, 4> *)&out0[vector * 4] = y0;
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hloc.kernels.ir import INDEX, Apply, Buffer, Expr, Kernel, Load, Stmt, Store, Var
from hloc.kernels.walks import with_expressions, with_values
from hloc.targets.c_expressions import c_type
from hloc.targets.printer import StatementPrinter, comment, kernel_start, pointer_type

PART = Var("part", INDEX)
HALVES = ("bf16", "f16")


class Pack(NamedTuple):
    """Adjacent elements that a thread loads, computes and stores at once. loads, stores: those that are one access to
    memory, with the position of its first element in C."""

    width: int
    loads: Mapping[Load, str]
    stores: Mapping[Store, str]


def head(printer: StatementPrinter, kernel: Kernel, name: str, bounds: int | str, declared: Iterable[str] = ()) -> None:
    """The first lines of a kernel. bounds: arguments of its launch bounds; declared: lines before the function."""
    printer.lines += [*comment(kernel.origin), *declared]
    parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in kernel.buffers)
    printer.line(0, f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({parameters}) {{')
    printer.lines += kernel_start(kernel.buffers)


def pack_type(type: str, width: int) -> str:
    return f"hloc_pack<{c_type(type)}, {width}>"


def rounds_to_half(value: Expr) -> bool:
    """Whether f32 becomes bf16 or f16, which takes a fourth of the time in pairs (words.cuh)."""
    return isinstance(value, Apply) and value.op == "convert" and value.type in HALVES and \
        value.arguments[0].type == "f32"


def print_pack(printer: StatementPrinter, pack: Pack, statements: Sequence[Stmt], counters: Sequence[str],
               buffers: Iterable[Buffer], indent: int, places: Mapping[Load, Expr] | None = None) -> None:
    """The elements of one vector. statements: of an element; counters: lines that name its place, from `part`; places:
    of loads that are not from memory."""
    types = {b.name: pack_type(b.type, pack.width) for b in buffers}
    known = dict(places or {})
    for n, (load, place) in enumerate(pack.loads.items()):
        type = pack_type(load.type, pack.width)
        printer.line(indent, f"const {type} x{n} = *(const {type} *)&{load.buffer}[{place}];")
        known[load] = Load(f"x{n}.at", PART, load.type)
    stores = list(pack.stores)
    in_pairs = {s: pack.width > 1 and rounds_to_half(s.value) for s in stores}
    for n, store in enumerate(stores):
        printer.line(indent, f"float y{n}[{pack.width}];" if in_pairs[store] else f"{types[store.buffer]} y{n};")
    printer.line(indent, "#pragma unroll")
    printer.line(indent, f"for (int part = 0; part < {pack.width}; part++) {{")
    for line in counters:
        printer.line(indent + 1, line)
    for statement in statements:
        new = with_expressions(statement, lambda e: with_values(e, known))
        if isinstance(statement, Store) and isinstance(new, Store) and statement in stores:
            name, value = f"y{stores.index(statement)}", new.value
            new = Store(name, PART, value.arguments[0]) if in_pairs[statement] and isinstance(value, Apply) else \
                Store(f"{name}.at", PART, value)
        printer.statements([new], indent + 1)
    printer.line(indent, "}")
    for n, (store, place) in enumerate(pack.stores.items()):
        rounded = f"hloc_rounded_all_{store.value.type}(y{n})" if in_pairs[store] else f"y{n}"
        printer.line(indent, f"*({types[store.buffer]} *)&{store.buffer}[{place}] = {rounded};")
