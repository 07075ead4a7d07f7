"""Convolutions on the GPU: a "convolution" Tile -> CUDA C that calls a template of conv.cuh.

In: the Tile that kernels/products/convolution.py describes. Out: a struct of constants, a kernel, and its launch. A
group with enough features is computed as a matrix product: threads or the bulk copy engine (patches.py, positions.py)
gather the input's windows into its tiles. Otherwise (depthwise) a thread computes each output, or a warp if there are
few outputs of long sums. A convolution of a dilated input may be cut into phases (phases.py). Without the bulk copy
engine, an operand may be computed by a fused prologue (prologues.py).
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.analysis.prologues import EXACT_GROUPS, LONG_SUM
from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, Tile
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.costs.sizes import operations_of_prologue, share_read, sizes_of
from hloc.targets.cuda.costs.tile_work import Side, Sizes
from hloc.targets.cuda.costs.work import Work
from hloc.targets.cuda.tiles.convolution_facts import Asked, is_direct
from hloc.targets.cuda.tiles.finish import VECTOR_BYTES, Finish, finish_text
from hloc.targets.cuda.tiles.lines import Lines, offsets
from hloc.targets.cuda.tiles.patches import depth_of, is_boxes, map_of_filter, map_of_image, patch_of
from hloc.targets.cuda.tiles.phases import phases_of
from hloc.targets.cuda.tiles.positions import maps_of_positions, positions_of, rows_of
from hloc.targets.cuda.tiles.products import groups, lines_of, maps_of, packed_sides, streams
from hloc.targets.cuda.tiles.prologues import prologue_struct
from hloc.targets.cuda.tiles.tensor_cores import TF32, numbers_of
from hloc.targets.cuda.tiles.tensor_maps import TensorMap
from hloc.targets.cuda.tiles.tiled_kernels import tiled_kernels
from hloc.targets.cuda.tiles.tiling import (
    BLOCKS,
    BLOCKS_PER_SM,
    MOST_HELD,
    MOST_WIDE,
    Tiling,
    adder,
    in_order_of_f32,
    kernel_text,
    multiply_add,
    registers_held,
    shape_struct,
    tilings,
)
from hloc.targets.cuda.tiles.times import predicted_us, works_of

LARGEST_TILE = 64               # larger tiles lack registers for each row's window
SIDES = ("lhs", "rhs")
HELD_PLACE = 48                 # bytes of registers: position of a computed input element, and its window's start
FEW_OUTPUTS = 1 << 16
GROUPED_BYTES = 2, 4            # of elements of convolutions that wgmma multiplies


class Choice(NamedTuple):
    """A variant of a convolution: its name in tuning files, and the Tiles that are launched one after the other."""

    variant: str
    parts: tuple[tuple[Asked, Tiling], ...]


def convolution(tile: Tile, name: str, gpu: Machine, variant: str = "") -> tuple:
    """Text, launches and scratch bytes of a convolution. variant: one of convolution_variants."""
    asked = Asked.of(tile)
    if is_direct(asked.c):
        structs, operands = _operands(asked, name)
        text, start = _direct(tile, name, gpu, asked.c, asked.facts["types"], _finish_text(asked, 1), operands)
        return structs + text, start
    found = choices(asked, gpu)
    chosen = next((c for c in found if c.variant == variant), found[0])
    scratch = max(offsets(tiling, part.sum_width, packed_lines(part, tiling))[1] for part, tiling in chosen.parts)
    names = [f"{name}_{n}" for n in range(len(chosen.parts))] if len(chosen.parts) > 1 else [name]
    made = [_tiled(part, tiling, own, gpu, scratch) for own, (part, tiling) in zip(names, chosen.parts)]
    return "".join(text for text, _ in made), [start for _, launches in made for start in launches], scratch


def _tiled(asked: Asked, tiling: Tiling, name: str, gpu: Machine, scratch: int) -> tuple[str, list[Geometry]]:
    """Text and launches of a convolution in a tiling. scratch: bytes of scratch memory that the kernels are given."""
    tile, c = asked.tile, asked.c
    structs, operands = _operands(asked, name)
    shape, call, before = c, f"hloc_conv<{name}_shape>({operands}", ""
    lines, maps = packed_lines(asked, tiling, name), _maps(asked, tiling)
    if asked.product:
        shape = asked.product.constants(asked.width)
        call = f"hloc_gemm<{name}_shape>({'maps' if maps else operands}"
    elif tiling.bulk and asked.is_positions:
        shape = {**c, **positions_of(c, asked.width).constants(c, asked.width)}
        call = f"hloc_conv<{name}_shape>(hloc_positions{{maps}}"
        before = f"hloc_positions_rest<{name}_shape>(memory);\n"
    elif tiling.bulk:
        shape = {**c, **patch_of(c, tiling.constants["BM"]).constants(c, asked.width)}
        call, before = f"hloc_conv<{name}_shape>(maps", f"hloc_patch_rest<{name}_shape>(memory);\n"

    def finish(most: int) -> str:
        return _finish_text(asked, most)
    text, launches, _ = tiled_kernels(tile, name, gpu, tiling, shape, call, finish, maps, before, lines, scratch)
    return structs + text, launches


def packed_lines(asked: Asked, tiling: Tiling, name: str = "") -> list[Lines]:
    """The operands that the tiling packs. name: of the kernel."""
    c, type = asked.c, asked.facts["types"][0]
    if asked.product:
        return lines_of(asked.product, tiling, SIDES, type)
    if not tiling.packed[1] or not c["K"]:              # of an empty phase, nothing is read
        return []
    how = "position" if asked.is_positions else "patch"
    source = f"hloc_{how}_columns<{name}_shape, {c_type(type)}>{{rhs + {asked.offsets[1]}}}"
    depth = size_in_boxes(asked)[1]
    return [Lines(1, type, c["N"], depth, 1, source, c["W_VECTOR"], asked.is_positions)]


def size_in_boxes(asked: Asked) -> tuple[int, int]:
    """Rows and depth of the product whose operands are copied in boxes, in whole lines."""
    c, width = asked.c, asked.width
    if asked.is_positions:
        return rows_of(c, width), positions_of(c, width).depth(c, width)
    return c["M"], depth_of(c, width)


def _maps(asked: Asked, tiling: Tiling) -> tuple[TensorMap, ...]:
    """The tensor maps of a tiling with bulk copies."""
    c, tile, lines = asked.c, asked.tile, packed_lines(asked, tiling)
    if not tiling.bulk:
        return ()
    if asked.product:
        return maps_of(asked.product, tiling, tile, SIDES, lines)
    arguments = [[b.name for b in tile.buffers].index(n) for n in SIDES]
    if asked.is_positions:
        left, right = maps_of_positions(c, asked.offsets, positions_of(c, asked.width), arguments, asked.width)
    else:
        left = map_of_image(c, asked.offsets[0], patch_of(c, tiling.constants["BM"]), arguments[0], asked.width)
        right = left if tiling.packed[1] else \
            map_of_filter(c, asked.offsets[1], tiling.constants["BN"], arguments[1], asked.width)
    for one, place in zip(lines, offsets(tiling, asked.sum_width, lines)[0]):
        right = TensorMap.of(len(tile.buffers), asked.width, place // asked.width,
                             [(one.line, 1), (one.rows, one.line), (1, 0), (1, 0)],
                             (tiling.constants["BK"], tiling.constants["BN"]))
    return left, right


def _finish_text(asked: Asked, most: int) -> str:
    place = (("row", INDEX), ("column", INDEX), ("acc", asked.facts["types"][1]))
    return finish_text(asked.finish(most), (("batch", INDEX), *place) if asked.product else place, asked.tile)


def _operands(asked: Asked, name: str) -> tuple[str, str]:
    """The text of the structs of prologues, and the template's arguments for both operands."""
    structs = "".join(prologue_struct(m, asked.tile, f"{name}_{n}") for n, m in asked.made.items())
    operands = (f"{name}_{n}{{{', '.join(b.name for b in asked.made[n].buffers(asked.tile))}}}" if n in asked.made else
                f"{n} + {offset}" if offset else n for n, offset in zip(SIDES, asked.offsets))
    return structs, ", ".join(operands)


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
    packed = packed_sides(product, types[0]) if product else (False, width == 4)
    count = c["GROUPS"] * c["BATCH_GROUPS"]
    found = tilings(c["M"], c["N"], c["K"], count, types, LARGEST_TILE, gpu, numbers, whole, _groups(asked), elements,
                    held, True, packed)
    if numbers and in_boxes(asked):
        rows, depth = size_in_boxes(asked)
        found = [t._replace(elements=c["M"] * c["N"]) for t in tilings(
            rows, c["N"], depth, 1, types, LARGEST_TILE, gpu, numbers, True, "windows", elements, waves=True,
            packed=packed)] + found
    if numbers is None or types[0] not in EXACT_GROUPS and facts["algorithm"] != TF32:
        return [(tiling, 0.0) for tiling in found]
    finish = asked.finish(MOST_WIDE)

    def time(tiling: Tiling) -> float:
        return predicted_us(tiling, *cost_arguments(asked, tiling, finish), gpu, packed_lines(asked, tiling))
    if types[0] not in EXACT_GROUPS:
        full = tilings(c["M"], c["N"], c["K"], count, types, LARGEST_TILE, gpu, held=held, waves=True)
        return [(tiling, time(tiling)) for tiling in in_order_of_f32([*found, *full], time)]
    return sorted(((tiling, time(tiling)) for tiling in found), key=lambda pair: pair[1])


def _groups(asked: Asked) -> str:
    """How warpgroups can read the operands (tilings), other than in boxes of windows."""
    if asked.made or asked.width not in GROUPED_BYTES:
        return ""
    if asked.product:
        return groups(asked.product, asked.facts["types"][0])
    return "copies" if asked.width == 2 else ""


def in_boxes(asked: Asked) -> bool:
    """Whether the bulk copy engine can copy the operands in boxes of windows."""
    return asked.width in GROUPED_BYTES and not asked.made and not asked.product and \
        (is_boxes(asked.c, asked.width) or asked.is_positions)


def works_of_choice(chosen: Choice, gpu: Machine) -> list[Work]:
    """The Work of each launch."""
    return [work for asked, tiling in chosen.parts
            for work in works_of(tiling, *cost_arguments(asked, tiling, asked.finish(MOST_WIDE)), gpu,
                                 packed_lines(asked, tiling))]


def cost_arguments(asked: Asked, tiling: Tiling, finish: Finish) -> tuple[Sizes, tuple[Side, Side]]:
    """The input of the cost model: sizes, and how both operands are read. finish: of as many features as possible."""
    facts, c, product, made = asked.facts, asked.c, asked.product, asked.made
    width = ELEMENT_TYPES[facts["types"][0]].bytes
    sizes = sizes_of(asked.tile, c["M"], c["N"], c["K"], c["GROUPS"] * c["BATCH_GROUPS"], finish)
    image = sum(b.size * width for b in asked.tile.buffers if b.name == "lhs")
    read, rest = image * share_read(c), sizes.memory - image
    if "whole" in facts:                                        # a phase reads the image, and its share of the rest
        rest *= c["M"] / (c["IMAGES"] * c["WHOLE0"] * c["WHOLE1"] * c["WHOLE2"])
    sizes = sizes._replace(memory=read * (c["K"] > 0) + rest)
    if tiling.bulk and product is None:
        rows, depth = size_in_boxes(asked)
        if not asked.is_positions:                              # some rows of patches are not output positions
            parts = zip((c["OUT2"], c["OUT1"], c["IMAGES"]), patch_of(c, tiling.constants["BM"]))
            rows = math.prod(-(-size // part) for size, part in parts) * tiling.constants["BM"]
        sizes = sizes._replace(rows=rows, depth=depth)
    vectors, sides = (c["X_VECTOR"], c["W_VECTOR"]), []
    if product:
        constants = product.constants(width)
        vectors = constants["A_VECTOR"], constants["B_VECTOR"]
    for name, vector, dense in (("lhs", vectors[0], 1 in (c["X_C"], c["X_N"], c["X_2"])),
                                ("rhs", vectors[1], 1 in (c["W_I"], c["W_O"]))):
        own = made.get(name)
        sides.append(Side(own.vector if own else vector, width, product is None and name == "lhs",
                          operations_of_prologue(own.prologue) if own else 0, dense or own is not None))
    left, right = sides
    return sizes, (left, right)


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
