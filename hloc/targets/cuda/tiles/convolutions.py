"""Convolutions on the GPU: a "convolution" Tile -> CUDA C that calls a template of conv.cuh.

In: the Tile that kernels/products/convolution.py describes. Out: a struct of constants, a kernel, and its launch. A
group with enough features is computed as a matrix product: threads or the bulk copy engine (patches.py) gather the
input's windows into its tiles. Windows of one point need no gathering: the input is the matrix. Otherwise (depthwise) a
thread computes each output, or a warp if there are few outputs of long sums. Without the bulk copy engine, an operand
may be computed by a fused prologue (prologues.py).
"""
from __future__ import annotations

import math

from hloc.analysis.prologues import EXACT_GROUPS, FEW_FEATURES
from hloc.ir import ELEMENT_TYPES
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Stmt, Tile, Var
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.costs.sizes import operations, sizes_of
from hloc.targets.cuda.costs.tile_work import Side, Sizes
from hloc.targets.cuda.tiles.patches import is_boxes, maps_of_patches, patch_of
from hloc.targets.cuda.tiles.products import Product, groups, maps_of
from hloc.targets.cuda.tiles.prologues import Computed, computed, prologue_struct
from hloc.targets.cuda.tiles.tensor_cores import TF32, numbers_of
from hloc.targets.cuda.tiles.tiling import (
    BLOCKS,
    BLOCKS_PER_SM,
    MOST_HELD,
    Tiling,
    adder,
    in_order_of_f32,
    kernel_text,
    lambda_text,
    multiply_add,
    registers_held,
    shape_struct,
    store_sum,
    tiled_kernels,
    tilings,
)
from hloc.targets.cuda.tiles.times import predicted_us

LARGEST_TILE = 64               # larger tiles lack registers for each row's window
VECTOR_BYTES = 16
SIDES = ("lhs", "rhs")
HELD_PLACE = 48                 # bytes of registers: position of a computed input element, and its window's start
LONG_SUM, FEW_OUTPUTS = 256, 1 << 16


def convolution(tile: Tile, name: str, gpu: Machine, variant: str = "") -> tuple:
    """Text, launches and scratch bytes of a convolution. variant: one of convolution_variants."""
    facts = dict(tile.parameters)
    types = facts["types"]
    constants = constants_of(facts)
    place = (("row", INDEX), ("column", INDEX), ("acc", types[1]))
    finish = lambda_text("finish", place, epilogue(tile, facts, types[1]))
    made = computed_sides(tile, constants)
    structs = "".join(prologue_struct(m, tile, f"{name}_{n}") for n, m in made.items())
    operands = ", ".join(
        f"{name}_{n}{{{', '.join(b.name for b in made[n].buffers(tile))}}}" if n in made else
        f"{n} + {facts[n][0]}" if facts[n][0] else n for n in SIDES)
    if is_direct(constants):
        text, start = _direct(tile, name, gpu, constants, types, finish, operands)
        return structs + text, start
    constants.update(vectors(constants, facts, ELEMENT_TYPES[types[0]].bytes))
    product = None if made else as_product(constants, facts)
    found = tilings_of(tile, constants, gpu, product, made)
    tiling = next((t for t in found if t.variant == variant), found[0])
    if not tiling.bulk:
        text, *rest = tiled_kernels(tile, name, gpu, tiling, constants, f"hloc_conv<{name}_shape>({operands}", finish)
        return structs + text, *rest
    arguments = [[b.name for b in tile.buffers].index(n) for n in ("lhs", "rhs")]
    if product is None:
        patch = patch_of(constants, tiling.constants["BM"])
        maps = maps_of_patches(constants, (facts["lhs"][0], facts["rhs"][0]), patch, tiling.constants["BN"], arguments)
        return tiled_kernels(tile, name, gpu, tiling, {**constants, **patch.constants}, f"hloc_conv<{name}_shape>(maps",
                             finish, maps, f"hloc_patch_rest<{name}_shape>(memory);\n")
    maps = maps_of(product, tiling, arguments)
    finish = lambda_text("finish", (("batch", INDEX), *place), epilogue(tile, facts, types[1]))
    return tiled_kernels(tile, name, gpu, tiling, product.constants(ELEMENT_TYPES[types[0]].bytes),
                         f"hloc_gemm<{name}_shape>(maps", finish, maps)


def convolution_variants(tile: Tile, gpu: Machine) -> list[str]:
    """The variants that a tuning file can select, the cost model's choice first."""
    facts = dict(tile.parameters)
    constants = constants_of(facts)
    constants.update(vectors(constants, facts, ELEMENT_TYPES[facts["types"][0]].bytes))
    if is_direct(constants):
        return ["direct"]
    made = computed_sides(tile, constants)
    product = None if made else as_product(constants, facts)
    return [t.variant for t in tilings_of(tile, constants, gpu, product, made)]


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


def is_direct(constants: dict[str, int]) -> bool:
    """Same as is_direct of analysis/prologues.py."""
    return constants["FEATURES"] <= FEW_FEATURES or constants["K"] < FEW_FEATURES


def as_product(c: dict[str, int], facts: dict) -> Product | None:
    """The equivalent matrix product, if windows have one point each and the rows of the input have one stride. None
    otherwise."""
    points = all(c[f"WINDOW{d}"] == c[f"STRIDE{d}"] == c[f"BASE{d}"] == 1 and not c[f"LOW{d}"]
                 and c[f"OUT{d}"] == c[f"SIZE{d}"] for d in range(3))
    if not points or c["IMAGES_FIRST"] or c["GROUPS"] * c["BATCH_GROUPS"] > 1:
        return None
    sizes, strides = (c["IMAGES"], *(c[f"OUT{d}"] for d in range(3))), (c["X_N"], *(c[f"X_{d}"] for d in range(3)))
    rows = [(size, stride) for size, stride in zip(sizes, strides) if size > 1]
    if not rows or any(outer != size * inner for (_, outer), (size, inner) in zip(rows, rows[1:])):
        return None
    return Product(c["M"], c["N"], c["K"], 1, 1, (facts["lhs"][0], 0, 0, rows[-1][1], c["X_C"]),
                   (facts["rhs"][0], 0, 0, c["W_I"], c["W_O"]))


def tilings_of(tile: Tile, c: dict[str, int], gpu: Machine, product: Product | None,
               made: dict[str, Computed]) -> list[Tiling]:
    """The variants of a convolution, the cost model's choice first; on tensor cores this is the one with the least
    predicted time. product: the equivalent matrix product, or None; the bulk copy engine can read its operands. made:
    operands computed by a prologue."""
    facts = dict(tile.parameters)
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
    variants = "" if made or width != 2 else groups(product, types[0]) if product else \
        "boxes" if is_boxes(c) else "copies"
    found = tilings(c["M"], c["N"], c["K"], c["GROUPS"] * c["BATCH_GROUPS"], types, LARGEST_TILE, gpu, numbers, whole,
                    variants, elements, held)

    def time(tiling: Tiling) -> float:
        return predicted_us(tiling, *cost_arguments(tile, c, product, made, tiling), gpu)
    if numbers is not None and types[0] in EXACT_GROUPS:
        return sorted(found, key=time)
    if numbers is not None and facts["algorithm"] == TF32:
        full = tilings(c["M"], c["N"], c["K"], c["GROUPS"] * c["BATCH_GROUPS"], types, LARGEST_TILE, gpu, held=held)
        return in_order_of_f32([*found, *full], time)
    return found


def cost_arguments(tile: Tile, c: dict[str, int], product: Product | None, made: dict[str, Computed],
             tiling: Tiling) -> tuple[Sizes, tuple[Side, Side]]:
    """The input of the cost model: sizes, and how both operands are read. c: includes `vectors`."""
    width = ELEMENT_TYPES[dict(tile.parameters)["types"][0]].bytes
    sizes = sizes_of(tile, c["M"], c["N"], c["K"], c["GROUPS"] * c["BATCH_GROUPS"])
    if tiling.bulk and product is None:                         # some rows of patches are not output positions
        parts = zip((c["OUT2"], c["OUT1"], c["IMAGES"]), patch_of(c, tiling.constants["BM"]))
        sizes = sizes._replace(rows=math.prod(-(-size // part) for size, part in parts) * tiling.constants["BM"])
    windows = not (product and tiling.bulk)
    sides = []
    for name, vector, dense in (("lhs", c["X_VECTOR"], 1 in (c["X_C"], c["X_N"], c["X_2"])),
                                ("rhs", c["W_VECTOR"], 1 in (c["W_I"], c["W_O"]))):
        own = made.get(name)
        sides.append(Side(own.vector if own else vector, width, windows and name == "lhs",
                          operations(own.prologue.statements) if own else 0, dense or own is not None))
    left, right = sides
    return sizes, (left, right)


def vectors(c: dict[str, int], facts: dict, width: int) -> dict[str, int]:
    """Elements of the input and of the kernel per vector load. Channels, or the kernel's features, must be contiguous.
    The offset of each vector from the array's start is a multiple of its size."""
    most = VECTOR_BYTES // width

    def fits(count: int, *starts: int) -> bool:
        return not any(n % most for n in (count, *starts))
    x = c["X_C"] == 1 and fits(c["CHANNELS"], facts["lhs"][0], c["X_N"], c["X_0"], c["X_1"], c["X_2"])
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
    constants = {"M": images * points, "N": features, "K": taps * channels, "POINTS": points, "IMAGES": images,
                 "CHANNELS": channels, "FEATURES": features, "GROUPS": groups, "BATCH_GROUPS": batch_groups,
                 "X_N": facts["lhs"][1], "X_C": facts["lhs"][2], "W_I": facts["rhs"][1], "W_O": facts["rhs"][2],
                 "IMAGES_FIRST": int(facts["lhs"][1] == 1 and images > 1),
                 "FEATURES_FIRST": int(facts["result"][1] == 1)}
    for key, fact, default in (("SIZE", "lhs_size", 1), ("WINDOW", "window", 1), ("OUT", "size", 1),
                               ("STRIDE", "stride", 1), ("LOW", "padding_low", 0), ("BASE", "base_dilation", 1),
                               ("DILATION", "window_dilation", 1), ("REVERSAL", "reversal", 0)):
        values = [default] * (3 - spatial) + [int(v) for v in facts[fact]]
        constants.update({f"{key}{d}": v for d, v in enumerate(values)})
    for key, side in (("X", "lhs"), ("W", "rhs")):
        values = [0] * (3 - spatial) + list(facts[side][3:])
        constants.update({f"{key}_{d}": v for d, v in enumerate(values)})
    return constants


def epilogue(tile: Tile, facts: dict, total: str) -> tuple[Stmt, ...]:
    """The Tile's epilogue; without one, a store of the sum to out0."""
    if tile.epilogue:
        return tile.epilogue
    strides = facts["result"]
    sizes, steps = [facts["batch"], *facts["size"]], [strides[0], *strides[2:]]
    place: Expr = _scaled(Var("column", INDEX), strides[1])
    if all(outer == size * inner for outer, size, inner in zip(steps, sizes[1:], steps[1:])):
        place = _plus(place, _scaled(Var("row", INDEX), steps[-1]))
        return (store_sum(next(b for b in tile.buffers if b.name == "out0"), place, total),)
    rest = math.prod(facts["size"])
    place = _plus(place, _scaled(index_apply("divide", Var("row", INDEX), Const(rest, INDEX)), strides[0]))
    for size, stride in zip(facts["size"], strides[2:]):
        outer, rest = rest, rest // size
        part = Apply("remainder", (Var("row", INDEX), Const(outer, INDEX)), INDEX)
        place = _plus(place, _scaled(index_apply("divide", part, Const(rest, INDEX)), stride))
    return (store_sum(next(b for b in tile.buffers if b.name == "out0"), place, total),)


def _scaled(value: Expr, factor: int) -> Expr:
    return index_apply("multiply", value, Const(factor, INDEX))


def _plus(a: Expr, b: Expr) -> Expr:
    return index_apply("add", a, b)
