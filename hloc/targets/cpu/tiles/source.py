"""Tiles on the CPU: a Tile of the plan -> C that calls a hand-written library kernel of runtime/.

In: a kernels.ir.Tile (matrix product, attention, convolution, sort, FFT). Out: the C function
`void name(void *const *buffers)`. A library kernel is compiled once per machine (library_kernels.py). Generated here
are its arguments, and the epilogue or comparator that it calls back.

    gemm of f32 with a bias  ->  hloc_epilogue_1f2e(...), k3(...) { hloc_gemm_args args = {...}; hloc_gemm_f32(&args); }
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hloc.errors import UnsupportedError
from hloc.kernels.ir import Const, Tile
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type, expression
from hloc.targets.c_function import CFunction
from hloc.targets.cpu.building.library_kernels import generic_conv
from hloc.targets.cpu.plans.attention import KEY_ROOM, KEYS, MOST_PANELS, attention_of, plan_of_attention
from hloc.targets.cpu.plans.convolutions import plan_of_tile, sizes_of
from hloc.targets.cpu.plans.matmul import Product, kind_of, product_of
from hloc.targets.cpu.plans.matmul_choice import plan_of
from hloc.targets.cpu.plans.slots import constants_text
from hloc.targets.cpu.tiles.epilogues import Epilogue, epilogue_of
from hloc.targets.cpu.tiles.fft import fft
from hloc.targets.cpu.tiles.library_calls import fields_text, fits, library_function
from hloc.targets.cpu.tiles.scores import score_of
from hloc.targets.cpu.tiles.sorts import sort, topk
from hloc.targets.cpu.tiles.triangular import cholesky, triangular_solve


def _address(position: int, type: str, offset: int) -> str:
    """The address `offset` elements after buffers[position]."""
    return f"(const {c_type(type)} *)buffers[{position}] + {offset}" if offset else f"buffers[{position}]"


def _function(tile: Tile, name: str, header: str, entry: str, fields: dict[str, object], called: Epilogue | None,
              constants: Iterable[str]) -> tuple[CFunction, ...]:
    """What the library kernel calls back, and the function that calls hloc_<entry> with these fields of its arguments.
    constants: lines that define what the fields name."""
    given = [f"  {called.arguments()}"] if called else []
    args = f"  const hloc_{header.removesuffix('.h')}_args args = {{{fields_text(**fields)}}};"
    own = library_function(tile, name, header, [*constants, *given, args], (entry, "&args"),
                           called.declaration if called else "")
    return (called.function, *own) if called else own


def _operands(tile: Tile) -> tuple[int, int]:
    """The buffers of both operands; a tile that packs an operand has only that one."""
    return (0, 0) if dict(tile.parameters).get("packing") == "packs" else (0, 1)


def _finished(tile: Tile, fields: dict[str, object], side: str, result: str, strides: dict[str, Any],
              machine: Machine) -> Epilogue | None:
    """Adds where sums go: into the epilogue, or by these strides into the array `result`; and the address of a packed
    operand, which follows the buffers. Returns the epilogue. A tile that packs an operand computes nothing else: it has
    no result."""
    packing, epilogue = dict(tile.parameters).get("packing"), epilogue_of(tile, machine)
    if epilogue:
        fields.update(epilogue=epilogue.name, epilogue_args="given")
    else:
        fields.update({result: "0" if packing == "packs" else "buffers[2]", **strides})
    if packing == "reads":
        fields.update({f"{side}_packed": f"buffers[{len(tile.buffers)}]"})
    if packing == "packs":
        fields.update(pack_to="buffers[1]")
    return epilogue


# -- matrix products ---------------------------------------------------------------------------------------------------

def gemm(tile: Tile, name: str, machine: Machine) -> tuple[CFunction, ...]:
    """runtime/gemm.h; parameters as in hloc/kernels/products/gemm.py."""
    given, g, (lhs, rhs) = dict(tile.parameters), product_of(tile), _operands(tile)
    fields: dict[str, object] = dict(batches=g.batches, inner_batches=given["batches"][1], m=g.m, n=g.n, k=g.k)
    for side, buffer, strides, key in (("a", lhs, g.a, "lhs"), ("b", rhs, g.b, "rhs")):
        fields.update({side: _address(buffer, g.type, given[key][0])}, **dict(zip(
            (f"{side}_outer", f"{side}_inner", f"{side}_row", f"{side}_column"), strides)))
    to = zip(("c_outer", "c_inner", "c_row", "c_column", "c_is_narrow"), (*given["result"][:2], *g.c, g.is_narrow))
    epilogue = _finished(tile, fields, "b", "c", dict(to), machine)
    constants = _plans([g], "plan", fields, machine)
    return _function(tile, name, "gemm.h", f"gemm_{g.type}", fields, epilogue, constants)


def _plans(products: Iterable[Product], field: str, fields: dict[str, object], machine: Machine) -> list[str]:
    """Defines the plans of matmuls, the last one empty, and adds the field that names them."""
    plans = [plan for g in products if (plan := plan_of(g, machine))]
    if not plans:
        return []
    fields[field], type = "plans", plans[0].product.type
    kind = kind_of(type, machine)
    return ["  static const hloc_gemm_plan plans[] = {", *(f"    {constants_text(plan.constants)}," for plan in plans),
            "    {0}};", fits(f"gemm_{type}", kind.tile_rows, kind.vector, kind.group, kind.is_memory)]


# -- attention ---------------------------------------------------------------------------------------------------------

def attention(tile: Tile, name: str, machine: Machine) -> tuple[CFunction, ...]:
    """runtime/attention.h; parameters as in hloc/kernels/attention/attention.py."""
    given = dict(tile.parameters)
    rows, columns, depth, features = given["sizes"]
    last = len(tile.buffers) - 1
    fields: dict[str, object] = dict(
        dims=len(given["batches"]), batch=_longs(given["batches"]), rows=rows, columns=columns, depth=depth,
        features=features)
    for number, (side, letter, type) in enumerate(zip(("query", "key", "value"), "qkv", given["types"])):
        offset, first, second, batch = given[side]
        fields.update({letter: _operand(_address(number, type, offset), type, first, second, batch)})
    first, second, batch = given["result"]
    fields.update(out=_operand(f"buffers[{last}]", tile.buffers[last].type, first, second, batch))
    planned = attention_of(tile, machine)
    fields.update(choices=constants_text(plan_of_attention(planned, machine)[0]))
    score, entry = score_of(tile), "_".join(filter(None, ("attention", planned.kind)))
    sizes = [fits(entry, machine.vector_bytes, KEYS, KEY_ROOM, MOST_PANELS)]
    if score:
        fields.update(score=score.name, score_args="given", score_by_columns=planned.by_columns)
        if score.masked is not None:
            fields.update(live=f"{score.name}_live", masked=expression(Const(score.masked, "f32")))
    return _function(tile, name, "attention.h", entry, fields, score, sizes)


def _longs(values: Iterable[int]) -> str:
    return "(const long[]){" + (", ".join(map(str, values)) or "0") + "}"


def _operand(address: str, type: str, row: int, column: int, batch: Iterable[int]) -> str:
    return f"{{(void *)({address}), HLOC_ATTENTION_{type.upper()}, {row}, {column}, {_longs(batch)}}}"


# -- convolutions ------------------------------------------------------------------------------------------------------

def convolution(tile: Tile, name: str, machine: Machine) -> tuple[CFunction, ...]:
    """runtime/conv.h; parameters as in kernels/products/convolution.py."""
    given, plan = dict(tile.parameters), plan_of_tile(tile, machine)
    (type, total), (lhs, rhs), c = given["types"], _operands(tile), plan.convolution
    # Those of all batch groups; the plan's convolution is one of them.
    fields: dict[str, object] = dict(
        **c.arguments, x=_address(lhs, type, given["lhs"][0]), w=_address(rhs, type, given["rhs"][0]),
        epilogue_is_transposed=given["is_transposed"], choices=constants_text(plan.choices))
    to = dict(y_n=c.y_n, y_c=given["result"][1], y_s=c.y_s, y_is_narrow=c.y_is_narrow)
    epilogue = _finished(tile, fields, "w", "y", to, machine)
    entry = f"{plan.algorithm}_{type}" if plan.algorithm else generic_conv(type, total)
    constants = [*_plans(plan.products, "products", fields, machine),
                 *(fits(*sizes) for sizes in sizes_of(plan.algorithm, machine))]
    return _function(tile, name, "conv.h", f"conv_{entry}", fields, epilogue, constants)


TEMPLATES: dict[str, Callable[[Tile, str, Machine], tuple[CFunction, ...]]] = {
    "gemm": gemm, "attention": attention, "convolution": convolution, "sort": sort, "topk": topk, "fft": fft,
    "cholesky": cholesky, "triangular-solve": triangular_solve,
}


def tile_functions(tile: Tile, name: str, machine: Machine) -> tuple[CFunction, ...]:
    """The C functions of one tile: what its library kernel calls back, which all tiles of such an epilogue share, then
    the one called `name`. Raises UnsupportedError where the library kernel has no template."""
    template = TEMPLATES.get(tile.library_kernel)
    if template is None:
        raise UnsupportedError(f"library kernel '{tile.library_kernel}' on target cpu")
    return template(tile, name, machine)
