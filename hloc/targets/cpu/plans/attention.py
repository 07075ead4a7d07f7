"""How attention is computed: blocks of keys, panels of queries, parts, what is read in place, scratch memory.

In: a Tile of the library kernel "attention". Out: choices, which are printed into C (runtime/attention.h), and a
Scratch. Sizes are in floats unless they say bytes.

    200 queries, 300 keys of 64 elements      blocks of 100 keys; a task has a panel of 32 queries
"""
from __future__ import annotations

from math import prod
from typing import NamedTuple

from hloc.kernels.indexing import sum_parts
from hloc.kernels.ir import INDEX, Let, Tile, Var
from hloc.kernels.walks import loads, names_in
from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import attention_kind
from hloc.targets.cpu.plans.slots import Scratch, busy_threads

KEYS, KEY_ROOM, MOST_PANELS = 140, 144, 4             # keys of a block, also as whole vectors; panels of a task
PIECE = 4e5                                           # multiply-adds of a task


class AttentionChoices(NamedTuple):
    """hloc_attention_choices of runtime/attention.h.

    k_in_place, v_in_place   keys, values are not copied; k_stride, v_stride: from one row of a copy to the next
    block                    keys of a block; panels: of queries, of a task
    grain                    tasks that a thread takes at once
    own                      bytes of scratch memory; at_tile ...: where these begin in it
    """

    k_in_place: bool = False
    v_in_place: bool = False
    block: int = 2
    k_stride: int = 0
    v_stride: int = 0
    panels: int = 1
    grain: int = 1
    own: int = 0
    at_tile: int = 0
    at_transposed: int = 0
    at_k: int = 0
    at_v: int = 0
    at_room: int = 0


class Operand(NamedTuple):
    """Keys or values: strides in elements."""

    type: str
    row: int
    column: int


class Attention(NamedTuple):
    """kind: as in attention_kind; by_columns: the score of a tile is computed column by column."""

    kind: str
    batches: int
    rows: int
    columns: int
    depth: int
    features: int
    key: Operand
    value: Operand
    by_columns: bool = False


def attention_of(tile: Tile, machine: Machine) -> Attention:
    """Parameters as in hloc/kernels/attention/attention.py."""
    given = dict(tile.parameters)
    key, value = (Operand(type, *given[side][1:3]) for side, type in zip(("key", "value"), given["types"][1:]))
    rows, columns, depth, features = given["sizes"]
    return Attention(attention_kind(given, machine), prod(given["batches"]), rows, columns, depth, features, key, value,
                     goes_by_columns(tile))


def goes_by_columns(tile: Tile) -> bool:
    """Whether a tile's columns should be contiguous, since those of an array are that the score reads: a position in it
    moves with the row, and by more than one element."""
    lets = {s.name: s.value for s in tile.epilogue if isinstance(s, Let)}
    for load in loads(tile.epilogue):
        holding = [(atom, factor) for atom, factor in sum_parts(load.position)[0] if "row" in names_in([atom], {})]
        if "row" in names_in([load.position], lets) and holding != [(Var("row", INDEX), 1)]:
            return True
    return False


def attention_scratch(tile: Tile, machine: Machine) -> Scratch:
    return plan_of_attention(attention_of(tile, machine), machine)[1]


def plan_of_attention(a: Attention, machine: Machine) -> tuple[AttentionChoices, Scratch]:
    """Queries are in vector lanes, two vectors of them in a panel. Values of pairs are interleaved, key by key."""
    if 0 in (a.rows, a.columns, a.batches, a.depth + a.features):
        return AttentionChoices(), Scratch()
    blocks = -(-a.columns // KEYS)
    block = (-(-a.columns // blocks) + 1) // 2 * 2
    k_stride, v_stride = _dense_stride(a.depth), _dense_stride(a.features)
    panel, in_pairs = machine.vector_bytes // 2, a.kind == "pairs"
    k_in_place, v_in_place = _in_place(a.key, in_pairs), not in_pairs and _in_place(a.value, in_pairs)
    panels = -(-a.rows // panel)
    at_once = min(MOST_PANELS, panels)
    while at_once > 1 and a.batches * -(-panels // at_once) < 4 * machine.cores:
        at_once -= 1
    at_tile = at_once * (a.depth + a.features + 3) * panel
    at_transposed = at_tile + KEYS * panel
    at_k = at_transposed + (KEY_ROOM * panel if a.by_columns else 0)
    at_v = at_k + (0 if k_in_place else _aligned(block * k_stride))
    at_room = at_v + (0 if v_in_place else _aligned(block * v_stride))
    own = 4 * (at_room + _aligned(max(a.depth, a.features)) * panel)
    grain = int(PIECE / (at_once * panel * a.columns * (a.depth + a.features))) + 1
    return AttentionChoices(k_in_place, v_in_place, block, k_stride, v_stride, at_once, grain, own, at_tile,
                            at_transposed, at_k, at_v, at_room), \
        Scratch.of(own=own, threads=busy_threads(a.batches * -(-panels // at_once), grain, machine))


def _in_place(o: Operand, in_pairs: bool) -> bool:
    """Rows are contiguous, and do not all fall into the same cache sets."""
    if in_pairs:
        return o.column == 1 and o.row % 2 == 0 and o.row % 256 != 0
    return o.type == "f32" and o.column == 1 and o.row % 128 != 0


def _aligned(floats: int) -> int:
    return (floats + 15) // 16 * 16


def _dense_stride(columns: int) -> int:
    """Whole cache lines, that do not fall into the same sets."""
    return _aligned(columns) + (16 if _aligned(columns) % 128 == 0 else 0)
