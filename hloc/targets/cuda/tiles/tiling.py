"""Tiles of sums: what products and convolutions have in common on the GPU.

In: the sizes of a product (rows, columns, depth, how many) and its types. Out: a Tiling: which tile a block computes,
and into how many pieces the depth is cut where there are too few tiles to fill the GPU; and the text of the kernels.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from hloc.analysis.prologues import EXACT_GROUPS, MMA_SHARE, is_limited_by_mma
from hloc.ir import ELEMENT_TYPES
from hloc.kernels import scalars
from hloc.kernels.ir import Apply, Buffer, Expr, Stmt, Store, Tile, Var
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.tiles.tensor_cores import F8, Numbers
from hloc.targets.cuda.tiles.tensor_maps import BYTES, TensorMap
from hloc.targets.printer import CUDA, c_type, comment, expression, pointer_type, print_statements

TENSOR_BYTES = 64               # of the depth of one step
BLOCKS_PER_SM = 8
DEEP = 1024                     # products per sum from which on cutting the depth may be worth a second kernel
SHORTEST_PART = 256
MOST_SPLITS = 64
SCRATCH_BYTES = 64 << 20
MOST_OF_PARTS = 128 * 128 * 64  # rows, columns and bytes of a step, where each word is several in registers
STATIC_SHARED = 48 << 10        # bytes of shared memory that every kernel may have
RESERVED = 1 << 10              # that the driver keeps of each block's
WARP = 32
MOST_HELD = 200                 # registers of a thread for sums and operands, where these are computed on their way


class Tiling(NamedTuple):
    """constants: of gemm.cuh (BM, BN, BK, TM, TN or WM, WN, SPLITS, PART; STAGES of a pipeline); memory: shared bytes;
    blocks: all tiles; numbers: what tensor cores multiply, or None; more_exact: all bits of f32 are multiplied, where
    TF32 would be enough."""

    constants: dict[str, int]
    threads: int
    memory: int
    blocks: int
    elements: int
    numbers: Numbers | None = None
    more_exact: bool = False

    @property
    def splits(self) -> int:
        return self.constants["SPLITS"]

    @property
    def way(self) -> str:
        """What a tuning file calls it."""
        c = self.constants
        stages = f", {c['STAGES']} stages" if "STAGES" in c else ""
        stages += ", wgmma" if self.grouped else ""
        stages += ", bulk copies" if self.bulk else ""
        stages += ", all bits" if self.more_exact else ""
        return f"{c['BM']}x{c['BN']}x{c['BK']}{stages}" + (f", {self.splits} splits" if self.splits > 1 else "")

    @property
    def grouped(self) -> bool:
        """Computed by groups of four warps (warpgroup.cuh)."""
        return "STAGES" in self.constants and self.constants["WM"] == self.constants["BM"] // 16

    @property
    def bulk(self) -> bool:
        """Operands are copied by the bulk copy engine (bulk.cuh)."""
        return "BULK" in self.constants

    @property
    def dynamic(self) -> int:
        """Bytes of shared memory that the launch asks for."""
        return self.memory if "STAGES" in self.constants else 0


class Form(NamedTuple):
    """The tile of one block, whatever the depth: constants, threads, bytes of shared memory."""

    constants: dict[str, int]
    threads: int
    memory: int


class Block(NamedTuple):
    """A block's tile for tensor cores: rows, columns, warps down and across; depth in bytes, steps in shared memory;
    speed: products per time of one SM that computes such tiles, against the fastest one; bulk: one more warp has the
    bulk copy engine copy."""

    rows: int
    columns: int
    down: int
    across: int
    depth: int
    stages: int
    speed: float
    bulk: bool = False

    @property
    def memory(self) -> int:
        steps = self.stages * (self.rows + self.columns) * self.depth
        if self.bulk:
            return steps + self.stages * 2 * BARRIER + self.down * 16 * (BULK_COLUMNS + 8) * 4
        return max(steps, self.down * self.across * 16 * (self.columns // self.across + 8) * 4)


BLOCKS = (Block(128, 256, 2, 4, 128, 3, 1.0), Block(128, 128, 2, 4, 128, 3, 0.85), Block(128, 128, 2, 4, 64, 4, 0.8),
          Block(64, 128, 2, 2, 128, 3, 0.7), Block(64, 64, 2, 2, 128, 3, 0.55))

# For instructions of sm_90a: rows, columns, steps in shared memory, speed. Of the last two several blocks share an SM.
# mma.sync reaches six tenths of what they do; where warps that multiply also copy they wait for their own copies.
COPYING = 0.85
GROUPED = tuple(Block(rows, columns, rows // 16, 1, 128, stages, speed / MMA_SHARE * (1 if bulk else COPYING), bulk)
                for rows, columns, stages, speed in (
    (128, 256, 4, 1.0), (128, 128, 6, 0.9), (64, 256, 5, 0.9), (64, 128, 4, 0.85), (64, 64, 4, 0.6))
                for bulk in (True, False))
GROUPS = {f"hloc_numbers_{n}": f"hloc_group_{n}" for n in ("bf16", "f16", "s8", *(f"{a}_{b}" for a in F8 for b in F8))}
GROUPS["hloc_numbers_tf32<1, 0>"] = "hloc_group_tf32"
BARRIER, BULK_COLUMNS = 8, 32       # bytes of a barrier; columns that warps of bulk tiles finish at a time


def tilings(rows: int, columns: int, depth: int, count: int, types: tuple[str, str], largest: int, gpu: Machine,
            numbers: Numbers | None = None, streams: bool = False, groups: str = "", elements: int = 0,
            held: tuple[int, int] = (0, 0)) -> list[Tiling]:
    """All that a product may be cut into, the cost model's choice first. types: of elements and of sums; largest: edge
    of a tile of sums in registers, and of any whose operands are computed on their way one by one; streams: operands
    can be copied ahead (pipeline.cuh); groups: "copies" where groups of warps may read them (warpgroup.cuh), "boxes"
    where these can be copied in boxes too (bulk.cuh); elements: of both operands in memory, where these are fewer than
    they are multiplied as; held: bytes of registers for each piece of 16 bytes of the operands, where these are
    computed on their way."""
    type, total = types

    def blocks(down: int, across: int) -> int:
        return -(-rows // down) * -(-columns // across) * count
    if numbers and streams:
        def time(block: Block) -> float:
            return block_time(block, rows, columns, count, gpu)
        order = sorted(blocks_for(gpu, numbers, held), key=time)
        grouped = sorted(groups_for(gpu, numbers, groups), key=time)
        moved = ((elements or (rows + columns) * depth * count) + rows * columns * count) * ELEMENT_TYPES[type].bytes
        first = grouped and type in EXACT_GROUPS and time(grouped[0]) < time(order[0]) and \
            is_limited_by_mma(2 * rows * columns * depth * count, moved, ELEMENT_TYPES[type].bytes, gpu)
        forms = [pipelined(b, numbers) for b in ((*grouped, *order) if first else (*order, *grouped))]
    elif numbers:
        large = min(rows, columns) >= 96 and blocks(128, 128) >= gpu.cores // 2
        forms = [in_steps(edge, numbers) for edge in ((128, 64) if large else (64, 128))
                 if edge == 64 or not (type in F8 and numbers.word == 4) and (edge <= largest or not any(held))]
    else:
        width = max(ELEMENT_TYPES[t].bytes for t in types)
        edges = [e for e, most in ((128, 4), (64, 8), (32, 16)) if width <= most and (e <= largest or e == 32)]
        first = next((e for e in edges if min(rows, columns) > e // 2 and blocks(e, e) >= gpu.cores), 32)
        forms = [in_registers(e, width, ELEMENT_TYPES[type].bytes) for e in (first, *(e for e in edges if e != first))]
    found, sums = [], rows * columns * count
    for constants, threads, memory in forms:
        number = blocks(constants["BM"], constants["BN"])
        for splits, part in _splits(number, depth, constants["BK"], sums * ELEMENT_TYPES[total].bytes, gpu):
            found.append(Tiling({**constants, "SPLITS": splits, "PART": part}, threads, memory, number, sums, numbers))
    return found


def in_order_of_f32(found: Iterable[Tiling], time: Callable[[Tiling], float]) -> list[Tiling]:
    """Ways of a product of f32 for which TF32 is enough, the one that is predicted to be fastest first: few tiles may
    multiply all bits sooner. wgmma, which cuts TF32 off, is the last."""
    ways = [t._replace(more_exact=t.numbers is None) for t in found]
    return sorted(ways, key=lambda t: (t.grouped, time(t)))


def in_registers(edge: int, width: int, size: int) -> Form:
    """Sums in registers, of any type. width: bytes of the widest type; size: of an element."""
    constants = {"BM": edge, "BN": edge, "BK": 16 if width <= 8 else 8, "TM": edge // 16, "TN": edge // 16}
    pad = 4 if size <= 4 else max(1, 16 // size)
    return Form(constants, 256, 2 * constants["BK"] * (edge + pad) * size)


def in_steps(edge: int, numbers: Numbers) -> Form:
    """On tensor cores, each step of the depth through registers into shared memory."""
    large, word = edge == 128, numbers.word * numbers.stored_bytes
    constants = {"BM": edge, "BN": edge, "BK": TENSOR_BYTES // numbers.stored_bytes, "WM": 2, "WN": 4 if large else 2}
    return Form(constants, 256 if large else 128, 2 * edge * (constants["BK"] * numbers.stored_bytes + 4 * word))


def blocks_for(gpu: Machine, numbers: Numbers, held: tuple[int, int] = (0, 0)) -> list[Block]:
    """Those that a GPU's shared memory holds, and its registers too where words are split into parts, or operands are
    computed from `held` bytes for each piece."""
    return [b for b in BLOCKS if b.memory <= max(gpu.shared_bytes, STATIC_SHARED)
            and (numbers.parts == 1 or b.rows * b.columns * b.depth <= MOST_OF_PARTS)
            and (not any(held) or registers_held(b, held) <= MOST_HELD or b is BLOCKS[-1])]


def registers_held(block: Block, held: tuple[int, int]) -> int:
    """Of a thread: sums, fragments of two steps, and what operands are computed from."""
    warps = block.down * block.across
    sums = block.rows * block.columns // (warps * WARP)
    fragments = 2 * (block.rows // block.down // 16 * 4 + block.columns // block.across // 8 * 2)
    pieces = [size * block.depth // (16 * warps * WARP) for size in (block.rows, block.columns)]
    return sums + fragments + sum(-(-own // 4) * count for own, count in zip(held, pieces))


def groups_for(gpu: Machine, numbers: Numbers, groups: str) -> list[Block]:
    """Tiles for instructions of sm_90a."""
    known = bool(groups) and gpu.arch == "sm_90a" and numbers.name in GROUPS
    return [b for b in GROUPED if known and b.memory <= gpu.shared_bytes and (groups == "boxes" or not b.bulk)]


def block_time(block: Block, rows: int, columns: int, count: int, gpu: Machine) -> float:
    """Relative time of a product in such tiles: rounds of all SMs."""
    blocks = -(-rows // block.rows) * -(-columns // block.columns) * count
    return -(-blocks // gpu.cores) * block.rows * block.columns / block.speed


def pipelined(block: Block, numbers: Numbers) -> Form:
    """On tensor cores, steps copied ahead (pipeline.cuh)."""
    constants = {"BM": block.rows, "BN": block.columns, "BK": block.depth // numbers.stored_bytes, "WM": block.down,
                 "WN": block.across, "STAGES": block.stages, **({"BULK": numbers.stored_bytes} if block.bulk else {})}
    return Form(constants, (block.down * block.across + block.bulk) * WARP, block.memory)


def _splits(blocks: int, depth: int, step: int, size: int, gpu: Machine) -> list[tuple[int, int]]:
    """Into how many pieces to cut the depth, and how long they are; the cost model's choice first."""
    most = min(depth // SHORTEST_PART, MOST_SPLITS, SCRATCH_BYTES // max(1, size)) if depth >= DEEP else 1
    first = max(1, min(2 * gpu.cores // max(1, blocks), most))
    found = {}
    for wanted in (first, *(n for n in (1, 2, 4, 8) if n <= most)):
        part = -(-depth // (wanted * step)) * step
        found.setdefault(-(-depth // part), part)
    return list(found.items())


def tiled_kernels(tile: Tile, name: str, gpu: Machine, tiling: Tiling, shape: dict[str, int], call: str,
                  finish: str, maps: tuple[TensorMap, ...] = (), before: str = "") -> tuple:
    """Text, launches and scratch bytes. call: like "hloc_gemm<k0_shape>(lhs, rhs"; its join is hloc_gemm_join. before:
    a statement before there are barriers."""
    type, total = dict(tile.parameters)["types"]
    text = shape_struct(f"{name}_shape", {**shape, **tiling.constants})
    together = gpu.shared_bytes // (tiling.memory + RESERVED) if tiling.bulk else BLOCKS_PER_SM
    blocks = max(1, min(tiling.blocks * tiling.splits, gpu.cores * together))
    start = Geometry(name, (blocks, 1, 1), (tiling.threads, 1, 1), tiling.dynamic, maps=maps)
    mapped = (Buffer("maps", "u8", BYTES * len(maps), "read"),) if maps else ()
    one = f"auto tile = {_tile_function(name, type, total, tiling)};"
    if tiling.bulk:
        one = f"{before}hloc_bulk_steps<{name}_shape> ring(memory);\n{one}"
    if tiling.splits == 1:
        body = [finish, one, f"{call}, tile, finish);"]
        mapped = tile._replace(buffers=(*tile.buffers, *mapped))
        return text + kernel_text(mapped, name, tiling.threads, body, tiling.memory, tiling.dynamic), start
    sums, count = c_type(total), tiling.elements * tiling.splits
    with_scratch = tile._replace(buffers=(*tile.buffers, Buffer("scratch", total, count, "update")))
    keep = (f"auto keep = [&](long piece, long place, {sums} acc) {{\n"
            f"  scratch[piece * {tiling.elements}L + place] = acc;\n}};")
    join = f"{call.split('<')[0]}_join<{name}_shape, {sums}>(scratch, {adder(total)}, finish);"
    pieces = with_scratch._replace(buffers=(*with_scratch.buffers, *mapped))
    text += kernel_text(pieces, name, tiling.threads, [keep, one, f"{call}, tile, keep);"], tiling.memory,
                        tiling.dynamic)
    text += kernel_text(with_scratch, f"{name}_join", 256, [finish, join])
    blocks = max(1, min(-(-tiling.elements // 256), gpu.cores * BLOCKS_PER_SM))
    return text, [start, Geometry(f"{name}_join", (blocks, 1, 1), (256, 1, 1))], count * ELEMENT_TYPES[total].bytes


def _tile_function(name: str, type: str, total: str, tiling: Tiling) -> str:
    """A function of (a, b, depth, finish) that computes one tile."""
    if tiling.numbers:
        numbers = tiling.numbers
        form = "warpgroup" if tiling.grouped else "pipeline" if tiling.dynamic else "mma"
        how = GROUPS[numbers.name] if tiling.grouped else numbers.name
        if tiling.bulk:
            call = f"hloc_tile_bulk<{name}_shape, {c_type(numbers.sums)}, {how}>(ring, a, b, depth, finish);"
        else:
            call = (f"hloc_tile_{form}<{name}_shape, {c_type(numbers.sums)}, {numbers.element}, {how}>(\n"
                    f"    a, b, depth, memory, finish);")
    else:
        call = (f"hloc_tile<{name}_shape, {c_type(total)}, {c_type(type)}>(a, b, depth, memory,\n"
                f"    {multiply_add(type, type, total)}, finish);")
    return f"[&](const auto &a, const auto &b, long depth, auto finish) {{\n  {call}\n}}"


# -- pieces of text ----------------------------------------------------------------------------------------------------

def shape_struct(name: str, constants: dict[str, int]) -> str:
    """A struct of compile-time constants."""
    facts = [f"{key} = {value}" for key, value in constants.items()]
    lines = [f"    {', '.join(facts[n:n + 8])}," for n in range(0, len(facts), 8)]
    return "\n".join([f"struct {name} {{", "  enum : long {", *lines, "  };", "};"]) + "\n"


def kernel_text(tile: Tile, name: str, threads: int, body: list[str], memory: int = 0, dynamic: int = 0,
                together: int = 0) -> str:
    """A kernel over a Tile's buffers; memory: bytes of shared memory under that name; dynamic: the launch gives it;
    together: blocks of an SM that registers must be enough for; 0: as the compiler likes it."""
    lines = comment(tile.origin)
    parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in tile.buffers)
    bounds = f"{threads}, {together or 1}" if dynamic or together else threads
    lines.append(f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({parameters}) {{')
    if dynamic:
        lines.append(f"  unsigned char *memory = hloc_dynamic_shared(); /* {memory} bytes */")
    elif memory:
        lines.append(f"  __shared__ __align__(16) unsigned char memory[{memory}];")
    for part in body:
        lines += ["  " + line for line in part.split("\n")]
    return "\n".join([*lines, "}"]) + "\n"


def lambda_text(name: str, parameters: tuple[tuple[str, str], ...], body: tuple[Stmt, ...],
                exchanged: bool = False) -> str:
    """`auto name = [&](...) { body };`; exchanged: row and column are given in the other order."""
    order = list(parameters)
    if exchanged:
        order[1], order[2] = order[2], order[1]
    inside = ", ".join(f"{c_type(t)} {n}" for n, t in order)
    return f"auto {name} = [&]({inside}) {{\n{print_statements(body, CUDA, 1)}\n}};"


def store_sum(buffer, place: Expr, total: str) -> Store:
    """buffer[place] = acc, rounded to the buffer's type."""
    value = scalars.converted(Var("acc", total), total, buffer.type)
    return Store(buffer.name, place, scalars.narrow(value, buffer.type))


def multiply_add(lhs: str, rhs: str, total: str) -> str:
    """[](sum, a, b): sum + a * b, in the type of the sums."""
    a, b = (scalars.convert_to(scalars.widen(Var(x, type)), total) for x, type in (("a", lhs), ("b", rhs)))
    text = expression(Apply("add", (Var("sum", total), Apply("multiply", (a, b), total)), total))
    return f"[]({c_type(total)} sum, {c_type(lhs)} a, {c_type(rhs)} b) -> {c_type(total)} {{ return {text}; }}"


def adder(total: str) -> str:
    """[](a, b): a + b."""
    text = expression(Apply("add", (Var("a", total), Var("b", total)), total))
    return f"[]({c_type(total)} a, {c_type(total)} b) -> {c_type(total)} {{ return {text}; }}"

