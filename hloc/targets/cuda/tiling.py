"""Tiles of sums: what products and convolutions have in common on the GPU.

In: the sizes of a product (rows, columns, depth, how many) and its types. Out: a Tiling: which tile a block computes,
and into how many pieces the depth is cut where there are too few tiles to fill the GPU; and the text of the kernels.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import scalars
from hloc.kernels.ir import Apply, Buffer, Expr, Stmt, Store, Tile, Var
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry
from hloc.targets.printer import CUDA, c_type, comment, expression, pointer_type, print_statements

# Types that tensor cores multiply here -> (bits of an element in C, type of the sums)
TENSOR = {"bf16": ("unsigned short", "f32"), "f16": ("unsigned short", "f32"), "s8": ("signed char", "s32")}
TENSOR_BYTES = 64               # of the depth of one step
BLOCKS_PER_SM = 8
DEEP = 1024                     # products per sum from which on cutting the depth may be worth a second kernel
SHORTEST_PART = 256
MOST_SPLITS = 64
SCRATCH_BYTES = 64 << 20


class Tiling(NamedTuple):
    """constants: of gemm.cuh (BM, BN, BK, TM, TN or WM, WN, SPLITS, PART); memory: shared bytes; blocks: all tiles."""

    constants: dict[str, int]
    threads: int
    memory: int
    blocks: int
    elements: int

    @property
    def splits(self) -> int:
        return self.constants["SPLITS"]


def choose(rows: int, columns: int, depth: int, count: int, types: tuple[str, str], largest: int,
           gpu: Machine) -> Tiling:
    """The largest tile (its edge at most `largest`) that gives enough blocks and whose sums fit into registers."""
    def blocks(edge: int) -> int:
        return -(-rows // edge) * -(-columns // edge) * count
    type, total = types
    if type in TENSOR and TENSOR[type][1] == total:
        large = min(rows, columns) >= 96 and blocks(128) >= gpu.cores // 2
        edge = 128 if large else 64
        constants = {"BM": edge, "BN": edge, "BK": TENSOR_BYTES // ELEMENT_TYPES[type].bytes, "WM": 2,
                     "WN": 4 if large else 2}
        threads, memory = 256 if large else 128, 2 * edge * (TENSOR_BYTES + 16)
    else:
        width = max(ELEMENT_TYPES[t].bytes for t in types)
        edges = [e for e, most in ((128, 4), (64, 8), (32, 16)) if width <= most and e <= largest]
        edge = next((e for e in edges if min(rows, columns) > e // 2 and blocks(e) >= gpu.cores), 32)
        constants = {"BM": edge, "BN": edge, "BK": 16 if width <= 8 else 8, "TM": edge // 16, "TN": edge // 16}
        size = ELEMENT_TYPES[type].bytes
        pad = 4 if size <= 4 else max(1, 16 // size)
        threads, memory = 256, 2 * constants["BK"] * (edge + pad) * size
    elements = rows * columns * count
    splits, part = _splits(blocks(edge), depth, constants["BK"], elements * ELEMENT_TYPES[total].bytes, gpu)
    constants.update(SPLITS=splits, PART=part)
    return Tiling(constants, threads, memory, blocks(edge), elements)


def _splits(blocks: int, depth: int, step: int, size: int, gpu: Machine) -> tuple[int, int]:
    """Into how many pieces to cut the depth, and how long they are."""
    wanted = min(2 * gpu.cores // max(1, blocks), depth // SHORTEST_PART, MOST_SPLITS, SCRATCH_BYTES // max(1, size))
    if depth < DEEP or wanted < 2:
        return 1, -(-depth // step) * step
    part = -(-depth // (wanted * step)) * step
    return -(-depth // part), part


def tiled_kernels(tile: Tile, name: str, gpu: Machine, tiling: Tiling, shape: dict[str, int], call: str,
                  finish: str) -> tuple:
    """Text, launches and scratch bytes. call: like "hloc_gemm<k0_shape>(lhs, rhs"; its join is hloc_gemm_join."""
    type, total = dict(tile.parameters)["types"]
    text = shape_struct(f"{name}_shape", {**shape, **tiling.constants})
    blocks = max(1, min(tiling.blocks * tiling.splits, gpu.cores * BLOCKS_PER_SM))
    start = Geometry(name, (blocks, 1, 1), (tiling.threads, 1, 1))
    one = f"auto tile = {_tile_function(name, type, total, tiling)};"
    if tiling.splits == 1:
        body = [finish, one, f"{call}, tile, finish);"]
        return text + kernel_text(tile, name, tiling.threads, body, tiling.memory), start
    sums, count = c_type(total), tiling.elements * tiling.splits
    with_scratch = tile._replace(buffers=(*tile.buffers, Buffer("scratch", total, count, "update")))
    keep = (f"auto keep = [&](long piece, long place, {sums} acc) {{\n"
            f"  scratch[piece * {tiling.elements}L + place] = acc;\n}};")
    join = f"{call.split('<')[0]}_join<{name}_shape, {sums}>(scratch, {adder(total)}, finish);"
    text += kernel_text(with_scratch, name, tiling.threads, [keep, one, f"{call}, tile, keep);"], tiling.memory)
    text += kernel_text(with_scratch, f"{name}_join", 256, [finish, join])
    blocks = max(1, min(-(-tiling.elements // 256), gpu.cores * BLOCKS_PER_SM))
    return text, [start, Geometry(f"{name}_join", (blocks, 1, 1), (256, 1, 1))], count * ELEMENT_TYPES[total].bytes


def _tile_function(name: str, type: str, total: str, tiling: Tiling) -> str:
    """A function of (a, b, depth, finish) that computes one tile."""
    if "WM" in tiling.constants:
        bits, sums = TENSOR[type]
        call, step = f"hloc_tile_mma<{name}_shape, {c_type(sums)}, {bits}>", mma(type)
    else:
        call, step = f"hloc_tile<{name}_shape, {c_type(total)}, {c_type(type)}>", multiply_add(type, total)
    return (f"[&](const auto &a, const auto &b, long depth, auto finish) {{\n"
            f"  {call}(a, b, depth, memory,\n    {step}, finish);\n}}")


# -- pieces of text ----------------------------------------------------------------------------------------------------

def shape_struct(name: str, constants: dict[str, int]) -> str:
    """A struct of compile-time constants."""
    facts = [f"{key} = {value}" for key, value in constants.items()]
    lines = [f"    {', '.join(facts[n:n + 8])}," for n in range(0, len(facts), 8)]
    return "\n".join([f"struct {name} {{", "  enum : long {", *lines, "  };", "};"]) + "\n"


def kernel_text(tile: Tile, name: str, threads: int, body: list[str], memory: int = 0) -> str:
    """A kernel over a Tile's buffers; memory: bytes of shared memory under that name."""
    lines = comment(tile.origin)
    parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in tile.buffers)
    lines.append(f'extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters}) {{')
    if memory:
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


def multiply_add(type: str, total: str) -> str:
    """[](sum, a, b): sum + a * b, in the type of the sums."""
    a, b = (scalars.convert_to(scalars.widen(Var(x, type)), total) for x in "ab")
    text = expression(Apply("add", (Var("sum", total), Apply("multiply", (a, b), total)), total))
    return f"[]({c_type(total)} sum, {c_type(type)} a, {c_type(type)} b) -> {c_type(total)} {{ return {text}; }}"


def adder(total: str) -> str:
    """[](a, b): a + b."""
    text = expression(Apply("add", (Var("a", total), Var("b", total)), total))
    return f"[]({c_type(total)} a, {c_type(total)} b) -> {c_type(total)} {{ return {text}; }}"


def mma(type: str) -> str:
    """One step of the tensor cores."""
    sums = c_type(TENSOR[type][1])
    return f"[]({sums} *d, const unsigned *a, const unsigned *b) {{ hloc_mma_{type}(d, a, b); }}"
