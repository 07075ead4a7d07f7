"""The Work of a Tile's launches, in one of its variants.

In: a Tile and the GPU. Out: a Work for each launch of its TileCode (tiles/source.py), in execution order. Products and
convolutions are counted exactly (tile_work.py). Attention by warpgroups is estimated from its matmuls and weights;
sorts, transforms and other attention from their bytes and operations.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.costs.sizes import operations_of_prologue, sizes_of
from hloc.targets.cuda.costs.tile_work import Sizes
from hloc.targets.cuda.costs.work import WARP, Work
from hloc.targets.cuda.tiles import convolutions, few_rows, products
from hloc.targets.cuda.tiles.convolution_facts import Asked, is_direct
from hloc.targets.cuda.tiles.new_lines import STORES
from hloc.targets.cuda.tiles.product_facts import THIN, Product
from hloc.targets.cuda.tiles.sorting import CHUNK, PICKED, wanted
from hloc.targets.cuda.tiles.tiling import Tiling
from hloc.targets.cuda.tiles.times import works_of

OF_THIN = 96                        # registers of a thread of the thin template
DEEP_LOADS = 4                      # loads in flight per thread of the direct and thin templates
WARPS_OF_GROUP = 4
OF_A_WEIGHT = {"alu": 10, "special": 1}     # instructions per weight of attention by warpgroups


def template_work(tile: Tile, launches: Sequence[Geometry], gpu: Machine, variant: str = "") -> list[Work]:
    """The Work of each launch. variant: "" for the cost model's choice."""
    if tile.library_kernel == "gemm":
        return _gemm(tile, launches, gpu, variant)
    if tile.library_kernel == "convolution":
        return _convolution(tile, launches, gpu, variant)
    if tile.library_kernel in ("sort", "topk"):
        return [_sort(tile, g, len(launches) == 1) for g in launches]
    return [_lines(tile, g) if g.function.endswith(STORES) else _by_groups(tile, g) if g.maps else
            _roughly(tile, g, gpu) for g in launches]


def _chosen(found: Sequence[Tiling], variant: str) -> Tiling:
    return next((t for t in found if t.variant == variant), found[0])


def _gemm(tile: Tile, launches: Sequence[Geometry], gpu: Machine, variant: str) -> list[Work]:
    product = Product.of(tile)
    few = few_rows.few_rows(tile, product, gpu)
    if few and variant in ("", few_rows.FEW_ROWS):
        return [_few(sizes_of(tile, product.m, product.n, product.k, product.outer * product.inner), launches[0], tile,
                     few)]
    if product.m <= THIN and not product.groups:
        sizes = sizes_of(tile, product.m, product.n, product.k, product.outer * product.inner)
        return [_thin(sizes, launches[0], tile, gpu)]
    tiling = _chosen(products.tilings_of(tile, product, gpu), variant)
    lines = products.lines_of(product, tiling, products.names_of(product), dict(tile.parameters)["types"][0])
    return works_of(tiling, *products.cost_arguments(tile, product), gpu, lines)


def _convolution(tile: Tile, launches: Sequence[Geometry], gpu: Machine, variant: str) -> list[Work]:
    asked = Asked.of(tile)
    c = asked.c
    if is_direct(c):
        sizes = sizes_of(tile, c["M"], c["N"], c["K"], c["GROUPS"] * c["BATCH_GROUPS"])
        return [_direct(sizes, launches[0], tile, c["K"])]
    found = convolutions.choices(asked, gpu)
    return convolutions.works_of_choice(next((o for o in found if o.variant == variant), found[0]), gpu)


def _simple(sizes: Sizes, start: Geometry, counts: dict[str, float], rounds: float, traffic: float) -> Work:
    blocks, threads = start.grid[0], start.block[0]
    return Work(blocks, threads, 64, start.shared, float(sizes.memory), traffic, counts, rounds=rounds)


def _thin(sizes: Sizes, start: Geometry, tile: Tile, gpu: Machine) -> Work:
    """The large operand is read once, 16 bytes per load; each thread reads the rows again. Elements of narrow types are
    taken out of words and converted."""
    elements = sizes.columns * sizes.depth * sizes.products
    width = max(ELEMENT_TYPES[b.type].bytes for b in tile.buffers)
    loads = elements * width / 16 / WARP
    computed = sum(operations_of_prologue(p) for p in tile.prologues)
    taken = (1 + sizes.rows) * (ELEMENT_TYPES[dict(tile.parameters)["types"][0]].bytes < 4)
    counts = {"access": loads * (1 + sizes.rows), "fma": elements * sizes.rows / WARP,
              "alu": elements * (taken + computed) / WARP}
    product = Product.of(tile)
    block = few_rows.thin_of(tile, product, gpu)
    steps = math.ceil(product.k / block.deep / block.slices)
    rounds = steps // block.ahead + steps % block.ahead + 1
    syncs = 3 * math.ceil(sizes.rows / block.concurrent_rows(4))
    each = math.ceil(block.blocks(product) / start.grid[0])
    work = _simple(sizes, start, counts, each * rounds, float(sizes.memory))
    return work._replace(registers=OF_THIN, syncs=each * syncs)


def _few(sizes: Sizes, start: Geometry, tile: Tile, few: few_rows.Few) -> Work:
    """Each element of the large operand is converted once, and multiplied on tensor cores; every block reads the rows
    once. AHEAD loads are on their way."""
    elements, c = sizes.columns * sizes.depth * sizes.products, few.constants
    width = ELEMENT_TYPES[dict(tile.parameters)["types"][0]].bytes
    loads, near = elements / few.vector / WARP, elements / c["BN"] * c["BM"] * width / 16 / WARP
    computed = sum(operations_of_prologue(p) for p in tile.prologues)
    counts = {"access": loads + near, "mma": elements * c["BM"] / (16 * 8 * 16), "alu": elements * computed / WARP}
    blocks = math.ceil(sizes.columns / c["BN"]) * sizes.products
    steps = math.ceil(sizes.depth / (4 * few.vector * c["BK"]))
    rounds = math.ceil(steps / c["AHEAD"]) + 2
    work = _simple(sizes, start, counts, math.ceil(blocks / start.grid[0]) * rounds,
                   float(sizes.memory) + near * 16 * WARP)
    return work._replace(registers=65536 // (WARP * few.resident))


def _direct(sizes: Sizes, start: Geometry, tile: Tile, depth: int) -> Work:
    """A thread computes the sum of one output serially."""
    made = sizes.rows * sizes.columns * sizes.products * depth
    counts = {"fetch window": made / WARP, "access": 2 * made / WARP, "fma": made / WARP}
    rounds = made / (start.grid[0] * start.block[0]) / DEEP_LOADS
    return _simple(sizes, start, counts, rounds + 1, float(sizes.memory + made * 4 / 8))


def _sort(tile: Tile, start: Geometry, alone: bool) -> Work:
    """A launch that sorts chunks in shared memory, merges by binary search, or moves the elements. alone: the only
    one; its chunks are then as many as its blocks, and the last block sorts once more."""
    facts = dict(tile.parameters)
    length, rows = facts["length"], facts["rows"]
    chunks = start.grid[0] / rows if alone else 1
    memory = float(sum(b.size * ELEMENT_TYPES[b.type].bytes for b in tile.buffers))
    elements = rows * length / WARP
    levels = math.log2(max(2, length))
    if alone and length > CHUNK and wanted(tile) <= PICKED:
        threads, joins = start.block[0], 2 * math.log2(start.block[0])
        seen = math.ceil(length / chunks / threads) + math.ceil(chunks * wanted(tile) / threads)
        rounds, counts = seen + 1.2 * joins + 4, {"alu": elements * 12, "access": elements * 2,
                                                  "barrier": rows * chunks * joins * threads / WARP}
    elif "_merge_" in start.function:
        rounds, counts = 2 * levels + 8, {"alu": elements * (levels + 12), "access": elements * 4}
    elif start.function.endswith("_move"):
        rounds, counts = 2, {"alu": elements, "access": elements}
    else:
        chunk = min(11.0, math.ceil(math.log2(max(2, length / max(1, chunks)))))
        passes = chunk * (chunk + 1) / 2 * (2 if chunks > 1 else 1)
        rounds, counts = passes * 1.2 + 2, {"alu": elements * passes * 12, "access": elements * passes * 4,
                                            "barrier": elements * passes / 8}
    sizes = Sizes(rows, length, 1, 1, memory)
    return _simple(sizes, start, counts, rounds, memory)


def _roughly(tile: Tile, start: Geometry, gpu: Machine) -> Work:
    """Attention and transforms: from the bytes and operations of the whole Tile. Before keys are read, an attention
    with updates has to know which ones are new."""
    facts = dict(tile.parameters)
    memory = float(sum(b.size * ELEMENT_TYPES[b.type].bytes for b in tile.buffers))
    flops, cores = float(tile.cost.flops), False
    types = facts.get("types", ("f32",))
    if tile.library_kernel.startswith("attention") and types[0] in ("bf16", "f16"):
        cores = True
    warps = start.grid[0] * start.block[0] / WARP
    counts = {"alu": flops / WARP / 16} if cores else {"fma": flops / 2 / WARP, "shared": flops / 2 / WARP / 4}
    sizes, rounds = Sizes(1, 1, 1, 1, memory), 4 + len(tile.updates[:1]) + sum(counts.values()) / warps / 64
    work = _simple(sizes, start, counts, rounds, memory * 2)
    return work._replace(flops=flops, form="pipeline", registers=168) if cores else work


def _lines(tile: Tile, start: Geometry) -> Work:
    """The launch that stores an attention's new lines: an element is read and written."""
    facts = dict(tile.parameters)
    elements = sum(math.prod(facts["batches"]) * u.lines * facts["sizes"][2 if u.array == "key" else 3]
                   for u in tile.updates)
    memory = 2.0 * elements * ELEMENT_TYPES[facts["types"][1]].bytes
    return _simple(Sizes(1, 1, 1, 1, memory), start, {"access": 2 * elements / WARP}, 3, memory)


def _by_groups(tile: Tile, start: Geometry) -> Work:
    """Attention and its gradients by warpgroups: matmuls, whose operands are copied ahead, and the weights between. Of
    two groups, one multiplies while the other computes weights: tensor cores have work all the time, as in a matmul
    with bulk copies. Not so for the gradients, whose products wait for registers within a turn."""
    facts = dict(tile.parameters)
    memory = float(sum(b.size * ELEMENT_TYPES[b.type].bytes for b in tile.buffers))
    weights = math.prod(facts["batches"]) * facts["sizes"][0] * facts["sizes"][1]
    counts = {kind: count * weights / WARP for kind, count in OF_A_WEIGHT.items()}
    work = _simple(Sizes(1, 1, 1, 1, memory), start, counts, 4, memory * 2)
    turns = start.block[0] > 2 * WARPS_OF_GROUP * WARP and tile.library_kernel == "attention"    # four warps copy
    return work._replace(flops=float(tile.cost.flops), form="bulk" if turns else "attention", registers=168)
