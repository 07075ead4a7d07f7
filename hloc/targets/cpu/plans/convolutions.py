"""Scratch memory of convolutions: what the chosen algorithm (convolution_algorithms.py) copies and allocates.

In: a Tile of the library kernel "convolution". Out: a Scratch (slots.py). Names are those of the C code.
"""
from __future__ import annotations

from math import gcd, prod
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import FAST_TYPES, PRODUCT_OF
from hloc.targets.cpu.plans.convolution import ONES, Convolution, convolution_of, panel_columns
from hloc.targets.cpu.plans.convolution_algorithms import (
    algorithm_of,
    images_at_once,
    moves_spread,
    product_of_convolution,
    products_of_spread,
    rows_collide,
    step_through,
)
from hloc.targets.cpu.plans.matmul import Product, tile_rows
from hloc.targets.cpu.plans.matmul_choice import scratch_of_all
from hloc.targets.cpu.plans.slots import NOTHING, Scratch, busy_threads
from hloc.targets.cpu.plans.winograd import blocks_of

TILES, FEW_TILES, CHUNK, MOST_FEW_PANELS, TAP_BYTES = 8, 32, 512, 4, 40        # of conv_rows.c
OUTER_MOST_CHUNK = 448                                                         # of conv_outer.c
PATCH_BYTES, FRAME_BYTES, MANY_ROWS, FEWEST_ROWS = 1 << 20, 1 << 22, 512, 64   # of generic_conv.h
FEW_FEATURES, FEW_PATCH_BYTES = 4, PATCH_BYTES // 8
PIECE_FLOATS = 4096                                                            # of conv_transposed.c


def convolution_scratch(tile: Tile, machine: Machine) -> Scratch:
    """runtime/conv.h; parameters as in hloc/kernels/products/convolution.py."""
    given = dict(tile.parameters)
    c = convolution_of(tile)
    if c.type not in FAST_TYPES["conv"]:
        return _generic(c, given["types"], machine)
    algorithm = algorithm_of(c, machine)
    if given.get("packing") == "packs":
        return _packs(c, algorithm, machine)
    if algorithm == "channels":
        whole = c._replace(batch=c.batch_groups, y_features=c.batch_groups)
        return _moved(whole, True, whole.is_f32 and whole.x_n == 1, whole.is_f32 and whole.w_o == 1, machine)
    if algorithm == "depthwise":
        return _moved(c, False, c.is_f32 and c.x_c == 1, c.is_f32 and c.w_o == 1, machine)
    algorithms = {"product": _by_product, "outer": _by_outer, "spread": _by_spread, "rows": _by_rows,
                  "pairs": _by_pairs, "winograd": _by_winograd}
    return algorithms[algorithm](c, machine)


def _packs(c: Convolution, algorithm: str, machine: Machine) -> Scratch:
    """The memory of a step that only packs w (packing.py)."""
    if algorithm == "product":
        return NOTHING
    if algorithm == "winograd":
        return Scratch.of(first=4)
    moved = _filter(c._replace(x_features=c.x_features // 2) if algorithm == "pairs" else c, machine)
    is_moved = algorithm == "pairs" or not c.is_f32 or _goes_in_one_piece(c)
    return Scratch.of(first=4 * moved if is_moved else 0, second=_in_one_piece(c).taps * TAP_BYTES)


# -- the algorithms ----------------------------------------------------------------------------------------------------

def _image(c: Convolution, machine: Machine, padded: int | None = None, pitch: int | None = None,
           batch_inner: bool = False) -> int:
    """Floats of the rearranged x: arranged_floats(arrange_x)."""
    outer, inner = (c.x_features, c.batch) if batch_inner else (c.batch, c.x_features)
    last = c.x_size[2] if padded is None else padded
    return outer * c.x_size[0] * c.x_size[1] * last * (inner if pitch is None else pitch) + panel_columns(machine)


def _filter(c: Convolution, machine: Machine) -> int:
    return c.x_features // c.groups * c.taps * c.y_features + panel_columns(machine)


def _moved(c: Convolution, batch_inner: bool, keep_x: bool, keep_w: bool, machine: Machine) -> Scratch:
    """move_operands."""
    x = 0 if keep_x else _image(c, machine, batch_inner=batch_inner)
    w = 0 if keep_w else _filter(c, machine)
    return Scratch.of(first=4 * (x + w + 1))


def _by_product(c: Convolution, machine: Machine) -> Scratch:
    return scratch_of_all([product_of_convolution(c)], machine)


def _passed_over(c: Convolution) -> Convolution:
    """pass_over."""
    x_s, x_size, stride = list(c.x_s), list(c.x_size), list(c.stride)
    for d in range(3):
        if c.window[d] == 1 and stride[d] > 1 and not c.pad_low[d] and c.base_dilation[d] == 1 \
                and (c.y_size[d] - 1) * stride[d] < x_size[d]:
            x_s[d], x_size[d], stride[d] = x_s[d] * stride[d], c.y_size[d], 1
    return c._replace(x_s=tuple(x_s), x_size=tuple(x_size), stride=tuple(stride))


def _by_rows(c: Convolution, machine: Machine) -> Scratch:
    one_piece = _goes_in_one_piece(c)
    c = _passed_over(c)
    padded = (c.y_size[2] - 1) * c.stride[2] + c.window[2] if one_piece else c.x_size[2]
    move_x, move_w = one_piece or not c.is_f32 or c.x_c != 1, one_piece or not c.is_f32
    pitch = c.x_features
    if not one_piece and rows_collide(c, c.x_features if move_x else c.x_s[2], 4, machine):
        pitch, move_x = pitch + machine.vector_bytes // 4, True
    image = _image(c, machine, padded, pitch) if move_x else 0
    return _rows(_in_one_piece(c), machine, 4 * (image + (_filter(c, machine) if move_w and not c.is_packed else 0)))


def _goes_in_one_piece(c: Convolution) -> bool:
    """rows_in_one_piece."""
    return c.groups == 1 and c.x_features <= 8 and c.window[2] > 1 and c.window_dilation[2] == 1 \
        and c.base_dilation == ONES and not c.reversed[2] and c.window[2] * c.x_features <= 1024


def _in_one_piece(c: Convolution) -> Convolution:
    """in_rows: the convolution that conv_rows.c computes."""
    if not _goes_in_one_piece(c):
        return c
    return c._replace(x_features=c.x_features * c.window[2], window=(*c.window[:2], 1))


def _by_pairs(c: Convolution, machine: Machine) -> Scratch:
    pairs = c._replace(x_features=c.x_features // 2)
    pitch = pairs.x_features
    if rows_collide(c, pitch, 4, machine):
        pitch += machine.vector_bytes // 4
    image = _image(pairs, machine, pitch=pitch) if c.x_c != 1 else 0
    return _rows(pairs, machine, 4 * (image + (0 if c.is_packed else _filter(pairs, machine))))


def _panel_floats(c: Convolution, machine: Machine) -> int:
    columns = panel_columns(machine)
    return c.groups * -(-(c.y_features // c.groups) // columns) * c.taps * (c.x_features // c.groups) * columns


def _periods(c: Convolution) -> list[int]:
    return [b // gcd(b, s) for b, s in zip(c.base_dilation, c.stride)]


def _positions(c: Convolution) -> int:
    """The number of positions of the largest phase."""
    return c.batch * prod(-(-n // p) for n, p in zip(c.y_size, _periods(c)))


def _is_few(c: Convolution, machine: Machine) -> bool:
    panels = -(-(c.y_features // c.groups) // panel_columns(machine))
    return not c.is_packed and _positions(c) <= FEW_TILES * tile_rows(machine) and c.groups == 1 \
        and c.x_features >= machine.vector_bytes // 4 and panels >= 2 * machine.cores


def _rows(c: Convolution, machine: Machine, first: int) -> Scratch:
    """hloc_conv_rows."""
    rows, columns, depth = tile_rows(machine), panel_columns(machine), c.x_features // c.groups
    second, own = c.taps * TAP_BYTES, TILES * rows * c.taps * 8
    group_panels = -(-(c.y_features // c.groups) // columns)
    per_task = TILES * rows * c.taps * depth * group_panels * columns
    tasks, grain = -(-_positions(c) // (rows * TILES)) * c.groups, int(2e5 / (per_task + 1)) + 1
    if _is_few(c, machine):
        most = max(1, min(MOST_FEW_PANELS, group_panels // (2 * machine.cores)))
        tasks, grain = group_panels, most
        step = max(1, CHUNK // depth) * min(depth, CHUNK) * columns
        second += FEW_TILES * rows * c.taps * 8
        own = max(own, 4 * most * (step + -(-_positions(c) // rows) * rows * columns))
    panels = 0 if c.is_packed or _is_few(c, machine) else _panel_floats(c, machine)
    return Scratch.of(first=first + 4 * panels, second=second, own=own, threads=busy_threads(tasks, grain, machine))


def _by_outer(c: Convolution, machine: Machine) -> Scratch:
    merged = c.batch <= 8 and c.y_size[2] > 1 and c.stride[2] == 1 and c.base_dilation == ONES
    padded = c.y_size[2] + (c.window[2] - 1) * c.window_dilation[2] if merged else c.x_size[2]
    x = _image(c, machine, padded, batch_inner=True) if merged or not c.is_f32 or c.x_n != 1 else 0
    w = _filter(c, machine) if not c.is_f32 or c.w_o != 1 else 0
    tile, columns = tile_rows(machine), panel_columns(machine)
    places = c.y_size[0] * c.y_size[1] * (1 if merged else c.y_size[2])
    panels = -(-(c.batch * (c.y_size[2] if merged else 1)) // tile)
    column_panels, row_groups, column_groups = -(-c.y_features // columns), 1, 1
    while places * row_groups * column_groups < 4 * machine.cores \
            or panels // row_groups * column_panels // column_groups > 256:
        if row_groups * 2 <= panels:
            row_groups *= 2
        elif column_groups * 2 <= column_panels:
            column_groups *= 2
        else:
            break
    sums = -(-panels // row_groups) * tile * -(-column_panels // column_groups) * columns
    chunk_rows = OUTER_MOST_CHUNK * (4 * 8 + 4 * (tile + columns))
    return Scratch.of(first=4 * (x + w + 1), own=4 * sums + chunk_rows, threads=machine.cores)


def _by_winograd(c: Convolution, machine: Machine) -> Scratch:
    x = _image(c, machine) if not c.is_f32 or c.x_c != 1 else 0
    blocks = blocks_of(c, machine)
    moved = 0 if c.is_packed else moved_filter(c, machine) + blocks.filters
    return Scratch.of(first=4 * (x + moved + 1), own=4 * blocks.own,
                      threads=busy_threads(blocks.tasks, 1, machine))


def moved_filter(c: Convolution, machine: Machine) -> int:
    """Floats of the rearranged w of a convolution by blocks."""
    return _filter(c, machine) if not c.is_f32 or (c.w_o != 1 and c.w_i != 1) else 0


def panel_floats(c: Convolution, algorithm: str, machine: Machine) -> int:
    """Floats of all panels of a convolution by rows or pairs; 0 if there are few positions: each task packs its own."""
    inner = c._replace(x_features=c.x_features // 2) if algorithm == "pairs" else _in_one_piece(_passed_over(c))
    return 0 if _is_few(inner, machine) else _panel_floats(inner, machine)


def _by_spread(c: Convolution, machine: Machine) -> Scratch:
    x = _image(c, machine) if moves_spread(c) else 0
    spread = images_at_once(c) * prod(c.x_size) * c.taps * c.y_features
    piece = max(1, min(c.y_size[2], PIECE_FLOATS // c.y_features))
    found = Scratch.of(second=4 * (x + _filter(c, machine) + spread + 1), own=4 * piece * c.y_features,
                       threads=machine.cores)
    return found.joined(scratch_of_all(products_of_spread(c), machine))


# -- other element types -----------------------------------------------------------------------------------------------

def _generic(c: Convolution, types: tuple[str, str], machine: Machine) -> Scratch:
    """runtime/generic_conv.h."""
    generic = generic_plan(c, types, machine)
    return Scratch.of(second=generic.memory).joined(scratch_of_all(generic.products, machine))


def products_of(c: Convolution, types: tuple[str, str], machine: Machine) -> list[Product]:
    """The matmuls that compute a convolution; types: of its operands and sums."""
    if c.type not in FAST_TYPES["conv"]:
        return generic_plan(c, types, machine).products
    algorithm = algorithm_of(c, machine)
    if algorithm == "product":
        return [product_of_convolution(c)]
    return products_of_spread(c) if algorithm == "spread" else []


class GenericPlan(NamedTuple):
    """Of runtime/generic_conv.h: the products, how many rows of patches are copied at a time (0: none), the bytes of
    its copies."""

    products: list[Product]
    rows: int
    memory: int


def generic_plan(c: Convolution, types: tuple[str, str], machine: Machine) -> GenericPlan:
    operand, total = types
    depth, features = c.x_features // c.groups, c.y_features // c.groups
    if c.groups > 1 and depth == features == 1:
        return GenericPlan([], 0, 0)
    product = PRODUCT_OF.get(operand if operand == total else f"{operand}_{total}", operand)
    factor, row, k = ELEMENT_TYPES[product].bytes, c.groups * c.taps * depth, c.taps * depth
    plain = (c.window, c.stride, c.base_dilation) == (ONES, ONES, ONES) and not any(c.pad_low) \
        and c.x_size == c.y_size and factor == ELEMENT_TYPES[operand].bytes \
        and step_through(c.batch, c.x_n, c.x_size, c.x_s)
    size = [(y - 1) * s + (w - 1) * d + 1 for y, s, w, d in zip(c.y_size, c.stride, c.window, c.window_dilation)]
    framed = factor == ELEMENT_TYPES[operand].bytes and (c.x_c == 1 or c.x_features == 1) and not any(c.pad_low) \
        and c.base_dilation == ONES and all(n <= x for n, x in zip(size, c.x_size))
    of_one, frame_n = prod(c.y_size), prod(size) * c.x_features
    images = c.batch if framed else max(1, min(c.batch, FRAME_BYTES // (frame_n * factor)))
    side_by_side = c.window_dilation[2] == 1 and not c.reversed[2] and (not framed or c.x_s[2] == c.x_features)
    in_line = c.window[0] * c.window[1] * c.y_size[0] * c.y_size[1] == 1 and c.groups == 1 \
        and (side_by_side or c.window[2] == 1)
    few_bytes = FEW_PATCH_BYTES * machine.cores
    rows = (min(few_bytes, PATCH_BYTES) if features <= FEW_FEATURES else PATCH_BYTES) // (factor * (row + 1))
    rows = rows if rows >= MANY_ROWS else max(FEWEST_ROWS, min(4 * rows, MANY_ROWS))
    rows = 0 if plain or in_line else min(images * of_one, rows)
    frame = 0 if plain or framed else images * frame_n
    memory = (frame + rows * row + c.groups * k * features + 1) * factor + c.groups * c.taps * 8
    if plain:
        counts, a = {c.batch * of_one}, (0, depth * c.x_c, plain, c.x_c)
    elif in_line:
        counts, a = {of_one}, (0, k, c.stride[2] * (c.x_s[2] if framed else c.x_features), 1)
    else:
        wholes = {images * of_one, c.batch % images * of_one}
        counts, a = {m for whole in wholes for m in (min(rows, whole), whole % rows)}, (0, k, row, 1)
    return GenericPlan([Product(product, c.groups, m, features, k, a, (0, k * features, features, 1), has_epilogue=True)
                        for m in sorted(counts) if m], rows, memory)
