"""Keys and values that an attention on the GPU stores before it reads them: Updates of the Tile -> CUDA C.

In: the Tile, and its facts. Out: functions key_line and value_line for attention.cuh, which read new lines where they
come from, so that no thread waits for another one's store; and the calls that store them. Variants that copy boxes of
an array, or that read it by other strides than the new lines, have a launch before that stores them.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile, Update
from hloc.machine import Machine
from hloc.targets.cuda.tiles.product_facts import vector_of
from hloc.targets.cuda.tiles.tiling import BLOCKS_PER_SM
from hloc.targets.printer import CUDA, print_statements

STORE_THREADS, STORES = 256, "_lines"             # of a launch that stores lines: threads, and the end of its name


def read_in_place(tile: Tile, facts: dict[str, Any]) -> bool:
    """Whether elements of a new line are as far apart as those of the array's lines, so that one load reads either."""
    return all(u.layout[2] == facts[u.array][2] for u in tile.updates)


def vector_of_lines(update: Update, facts: dict[str, Any]) -> int:
    """Elements of a new line per vector load."""
    offset, line, element, batches = update.layout
    type = facts["types"][("query", "key", "value").index(update.array)]
    return vector_of((offset, *batches), (update.lines, line), (_width(update, facts), element),
                     ELEMENT_TYPES[type].bytes) if element == 1 else 1


def _width(update: Update, facts: dict[str, Any]) -> int:
    return facts["sizes"][2 if update.array == "key" else 3]


def place_of(batches: Sequence[int], offset: int, strides: Sequence[int]) -> str:
    """C expression of the offset of a batch of an array, from the batch's number."""
    terms, rest = [str(offset)] if offset else [], math.prod(batches)
    for size, stride in zip(batches, strides):
        outer, rest = rest, rest // size
        number = "batch" if outer == math.prod(batches) else f"batch % {outer}"
        terms += [f"{number} / {rest} * {stride}" if rest > 1 else f"{number} * {stride}"] if stride else []
    return " + ".join(terms) or "0"


def first_lines(tile: Tile) -> list[str]:
    """C: where the new lines go."""
    return [f"const long {u.array}_first = [&]() -> long {{\n{print_statements(u.statements, CUDA, 1)}\n"
            "  return first;\n}();" for u in tile.updates]


def line_functions(tile: Tile, facts: dict[str, Any], chosen: bool) -> list[str]:
    """C functions (batch, column): where a key and a value start. chosen: new ones are read where they come from."""
    return [_line(name, facts, facts["updates"].get(name) if chosen else None) for name in ("key", "value")]


def _line(name: str, facts: dict[str, Any], update: Update | None) -> str:
    stored = f"{name} + {name}_at(batch) + column * {facts[name][1]}L"
    if update is None:
        return f"auto {name}_line = [&](long batch, long column) {{ return {stored}; }};"
    offset, step, _, batches = update.layout
    new = f"{update.source} + ({place_of(facts['batches'], offset, batches)}) + line * {step}L"
    return (f"auto {name}_line = [&](long batch, long column) -> decltype({update.source}) {{\n"
            f"  const long line = column - {name}_first;\n"
            f"  return line >= 0 && line < {update.lines} ? {new}\n                          : {stored};\n}};")


class _Stored(NamedTuple):
    """own: the dimensions of the batch, size and both strides, that lead to different lines of the array."""

    own: list[tuple[int, int, int]]
    width: int

    @staticmethod
    def of(update: Update, facts: dict[str, Any]) -> _Stored:
        steps = zip(facts["batches"], facts[update.array][3], update.layout[3])
        return _Stored([s for s in steps if s[1]], _width(update, facts))

    @property
    def batches(self) -> int:
        return math.prod(size for size, _, _ in self.own)


def blocks_of_lines(tile: Tile, facts: dict[str, Any], gpu: Machine) -> int:
    """Of a launch that stores all new lines."""
    most = max(u.lines * s.width * s.batches for u in tile.updates for s in [_Stored.of(u, facts)])
    return max(1, min(-(-most // STORE_THREADS), gpu.cores * BLOCKS_PER_SM))


def store_calls(tile: Tile, facts: dict[str, Any], constants: dict[str, int]) -> list[str]:
    """C that stores all new lines: every thread of the grid some elements. constants: those of attention.cuh."""
    found = []
    for u in tile.updates:
        offset, line, element, _ = facts[u.array]
        stored = _Stored.of(u, facts)
        sizes, to, come = zip(*stored.own) if stored.own else ((), (), ())
        vector = constants["K_VECTOR" if u.array == "key" else "V_VECTOR"]
        found.append(
            f"hloc_store_lines<{vector}, {u.lines}, {stored.width}, {stored.batches}>({u.source}, {u.array},\n"
            f"    [](long batch, long line, long element) -> long {{\n"
            f"      return {place_of(sizes, u.layout[0], come)} + line * {u.layout[1]}L + element * {u.layout[2]}L;\n"
            f"    }},\n    [&](long batch, long line, long element) -> long {{\n"
            f"      return {place_of(sizes, offset, to)} + ({u.array}_first + line) * {line}L + element * {element}L;\n"
            f"    }});")
    return found
