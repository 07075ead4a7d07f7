"""The kernels of a tiled matrix product or convolution: packing of operands, the product, the sum of its pieces.

In: a Tile, its Tiling, and the calls of the templates. Out: text, launches and scratch bytes. Partial sums of a split
depth come first in the scratch memory, packed operands (lines.py) behind them.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Buffer, Tile
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.tiles.finish import SUMS, VECTOR_BYTES
from hloc.targets.cuda.tiles.lines import Lines, offsets
from hloc.targets.cuda.tiles.tensor_maps import BYTES, TensorMap
from hloc.targets.cuda.tiles.tiling import (
    BLOCKS_PER_SM,
    GROUPS,
    JOIN_THREADS,
    RESERVED,
    Tiling,
    adder,
    aligned,
    join_blocks,
    kernel_text,
    multiply_add,
    shape_struct,
)


def tiled_kernels(tile: Tile, name: str, gpu: Machine, tiling: Tiling, shape: dict[str, int], call: str,
                  finish: Callable[[int], str], maps: tuple[TensorMap, ...] = (), before: str = "",
                  lines: Sequence[Lines] = (), least: int = 0) -> tuple[str, list[Geometry], int]:
    """Text, launches and scratch bytes. call: such as "hloc_gemm<k0_shape>(lhs, rhs"; its join is hloc_gemm_join.
    finish: the text of the epilogue of up to so many columns at once (finish.py); before: a statement before the
    barriers are set up; lines: operands that are packed before; least: scratch bytes of other launches of the tile, all
    of which take the same arguments."""
    type, total = dict(tile.parameters)["types"]
    width = ELEMENT_TYPES[total].bytes
    places, scratch = offsets(tiling, width, lines)
    scratch = max(scratch, least)
    kept = (Buffer("scratch", total, scratch // width, "update"),) if scratch else ()
    mapped = (Buffer("maps", "u8", BYTES * len(maps), "read"),) if maps else ()
    own, with_maps = (tile._replace(buffers=(*tile.buffers, *kept, *more)) for more in ((), mapped))
    text, launches = shape_struct(f"{name}_shape", {**shape, **tiling.constants}), []
    for one, offset in zip(lines, places):
        packing, launch = one.kernel(own, name, gpu, offset)
        text += packing
        launches.append(launch)
    together = gpu.shared_bytes // (tiling.memory + RESERVED) if tiling.bulk else BLOCKS_PER_SM
    blocks = max(1, min(tiling.blocks * tiling.splits, gpu.cores * together))
    launches.append(Geometry(name, (blocks, 1, 1), (tiling.threads, 1, 1), tiling.dynamic, maps=maps))
    multiply = f"auto tile = {_tile_function(name, type, total, tiling)};"
    if tiling.bulk:
        multiply = f"{before}hloc_bulk_steps<{name}_shape> ring(memory);\n{multiply}"
    if tiling.splits == 1:
        body = [finish(tiling.wide), multiply, f"{call}, tile, finish);"]
        text += kernel_text(with_maps, name, tiling.threads, body, tiling.memory, tiling.dynamic)
        return text, launches, scratch
    sums = c_type(total)
    join = f"{call.split('<')[0]}_join<{name}_shape, {sums}>(scratch, {adder(total)}, finish);"
    keep = _keep(sums, tiling.elements, aligned(min(tiling.wide, VECTOR_BYTES // width), shape["N"]))
    text += kernel_text(with_maps, name, tiling.threads, [keep, multiply, f"{call}, tile, keep);"], tiling.memory,
                        tiling.dynamic)
    text += kernel_text(own, f"{name}_join", JOIN_THREADS, [finish(VECTOR_BYTES // width), join])
    launches.append(Geometry(f"{name}_join", (join_blocks(tiling.elements, gpu), 1, 1), (JOIN_THREADS, 1, 1)))
    return text, launches, scratch


def _keep(sums: str, elements: int, wide: int) -> str:
    """The function that stores the sums of one piece of the depth."""
    pack = f"hloc_pack<{sums}, {wide}>"
    return (f"auto keep = hloc_wide<{wide}>([&](long piece, long place, const auto &{SUMS}) {{\n"
            f"  return [=, all = {SUMS}] {{\n    {pack} kept;\n"
            f"    for (int lane = 0; lane < {wide}; lane++) kept.at[lane] = all[lane];\n"
            f"    hloc_put(&scratch[piece * {elements}L + place], kept);\n  }};\n}});")


def _tile_function(name: str, type: str, total: str, tiling: Tiling) -> str:
    """C lambda (a, b, depth, finish) that computes one tile."""
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
