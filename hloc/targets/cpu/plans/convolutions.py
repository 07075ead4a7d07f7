"""How a convolution is computed: what is copied, blocks, tasks, scratch memory, and the plans of its matmuls.

In: a Tile of the library kernel "convolution", or its Convolution. Out: a ConvolutionPlan, whose choices are printed
into C (runtime/conv.h); the library kernel decides nothing. Sizes are in floats unless they say bytes.
"""
from __future__ import annotations

from math import ceil, gcd, prod
from typing import Any, NamedTuple

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import FAST_TYPES
from hloc.targets.cpu.plans.convolution import ONES, Choices, Convolution, convolution_of, panel_columns
from hloc.targets.cpu.plans.convolution_algorithms import algorithm_of, by_images, rows_collide
from hloc.targets.cpu.plans.generic_convolutions import generic_plan
from hloc.targets.cpu.plans.matmul import Product, tile_rows
from hloc.targets.cpu.plans.matmul_choice import scratch_of_all
from hloc.targets.cpu.plans.slots import Scratch, busy_threads
from hloc.targets.cpu.plans.winograd import APART, DEPTH, MOST_FEATURES, blocks_of

TILES, FEW_TILES, CHUNK, MOST_FEW_PANELS, TAP_BYTES = 8, 32, 512, 4, 40        # of conv_rows.c
MOST_RUN = 16384                     # floats of a window's row
FOLD = 5                             # vectors' worth of multiply-adds: joining the lanes of a sum
MOST_CHANNELS = 1024                                                           # of conv_depthwise.c
SPREAD_FLOATS, PIECE_FLOATS = 1 << 20, 4096                                    # of conv_transposed.c


class ConvolutionPlan(NamedTuple):
    """algorithm: as in convolution_algorithms.py, "" for types without one; products: its matmuls."""

    algorithm: str
    convolution: Convolution
    choices: Choices
    scratch: Scratch
    products: list[Product]


def plan_of_tile(tile: Tile, machine: Machine) -> ConvolutionPlan:
    return plan_of_convolution(convolution_of(tile), dict(tile.parameters)["types"], machine)


def plan_of_convolution(c: Convolution, types: tuple[str, str], machine: Machine) -> ConvolutionPlan:
    """types: of the operands and of the sums. The plan's convolution has the arguments of the library kernel."""
    if c.type not in FAST_TYPES["conv"]:
        choices, products = generic_plan(c, types, machine)
        return ConvolutionPlan("", c, choices, _scratch(choices, 0, products, machine), products)
    c = by_images(c)
    algorithm = algorithm_of(c, machine)
    if algorithm == "rows":
        c = _passed_over(c)
    products = _products_of_spread(c) if algorithm == "spread" else []
    choices, threads = ALGORITHMS[algorithm](c, machine)
    return ConvolutionPlan(algorithm, c, choices, _scratch(choices, threads, products, machine), products)


def convolution_scratch(tile: Tile, machine: Machine) -> Scratch:
    return plan_of_tile(tile, machine).scratch


def _scratch(choices: Choices, threads: int, products: list[Product], machine: Machine) -> Scratch:
    found = Scratch.of(first=choices.first, second=choices.second, own=choices.own, threads=threads)
    return found.joined(scratch_of_all(products, machine))


# -- copies of operands ------------------------------------------------------------------------------------------------

def _images(c: Convolution, machine: Machine, image: int | None = None) -> int:
    """Of the rearranged x. image: of one."""
    return c.batch * (prod(c.x_size) * c.x_features if image is None else image) + panel_columns(machine)


def _filter(c: Convolution, machine: Machine) -> int:
    return c.depth * c.taps * c.y_features + panel_columns(machine)


def _copied(c: Convolution, machine: Machine, move_x: bool, move_w: bool, image: int | None = None) -> Choices:
    """x and w behind each other, where they are copied."""
    x, w = _images(c, machine, image) if move_x else 0, _filter(c, machine) if move_w else 0
    return Choices(move_x, move_w, at_w=x, at_panels=x + w)


def _by_depthwise(c: Convolution, machine: Machine) -> tuple[Choices, int]:
    """A task has all channels of a row of the result, or with few rows a piece of them, in whole tiles."""
    made = _copied(c, machine, not (c.is_f32 and c.x_c == 1), not (c.is_f32 and c.w_o == 1))
    rows, columns = c.batch * c.y_size[0] * c.y_size[1], panel_columns(machine)
    pieces = max(-(-c.x_features // MOST_CHANNELS), min(-(-4 * machine.cores // max(1, rows)), c.x_features // columns))
    piece = -(-c.x_features // max(1, pieces) // columns) * columns
    return made._replace(first=4 * (made.at_panels + 1), piece=min(piece, MOST_CHANNELS)), 0


# -- rows --------------------------------------------------------------------------------------------------------------

def _passed_over(c: Convolution) -> Convolution:
    """Windows of one position with strides, or one window with a dilation: the positions of x that they read form an
    image."""
    x_s, x_size, stride, dilation = list(c.x_s), list(c.x_size), list(c.stride), list(c.window_dilation)
    for d in range(3):
        count, step = (c.y_size[d], stride[d]) if c.window[d] == 1 else (c.window[d], dilation[d])
        if min(c.window[d], c.y_size[d]) == 1 and step > 1 and not c.pad_low[d] and c.base_dilation[d] == 1 \
                and (count - 1) * step < x_size[d]:
            x_s[d], x_size[d], stride[d], dilation[d] = x_s[d] * step, count, 1, 1
    return c._replace(x_s=tuple(x_s), x_size=tuple(x_size), stride=tuple(stride), window_dilation=tuple(dilation))


def _by_rows(c: Convolution, machine: Machine) -> tuple[Choices, int]:
    inner, lanes, is_plain = _in_one_piece(c), machine.vector_bytes // 4, c.is_f32 and c.x_c == 1
    one_piece, pitch, move_x = inner is not c, c.x_features, not is_plain
    image = prod(c.x_size) * pitch
    if one_piece:
        pitch, move_x = _pitch(c), True
        image = prod(c.x_size[:2]) * ((c.y_size[2] - 1) * pitch + inner.x_features)
        if c.x_n == 1 == c.x_features and rows_collide(c._replace(stride=ONES), image, 4, machine):
            image += lanes
    elif rows_collide(c, pitch if move_x else c.x_s[2], 4, machine):
        pitch, move_x = pitch + lanes, True
        image = prod(c.x_size) * pitch
    move_w = not c.is_f32 or one_piece and c.x_features > 1
    made = _copied(c, machine, move_x and not c.packs, move_w and (c.packs or not c.is_packed), image)
    return _with_panels(inner, machine, made._replace(one_piece=one_piece, pitch=pitch, image=image), dots=True)


def _pitch(c: Convolution) -> int:
    """Of window rows that are runs: those of neighbouring positions overlap, or follow each other."""
    return (c.stride[2] if c.window_dilation[2] == 1 else c.window[2]) * c.x_features


def _in_one_piece(c: Convolution) -> Convolution:
    """The convolution that conv_rows.c computes: with few input features, window rows are runs of a copy of x. With a
    dilation it has each position of x several times: that pays for few outputs."""
    run, row = c.window[2] * c.x_features, c.x_size[2] * c.x_features
    pays = c.window_dilation[2] == 1 or c.y_size[2] <= c.window[2] and c.y_size[2] * run <= 4 * row
    if c.feature_groups == 1 and c.x_features <= 8 and 1 < c.window[2] and run <= MOST_RUN and c.base_dilation == ONES \
            and not c.reversed[2] and pays:
        return c._replace(x_features=run, window=(*c.window[:2], 1))
    return c


def _by_pairs(c: Convolution, machine: Machine) -> tuple[Choices, int]:
    pairs = c._replace(x_features=c.x_features // 2)
    pitch = pairs.x_features
    if rows_collide(c, pitch, 4, machine):
        pitch += machine.vector_bytes // 4
    made = _copied(pairs, machine, c.x_c != 1 and not c.packs, c.packs or not c.is_packed, prod(pairs.x_size) * pitch)
    return _with_panels(pairs, machine, made._replace(pitch=pitch), dots=False)


def _panel_floats(c: Convolution, machine: Machine) -> int:
    columns = panel_columns(machine)
    return c.feature_groups * -(-c.features // columns) * c.taps * c.depth * columns


def _positions(c: Convolution) -> int:
    """The number of positions of the largest phase."""
    periods = (b // gcd(b, s) for b, s in zip(c.base_dilation, c.stride))
    return c.batch * prod(-(-n // p) for n, p in zip(c.y_size, periods))


def _is_few(c: Convolution, machine: Machine) -> bool:
    """Whether one task has all positions of a phase for each panel of weights: then weights are not packed
    beforehand."""
    panels = -(-c.features // panel_columns(machine))
    return not c.is_packed and _positions(c) <= FEW_TILES * tile_rows(machine) and c.feature_groups == 1 \
        and c.x_features >= machine.vector_bytes // 4 and panels >= 2 * machine.cores


def _are_dots(c: Convolution, machine: Machine) -> bool:
    """Whether lanes of x's features, which must be joined, cost less than lanes that are partly filled by output
    features."""
    depth, features, lanes = c.depth, c.features, machine.vector_bytes // 4
    vectors = c.taps * -(-depth // lanes)
    products = c.taps * depth // 2 if machine.vector_bytes == 64 else c.taps * depth   # half vectors of the widest
    return depth >= lanes and features <= lanes // 2 and features * (vectors + FOLD) <= products


def _with_panels(c: Convolution, machine: Machine, made: Choices, dots: bool) -> tuple[Choices, int]:
    """Adds what conv_rows.c needs, for the convolution that it computes, and the number of threads."""
    rows, columns, depth = tile_rows(machine), panel_columns(machine), c.depth
    second, group_panels = c.taps * TAP_BYTES + 8 * depth, -(-c.features // columns)
    tiles = -(-_positions(c) // rows)
    groups = ceil(ceil(tiles / TILES) * c.feature_groups / machine.cores) * machine.cores    # as many for each thread
    group = ceil(tiles * c.feature_groups / groups) if groups else 1
    own = group * rows * max(1, c.taps) * 8
    per_task = group * rows * c.taps * depth * group_panels * columns
    tasks, grain = -(-tiles // group) * c.feature_groups, int(2e5 / (per_task + 1)) + 1
    few, most = _is_few(c, machine), max(1, min(MOST_FEW_PANELS, group_panels // (2 * machine.cores)))
    if few:
        tasks = group_panels
        step = max(1, CHUNK // depth) * min(depth, CHUNK) * columns
        second += FEW_TILES * rows * c.taps * 8
        own = 4 * most * (step + tiles * rows * columns)
    panels = 0 if c.is_packed or few else _panel_floats(c, machine)
    made = made._replace(
        is_few=few, by_dots=dots and not few and _are_dots(c, machine), panels_at_once=most, row_group=group,
        grain=grain, first=4 * (made.at_panels + panels), second=second, own=0 if c.packs else own)
    return made, busy_threads(tasks, most if few else grain, machine)


# -- other algorithms --------------------------------------------------------------------------------------------------

def _by_winograd(c: Convolution, machine: Machine) -> tuple[Choices, int]:
    """Packed filters are followed by w, if that is moved."""
    blocks, move_w = blocks_of(c, machine), moved_filter(c, machine) > 0
    made = _copied(c, machine, (not c.is_f32 or c.x_c != 1) and not c.packs, move_w and not c.is_packed)
    return made._replace(
        move_w=move_w, is_few=blocks.few, first=4 * (made.at_panels + (0 if c.is_packed else blocks.filters) + 1),
        own=0 if c.packs else 4 * blocks.own, panels_at_once=blocks.grain, blocks_at_once=blocks.grain,
    ), busy_threads(blocks.tasks, 1, machine)


def moved_filter(c: Convolution, machine: Machine) -> int:
    """Floats of the rearranged w of a convolution by blocks."""
    return _filter(c, machine) if not c.is_f32 or (c.w_o != 1 and c.w_i != 1) else 0


def _by_spread(c: Convolution, machine: Machine) -> tuple[Choices, int]:
    made, images = _copied(c, machine, _moves_spread(c), True), _images_at_once(c)
    spread = images * prod(c.x_size) * c.taps * c.y_features
    piece = max(1, min(c.y_size[2], PIECE_FLOATS // c.y_features))
    return made._replace(second=4 * (made.at_panels + spread + 1), own=4 * piece * c.y_features, images=images,
                         piece=piece), machine.cores


def _images_at_once(c: Convolution) -> int:
    """The number of images whose spread copies are in memory at once."""
    return max(1, min(c.batch, SPREAD_FLOATS // max(1, prod(c.x_size) * c.taps * c.y_features)))


def _moves_spread(c: Convolution) -> bool:
    plain = c.x_s[1] == c.x_size[2] * c.x_s[2] and c.x_s[0] == c.x_size[1] * c.x_s[1]
    return not c.is_f32 or not plain


def _products_of_spread(c: Convolution) -> list[Product]:
    places, row, images = prod(c.x_size), c.taps * c.y_features, _images_at_once(c)
    a = (places * c.x_features, 0, c.x_features, 1) if _moves_spread(c) else (c.x_n, 0, c.x_s[2], c.x_c)
    return [Product("f32", batches, places, row, c.x_features, a, (0, 0, row, 1), (row, 1))
            for batches in sorted({images, c.batch % images})]


ALGORITHMS = {"depthwise": _by_depthwise, "spread": _by_spread,
              "rows": _by_rows, "pairs": _by_pairs, "winograd": _by_winograd}


def sizes_of(algorithm: str, machine: Machine) -> list[tuple[Any, ...]]:
    """The library kernels of an algorithm with the sizes that plans assume, as runtime/fits.h takes them."""
    if not algorithm:
        return []
    own = {**dict.fromkeys(("rows", "pairs"), ("conv_rows", TILES, CHUNK)),
           "winograd": ("conv_winograd", DEPTH, APART, MOST_FEATURES), "depthwise": ("conv_depthwise", MOST_CHANNELS)}
    return [("conv", tile_rows(machine), machine.vector_bytes), *([own[algorithm]] if algorithm in own else [])]
