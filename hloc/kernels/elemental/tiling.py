"""Loop tiling for kernels that transpose: a load is contiguous along another loop than the store.

In: the loops of a kernel and the accesses of its trial run. Out: a Tiling: the innermost loop and the loop along which
the loads are contiguous are split into square tiles. Such loads are staged: a tile is transposed into a Local array (on
a CPU by shuffles, see call_printer.py), and read from there.

    out[i, j] = f(in[j, i]):   for each tile {  for j: for i: tile[i, j] = in[j, i]
                                                for i: for j: out[i, j] = f(tile[i, j])  }
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import indexing, loops
from hloc.kernels.affine import stays_inside
from hloc.kernels.builder import Builder
from hloc.kernels.group import Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Load, Store

EDGE_BYTES, LONGEST_EDGE = 128, 64      # of a tile: two cache lines
SHORTEST = 8                    # loops below this length are not worth a tile


@dataclass
class Tiling:
    """tiled: number of the loop along which the strided loads are contiguous; staged: those loads, (buffer, position).
    """

    extents: list[int]
    tiled: int
    staged: list[tuple[str, Index]]

    def edges(self, outline: Outline) -> tuple[int, int]:
        """Rows and columns of a tile."""
        bytes = max((ELEMENT_TYPES[outline.described(buffer)[1]].bytes for buffer, _ in self.staged), default=8)
        edge = min(LONGEST_EDGE, max(1, EDGE_BYTES // bytes))
        return min(edge, self.extents[self.tiled]), min(edge, self.extents[-1])


def find_tiling(extents: list[int], trial: Builder, outline: Outline) -> Tiling | None:
    """The tiling for the accesses of a trial run, or None. The trial's loops are named i0, i1 ...

    A tile is read as a whole: loads under conditions, as of a pad, are staged only if every position is inside the
    array, and none whose position depends on inner loops, as over a window.
    """
    if len(extents) < 2 or extents[-1] < SHORTEST:
        return None
    inner, own = f"i{len(extents) - 1}", {f"i{n}": extent for n, extent in enumerate(extents)}
    found: Tiling | None = None
    for buffer, position in dict.fromkeys(trial.accesses):
        stride = indexing.coefficient_of(position, inner)
        if stride is None or abs(stride) < 2:
            continue
        for n in range(len(extents) - 2, -1, -1):
            if extents[n] >= SHORTEST and indexing.coefficient_of(position, f"i{n}") == 1:
                found = found or Tiling(extents, n, [])
                if found.tiled == n and stays_inside(indexing.to_expr(position), outline.described(buffer)[2], own):
                    found.staged.append((buffer, position))
    return found


@contextmanager
def tiled_nest(outline: Outline, tiling: Tiling) -> Iterator[tuple[Index, ...]]:
    """The loops of a tiled kernel, after the staged loads; gives one counter per extent."""
    builder, extents = outline.builder, tiling.extents
    others = [n for n in range(len(extents) - 1) if n != tiling.tiled]
    rows, columns = extents[tiling.tiled], extents[-1]
    edges = tiling.edges(outline)
    outer = [*(extents[n] for n in others), -(-rows // edges[0]), -(-columns // edges[1])]
    with loops.parallel(builder, outer) as counters:
        result: list[Index] = [indexing.ZERO] * len(extents)
        for n, counter in zip(others, counters):
            result[n] = counter
        locals_ = [_stage(outline, tiling, access, result, counters, edges) for access in tiling.staged]
        with loops.block_loop(builder, rows, edges[0], counters[-2], SERIAL) as result[tiling.tiled]:
            with loops.block_loop(builder, columns, edges[1], counters[-1], VECTOR) as result[-1]:
                for (buffer, position), name in zip(tiling.staged, locals_):
                    place = _place(result, tiling, counters, edges)
                    load = Load(name, builder.position(place), outline.described(buffer)[1])
                    outline.staged[buffer, _moved(position, result)] = load
                yield tuple(result)


def _stage(outline: Outline, tiling: Tiling, access: tuple[str, Index], outer: Sequence[Index],
           counters: Sequence[Index], edges: tuple[int, int]) -> str:
    """Transpose one tile into a Local array."""
    builder, (buffer, position), result = outline.builder, access, list(outer)
    type = outline.described(buffer)[1]
    name = builder.local(type, edges[0] * edges[1], "tile")
    rows, columns = tiling.extents[tiling.tiled], tiling.extents[-1]
    with loops.block_loop(builder, columns, edges[1], counters[-1], SERIAL) as result[-1], \
            loops.block_loop(builder, rows, edges[0], counters[-2], SERIAL) as result[tiling.tiled]:
        load = builder.load(buffer, type, _moved(position, result))
        builder.append(Store(name, builder.position(_place(result, tiling, counters, edges)), load))
    return name


def _place(result: Sequence[Index], tiling: Tiling, counters: Sequence[Index], edges: tuple[int, int]) -> Index:
    """The position of the current element in a staged tile: [row][column]."""
    row = indexing.subtract(result[tiling.tiled], indexing.scale(counters[-2], edges[0]))
    column = indexing.subtract(result[-1], indexing.scale(counters[-1], edges[1]))
    return indexing.add(indexing.scale(row, edges[1]), column)


def _moved(position: Index, counters: Sequence[Index]) -> Index:
    """An affine position of the trial run in terms of the final loops' counters."""
    atoms, factors = zip(*position.terms)
    return indexing.shift(indexing.strided((counters[int(a.name[1:])] for a in atoms), factors), position.constant)
