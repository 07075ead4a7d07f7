"""Sorts and top-k on the CPU: a Tile -> C that instantiates runtime/sort.h with the comparator of the module.

A comparator that compares one function of the two elements becomes a key for the radix sort, or for the sorting network
of many short rows at a time (runtime/sort_network.h). Any other comparator is called. With a key the first or last
elements of rows are selected without sorting the rest (runtime/sort_select.h).

    sort of f32 rows, ascending  ->  struct k2_sort_element {float v0;}, k2_sort_key, k2_sort_get, k2_sort_put, k2
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Expr, Tile, Var
from hloc.kernels.scalars import computation_type, is_narrow, widen
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type, expression
from hloc.targets.printer import C, comment, print_statements

KEYED = frozenset(["s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "pred", "f32", "f64", "bf16", "f16"])
FEWEST_ROWS, SHORT_ROW, LONGEST_ROW = 8, 128, 512           # of a sorting network: with half of its lanes, or all
SELECTED_OF, SHORTEST_SELECTED = 8, 128                     # at most one element in 8 is selected, of longer rows


class Selection(NamedTuple):
    """The number of elements that are used of each sorted row, at its start or at its end."""

    kept: int
    from_end: bool


def sort(tile: Tile, name: str, machine: Machine) -> str:
    """runtime/sort.h; parameters as in hloc/kernels/library_kernels/sort.py."""
    given = dict(tile.parameters)
    results, bits = given["results"], key_bits(given["key"])
    types = [b.type for b in tile.buffers[:len(tile.buffers) - len(results)]]
    rows, length, stride = given["rows"], given["length"], given["stride"]
    place = _place(length, stride, "i")
    get = [f"out->v{n} = ((const {c_type(t)} *)buffers[{n}])[at];" for n, t in enumerate(types)]
    put = [_put(n, result, types, length, stride) for n, result in enumerate(results, len(types))]
    s = f"{name}_sort"
    return "\n".join([
        *comment(tile.origin), _element(s, types), _less(s, tile, types), *_function_key(s, given["key"]),
        _access(s, "get", "element *out", place, get), _access(s, "put", "element *e", place, put),
        _instance(name, s, rows, length, bits, selection(results, length, bits))])


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


def selection(results: tuple, length: int, bits: int) -> Selection | None:
    """The selection that computes these results of a sort, or None. bits: of the key, 0 without a key."""
    if not bits or length <= SHORTEST_SELECTED:
        return None
    from_start, from_end = max(last for *_, last in results), length - min(first for _, first, _ in results)
    kept = min(from_start, from_end)
    return Selection(kept, from_end < from_start) if 0 < SELECTED_OF * kept <= length else None


def topk(tile: Tile, name: str, machine: Machine) -> str:
    """runtime/topk.h for f32; for everything else a keyed sort of (value, position) that writes the first k."""
    given = dict(tile.parameters)
    rows, length, k, largest = (given[key] for key in ("rows", "length", "k", "largest"))
    type, positions = tile.buffers[0].type, tile.buffers[2].type
    if has_topk(tile):
        call = f"hloc_topk_f32(buffers[0], buffers[1], buffers[2], {rows}, {length}, {k}, {length})"
        return "\n".join([*comment(tile.origin), '#include "topk.h"', "extern int hloc_out_of_memory;",
                          f"void {name}(void *const *buffers) {{", f"  if ({call}) hloc_out_of_memory = 1;", "}", ""])
    s, t, p = f"{name}_sort", c_type(type), c_type(positions)
    get = [f"out->v0 = ((const {t} *)buffers[0])[at];", f"out->v1 = ({p})i;"]
    put = [f"if (i < {k}) (({t} *)buffers[1])[row * {k}L + i] = e->v0;",
           f"if (i < {k}) (({p} *)buffers[2])[row * {k}L + i] = e->v1;", "(void)at;"]
    order = ("descending" if largest else "ascending") + " total"
    less = (f"static inline int {s}_less(const {s}_element *a, const {s}_element *b) "
            f"{{ return {s}_key(a) < {s}_key(b); }}")
    return "\n".join([
        *comment(tile.origin), _element(s, [type, positions]), *_key(s, type, order), less,
        _access(s, "get", "element *out", f"row * {length}L + i", get),
        _access(s, "put", "element *e", f"row * {length}L + i", put),
        _instance(name, s, rows, length, topk_key_bits(tile), topk_selection(tile))])


def topk_selection(tile: Tile) -> Selection | None:
    """The selection for a top-k that runtime/topk.h does not compute."""
    given = dict(tile.parameters)
    return selection(((0, 0, given["k"]),), given["length"], topk_key_bits(tile))


def has_topk(tile: Tile) -> bool:
    """Whether runtime/topk.h computes it."""
    return tile.buffers[0].type == "f32" and dict(tile.parameters)["largest"] and tile.buffers[2].type == "s32"


def topk_key_bits(tile: Tile) -> int:
    """Bits of the sort key of a top-k that runtime/topk.h does not compute."""
    type = tile.buffers[0].type
    return 16 if type == "bf16" else ELEMENT_TYPES[computation_type(type)].bits


def key_bits(key: tuple) -> int:
    """Bits of the key of a sort; 0 without a key. `key`: see hloc/kernels/library_kernels/sort.py."""
    if not _is_keyed(key):
        return 0
    return ELEMENT_TYPES[key[4].type].bits - _unused_bits(key)


def goes_by_network(rows: int, length: int, bits: int) -> bool:
    """Whether a sorting network sorts many rows at a time (runtime/sort_network.h). bits: of the key, 0 without one."""
    fewest = FEWEST_ROWS if length <= SHORT_ROW else 2 * FEWEST_ROWS
    return rows >= fewest and 1 < length <= LONGEST_ROW and 0 < bits <= 32


def _is_keyed(key: tuple) -> bool:
    return bool(key) and key[2] in KEYED and key[4].type in KEYED


def _unused_bits(key: tuple) -> int:
    return 16 if key[2] == "bf16" and key[5] else 0


def _element(s: str, types: list[str]) -> str:
    fields = " ".join(f"{c_type(t)} v{n};" for n, t in enumerate(types))
    return f"typedef struct {{ {fields} }} {s}_element;"


def _less(s: str, tile: Tile, types: list[str]) -> str:
    """The module's comparator over two elements."""
    names, statements, result = tile.comparator
    lets = [f"  const {c_type(t)} {name} = {'a' if n % 2 == 0 else 'b'}->v{n // 2}; (void){name};"
            for n, (name, t) in enumerate(names)]
    return "\n".join([f"static inline int {s}_less(const {s}_element *a, const {s}_element *b) {{", *lets,
                      print_statements(statements, C), f"  return {expression(result)};", "}"])


def _function_key(s: str, key: tuple) -> list[str]:
    """The key of the radix sort, or nothing if the comparator must be called."""
    if not _is_keyed(key):
        return []
    order, name, type, statements, result, _ = key
    field = f"const {c_type(type)} {name} = e->v{name.removeprefix('value')};"
    body = "\n".join([f"  {field}", print_statements(statements, C)])
    return _key_function(s, order, body, expression(result), result.type, _unused_bits(key))


def _key(s: str, type: str, order: str) -> list[str]:
    """The key if the first operand's value is compared unchanged."""
    return _key_function(s, order, "", expression(_wide(Var("e->v0", type))), computation_type(type),
                         16 if type == "bf16" else 0)


def _key_function(s: str, order: str, body: str, value: str, wide: str, unused: int) -> list[str]:
    """unused: the number of lowest bits of a value that are always zero."""
    if ELEMENT_TYPES[wide].kind == "float" and "total" not in order:
        value += " + 0.0f"                                   # -0 equals +0 in the order of plain comparisons
    key = value if ELEMENT_TYPES[wide].kind in ("unsigned", "pred") else f"hloc_sort_key_{wide}({value})"
    bits = ELEMENT_TYPES[wide].bits - unused
    key = f"({key} >> {unused})" if unused else key
    mask = "~0ull" if bits == 64 else f"{hex((1 << bits) - 1)}ull"
    key = f"(~(hloc_u64){key} & {mask})" if order.startswith("descending") else f"(hloc_u64){key}"
    return ['#include "sort_keys.h"', f"static inline hloc_u64 {s}_key(const {s}_element *e) {{",
            *([body] if body else []), f"  return {key};", "}", f"#define HLOC_SORT_KEY_BITS {bits}"]


def _wide(value: Var) -> Expr:
    return widen(value) if is_narrow(value.type) else value


def _access(s: str, verb: str, element: str, place: str, lines: list[str]) -> str:
    const = "const " if verb == "put" else ""
    return "\n".join([
        f"static inline void {s}_{verb}(void *const *buffers, long row, long i, {const}{s}_{element}) {{",
        f"  const long at = {place};", *(f"  {line}" for line in lines), "}"])


def _instance(name: str, s: str, rows: int, length: int, bits: int, selected: Selection | None) -> str:
    sizes = f"{rows}, {length}"
    header = "sort_select.h" if selected else "sort_network.h" if goes_by_network(rows, length, bits) else "sort.h"
    wanted = [f"#define HLOC_SORT_KEPT {selected.kept}", f"#define HLOC_SORT_FROM_END {int(selected.from_end)}"] \
        if selected else []
    return "\n".join([f"#define HLOC_SORT {s}", f"#define HLOC_SORT_LENGTH {length}", *wanted, f'#include "{header}"',
                      "extern int hloc_out_of_memory;",
                      f"void {name}(void *const *buffers) {{",
                      f"  if ({s}(buffers, {sizes})) hloc_out_of_memory = 1;", "}", ""])


def fft(tile: Tile, name: str, machine: Machine) -> str:
    """runtime/fft.h; parameters as in hloc/kernels/library_kernels/fft.py."""
    given = dict(tile.parameters)
    precision = "f64" if tile.buffers[1].type in ("c128", "f64") else "f32"
    lengths = given["lengths"]
    sizes = f"{len(lengths)}, lengths, {given['batch']}"
    call = f"hloc_fft_{precision}(HLOC_{given['kind']}, {sizes}, buffers[0], buffers[1])"
    return "\n".join([*comment(tile.origin), '#include "fft.h"', "extern int hloc_out_of_memory;",
                      f"void {name}(void *const *buffers) {{",
                      f"  static const long lengths[] = {{{', '.join(map(str, lengths))}}};",
                      f"  if ({call}) hloc_out_of_memory = 1;", "}", ""])
