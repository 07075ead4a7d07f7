"""Tilings: the common part of products and convolutions on the GPU.

In: the sizes of a product (rows, columns, depth, count) and its types. Out: the text of the kernels, and a Tiling: the
tile of a block, and the number of pieces of the depth. The depth is split if there are too few tiles to fill the GPU.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from hloc.analysis.prologues import EXACT_GROUPS, MMA_SHARE, is_limited_by_mma
from hloc.ir import ELEMENT_TYPES
from hloc.kernels import scalars
from hloc.kernels.ir import Apply, Const, Expr, Store, Tile, Var
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type, expression
from hloc.targets.cuda.tiles.tensor_cores import F8, Numbers
from hloc.targets.printer import comment, kernel_start, pointer_type

TENSOR_BYTES = 64               # bytes of the depth per step
BLOCKS_PER_SM = 8
JOIN_THREADS, JOINS_PER_SM = 64, 32     # of the kernel that sums pieces: small blocks use all SMs for few elements
DEEP = 1024                     # least depth at which splitting it may pay for a second kernel
SHORTEST_PART = 256
MOST_SPLITS, MOST_WAVES = 64, 4
SCRATCH_BYTES = 64 << 20
MOST_OF_PARTS = 128 * 128 * 64  # most rows * columns * bytes of a step, if words are split into parts in registers
STATIC_SHARED = 48 << 10        # bytes of shared memory that every kernel can use
RESERVED = 1 << 10              # bytes of shared memory that the driver reserves per block
WARP = 32
MOST_WIDE = 8                   # columns: those of 16 bytes
MOST_HELD = 200                 # registers per thread for sums and operands, if a prologue computes operands


class Tiling(NamedTuple):
    """constants: of gemm.cuh (BM, BN, BK, TM, TN or WM, WN, SPLITS, PART; STAGES of a pipeline); memory: bytes of
    shared memory; blocks: number of tiles; elements: number of sums; numbers: of tensor cores, or None; more_exact:
    full f32 precision although TF32 is allowed; packed: whether the left and the right operand are packed as lines
    along the depth before (lines.py)."""

    constants: dict[str, int]
    threads: int
    memory: int
    blocks: int
    elements: int
    numbers: Numbers | None = None
    more_exact: bool = False
    packed: tuple[bool, bool] = (False, False)

    @property
    def splits(self) -> int:
        return self.constants["SPLITS"]

    @property
    def variant(self) -> str:
        """Its name in tuning files."""
        c = self.constants
        stages = f", {c['STAGES']} stages" if "STAGES" in c else ""
        stages += ", wgmma" if self.grouped else ""
        stages += ", bulk copies" if self.bulk else ""
        stages += ", all bits" if self.more_exact else ""
        return f"{c['BM']}x{c['BN']}x{c['BK']}{stages}" + (f", {self.splits} splits" if self.splits > 1 else "")

    @property
    def grouped(self) -> bool:
        """Computed by warpgroups of four warps (warpgroup.cuh)."""
        return "STAGES" in self.constants and self.constants["WM"] == self.constants["BM"] // 16

    @property
    def bulk(self) -> bool:
        """The bulk copy engine copies the operands (bulk.cuh)."""
        return "BULK" in self.constants

    @property
    def wide(self) -> int:
        """The most columns that a lane finishes at once."""
        return MOST_WIDE if self.dynamic else 1

    @property
    def dynamic(self) -> int:
        """Bytes of dynamic shared memory of the launch."""
        return self.memory if "STAGES" in self.constants else 0


class Form(NamedTuple):
    """The tile of one block, for any depth: constants, threads, bytes of shared memory."""

    constants: dict[str, int]
    threads: int
    memory: int


class Block(NamedTuple):
    """A block's tile for tensor cores: rows, columns, warps down and across; depth in bytes; stages in shared
    memory; speed: throughput of an SM with such tiles, relative to the fastest one; bulk: an additional warp issues
    copies of the bulk copy engine."""

    rows: int
    columns: int
    down: int
    across: int
    depth: int
    stages: int
    speed: float
    bulk: bool = False

    @property
    def batched(self) -> int:
        """Sums of a lane that are finished as one batch. Nine warps have 168 registers each."""
        return 8 if self.bulk and self.rows * self.columns > 128 * 128 and self.down >= 8 else 16

    @property
    def memory(self) -> int:
        steps = self.stages * (self.rows + self.columns) * self.depth
        if self.bulk:
            return steps + self.stages * 2 * BARRIER + self.down * 16 * (BULK_COLUMNS + 8) * 4
        return max(steps, self.down * self.across * 16 * (self.columns // self.across + 8) * 4)


BLOCKS = (Block(128, 256, 2, 4, 128, 3, 1.0), Block(128, 128, 2, 4, 128, 3, 0.85), Block(128, 128, 2, 4, 64, 4, 0.8),
          Block(64, 128, 2, 2, 128, 3, 0.7), Block(64, 64, 2, 2, 128, 3, 0.55))

# For wgmma (sm_90a): rows, columns, stages in shared memory, speed. Several blocks of the last two share an SM.
# mma.sync reaches six tenths of its throughput. Warps that both multiply and copy wait for their own copies.
COPYING = 0.85
GROUPED = tuple(Block(rows, columns, rows // 16, 1, 128, stages, speed / MMA_SHARE * (1 if bulk else COPYING), bulk)
                for rows, columns, stages, speed in (
    (128, 256, 4, 1.0), (128, 128, 6, 0.9), (64, 256, 5, 0.9), (64, 128, 4, 0.85), (64, 64, 4, 0.6))
                for bulk in (True, False))
# For windows of convolutions. Gradients of filters often have few columns and many rows.
OF_WINDOWS = tuple(Block(rows, columns, rows // 16, 1, 128, stages, 1.0, True)
                   for rows, columns, stages in ((192, 128, 4), (192, 64, 5), (128, 64, 8)))
GROUPS = {f"hloc_numbers_{n}": f"hloc_group_{n}" for n in ("bf16", "f16", "s8", *(f"{a}_{b}" for a in F8 for b in F8))}
TF32_NUMBERS = "hloc_numbers_tf32<1, 0>"
GROUPS[TF32_NUMBERS] = "hloc_group_tf32"
MOST_SHORT = 128                    # columns of tiles of f8, whose sums each thread has twice
BARRIER, BULK_COLUMNS = 8, 32       # bytes of a barrier; columns that a warp of a bulk tile finishes at once


def tilings(rows: int, columns: int, depth: int, count: int, types: tuple[str, str], largest: int, gpu: Machine,
            numbers: Numbers | None = None, streams: bool = False, groups: str = "", elements: int = 0,
            held: tuple[int, int] = (0, 0), waves: bool = False, packed: tuple[bool, bool] = (False, False)
            ) -> list[Tiling]:
    """All tilings of a product, the cost model's choice first. types: of elements and of sums; largest: largest edge of
    a tile in registers, and of a tile in steps with operands from a prologue; streams: operands can be copied ahead
    (pipeline.cuh); groups: "copies" if warpgroups can read them (warpgroup.cuh), "boxes" if they can also be copied in
    boxes (bulk.cuh), "packed" if only in boxes, after packing, "windows" for boxes of windows alone (conv_bulk.cuh);
    elements: of both operands in memory, if fewer than those of the multiplied matrices; held: bytes of registers per
    16-byte piece of each operand, if a prologue computes it; waves: whether to also cut the depth so that blocks fill
    all SMs evenly, for callers that choose by predicted time; packed: the operands that must be packed before they are
    copied in boxes."""
    type, total = types

    def blocks(down: int, across: int) -> int:
        return -(-rows // down) * -(-columns // across) * count
    if numbers and streams:
        def time(block: Block) -> float:
            return block_time(block, rows, columns, count, gpu)
        order = sorted(blocks_for(gpu, numbers, held), key=time)
        grouped = sorted(groups_for(gpu, numbers, groups), key=time)
        moved = ((elements or (rows + columns) * depth * count) + rows * columns * count) * ELEMENT_TYPES[type].bytes
        groups_first = grouped and type in EXACT_GROUPS and time(grouped[0]) < time(order[0]) and \
            is_limited_by_mma(2 * rows * columns * depth * count, moved, ELEMENT_TYPES[type].bytes, gpu)
        blocks_found = grouped if groups == "windows" else (*grouped, *order) if groups_first else (*order, *grouped)
        forms = [pipelined(b, numbers, packed) for b in blocks_found]
    elif numbers:
        large = min(rows, columns) >= 96 and blocks(128, 128) >= gpu.cores // 2
        forms = [in_steps(edge, numbers) for edge in ((128, 64) if large else (64, 128))
                 if edge == 64 or not (type in F8 and numbers.word == 4) and (edge <= largest or not any(held))]
        forms += [pipelined(b, numbers, packed) for b in groups_for(gpu, numbers, groups) if b.bulk]
    else:
        width = max(ELEMENT_TYPES[t].bytes for t in types)
        edges = [e for e, most in ((128, 4), (64, 8), (32, 16)) if width <= most and (e <= largest or e == 32)]
        first = next((e for e in edges if min(rows, columns) > e // 2 and blocks(e, e) >= gpu.cores), 32)
        forms = [in_registers(e, width, ELEMENT_TYPES[type].bytes) for e in (first, *(e for e in edges if e != first))]
    found, sums = [], rows * columns * count
    for constants, threads, memory in forms:
        number = blocks(constants["BM"], constants["BN"])
        for splits, part in _splits(number, depth, constants["BK"], sums * ELEMENT_TYPES[total].bytes, gpu, waves):
            found.append(Tiling({**constants, "SPLITS": splits, "PART": part}, threads, memory, number, sums, numbers,
                                packed=packed if "BULK" in constants else (False, False)))
    return found


def in_order_of_f32(found: Iterable[Tiling], time: Callable[[Tiling], float]) -> list[Tiling]:
    """Variants of an f32 product for which TF32 is allowed, by predicted time. With few tiles, full precision may be
    faster."""
    return sorted((t._replace(more_exact=t.numbers is None) for t in found), key=time)


def in_registers(edge: int, width: int, size: int) -> Form:
    """Register tiles, for any type. width: bytes of the widest type; size: bytes of an element."""
    constants = {"BM": edge, "BN": edge, "BK": 16 if width <= 8 else 8, "TM": edge // 16, "TN": edge // 16}
    pad = 4 if size <= 4 else max(1, 16 // size)
    return Form(constants, 256, 2 * constants["BK"] * (edge + pad) * size)


def in_steps(edge: int, numbers: Numbers) -> Form:
    """On tensor cores; each step of the depth is loaded through registers into shared memory."""
    large, word = edge == 128, numbers.word * numbers.stored_bytes
    constants = {"BM": edge, "BN": edge, "BK": TENSOR_BYTES // numbers.stored_bytes, "WM": 2, "WN": 4 if large else 2}
    return Form(constants, 256 if large else 128, 2 * edge * (constants["BK"] * numbers.stored_bytes + 4 * word))


def blocks_for(gpu: Machine, numbers: Numbers, held: tuple[int, int] = (0, 0)) -> list[Block]:
    """The blocks that fit into a GPU's shared memory. They also fit into its registers if words are split into parts,
    or if a prologue computes operands from `held` bytes per piece."""
    return [b for b in BLOCKS if b.memory <= max(gpu.shared_bytes, STATIC_SHARED)
            and (numbers.parts == 1 or b.rows * b.columns * b.depth <= MOST_OF_PARTS)
            and (not any(held) or registers_held(b, held) <= MOST_HELD or b is BLOCKS[-1])]


def registers_held(block: Block, held: tuple[int, int]) -> int:
    """Registers of a thread: sums, fragments of two steps, and the inputs of prologues."""
    warps = block.down * block.across
    sums = block.rows * block.columns // (warps * WARP)
    fragments = 2 * (block.rows // block.down // 16 * 4 + block.columns // block.across // 8 * 2)
    pieces = [size * block.depth // (16 * warps * WARP) for size in (block.rows, block.columns)]
    return sums + fragments + sum(-(-own // 4) * count for own, count in zip(held, pieces))


def groups_for(gpu: Machine, numbers: Numbers, groups: str) -> list[Block]:
    """Tiles for wgmma (sm_90a)."""
    known = bool(groups) and gpu.arch == "sm_90a" and numbers.name in GROUPS
    found = (*GROUPED, *OF_WINDOWS) if groups == "windows" else GROUPED
    alone = groups in ("windows", "packed")
    most = MOST_SHORT if numbers.element == "unsigned char" else max(b.columns for b in found)
    return [b for b in found if known and b.memory <= gpu.shared_bytes and b.columns <= most
            and (groups != "copies" or not b.bulk) and (not alone or b.bulk)]


def block_time(block: Block, rows: int, columns: int, count: int, gpu: Machine) -> float:
    """Relative time of a product in such tiles: waves of all SMs times the time of a tile."""
    blocks = -(-rows // block.rows) * -(-columns // block.columns) * count
    return -(-blocks // gpu.cores) * block.rows * block.columns / block.speed


def pipelined(block: Block, numbers: Numbers, packed: tuple[bool, bool] = (False, False)) -> Form:
    """On tensor cores; steps are copied ahead in a pipeline (pipeline.cuh). packed: as in Tiling."""
    constants = {"BM": block.rows, "BN": block.columns, "BK": block.depth // numbers.stored_bytes, "WM": block.down,
                 "WN": block.across, "STAGES": block.stages, "BATCHED": block.batched,
                 **({"BULK": numbers.stored_bytes, "PACKED_A": int(packed[0]), "PACKED_B": int(packed[1])}
                    if block.bulk else {})}
    return Form(constants, (block.down * block.across + block.bulk) * WARP, block.memory)


def _splits(blocks: int, depth: int, step: int, size: int, gpu: Machine, waves: bool) -> list[tuple[int, int]]:
    """Numbers of pieces of the depth and their lengths, the cost model's choice first. waves: also those with which
    the blocks are just as many as fill all SMs once, twice ..."""
    most = min(depth // SHORTEST_PART, SCRATCH_BYTES // max(1, size)) if depth >= DEEP else 1
    first, few = max(1, min(2 * gpu.cores // max(1, blocks), most, MOST_SPLITS)), min(most, MOST_SPLITS)
    full = [n * gpu.cores // max(1, blocks) for n in range(1, MOST_WAVES + 1)] if waves else []
    found: dict[int, int] = {}
    for wanted in (first, *(n for n in (1, 2, 4, 8) if n <= few), *(n for n in full if 1 < n <= most)):
        part = max(1, -(-depth // (wanted * step))) * step
        found.setdefault(max(1, -(-depth // part)), part)
    return list(found.items())


def join_blocks(elements: int, gpu: Machine) -> int:
    """Blocks of the kernel that sums the pieces of so many elements."""
    return max(1, min(-(-elements // JOIN_THREADS), gpu.cores * JOINS_PER_SM))


def aligned(most: int, columns: int) -> int:
    """How many columns a lane may finish at once: the largest power of two up to a limit that divides them."""
    while columns % most:
        most //= 2
    return most


# -- pieces of text ----------------------------------------------------------------------------------------------------

def shape_struct(name: str, constants: Mapping[str, int | float]) -> str:
    """A struct of compile-time constants: long, and float."""
    facts = [f"{key} = {value}" for key, value in constants.items() if isinstance(value, int)]
    lines = [f"    {', '.join(facts[n:n + 8])}," for n in range(0, len(facts), 8)]
    floats = [f"  static constexpr float {key} = {expression(Const(value, 'f32'))};"
              for key, value in constants.items() if isinstance(value, float)]
    return "\n".join([f"struct {name} {{", "  enum : long {", *lines, "  };", *floats, "};"]) + "\n"


def kernel_text(tile: Tile, name: str, threads: int, body: list[str], memory: int = 0, dynamic: int = 0,
                together: int = 0) -> str:
    """A kernel over a Tile's buffers; memory: bytes of shared memory, named `memory`; dynamic: nonzero if the
    launch allocates it; together: blocks per SM for which registers must suffice, or 0 for the compiler's choice."""
    lines = comment(tile.origin)
    parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in tile.buffers)
    bounds = f"{threads}, {together or 1}" if dynamic or together else threads
    lines.append(f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({parameters}) {{')
    lines += kernel_start(tile.buffers)
    if dynamic:
        lines.append(f"  unsigned char *memory = hloc_dynamic_shared(); /* {memory} bytes */")
    elif memory:
        lines.append(f"  __shared__ __align__(16) unsigned char memory[{memory}];")
    for part in body:
        lines += ["  " + line for line in part.split("\n")]
    return "\n".join([*lines, "}"]) + "\n"


def store_sum(buffer, place: Expr, total: str) -> Store:
    """buffer[place] = acc, rounded to the buffer's type."""
    value = scalars.converted(Var("acc", total), total, buffer.type)
    return Store(buffer.name, place, scalars.narrow(value, buffer.type))


def multiply_add(lhs: str, rhs: str, total: str) -> str:
    """C lambda (sum, a, b): sum + a * b, in the type of the sums."""
    a, b = (scalars.convert_to(scalars.widen(Var(x, type)), total) for x, type in (("a", lhs), ("b", rhs)))
    text = expression(Apply("add", (Var("sum", total), Apply("multiply", (a, b), total)), total))
    return f"[]({c_type(total)} sum, {c_type(lhs)} a, {c_type(rhs)} b) -> {c_type(total)} {{ return {text}; }}"


def adder(total: str) -> str:
    """C lambda (a, b): a + b."""
    text = expression(Apply("add", (Var("a", total), Var("b", total)), total))
    return f"[]({c_type(total)} a, {c_type(total)} b) -> {c_type(total)} {{ return {text}; }}"

