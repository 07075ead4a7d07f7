"""Matrix products on the GPU: a "gemm" Tile -> CUDA C that calls a template of gemm.cuh.

In: the Tile that hloc/kernels/products/dot.py describes. Out: a struct of constants, kernels, and their launches.
There are four templates: tiles on tensor cores (tensor_cores.py), register tiles for all other types, and two for few
rows or columns, with and without tensor cores. In each, an operand may be computed by a fused prologue as it is loaded
(prologues.py).
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Stmt, Tile, Var
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.costs.sizes import operations_of_prologue, sizes_of
from hloc.targets.cuda.costs.tile_work import Side, Sizes
from hloc.targets.cuda.tiles.finish import VECTOR_BYTES, finish_of, finish_text
from hloc.targets.cuda.tiles.lines import Lines, offsets
from hloc.targets.cuda.tiles.prologues import Computed, computed, computed_thin, prologue_struct
from hloc.targets.cuda.tiles.tensor_cores import TF32, Numbers, numbers_of
from hloc.targets.cuda.tiles.tensor_maps import LARGEST_SIZE, LINE, TensorMap
from hloc.targets.cuda.tiles.tiled_kernels import tiled_kernels
from hloc.targets.cuda.tiles.tiling import (
    BLOCKS_PER_SM,
    MOST_WIDE,
    Tiling,
    adder,
    in_order_of_f32,
    kernel_text,
    multiply_add,
    shape_struct,
    store_sum,
    tilings,
)
from hloc.targets.cuda.tiles.times import predicted_us

THIN = 8                    # most rows (or columns) of the thin template
FEW = 32                    # most rows of the one on tensor cores, if the right operand is computed in registers anyway
FEW_ROWS = "few rows"
RESIDENT = ((8, 16), (16, 12), (FEW, 8))    # rows, and warps of an SM whose registers suffice for so many
THIN_THREADS, THIN_SLICES, MOST_SLICES = 256, 8, 64
THIN_SUMS, FEW_SUMS, MOST_COLUMNS = 64, 32, 8         # of a thread: with few sums, more loads are on their way
THIN_ENOUGH = 2                 # blocks per SM
THIN_MEMORY = 32 << 10          # bytes of a block, for sums of slices
MOST_NEAR = 128                 # bytes of the left operand with which registers suffice for two blocks per SM
LARGEST_TILE = 128


class Product(NamedTuple):
    """C[b, i, j] = sum over k of A B. exchanged: rows and columns of the Tile are exchanged. groups: the number of
    groups of rows, or 0; each group has its own B, and the inner batches are these."""

    m: int
    n: int
    k: int
    outer: int
    inner: int
    lhs: tuple[int, int, int, int, int]         # offset, outer, inner, row, k
    rhs: tuple[int, int, int, int, int]         # offset, outer, inner, k, column
    exchanged: bool = False
    groups: int = 0

    @staticmethod
    def of(tile: Tile) -> Product:
        facts = dict(tile.parameters)
        (m, n, k), (outer, inner) = facts["sizes"], facts["batches"]
        if "groups" in facts:
            return Product(m, n, k, outer, inner, facts["lhs"], facts["rhs"], groups=facts["groups"][0])
        product = Product(m, n, k, outer, inner, facts["lhs"], facts["rhs"])
        return product.exchange() if n <= THIN < m or (n < m and n <= THIN) else product

    def exchange(self) -> Product:
        """The same product as C^T = B^T A^T."""
        a, b = self.lhs, self.rhs
        return Product(self.n, self.m, self.k, self.outer, self.inner, (*b[:3], b[4], b[3]), (*a[:3], a[4], a[3]), True)

    def constants(self, width: int) -> dict[str, int]:
        """Constants of gemm.cuh. width: bytes of an element."""
        a, b = self.lhs, self.rhs
        grouped = {"GROUPS": self.groups} if self.groups else {}
        apart = self.groups and a[4] != 1           # a group may start at any row
        return {**grouped, "M": self.m, "N": self.n, "K": self.k,
                "BATCHES": self.outer * self.inner, "INNER": self.inner,
                "A_OUTER": a[1], "A_INNER": a[2], "A_ROW": a[3], "A_K": a[4],
                "B_OUTER": b[1], "B_INNER": b[2], "B_K": b[3], "B_COLUMN": b[4],
                "A_VECTOR": 1 if apart else vector_of(a[:3], (self.m, a[3]), (self.k, a[4]), width),
                "B_VECTOR": vector_of(b[:3], (self.n, b[4]), (self.k, b[3]), width)}


def vector_of(starts: tuple[int, ...], rows: tuple[int, int], depth: tuple[int, int], width: int) -> int:
    """Elements of an operand per vector load. They must be contiguous, and all offsets and other strides must be
    multiples of the vector length. rows, depth: size and stride of each."""
    (count, stride), (other, apart) = (depth, rows) if depth[1] == 1 else (rows, depth)
    if stride != 1:
        return 1
    vector = VECTOR_BYTES // width
    while vector > 1 and any(n % vector for n in (count, *starts, *([apart] if other > 1 else []))):
        vector //= 2
    return max(1, vector)


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
        return _few(tile, name, gpu, product, few, finish(1))
    if product.m <= THIN and not product.groups:
        return _thin(tile, name, gpu, product, finish(1))
    operands, structs = _operands(tile, name, product, computed_sides(tile))
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


def places_of(product: Product) -> tuple[dict[str, int], str]:
    """The extents of the epilogue's names, and the one that runs along the product's columns."""
    rows, columns, count = product.m, product.n, product.outer * product.inner
    if product.exchanged:
        return {"batch": count, "row": columns, "column": rows}, "row"
    return {"batch": count, "row": rows, "column": columns}, "column"


def computed_sides(tile: Tile) -> dict[str, Computed]:
    """The operands ("lhs", "rhs") that are computed by a prologue."""
    m, n, k = dict(tile.parameters)["sizes"]
    return {p.operand: computed(p, m if p.operand == "lhs" else n, k) for p in tile.prologues}


def types_of(tile: Tile, names: tuple[str, ...] = ("lhs", "rhs")) -> list[str]:
    """The element types of the named operands."""
    types = {**{b.name: b.type for b in tile.buffers}, **{p.operand: p.type for p in tile.prologues}}
    return [types[n] for n in names]


def names_of(product: Product) -> tuple[str, str]:
    """The Tile's names of the left and the right operand."""
    return ("rhs", "lhs") if product.exchanged else ("lhs", "rhs")


def _operands(tile: Tile, name: str, product: Product, made: dict[str, Computed]) -> tuple[str, str]:
    """The template's arguments for both operands: addresses, or prologue structs; and the text of these structs."""
    texts = []
    for operand, side in zip(names_of(product), (product.lhs, product.rhs)):
        if operand in made:
            texts.append(f"{name}_{operand}{{{', '.join(b.name for b in made[operand].buffers(tile))}}}")
        else:
            texts.append(operand + (f" + {side[0]}" if side[0] else ""))
    return ", ".join(texts), "".join(prologue_struct(m, tile, f"{name}_{n}") for n, m in made.items())


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


class Thin(NamedTuple):
    """How the thin template is cut. rows: of the left operand, a power of two; wide, deep: elements of the right
    operand that a thread loads at once, across and along the depth; ahead: such loads on their way; threads, slices
    (of the depth): of a block."""

    rows: int
    wide: int
    deep: int
    ahead: int
    threads: int
    slices: int

    @property
    def columns(self) -> int:
        return self.threads // self.slices * self.wide

    def concurrent_rows(self, width: int) -> int:
        """Rows whose sums are in shared memory at once. width: bytes of a sum."""
        return max(1, min(self.rows, THIN_MEMORY // (self.threads * self.wide * width)))

    def blocks(self, product: Product) -> int:
        return -(-product.n // self.columns) * product.outer * product.inner


def thin_of(tile: Tile, product: Product, gpu: Machine) -> Thin:
    """How a product of few rows is cut."""
    rows = 1 << (product.m - 1).bit_length()
    wide = min(MOST_COLUMNS, THIN_SUMS // rows)         # most columns of a thread
    right = next((computed_thin(p, product.n, product.k, wide) for p in tile.prologues
                  if p.operand == names_of(product)[1]), None)
    if right:
        along, vector = right.along, right.vector
    else:
        constants = product.constants(ELEMENT_TYPES[dict(tile.parameters)["types"][0]].bytes)
        along = constants["B_K"] == 1
        vector = constants["B_VECTOR"] if along else min(constants["B_VECTOR"], wide)
    wide, deep = (1, vector) if along else (vector, 1)
    return Thin(rows, wide, deep, 2 if rows * wide > FEW_SUMS else 4, *_thin_block(product, wide, deep, gpu))


class Few(NamedTuple):
    """A product of few rows on tensor cores (few_rows.cuh). made: operands that are computed; vector: elements of the
    right one that a lane loads at once."""

    numbers: Numbers
    made: dict[str, Computed]
    vector: int
    constants: dict[str, int]

    @property
    def threads(self) -> int:
        return 32 * self.constants["BK"]

    @property
    def resident(self) -> int:
        """Warps of an SM."""
        return next(warps for rows, warps in RESIDENT if rows >= self.constants["BM"])


def few_rows(tile: Tile, product: Product, gpu: Machine) -> Few | None:
    """How a product of a few rows runs on tensor cores; None if it does not. Types of up to two bytes: of wider ones
    tensor cores would round, and memory is the limit without them. A right operand that is computed takes the fewest
    instructions so, even for one row. One in memory as it is needs few for one row anyway, and for more than THIN rows
    it goes through shared memory in tiles."""
    facts, names = dict(tile.parameters), names_of(product)
    (left, right), prologues = types_of(tile, names), {p.operand: p for p in tile.prologues}
    numbers = numbers_of(left, right, facts["types"][1], facts.get("algorithm", ""), gpu)
    least, most = (1, FEW) if names[1] in prologues else (2, THIN)
    if numbers is None or left != right or ELEMENT_TYPES[left].bytes > 2 or product.groups \
            or not least <= product.m <= most:
        return None
    constants, made = product.constants(ELEMENT_TYPES[left].bytes), {}
    along, vector = constants["B_K"] == 1, constants["B_VECTOR"]
    if names[1] in prologues:
        own = made[names[1]] = computed_thin(prologues[names[1]], product.n, product.k, 1)
        along, vector = own.along, own.vector
    if not along or vector % (2 * numbers.word) or (names[0] not in prologues and constants["A_K"] != 1):
        return None
    if names[0] in prologues:
        made[names[0]] = computed(prologues[names[0]], product.m, product.k, True, vector)
    constants["A_VECTOR"] = min(constants["A_VECTOR"], vector)

    def is_short(columns: int) -> bool:
        return -(-product.n // columns) * product.outer * product.inner < THIN_ENOUGH * gpu.cores
    columns = 16 if is_short(32) else 32
    few = Few(numbers, made, vector, {**constants, "BM": -(-product.m // 8) * 8, "BN": columns})
    warps = few.resident if is_short(columns) else few.resident // 2
    few.constants["BK"] = max(1, min(warps, product.k // (4 * vector)))
    return few


def _few(tile: Tile, name: str, gpu: Machine, product: Product, few: Few, finish: str) -> tuple:
    """The template for a few rows on tensor cores."""
    total, c = dict(tile.parameters)["types"][1], few.constants
    operands, structs = _operands(tile, name, product, few.made)
    call = f"hloc_gemm_few<{name}_shape, {few.numbers.name}, {c_type(total)}>({operands}, memory,\n" \
           f"    {adder(total)}, finish);"
    blocks = -(-product.n // c["BN"]) * product.outer * product.inner
    start = Geometry(name, (max(1, min(blocks, gpu.cores * BLOCKS_PER_SM)), 1, 1), (few.threads, 1, 1))
    memory = c["BK"] * c["BM"] * c["BN"] * ELEMENT_TYPES[total].bytes
    text = kernel_text(tile, name, few.threads, [finish, call], memory,
                       together=min(2, few.resident // c["BK"]))
    return structs + shape_struct(f"{name}_shape", c) + text, start


def _thin(tile: Tile, name: str, gpu: Machine, product: Product, finish: str) -> tuple:
    """The thin template: each thread reads vectors of the right operand, over one slice of the depth."""
    names, total = names_of(product), dict(tile.parameters)["types"][1]
    type, other = types_of(tile, names)
    block, constants = thin_of(tile, product, gpu), product.constants(ELEMENT_TYPES[type].bytes)
    prologues, made = {p.operand: p for p in tile.prologues}, {}
    if names[1] in prologues:
        wide = min(MOST_COLUMNS, THIN_SUMS // block.rows)
        made[names[1]] = computed_thin(prologues[names[1]], product.n, product.k, wide)
    else:
        constants["B_VECTOR"] = block.wide * block.deep
    if names[0] in prologues:
        made[names[0]] = computed(prologues[names[0]], product.m, product.k, True, block.deep)
    constants["A_VECTOR"] = min(constants["A_VECTOR"], block.deep) if constants["A_K"] == 1 else 1
    constants.update({"BM": block.rows, "BN": block.columns, "BK": block.slices, "AHEAD": block.ahead,
                      "ROWS_AT_ONCE": block.concurrent_rows(ELEMENT_TYPES[total].bytes)})
    operands, structs = _operands(tile, name, product, made)
    call = (f"hloc_gemm_thin<{name}_shape, {c_type(total)}>({operands}, memory,\n"
            f"    {multiply_add(type, other, total)},\n    {adder(total)}, finish);")
    blocks = max(1, min(block.blocks(product), gpu.cores * BLOCKS_PER_SM))
    memory = block.columns * block.slices * ELEMENT_TYPES[total].bytes * constants["ROWS_AT_ONCE"]
    near = block.rows * block.deep * ELEMENT_TYPES[type].bytes      # bytes of the left operand per vector
    together = 2 if block.threads == THIN_THREADS and near <= MOST_NEAR else 1
    text = kernel_text(tile, name, block.threads, [finish, call], memory, together=together)
    return structs + shape_struct(f"{name}_shape", constants) + text, \
        Geometry(name, (blocks, 1, 1), (block.threads, 1, 1))


def _thin_block(product: Product, wide: int, deep: int, gpu: Machine) -> tuple[int, int]:
    """Threads and slices of a block. Slices are few if there are enough blocks. With too few blocks, slices and then
    threads are added, so that enough loads are in flight."""
    threads, slices = THIN_THREADS, THIN_SLICES

    def short() -> bool:
        return Thin(1, wide, deep, 1, threads, slices).blocks(product) < THIN_ENOUGH * gpu.cores \
            and slices * deep * 4 <= product.k
    while slices < MOST_SLICES and short():
        slices *= 2
    return (2 * threads, 2 * slices) if slices == MOST_SLICES and short() else (threads, slices)


def epilogue(tile: Tile, total: str) -> tuple[Stmt, ...]:
    """The Tile's epilogue; without one, a store of the sum to out0."""
    if tile.epilogue:
        return tile.epilogue
    facts = dict(tile.parameters)
    outer, inner, row, column = facts["result"]
    batch = Var("batch", INDEX)
    count = Const(facts["batches"][1], INDEX)
    place: Expr = Const(0, INDEX)
    for value, stride in ((index_apply("divide", batch, count), outer),
                          (Apply("remainder", (batch, count), INDEX), inner),
                          (Var("row", INDEX), row), (Var("column", INDEX), column)):
        if stride:
            scaled = index_apply("multiply", value, Const(stride, INDEX)) if stride != 1 else value
            place = scaled if place == Const(0, INDEX) else index_apply("add", place, scaled)
    return (store_sum(next(b for b in tile.buffers if b.name == "out0"), place, total),)
