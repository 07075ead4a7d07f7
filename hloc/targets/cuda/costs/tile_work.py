"""The Work of matrix products and convolutions, from their sizes and the constants of a Tiling (tiles/tiling.py).

In: Sizes, how both operands are read, and a tile's constants. Out: the Work of the kernel that multiplies, and of the
one that joins the pieces of a split depth.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from hloc.targets.cuda.costs.work import WARP, Work, cut

FRAGMENT = 16 * 8 * 32              # one mma.sync multiplies 16 x 8 sums by 32 bytes of the depth
PASS = 128                          # bytes of shared memory per SM and clock
ROUNDED = 2                         # instructions that compute a part of an f32 in registers
SLOW_PRODUCTS = 32                  # instructions of a product of types wider than four bytes, relative to f32
FEW_STEPS = 2
KEPT_WIDE, JOINED = 4, 8           # partial sums stored at once; pieces whose loads overlap
OF_A_SUM = {"pipeline": 1.3, "steps": 0.5}      # more registers per register of sums: fragments, positions


class Side(NamedTuple):
    """How an operand is read. vector: elements per load; width: bytes of an element; windows: whether windows of an
    image are read; made: operations of its prologue per element; dense: whether accesses of adjacent threads are
    coalesced."""

    vector: int
    width: int
    windows: bool = False
    made: float = 0
    dense: bool = True


class Sizes(NamedTuple):
    """rows, columns, depth: of a product; count: of products; memory: bytes of distinct elements of all arrays;
    instructions, bytes: of the epilogue per element, bytes read or written; far: dependent loads of the epilogue that
    no other element shares. The next batch of elements of a thread wait for these loads, since the store before them
    may alias them. wide: columns that are loaded and stored at once."""

    rows: int
    columns: int
    depth: int
    products: int
    memory: float
    instructions: float = 2
    bytes: float = 4
    far: int = 0
    wide: int = 1

    @property
    def outputs(self) -> int:
        return self.rows * self.columns * self.products


class Tiled(NamedTuple):
    """A product in tiles. form: how they are multiplied: registers, steps, pipeline, groups or bulk; steps: along the
    depth, summed over all tiles; most_blocks: largest number of blocks of the launch."""

    constants: Mapping[str, int]
    form: str
    threads: int
    shared: int
    tiles: int
    steps: int
    most_blocks: int

    @staticmethod
    def of(sizes: Sizes, constants: Mapping[str, int], form: str, threads: int, shared: int, most_blocks: int) -> Tiled:
        """Tiles of different pieces of the depth are counted separately."""
        tiles = cut(sizes.rows, constants["BM"]) * cut(sizes.columns, constants["BN"]) * sizes.products
        splits, part = constants["SPLITS"], constants.get("PART", sizes.depth)
        steps = tiles * sum(cut(min(part, sizes.depth - n * part), constants["BK"]) for n in range(splits))
        return Tiled(constants, form, threads, shared, tiles * splits, steps, most_blocks)

    @property
    def edges(self) -> tuple[int, int]:
        return self.constants["BM"], self.constants["BN"]

    @property
    def warps(self) -> tuple[int, int]:
        """Warps that multiply, down and across."""
        return (self.constants["WM"], self.constants["WN"]) if self.form != "registers" else (self.threads // WARP, 1)

    @property
    def sums(self) -> int:
        """Sums per thread that multiplies."""
        return math.prod(self.edges) // (math.prod(self.warps) * WARP)


def tiled_work(sizes: Sizes, sides: tuple[Side, Side], tiled: Tiled, words: tuple[float, int]) -> Work:
    """The Work of the kernel that multiplies. words: bytes of registers per element of the depth, and products
    of parts that tensor cores compute per product."""
    split, blocks = tiled.constants["SPLITS"] > 1, max(1, min(tiled.tiles, tiled.most_blocks))
    each, outputs = cut(tiled.tiles, blocks), sizes.outputs * tiled.constants["SPLITS"]
    counts, traffic = _reading(sides, tiled)
    for kind, count in _multiplying(sides[0].width, tiled, words).items():
        counts[kind] = counts.get(kind, 0) + count
    wide = KEPT_WIDE if split and sizes.wide > 1 else sizes.wide
    counts["alu"] = counts.get("alu", 0) + outputs * (2 / wide if split else sizes.instructions) / WARP
    counts["access"] = outputs / WARP / wide
    windows = tiled.form in ("bulk", "groups", "pipeline") and sides[0].windows
    bm, bn, bk = *tiled.edges, tiled.constants["BK"]
    down, across = tiled.warps
    batched = tiled.constants.get("BATCHED", 1)
    finish = 0 if split else sizes.far * bm * min(cut(bn, across), sizes.columns) / (down * WARP * batched)
    ahead = max(1, tiled.constants.get("STAGES", 2) - 1)
    return Work(blocks, tiled.threads, _registers(sides, tiled), tiled.shared,
                float(sizes.memory + (outputs * 4 if split else 0)), traffic + outputs * (4 if split else sizes.bytes),
                counts, 0.0 if tiled.form == "registers" else 2.0 * tiled.steps * bm * bn * bk,
                tiled.form + " window" * windows, rounds=each * (tiled.steps / tiled.tiles / ahead + 2 + finish),
                uneven=each * blocks / tiled.tiles)


def _reading(sides: tuple[Side, Side], tiled: Tiled) -> tuple[dict[str, float], float]:
    """Instructions and bytes of loading both operands."""
    counts: dict[str, float] = {"tile": tiled.tiles * tiled.threads / WARP, "step": tiled.steps * tiled.threads / WARP}
    traffic = 0.0
    for side, edge in zip(sides, tiled.edges):
        elements = tiled.steps * edge * tiled.constants["BK"]
        traffic += elements * side.width * (1 if side.dense else 32 / side.width / max(1, side.vector))
        kinds = []
        if tiled.form != "bulk":
            kinds.append(("async" if tiled.form in ("pipeline", "groups") else "fetch") + " window" * side.windows)
        if tiled.form in ("steps", "registers"):
            kinds.append("store")
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + elements / side.vector / WARP
        if side.made:
            counts["alu"] = counts.get("alu", 0) + elements * side.made / WARP
    return counts, traffic


def _multiplying(width: int, tiled: Tiled, words: tuple[float, int]) -> dict[str, float]:
    """Instructions of the products, and passes through shared memory."""
    (bm, bn), (down, across), bk = tiled.edges, tiled.warps, tiled.constants["BK"]
    products = tiled.steps * bm * bn * bk
    if tiled.form == "registers":
        read = (tiled.constants["TM"] + tiled.constants["TN"]) * WARP * width / PASS / 4
        return {"fma": products / WARP * (1 if width <= 4 else SLOW_PRODUCTS),
                "shared": tiled.steps * bk * (tiled.threads / WARP) * read}
    if tiled.form in ("groups", "bulk"):
        read = tiled.steps * (bm / 64 * bn + bm) * bk
        if tiled.form == "bulk":                                    # f32 of the left operand are rounded in registers
            return {"shared": read * width / PASS, "alu": tiled.steps * bm * bk / WARP if width == 4 else 0}
        rounded: float = tiled.steps * (bm + bn) * bk if width == 4 else 0         # in shared memory: read and written
        return {"shared": (read + 2 * rounded) * width / PASS, "alu": rounded / WARP}
    bytes_of_term, count = words
    fragments = tiled.steps * (bm * across + bn * down) * bk
    rounded = ROUNDED * fragments * count / WARP if width == 4 else 0
    return {"mma": products * bytes_of_term * count / FRAGMENT, "shared": fragments * width / PASS, "alu": rounded}


def _registers(sides: tuple[Side, Side], tiled: Tiled) -> int:
    """Approximate registers of a thread. A pipeline of few steps is unrolled completely and needs fewer."""
    form, bk = tiled.form, tiled.constants["BK"]
    own = 40 if form != "pipeline" else 24 if tiled.steps / tiled.tiles <= FEW_STEPS else 58
    sums = tiled.sums * (max(1, sides[0].width // 4) if form == "registers" else 1)
    held = sum(edge * bk * s.width // (tiled.threads * 4) for s, edge in zip(sides, tiled.edges)) \
        if form in ("steps", "registers") else 0
    loads = sum(edge * bk // (tiled.threads * s.vector) for s, edge in zip(sides, tiled.edges)) \
        if form == "steps" else 0
    return min(255, own + int(sums * (1 + OF_A_SUM.get(form, 0))) + held + 4 * loads)


def join_work(sizes: Sizes, splits: int, blocks: int, threads: int) -> Work:
    """The Work of the kernel that sums the pieces of the depth."""
    wide = min(sizes.wide, KEPT_WIDE)
    each = cut(sizes.outputs, blocks * threads * wide)
    counts = {"access": sizes.outputs * (splits + 1) / WARP / wide,
              "alu": sizes.outputs * (splits + sizes.instructions) / WARP}
    moved = float(sizes.outputs * (splits * 4 + sizes.bytes))
    return Work(blocks, threads, 32, 0, moved, moved, counts, rounds=float(each * (math.ceil(splits / JOINED) + 1)))
