"""Convolutions on the GPU: a "convolution" Tile -> CUDA C that calls a template of conv.cuh.

In: the Tile that kernels/products/convolution.py describes. Out: a struct of constants, a kernel, and its launch. A
group with enough features is computed as a matrix product: threads or the bulk copy engine (patches.py, positions.py)
gather the input's windows into its tiles. Windows of one point, and windows that are the whole input, need no
gathering: the input is the matrix. Otherwise (depthwise) a thread computes each output, or a warp if there are few
outputs of long sums. A convolution of a dilated input may be cut into phases (phases.py). Without the bulk copy engine,
an operand may be computed by a fused prologue (prologues.py).
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.analysis.prologues import EXACT_GROUPS, LONG_SUM, is_alone
from hloc.ir import ELEMENT_TYPES
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Stmt, Tile, Var
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.costs.sizes import operations, sizes_of
from hloc.targets.cuda.costs.tile_work import Side, Sizes
from hloc.targets.cuda.costs.work import Work
from hloc.targets.cuda.tiles.finish import VECTOR_BYTES, Finish, finish_of, finish_text
from hloc.targets.cuda.tiles.patches import is_boxes, maps_of_patches, patch_of
from hloc.targets.cuda.tiles.phases import phases_of
from hloc.targets.cuda.tiles.positions import PANEL, STEP, is_positions, maps_of_positions, panels_of, positions_of
from hloc.targets.cuda.tiles.products import Product, groups, maps_of, streams
from hloc.targets.cuda.tiles.prologues import Computed, computed, prologue_struct
from hloc.targets.cuda.tiles.tensor_cores import TF32, numbers_of
from hloc.targets.cuda.tiles.tensor_maps import TensorMap
from hloc.targets.cuda.tiles.tiling import (
    BLOCKS,
    BLOCKS_PER_SM,
    MOST_HELD,
    MOST_WIDE,
    Tiling,
    adder,
    aligned,
    in_order_of_f32,
    kernel_text,
    multiply_add,
    registers_held,
    shape_struct,
    store_sum,
    tiled_kernels,
    tilings,
)
from hloc.targets.cuda.tiles.times import predicted_us, works_of

LARGEST_TILE = 64               # larger tiles lack registers for each row's window
SIDES = ("lhs", "rhs")
HELD_PLACE = 48                 # bytes of registers: position of a computed input element, and its window's start
FEW_OUTPUTS = 1 << 16


class Choice(NamedTuple):
    """A variant of a convolution: its name in tuning files, and the Tiles that are launched one after the other."""

    variant: str
    parts: tuple[tuple[Asked, Tiling], ...]


class Asked(NamedTuple):
    """A Tile with its facts. c: constants of conv.cuh, with `vectors`; product: the equivalent matrix product, or None;
    made: operands that a prologue computes."""

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
        c.update(vectors(c, facts, ELEMENT_TYPES[facts["types"][0]].bytes))
        return Asked(tile, facts, c, None if made else as_product(c, facts), made)

    @property
    def offsets(self) -> tuple[int, int]:
        """The operands' first elements."""
        return self.facts["lhs"][0], self.facts["rhs"][0]

    def finish(self, most: int) -> Finish:
        """How the epilogue of up to so many adjacent features is computed."""
        body = epilogue(self.tile, self.facts, self.facts["types"][1])
        return finish_of(self.tile, body, *places_of(self.c), aligned(most, self.c["N"]))


def convolution(tile: Tile, name: str, gpu: Machine, variant: str = "") -> tuple:
    """Text, launches and scratch bytes of a convolution. variant: one of convolution_variants."""
    asked = Asked.of(tile)
    if is_direct(asked.c):
        structs, operands = _operands(asked, name)
        text, start = _direct(tile, name, gpu, asked.c, asked.facts["types"], _finish_text(asked, 1), operands)
        return structs + text, start
    found = choices(asked, gpu)
    chosen = next((c for c in found if c.variant == variant), found[0])
    if len(chosen.parts) == 1:
        return _tiled(*chosen.parts[0], name, gpu)
    made = [_tiled(part, tiling, f"{name}_{n}", gpu) for n, (part, tiling) in enumerate(chosen.parts)]
    return "".join(text for text, _ in made), [start for _, start in made]


def _tiled(asked: Asked, tiling: Tiling, name: str, gpu: Machine) -> tuple:
    """Text, launches and scratch bytes of a convolution in a tiling."""
    tile, facts, c = asked.tile, asked.facts, asked.c
    structs, operands = _operands(asked, name)
    arguments = [[b.name for b in tile.buffers].index(n) for n in SIDES] if tiling.bulk else []
    shape, call, before = c, f"hloc_conv<{name}_shape>({operands}", ""
    maps: tuple[TensorMap, ...] = ()
    if asked.product:
        maps = maps_of(asked.product, tiling, arguments) if tiling.bulk else ()
        shape = asked.product.constants(ELEMENT_TYPES[facts["types"][0]].bytes)
        call = f"hloc_gemm<{name}_shape>({'maps' if maps else operands}"
    elif tiling.bulk and is_positions(c, asked.offsets):
        part = positions_of(c)
        shape, maps = {**c, **part.constants(c)}, maps_of_positions(c, asked.offsets, part, arguments)
        call = f"hloc_conv<{name}_shape>(hloc_positions{{maps}}"
        before = f"hloc_positions_rest<{name}_shape>(memory);\n"
    elif tiling.bulk:
        patch = patch_of(c, tiling.constants["BM"])
        shape = {**c, **patch.constants}
        maps = maps_of_patches(c, asked.offsets, patch, tiling.constants["BN"], arguments)
        call, before = f"hloc_conv<{name}_shape>(maps", f"hloc_patch_rest<{name}_shape>(memory);\n"
    text, *rest = tiled_kernels(tile, name, gpu, tiling, shape, call, lambda most: _finish_text(asked, most), maps,
                                before)
    return structs + text, *rest


def _finish_text(asked: Asked, most: int) -> str:
    place = (("row", INDEX), ("column", INDEX), ("acc", asked.facts["types"][1]))
    return finish_text(asked.finish(most), (("batch", INDEX), *place) if asked.product else place, asked.tile)


def _operands(asked: Asked, name: str) -> tuple[str, str]:
    """The text of the structs of prologues, and the template's arguments for both operands."""
    structs = "".join(prologue_struct(m, asked.tile, f"{name}_{n}") for n, m in asked.made.items())
    operands = (f"{name}_{n}{{{', '.join(b.name for b in asked.made[n].buffers(asked.tile))}}}" if n in asked.made else
                f"{n} + {offset}" if offset else n for n, offset in zip(SIDES, asked.offsets))
    return structs, ", ".join(operands)


def places_of(c: dict[str, int]) -> tuple[dict[str, int], str]:
    """The extents of the epilogue's names, and the one that runs along features."""
    rows = c["IMAGES"] * c["WHOLE0"] * c["WHOLE1"] * c["WHOLE2"]
    return {"batch": 1, "row": rows, "column": c["FEATURES"] * c["GROUPS"] * c["BATCH_GROUPS"]}, "column"


def convolution_variants(tile: Tile, gpu: Machine) -> list[str]:
    """The variants that a tuning file can select, the cost model's choice first."""
    asked = Asked.of(tile)
    return ["direct"] if is_direct(asked.c) else [c.variant for c in choices(asked, gpu)]


def choices(asked: Asked, gpu: Machine) -> list[Choice]:
    """The variants of a convolution, the cost model's choice first; on tensor cores this is the one with the least
    predicted time."""
    whole = tilings_of(asked, gpu)
    found = [Choice(t.variant, ((asked, t),)) for t, _ in whole]
    phases = [Asked.of(tile) for tile in phases_of(asked.tile)]
    if not phases or not all(us for _, us in whole) or any(is_direct(p.c) for p in phases):
        return found
    times = [us for _, us in whole]
    each = [{t.variant: (t, us) for t, us in tilings_of(phase, gpu) if t.splits == 1} for phase in phases]
    for variant in set.intersection(*map(set, each)):
        parts = tuple((phase, own[variant][0]) for phase, own in zip(phases, each))
        found.append(Choice(f"{variant}, phases", parts))
        times.append(sum(own[variant][1] for own in each))
    return [found[n] for n in sorted(range(len(found)), key=lambda n: (times[n], found[n].variant))]


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
    if c["GROUPS"] * c["BATCH_GROUPS"] > 1 or any(c[f"LOW{d}"] or c[f"BASE{d}"] > 1 or c[f"STEP{d}"] > 1
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


def tilings_of(asked: Asked, gpu: Machine) -> list[tuple[Tiling, float]]:
    """The tilings of a convolution with their predicted microseconds, the cost model's choice first. On other than
    tensor cores a simpler rule orders them, and the microseconds are 0."""
    facts, c, product, made = asked.facts, asked.c, asked.product, asked.made
    types = facts["types"]
    numbers = numbers_of(types[0], types[0], types[1], facts.get("algorithm", ""), gpu)
    width = ELEMENT_TYPES[types[0]].bytes
    pixels = c["IMAGES"] * c["SIZE0"] * c["SIZE1"] * c["SIZE2"] * c["CHANNELS"]
    elements = (pixels + c["K"] * c["FEATURES"]) * c["GROUPS"] * c["BATCH_GROUPS"]
    lhs, rhs = (made.get(n) for n in SIDES)
    pieces = lhs.vector if lhs else c["X_VECTOR"], rhs.vector if rhs else c["W_VECTOR"]
    held = lhs.held_bytes + HELD_PLACE if lhs else 0, rhs.held_bytes if rhs else 0
    words = numbers is not None and width > 1 and numbers.stored_bytes == width and numbers.word * width == 4
    whole = words and all(n * width == VECTOR_BYTES for n in pieces) and \
        registers_held(BLOCKS[-1], held) <= MOST_HELD
    if product:
        whole = streams(product, product.constants(width), numbers, types[0])
    how = "" if made or width != 2 else groups(product, types[0]) if product else "patches" if is_boxes(c) else "copies"
    count = c["GROUPS"] * c["BATCH_GROUPS"]
    found = tilings(c["M"], c["N"], c["K"], count, types, LARGEST_TILE, gpu, numbers, whole, how, elements, held, True)
    if how == "copies" and numbers and is_positions(c, asked.offsets):
        rows, depth = panels_of(c) * PANEL * c["POINTS"], positions_of(c).steps(c) * STEP
        found = [t._replace(elements=c["M"] * c["N"]) for t in tilings(
            rows, c["N"], depth, 1, types, LARGEST_TILE, gpu, numbers, True, "positions", elements, waves=True)] + found
    if numbers is None or types[0] not in EXACT_GROUPS and facts["algorithm"] != TF32:
        return [(tiling, 0.0) for tiling in found]
    finish = asked.finish(MOST_WIDE)

    def time(tiling: Tiling) -> float:
        return predicted_us(tiling, *cost_arguments(asked, tiling, finish), gpu)
    if types[0] not in EXACT_GROUPS:
        full = tilings(c["M"], c["N"], c["K"], count, types, LARGEST_TILE, gpu, held=held, waves=True)
        return [(tiling, time(tiling)) for tiling in in_order_of_f32([*found, *full], time)]
    return sorted(((tiling, time(tiling)) for tiling in found), key=lambda pair: pair[1])


def works_of_choice(chosen: Choice, gpu: Machine) -> list[Work]:
    """The Work of each launch."""
    return [work for asked, tiling in chosen.parts
            for work in works_of(tiling, *cost_arguments(asked, tiling, asked.finish(MOST_WIDE)), gpu)]


def cost_arguments(asked: Asked, tiling: Tiling, finish: Finish) -> tuple[Sizes, tuple[Side, Side]]:
    """The input of the cost model: sizes, and how both operands are read. finish: of as many features as possible."""
    facts, c, product, made = asked.facts, asked.c, asked.product, asked.made
    width = ELEMENT_TYPES[facts["types"][0]].bytes
    sizes = sizes_of(asked.tile, c["M"], c["N"], c["K"], c["GROUPS"] * c["BATCH_GROUPS"], finish)
    if "whole" in facts:                                        # a phase reads the image, and its share of the rest
        image = sum(b.size * width for b in asked.tile.buffers if b.name == "lhs")
        share = c["M"] / (c["IMAGES"] * c["WHOLE0"] * c["WHOLE1"] * c["WHOLE2"])
        sizes = sizes._replace(memory=image * (c["K"] > 0) + (sizes.memory - image) * share)
    if tiling.bulk and product is None and is_positions(c, asked.offsets):
        sizes = sizes._replace(rows=panels_of(c) * PANEL * c["POINTS"], depth=positions_of(c).steps(c) * STEP)
    elif tiling.bulk and product is None:                       # some rows of patches are not output positions
        parts = zip((c["OUT2"], c["OUT1"], c["IMAGES"]), patch_of(c, tiling.constants["BM"]))
        sizes = sizes._replace(rows=math.prod(-(-size // part) for size, part in parts) * tiling.constants["BM"])
    vectors, sides = (c["X_VECTOR"], c["W_VECTOR"]), []
    if product:
        constants = product.constants(width)
        vectors = constants["A_VECTOR"], constants["B_VECTOR"]
    for name, vector, dense in (("lhs", vectors[0], 1 in (c["X_C"], c["X_N"], c["X_2"])),
                                ("rhs", vectors[1], 1 in (c["W_I"], c["W_O"]))):
        own = made.get(name)
        sides.append(Side(own.vector if own else vector, width, product is None and name == "lhs",
                          operations(own.prologue.statements) if own else 0, dense or own is not None))
    left, right = sides
    return sizes, (left, right)


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


def _direct(tile: Tile, name: str, gpu: Machine, constants: dict[str, int], types: tuple[str, str], finish: str,
            operands: str) -> tuple[str, Geometry]:
    type, total = types
    outputs = constants["M"] * constants["N"] * constants["GROUPS"] * constants["BATCH_GROUPS"]
    shuffles = ELEMENT_TYPES[total].kind != "complex"
    lanes = 32 if constants["K"] >= LONG_SUM and outputs < FEW_OUTPUTS and shuffles else 1
    add = adder(total) if lanes > 1 else "0"
    call = (f"hloc_conv_direct<{name}_shape, {lanes}, {c_type(total)}>({operands},\n"
            f"    {multiply_add(type, type, total)}, {add}, finish);")
    blocks = max(1, min(-(-outputs * lanes // 256), gpu.cores * BLOCKS_PER_SM))
    start = Geometry(name, (blocks, 1, 1), (256, 1, 1))
    return shape_struct(f"{name}_shape", constants) + kernel_text(tile, name, 256, [finish, call]), start


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
                 "FEATURES_FIRST": int(facts["result"][1] == 1)}
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
