"""What a "convolution" Tile asks for: the constants of conv.cuh, the equivalent matrix product, operands of prologues.

In: the Tile that kernels/products/convolution.py describes. Out: an Asked. Windows of one point, and windows that are
the whole input, need no gathering: the input is the matrix.
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.analysis.prologues import is_alone
from hloc.ir import ELEMENT_TYPES
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Stmt, Tile, Var
from hloc.targets.cuda.tiles.finish import VECTOR_BYTES, Finish, finish_of
from hloc.targets.cuda.tiles.positions import is_positions
from hloc.targets.cuda.tiles.product_facts import Product
from hloc.targets.cuda.tiles.prologues import Computed, computed
from hloc.targets.cuda.tiles.tiling import aligned, store_sum
from hloc.targets.cuda.tiles.window_rows import with_long_lines


class Asked(NamedTuple):
    """A Tile with its facts. c: constants of conv.cuh, with `vectors`; product: the equivalent matrix product, or None,
    also where each output is computed alone; made: operands that a prologue computes."""

    tile: Tile
    facts: dict
    c: dict[str, int]
    product: Product | None
    made: dict[str, Computed]

    @staticmethod
    def of(tile: Tile) -> Asked:
        facts = dict(tile.parameters)
        c = constants_of(facts)
        made = computed_sides(tile, c)
        width = ELEMENT_TYPES[facts["types"][0]].bytes
        c = c if made else with_long_lines(c, width)
        c.update(vectors(c, facts, width))
        return Asked(tile, facts, c, None if made or is_direct(c) else as_product(c, facts), made)

    @property
    def offsets(self) -> tuple[int, int]:
        """The operands' first elements."""
        return self.facts["lhs"][0], self.facts["rhs"][0]

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return ELEMENT_TYPES[self.facts["types"][0]].bytes

    @property
    def sum_width(self) -> int:
        """Bytes of a sum."""
        return ELEMENT_TYPES[self.facts["types"][1]].bytes

    @property
    def is_positions(self) -> bool:
        """Whether operands can be copied in boxes of positions (positions.py)."""
        return self.product is None and not self.made and is_positions(self.c, self.offsets, self.width)

    def finish(self, most: int) -> Finish:
        """How the epilogue of up to so many adjacent features is computed."""
        body = epilogue(self.tile, self.facts, self.facts["types"][1])
        return finish_of(self.tile, body, *places_of(self.c), aligned(most, self.c["N"]))


def places_of(c: dict[str, int]) -> tuple[dict[str, int], str]:
    """The extents of the epilogue's names, and the one that runs along features."""
    rows = c["IMAGES"] * c["WHOLE0"] * c["WHOLE1"] * c["WHOLE2"]
    return {"batch": 1, "row": rows, "column": c["FEATURES"] * c["GROUPS"] * c["BATCH_GROUPS"]}, "column"


def computed_sides(tile: Tile, c: dict[str, int]) -> dict[str, Computed]:
    """The operands ("lhs", "rhs") that are computed by a prologue. A thread computes adjacent channels of the input,
    which are adjacent in a window too. If channels are not contiguous in memory, adjacent threads compute adjacent
    positions."""
    found = {}
    for p in tile.prologues:
        if is_direct(c):
            found[p.operand] = computed(p, 1, 1)
        elif p.operand == "rhs":
            found[p.operand] = computed(p, c["FEATURES"], c["CHANNELS"])
        else:
            along = computed(p, 1, c["CHANNELS"], True)
            found[p.operand] = along if along.packs or not along.others else computed(p, 1, 1, False)
    return found


def is_direct(c: dict[str, int]) -> bool:
    """Whether each output is computed alone."""
    groups = c["GROUPS"] * c["BATCH_GROUPS"]
    return is_alone(c["FEATURES"], c["K"], c["M"] * c["FEATURES"] * groups, groups)


def as_product(c: dict[str, int], facts: dict) -> Product | None:
    """The equivalent matrix product. None if there is none: windows of several points that are not the whole input,
    or rows or depths without a single stride."""
    if c["GROUPS"] * c["BATCH_GROUPS"] * c["ADJACENT"] > 1 or any(c[f"LOW{d}"] or c[f"BASE{d}"] > 1 or c[f"STEP{d}"] > 1
                                                  for d in range(3)):
        return None
    points = all(c[f"WINDOW{d}"] == c[f"STRIDE{d}"] == 1 and c[f"OUT{d}"] == c[f"SIZE{d}"] for d in range(3))
    whole = all(c[f"OUT{d}"] == c[f"DILATION{d}"] == 1 and not c[f"REVERSAL{d}"] and c[f"WINDOW{d}"] == c[f"SIZE{d}"]
                for d in range(3))
    sizes, x, w = (tuple(c[f"{key}{d}"] for d in range(3)) for key in ("SIZE", "X_", "W_"))
    row, depth = _one_stride((c["IMAGES"], *sizes), (c["X_N"], *x)), (c["X_C"], c["W_I"])
    if whole:
        steps = [_one_stride((c["CHANNELS"], *sizes), strides) for strides in ((c["X_C"], *x), (c["W_I"], *w))]
        row, depth = c["X_N"], (steps[0] or 0, steps[1] or 0)
    if not (whole or points and not c["IMAGES_FIRST"]) or not row or not all(depth):
        return None
    return Product(c["M"], c["N"], c["K"], 1, 1, (facts["lhs"][0], 0, 0, row, depth[0]),
                   (facts["rhs"][0], 0, 0, depth[1], c["W_O"]))


def _one_stride(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """The stride of dimensions that together are one; None if they are not."""
    rows = [(size, stride) for size, stride in zip(sizes, strides) if size > 1]
    if not rows or any(outer != size * inner for (_, outer), (size, inner) in zip(rows, rows[1:])):
        return None
    return rows[-1][1]


def vectors(c: dict[str, int], facts: dict, width: int) -> dict[str, int]:
    """Elements of the input and of the kernel per vector load. Channels, images or the kernel's features must be
    contiguous. The offset of each vector from the array's start is a multiple of its size."""
    most = VECTOR_BYTES // width

    def fits(count: int, *starts: int) -> bool:
        return not any(n % most for n in (count, *starts))
    outer, inner = ("X_C", "IMAGES") if c["IMAGES_FIRST"] else ("X_N", "CHANNELS")
    x = (c["IMAGES_FIRST"] or c["X_C"] == 1) and fits(c[inner], facts["lhs"][0], c[outer], c["X_0"], c["X_1"], c["X_2"])
    start, taps = facts["rhs"][0], (c["W_0"], c["W_1"], c["W_2"])
    along = c["W_I"] == 1 and c["CHANNELS"] > 1
    w = fits(c["CHANNELS"], start, c["W_O"], *taps) if along else \
        c["W_O"] == 1 and fits(c["FEATURES"], start, c["W_I"], *taps)
    return {"X_VECTOR": most if x else 1, "W_VECTOR": most if w else 1}


def constants_of(facts: dict) -> dict[str, int]:
    """The constants of conv.cuh. Missing spatial dimensions are added in front, with size 1."""
    spatial = len(facts["size"])
    groups, batch_groups = facts["feature_groups"], facts["batch_groups"]
    images, channels = facts["batch"] // batch_groups, facts["lhs_features"] // groups
    features = facts["features"] // (groups * batch_groups)
    points, taps = math.prod(facts["size"]), math.prod(facts["window"])
    depth = 0 if facts.get("is_empty") else taps * channels
    constants = {"M": images * points, "N": features, "K": depth, "POINTS": points, "IMAGES": images,
                 "CHANNELS": channels, "FEATURES": features, "GROUPS": groups, "BATCH_GROUPS": batch_groups,
                 "X_N": facts["lhs"][1], "X_C": facts["lhs"][2], "W_I": facts["rhs"][1], "W_O": facts["rhs"][2],
                 "IMAGES_FIRST": int(facts["lhs"][1] == 1 and images > 1),
                 "FEATURES_FIRST": int(facts["result"][1] == 1), "ADJACENT": 1}
    for key, fact, default in (("SIZE", "lhs_size", 1), ("WINDOW", "window", 1), ("OUT", "size", 1),
                               ("STRIDE", "stride", 1), ("LOW", "padding_low", 0), ("BASE", "base_dilation", 1),
                               ("DILATION", "window_dilation", 1), ("REVERSAL", "reversal", 0)):
        values = [default] * (3 - spatial) + [int(v) for v in facts[fact]]
        constants.update({f"{key}{d}": v for d, v in enumerate(values)})
    whole = [(1, 1, 0)] * (3 - spatial) + list(facts.get("whole", [(size, 1, 0) for size in facts["size"]]))
    for d, values in enumerate(whole):
        constants.update(zip((f"WHOLE{d}", f"STEP{d}", f"FIRST{d}"), values))
    for key, side in (("X", "lhs"), ("W", "rhs")):
        values = [0] * (3 - spatial) + list(facts[side][3:])
        constants.update({f"{key}_{d}": v for d, v in enumerate(values)})
    return constants


def epilogue(tile: Tile, facts: dict, total: str) -> tuple[Stmt, ...]:
    """The Tile's epilogue; without one, a store of the sum to out0."""
    if tile.epilogue:
        return tile.epilogue
    strides = facts["result"]
    positions = [size for size, _, _ in facts["whole"]] if "whole" in facts else facts["size"]
    sizes, steps = [facts["batch"], *positions], [strides[0], *strides[2:]]
    place: Expr = _scaled(Var("column", INDEX), strides[1])
    if all(outer == size * inner for outer, size, inner in zip(steps, sizes[1:], steps[1:])):
        place = _plus(place, _scaled(Var("row", INDEX), steps[-1]))
        return (store_sum(next(b for b in tile.buffers if b.name == "out0"), place, total),)
    rest = math.prod(positions)
    place = _plus(place, _scaled(index_apply("divide", Var("row", INDEX), Const(rest, INDEX)), strides[0]))
    for size, stride in zip(positions, strides[2:]):
        outer, rest = rest, rest // size
        part = Apply("remainder", (Var("row", INDEX), Const(outer, INDEX)), INDEX)
        place = _plus(place, _scaled(index_apply("divide", part, Const(rest, INDEX)), stride))
    return (store_sum(next(b for b in tile.buffers if b.name == "out0"), place, total),)


def _scaled(value: Expr, factor: int) -> Expr:
    return index_apply("multiply", value, Const(factor, INDEX))


def _plus(a: Expr, b: Expr) -> Expr:
    return index_apply("add", a, b)
