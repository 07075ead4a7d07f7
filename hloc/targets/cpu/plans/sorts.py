"""How sorts and top-k are computed: which file of runtime/, with which macros, and the scratch memory.

In: a Tile of the library kernel "sort" or "topk". Out: a SortPlan, printed as macros before the file is included, or as
arguments of runtime/topk.c. With two cores:

    sort of f32[20,500]                a sorting network for 16 rows at a time
    sort of s32[1,150000]              pieces of 65,536 elements in parallel, which are then merged
    the first 30 of f32[4,5000]        candidates, by the smallest of 120 groups; only these are sorted
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile
from hloc.kernels.scalars import computation_type
from hloc.machine import Machine
from hloc.targets.cpu.plans.slots import Scratch, aligned, busy_threads

KEYED = frozenset(["s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "pred", "f32", "f64", "bf16", "f16"])
FEWEST_ROWS, SHORT_ROW, LONGEST_ROW = 8, 128, 512           # of a sorting network: with half of its lanes, or all
SELECTED_OF, SHORTEST_SELECTED = 8, 64                      # at most one element in 8 is selected, of longer rows
CHUNK, LEAST_RADIX, FEW_SORTED = 65536, 64, 128             # of runtime/sort_piece.h
LANES, PLACE_BITS = 16, 9                                   # of runtime/sort_network.h
FEWEST_GROUPS = 32


class Selection(NamedTuple):
    """The number of elements that are used of each sorted row, at its start or at its end. candidates: at most so many
    are sorted; groups: the lowest ranks of so many bound them."""

    kept: int
    from_end: bool

    @property
    def candidates(self) -> int:
        return 3 * self.kept // 2 + 64

    @property
    def groups(self) -> int:
        return max(FEWEST_GROUPS, (4 * self.kept + 15) // 16 * 16)


class SortPlan(NamedTuple):
    """header: the file of runtime/ that sorts; macros: what it takes. element: bytes of one."""

    header: str
    macros: dict[str, int]
    scratch: Scratch
    element: int = 0

    @property
    def algorithm(self) -> str:
        """Of the library kernels in runtime/topk.c."""
        return {"sort_select.h": "select", "sort_network.h": "network"}.get(
            self.header, "pieces" if "BY_PIECES" in self.macros else "rows")

    @property
    def assumed(self) -> dict[str, int]:
        """The sizes, by the names of runtime/, that the file must have been written with."""
        return {"LANES": LANES, "PLACE_BITS": PLACE_BITS} if self.algorithm == "network" else {
            "CHUNK": CHUNK, "LEAST_RADIX": LEAST_RADIX}


def plan_of_sort(tile: Tile, machine: Machine) -> SortPlan:
    """Parameters as in hloc/kernels/library_kernels/sort.py."""
    given = dict(tile.parameters)
    types = [b.type for b in tile.buffers[:len(tile.buffers) - len(given["results"])]]
    rows, length, bits = given["rows"], given["length"], key_bits(given["key"])
    return _plan(rows, length, types, bits, _selection(given["results"], length, bits), machine)


def plan_of_topk(tile: Tile, machine: Machine) -> SortPlan:
    """A sort that keeps the first k."""
    given, bits = dict(tile.parameters), topk_bits(tile.buffers[0].type)
    selected = _selection(((0, 0, given["k"]),), given["length"], bits)
    return _plan(given["rows"], given["length"], [f"u{bits}", "s32"], bits, selected, machine)


def topk_bits(type: str) -> int:
    """Bits of the key of a top-k: of the type in which values are computed, but for bf16."""
    return 16 if type == "bf16" else ELEMENT_TYPES[computation_type(type)].bits


def topk_elements(type: str) -> str:
    """Elements of a top-k in the name of its library kernel: the type, the one it is computed in, bits of the key."""
    return f"{type}_{computation_type(type)}_{topk_bits(type)}"


def _selection(results: tuple, length: int, bits: int) -> Selection | None:
    """The selection that computes these results of a sort, or None. bits: of the key, 0 without a key."""
    if not bits or length <= SHORTEST_SELECTED:
        return None
    from_start, from_end = max(last for *_, last in results), length - min(first for _, first, _ in results)
    kept = min(from_start, from_end)
    return Selection(kept, from_end < from_start) if 0 < SELECTED_OF * kept <= length else None


def key_bits(key: tuple) -> int:
    """Bits of the key of a sort; 0 without a key. `key`: see hloc/kernels/library_kernels/sort.py."""
    if not is_keyed(key):
        return 0
    return ELEMENT_TYPES[key[4].type].bits - unused_bits(key)


def goes_by_network(rows: int, length: int, bits: int) -> bool:
    """Whether a sorting network sorts many rows at a time (runtime/sort_network.h). bits: of the key, 0 without one."""
    fewest = FEWEST_ROWS if length <= SHORT_ROW else 2 * FEWEST_ROWS
    return rows >= fewest and 1 < length <= LONGEST_ROW and 0 < bits <= 32


def is_keyed(key: tuple) -> bool:
    return bool(key) and key[2] in KEYED and key[4].type in KEYED


def unused_bits(key: tuple) -> int:
    return 16 if key[2] == "bf16" and key[5] else 0


def _plan(rows: int, length: int, types: list[str], bits: int, selected: Selection | None,
          machine: Machine) -> SortPlan:
    """Of elements of these types. bits: of the key, 0 without one."""
    size, keyed, word = _sizes(types, bits)
    counts = bits > 0 and length <= FEW_SORTED

    def room(n: int) -> int:
        return 2 * n * keyed if bits and not counts and n >= LEAST_RADIX else 0
    macros, network = {"LENGTH": length}, goes_by_network(rows, length, bits)
    if selected and not (network and length <= SHORT_ROW):
        n, threads = selected.candidates, busy_threads(rows, 16384 // length + 1, machine)
        own = aligned(length * word) + aligned(selected.groups * word) + aligned(2 * n * size)
        macros.update(LENGTH=n, KEPT=selected.kept, FROM_END=selected.from_end, CANDIDATES=n, GROUPS=selected.groups)
        return SortPlan("sort_select.h", macros, Scratch.of(
            own=own + (2 * n * keyed if n > FEW_SORTED else 0), threads=threads), element=size)
    if network:
        block, key = length * LANES, 4 if bits + PLACE_BITS < 32 else 8
        threads = busy_threads(-(-rows // LANES), 2048 // block + 1, machine)
        return SortPlan("sort_network.h", macros, Scratch.of(own=aligned(block * key) + block * size, threads=threads),
                        element=size)
    if length > CHUNK and rows < machine.cores:              # one row after the other, by all threads
        return SortPlan("sort.h", {**macros, "BY_PIECES": 1}, Scratch.of(
            first=2 * length * size, own=room(CHUNK), threads=machine.cores), element=size)
    return SortPlan("sort.h", macros, Scratch.of(
        own=aligned(2 * length * size) + room(length), threads=busy_threads(rows, 2048 // max(1, length) + 1, machine)),
        element=size)


def _sizes(types: list[str], bits: int) -> tuple[int, int, int]:
    """Bytes of an element, of one with its key, of a key."""
    element = _struct((ELEMENT_TYPES[t].bytes, ELEMENT_TYPES[t].bytes // (2 if t in ("c64", "c128") else 1))
                      for t in types)
    word = next((w for w in (1, 2, 4) if bits <= 8 * w), 8)
    return element[0], _struct([(word, word), element])[0], word


def _struct(fields: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Size and alignment of a C struct, from the sizes and alignments of its fields."""
    total, most = 0, 1
    for size, alignment in fields:
        total, most = -(-total // alignment) * alignment + size, max(most, alignment)
    return -(-total // most) * most, most
