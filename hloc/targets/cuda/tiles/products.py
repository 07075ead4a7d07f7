"""Matrix products on the GPU: a "gemm" Tile -> CUDA C that calls a template of gemm.cuh.

In: the Tile that hloc/kernels/products/gemm.py describes. Out: a struct of constants, kernels, and their launches.
There are four templates: tiles on tensor cores (tensor_cores.py), register tiles for all other types, and two for few
rows or columns, with and without tensor cores. In each, an operand may be computed by a fused prologue as it is loaded
(prologues.py).
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, Tile
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.costs.sizes import operations_of_prologue, sizes_of
from hloc.targets.cuda.costs.tile_work import Side, Sizes
from hloc.targets.cuda.tiles.few_rows import FEW_ROWS, few_kernel, few_rows, thin_kernel
from hloc.targets.cuda.tiles.finish import VECTOR_BYTES, finish_of, finish_text
from hloc.targets.cuda.tiles.lines import Lines, offsets
from hloc.targets.cuda.tiles.product_facts import (
    THIN,
    Product,
    computed_sides,
    epilogue,
    names_of,
    operands_of,
    places_of,
    types_of,
    vector_of,
)
from hloc.targets.cuda.tiles.prologues import Computed
from hloc.targets.cuda.tiles.tensor_cores import TF32, Numbers, numbers_of
from hloc.targets.cuda.tiles.tensor_maps import LARGEST_SIZE, LINE, TensorMap
from hloc.targets.cuda.tiles.tiled_kernels import tiled_kernels
from hloc.targets.cuda.tiles.tiling import MOST_WIDE, Tiling, in_order_of_f32, tilings
from hloc.targets.cuda.tiles.times import predicted_us

LARGEST_TILE = 128


def gemm(tile: Tile, name: str, gpu: Machine, variant: str = "") -> tuple:
    """Text, launches and scratch bytes of a matrix product. variant: one of gemm_variants."""
    facts = dict(tile.parameters)
    type, total = facts["types"]
    product = Product.of(tile)
    def finish(most: int) -> str:
        place = (("batch", INDEX), ("row", INDEX), ("column", INDEX), ("acc", total))
        found = finish_of(tile, epilogue(tile, total), *places_of(product), most)
        return finish_text(found, place, tile, product.exchanged)
    names = names_of(product)
    few = few_rows(tile, product, gpu)
    if few and variant in ("", FEW_ROWS):
        return few_kernel(tile, name, gpu, product, few, finish(1))
    if product.m <= THIN and not product.groups:
        return thin_kernel(tile, name, gpu, product, finish(1))
    operands, structs = operands_of(tile, name, product, computed_sides(tile))
    constants = product.constants(ELEMENT_TYPES[type].bytes)
    found = tilings_of(tile, product, gpu)
    tiling = next((t for t in found if t.variant == variant), found[0])
    maps: tuple[TensorMap, ...] = ()
    lines = lines_of(product, tiling, names, type)
    if tiling.bulk:
        operands, maps = "maps", maps_of(product, tiling, tile, names, lines)
    call = f"hloc_ragged<{name}_shape>({operands}, {facts['groups'][1]}" if product.groups else \
        f"hloc_gemm<{name}_shape>({operands}"
    text, *rest = tiled_kernels(tile, name, gpu, tiling, constants, call, finish, maps, lines=lines)
    return structs + text, *rest


def gemm_variants(tile: Tile, gpu: Machine) -> list[str]:
    """The variants that a tuning file can select, the cost model's choice first."""
    product = Product.of(tile)
    few = [FEW_ROWS] if few_rows(tile, product, gpu) else []
    if product.m <= THIN and not product.groups:
        return [*few, "thin"]
    return [*few, *(t.variant for t in tilings_of(tile, product, gpu))]


def tilings_of(tile: Tile, product: Product, gpu: Machine) -> list[Tiling]:
    """The variants of a product that is not thin, the cost model's choice first."""
    facts = dict(tile.parameters)
    type, total = facts["types"]
    names = names_of(product)
    left, right = types_of(tile, names)
    found = computed_sides(tile)
    made = (found.get(names[0]), found.get(names[1]))
    held = (made[0].held_bytes if made[0] else 0, made[1].held_bytes if made[1] else 0)
    numbers = numbers_of(left, right, total, facts.get("algorithm", ""), gpu)
    constants = product.constants(ELEMENT_TYPES[type].bytes)
    rows, count = product.m, product.outer * product.inner
    if product.groups:
        rows = -(-product.m // product.groups)      # of a group, on average
    packed, arguments = packed_sides(product, left), cost_arguments(tile, product)
    variants = tilings(rows, product.n, product.k, count, (type, total), LARGEST_TILE, gpu, numbers,
                    streams(product, constants, numbers, left, made), "" if found else groups(product, left),
                    held=held, packed=packed)

    def time(tiling: Tiling) -> float:
        return predicted_us(tiling, *arguments, gpu, lines_of(product, tiling, names, left))
    if numbers and left == "f32" and facts["algorithm"] == TF32:
        full = tilings(rows, product.n, product.k, count, (type, total), LARGEST_TILE, gpu, held=held)
        variants = in_order_of_f32([*variants, *full], time)
    elif any(t.packed != (False, False) for t in variants):
        variants = sorted(variants, key=time)
    return [t for t in variants if t.splits == 1] if product.groups else variants


def cost_arguments(tile: Tile, product: Product) -> tuple[Sizes, tuple[Side, Side]]:
    """The input of the cost model: sizes, and how both operands are read."""
    found, names = computed_sides(tile), names_of(product)
    width = ELEMENT_TYPES[dict(tile.parameters)["types"][0]].bytes
    c, read = product.constants(width), []
    for name, vector, steps in ((names[0], c["A_VECTOR"], (c["A_ROW"], c["A_K"])),
                                (names[1], c["B_VECTOR"], (c["B_K"], c["B_COLUMN"]))):
        own = found.get(name)
        read.append(Side(own.vector, width, made=operations_of_prologue(own.prologue)) if own else
                    Side(vector, width, dense=1 in steps))
    left, right = read
    finish = finish_of(tile, epilogue(tile, dict(tile.parameters)["types"][1]), *places_of(product), MOST_WIDE)
    return sizes_of(tile, product.m, product.n, product.k, product.outer * product.inner, finish), (left, right)


def groups(product: Product, type: str) -> str:
    """How warpgroups can read operands that are readable in pieces of 16 bytes (see tilings). Types other than 16-bit
    ones must be contiguous along the depth, or are packed. "boxes" and "packed" if tensor maps can describe the
    operands that are not packed: strides are not negative, and no line is repeated by a stride of 0."""
    a, b, width = product.lhs, product.rhs, ELEMENT_TYPES[type].bytes

    def is_mapped(others: tuple[int, ...], rows: tuple[int, int], depth: tuple[int, int]) -> bool:
        return min(*others, rows[1], depth[1]) >= 0 and vector_of(others, rows, depth, width) * width == VECTOR_BYTES \
            and all(size < LARGEST_SIZE // 2 and (stride or size == 1) for size, stride in (rows, depth))
    left, right = packed_sides(product, type)
    mapped = (left or is_mapped(a[:3], (product.m, a[3]), (product.k, a[4]))) and \
        (right or is_mapped(b[:3], (product.n, b[4]), (product.k, b[3])))
    if width == 2 or a[4] == b[3] == 1:
        return "boxes" if mapped else "copies"
    return "packed" if mapped else ""


def packed_sides(product: Product, type: str) -> tuple[bool, bool]:
    """Which operands must be packed as lines along the depth for the bulk copy engine (lines.py). f32: the right one,
    which the kernel that packs it rounds to TF32; the left one is rounded in registers."""
    width = ELEMENT_TYPES[type].bytes
    return (width == 1 and product.lhs[4] != 1, width == 4 or width == 1 and product.rhs[3] != 1)


def lines_of(product: Product, tiling: Tiling, names: tuple[str, str], type: str) -> list[Lines]:
    """The operands that the tiling packs. names: of the operands."""
    found, c = [], product.constants(ELEMENT_TYPES[type].bytes)
    (m, n, k), a, b = (product.m, product.n, product.k), product.lhs, product.rhs
    for side, (rows, (offset, outer, inner), row, depth, vector) in enumerate((
            (m, a[:3], a[3], a[4], c["A_VECTOR"]), (n, b[:3], b[4], b[3], c["B_VECTOR"]))):
        if not tiling.packed[side]:
            continue
        counts = product.outer if outer else 1, product.inner if inner else 1
        pairs = type == "f32" and a[4] != 1
        vector = 1 if pairs and depth == 1 else vector
        batch = f"batch / {counts[1]} * {outer}L + batch % {counts[1]} * {inner}L"
        form = f"hloc_strided<{c_type(type)}, {row}, {depth}, {vector}>"
        source = f"{form}{{{names[side]} + {offset} + {batch}, {rows}, {k}}}"
        found.append(Lines(side, type, rows, k, math.prod(counts), source, vector, pairs))
    return found


def maps_of(product: Product, tiling: Tiling, tile: Tile, names: tuple[str, str], packed: Sequence[Lines]
            ) -> tuple[TensorMap, TensorMap]:
    """Tensor maps of both operands. Lines run along the depth or across it. names: of the operands; packed: those that
    are read from the scratch memory."""
    width = tiling.constants["BULK"]
    edges = tiling.constants["BM"], tiling.constants["BN"]
    arguments = [[b.name for b in tile.buffers].index(n) for n in names]
    lhs, rhs = product.lhs, product.rhs
    places, _ = offsets(tiling, ELEMENT_TYPES[dict(tile.parameters)["types"][1]].bytes, packed)
    depths = [product.k, product.k]
    for one, place in zip(packed, places):
        side = (lhs, rhs)[one.side]
        each = one.rows * one.line
        inner = each if side[2] else 0
        start = (place // width, each * (product.inner if side[2] else 1) if side[1] else 0, inner)
        arguments[one.side], depths[one.side] = len(tile.buffers), one.line
        if one.side == 0:
            lhs = (*start, one.line, 1)
        else:
            rhs = (*start, 1, one.line)
    sides = ((product.m, lhs[3], lhs, lhs[4]), (product.n, rhs[4], rhs, rhs[3]))
    found = []
    for argument, edge, k, (rows, apart, side, step) in zip(arguments, edges, depths, sides):
        depth = (k, step)
        along, line = (depth, (rows, apart)) if depth[1] == 1 else ((rows, apart), depth)
        box = (LINE // width, edge if depth[1] == 1 else tiling.constants["BK"])
        found.append(TensorMap.of(argument, width, side[0],
                                  (along, line, (product.inner, side[2]), (product.outer, side[1])), box))
    left, right = found
    return left, right


def streams(product: Product, constants: dict[str, int], numbers: Numbers | None, type: str,
            made: tuple[Computed | None, Computed | None] = (None, None)) -> bool:
    """Whether both operands are in memory in the format of tensor cores and readable in pieces of 16 bytes, or are
    computed in such pieces. 8-bit elements must be contiguous along the depth. made: prologues of the operands."""
    width = ELEMENT_TYPES[type].bytes
    if numbers is None or numbers.stored_bytes != width or numbers.word * width != 4:
        return False
    lines = ((constants["A_VECTOR"], constants["A_K"]), (constants["B_VECTOR"], constants["B_K"]))
    pieces = [(own.vector, own.along) if own else (vector, step == 1) for own, (vector, step) in zip(made, lines)]
    return all(vector * width == VECTOR_BYTES and (width > 1 or along) for vector, along in pieces)
