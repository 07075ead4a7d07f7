"""Sorts and top-k on the CPU: a Tile -> C that instantiates runtime/sort.h with the comparator of the module.

A comparator that compares one function of the two elements becomes a key for the radix sort, or for the sorting network
of many short rows at a time (runtime/sort_network.h). Any other comparator is called. With a key the first or last
elements of rows are selected without sorting the rest (runtime/sort_select.h). Top-k is a library kernel of each type.

    sort of f32 rows, ascending  ->  struct k2_sort_element {float v0;}, k2_sort_key, k2_sort_get, k2_sort_put, k2
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.c_function import CFunction, c_function, includes
from hloc.targets.cpu.plans.sorts import (
    SortPlan,
    is_keyed,
    plan_of_sort,
    plan_of_topk,
    topk_bits,
    topk_elements,
    unused_bits,
)
from hloc.targets.cpu.tiles.library_calls import OUT_OF_MEMORY, fields_text, fits, library_function
from hloc.targets.printer import C, StatementPrinter, comment


def sort(tile: Tile, name: str, machine: Machine) -> tuple[CFunction]:
    """runtime/sort.h; parameters as in hloc/kernels/library_kernels/sort.py."""
    given = dict(tile.parameters)
    results, plan = given["results"], plan_of_sort(tile, machine)
    types = [b.type for b in tile.buffers[:len(tile.buffers) - len(results)]]
    rows, length, stride = given["rows"], given["length"], given["stride"]
    place = _place(length, stride, "i")
    get = [f"out->v{n} = ((const {c_type(t)} *)buffers[{n}])[at];" for n, t in enumerate(types)]
    put = [_put(n, result, types, length, stride) for n, result in enumerate(results, len(types))]
    s, printer = f"{name}_sort", StatementPrinter(C)
    key = _key_function(s, given["key"], printer)
    headers = [*["sort_keys.h"] * bool(key), plan.header]
    lines = [
        *comment(tile.origin), _element(s, types), _less(s, tile, printer), *key,
        _access(s, "get", "element *out", place, get), _access(s, "put", "element *e", place, put),
        *_instance(name, s, rows, length, plan)]
    return (c_function(name, lines, printer, headers=headers, origin=tile.origin),)


def _place(length: int, stride: int, element: str) -> str:
    """The offset of an element of a row; rows have `length` elements, `stride` elements apart."""
    if stride == 1:
        return f"row * {length}L + {element}"
    return f"row / {stride} * {stride * length}L + row % {stride} + ({element}) * {stride}L"


def _put(buffer: int, result: tuple[int, int, int], types: list[str], length: int, stride: int) -> str:
    """Stores element i of a sorted row, if it belongs to this result."""
    operand, first, last = result
    array = f"(({c_type(types[operand])} *)buffers[{buffer}])"
    if (first, last) == (0, length):
        return f"{array}[at] = e->v{operand};"
    place = _place(last - first, stride, f"i - {first}")
    return f"if (i >= {first} && i < {last}) {array}[{place}] = e->v{operand};"


def topk(tile: Tile, name: str, machine: Machine) -> tuple[CFunction]:
    """A call of runtime/topk.c, which is compiled for the type and the algorithm."""
    given, type, plan = dict(tile.parameters), tile.buffers[0].type, plan_of_topk(tile, machine)
    kernel = f"topk_{plan.algorithm}_{topk_elements(type)}"
    fields = fields_text(rows=given["rows"], n=given["length"], kept=given["k"], largest=given["largest"],
                         candidates=plan.macros.get("CANDIDATES", 0), groups=plan.macros.get("GROUPS", 0))
    facts = [f"  HLOC_DECLARE_TOPK({kernel})", fits(kernel, topk_bits(type), *plan.assumed.values()),
             f"  const hloc_topk_args args = {{buffers, {fields}}};"]
    return library_function(tile, name, "topk.h", facts, (kernel, "&args"))


def _element(s: str, types: list[str]) -> str:
    fields = " ".join(f"{c_type(t)} v{n};" for n, t in enumerate(types))
    return f"typedef struct {{ {fields} }} {s}_element;"


def _less(s: str, tile: Tile, printer: StatementPrinter) -> str:
    """The module's comparator over two elements."""
    assert tile.comparator is not None
    names, statements, result = tile.comparator
    lets = [f"  const {c_type(t)} {name} = {'a' if n % 2 == 0 else 'b'}->v{n // 2}; (void){name};"
            for n, (name, t) in enumerate(names)]
    return "\n".join([f"static inline int {s}_less(const {s}_element *a, const {s}_element *b) {{", *lets,
                      printer.block(statements, 1), f"  return {printer.expression(result)};", "}"])


def _key_function(s: str, key: tuple, printer: StatementPrinter) -> list[str]:
    """The key of the radix sort, or nothing if the comparator must be called."""
    if not is_keyed(key):
        return []
    order, name, type, statements, result, _ = key
    field = f"  const {c_type(type)} {name} = e->v{name.removeprefix('value')};"
    body, value = printer.block(statements, 1), printer.expression(result)
    wide, unused = result.type, unused_bits(key)
    if ELEMENT_TYPES[wide].kind == "float" and "total" not in order:
        value += " + 0.0f"                                   # -0 equals +0 in the order of plain comparisons
    if ELEMENT_TYPES[wide].kind not in ("unsigned", "pred"):
        value = printer.call(f"sort_key_{wide}", value)
    bits = ELEMENT_TYPES[wide].bits - unused
    value = f"({value} >> {unused})" if unused else value
    mask = "~0ull" if bits == 64 else f"{hex((1 << bits) - 1)}ull"
    value = f"(~(hloc_u64){value} & {mask})" if order.startswith("descending") else f"(hloc_u64){value}"
    return [*includes(["sort_keys.h"]), f"static inline hloc_u64 {s}_key(const {s}_element *e) {{",
            field, body, f"  return {value};", "}", f"#define HLOC_SORT_KEY_BITS {bits}"]


def _access(s: str, verb: str, element: str, place: str, lines: list[str]) -> str:
    const = "const " if verb == "put" else ""
    return "\n".join([
        f"static inline void {s}_{verb}(void *const *buffers, long row, long i, {const}{s}_{element}) {{",
        f"  const long at = {place};", *(f"  {line}" for line in lines), "}"])


def _instance(name: str, s: str, rows: int, length: int, plan: SortPlan) -> list[str]:
    macros = [f"#define HLOC_SORT_{macro} {int(value)}" for macro, value in plan.macros.items()]
    sizes = " && ".join([f"sizeof({s}_element) == {plan.element}", *(
        f"HLOC_SORT_{name} == {size}" for name, size in plan.assumed.items())])
    return [f"#define HLOC_SORT {s}", *macros, *includes([plan.header]),
            f'_Static_assert({sizes}, "the plan of {s} is for other sizes");',
            OUT_OF_MEMORY, f"void {name}(void *const *buffers) {{",
            f"  if ({s}(buffers, {rows}, {length})) hloc_out_of_memory = 1;", "}", ""]
