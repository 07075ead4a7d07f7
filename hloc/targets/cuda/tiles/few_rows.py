"""Matrix products of few rows or columns: kernels that read the large operand once.

In: a Product and its Tile. Out: texts and launches of two templates: for up to THIN rows (gemm.cuh), and on tensor
cores for up to FEW rows by an operand that is computed in registers (few_rows.cuh).
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.tiles.product_facts import THIN, Product, names_of, operands_of, types_of
from hloc.targets.cuda.tiles.prologues import Computed, computed, computed_thin
from hloc.targets.cuda.tiles.tensor_cores import Numbers, numbers_of
from hloc.targets.cuda.tiles.tiling import BLOCKS_PER_SM, adder, kernel_text, multiply_add, shape_struct

FEW = 32                    # most rows of the one on tensor cores, if the right operand is computed in registers anyway
FEW_ROWS = "few rows"
RESIDENT = ((8, 16), (16, 16), (FEW, 12))   # rows, and warps of an SM whose registers suffice for so many
# Steps of a warp whose loads are on their way, and columns of a block. On an H200 one row by s8[16384,4096] takes
# 19.5 us with two or four steps and 24 with three or eight; 16 rows take 23.0, 24.5, 28.9 and 35.3.
AHEAD, COLUMNS = 2, 16
THIN_THREADS, THIN_SLICES, MOST_SLICES = 256, 8, 64
THIN_SUMS, FEW_SUMS, MOST_COLUMNS = 64, 32, 8         # of a thread: with few sums, more loads are on their way
THIN_ENOUGH = 2                 # blocks per SM
THIN_MEMORY = 32 << 10          # bytes of a block, for sums of slices
MOST_NEAR = 128                 # bytes of the left operand with which registers suffice for two blocks per SM


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

    few = Few(numbers, made, vector, {**constants, "BM": -(-product.m // 8) * 8, "BN": COLUMNS, "AHEAD": AHEAD})
    tiles = -(-product.n // COLUMNS) * product.outer * product.inner
    warps = min(few.resident, few.resident * gpu.cores // tiles, product.k // (4 * vector))
    few.constants["BK"] = max(1, warps)
    return few


def few_kernel(tile: Tile, name: str, gpu: Machine, product: Product, few: Few, finish: str) -> tuple:
    """The template for a few rows on tensor cores."""
    total, c = dict(tile.parameters)["types"][1], few.constants
    operands, structs = operands_of(tile, name, product, few.made)
    call = f"hloc_gemm_few<{name}_shape, {few.numbers.name}, {c_type(total)}>({operands}, memory,\n" \
           f"    {adder(total)}, finish);"
    blocks = -(-product.n // c["BN"]) * product.outer * product.inner
    start = Geometry(name, (max(1, min(blocks, gpu.cores * BLOCKS_PER_SM)), 1, 1), (few.threads, 1, 1))
    memory = c["BK"] * c["BM"] * c["BN"] * ELEMENT_TYPES[total].bytes
    text = kernel_text(tile, name, few.threads, [finish, call], memory,
                       together=few.resident // c["BK"])
    return structs + shape_struct(f"{name}_shape", c) + text, start


def thin_kernel(tile: Tile, name: str, gpu: Machine, product: Product, finish: str) -> tuple:
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
    operands, structs = operands_of(tile, name, product, made)
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
