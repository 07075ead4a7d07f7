"""Scratch memory of convolutions: the way that runtime/conv.c chooses (conv_ways.c), what it moves, and what it takes.

In: a Tile of the routine "convolution". Out: a Scratch (room.py). Names are those of the C code, so that both can be
read side by side. Missing spatial dimensions come first, as in hloc_conv_args.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.building.routines import FAST_TYPES, PRODUCT_OF, way_of
from hloc.targets.cpu.scratch.products import Product, product_scratch, tile_rows
from hloc.targets.cpu.scratch.room import Scratch, busy

ONES = (1, 1, 1)
TILES, FEW_TILES, CHUNK, MOST_FEW_PANELS, TAP_BYTES = 8, 32, 512, 4, 40        # of conv_rows.c
OUTER_MOST_CHUNK = 448                                                         # of conv_outer.c
PATCH_BYTES, FRAME_BYTES, MANY_ROWS, FEWEST_ROWS = 1 << 20, 1 << 22, 512, 64   # of generic_conv.h
FEW_FEATURES, FEW_PATCH_BYTES = 4, PATCH_BYTES // 8
SPREAD_FLOATS, PIECE_FLOATS = 1 << 20, 4096                                    # of conv_transposed.c


@dataclass(frozen=True)
class Convolution:
    """hloc_conv_args of one batch group; strides in elements."""

    type: str
    batch: int
    x_features: int
    y_features: int
    groups: int
    x_size: tuple
    window: tuple
    y_size: tuple
    stride: tuple
    pad_low: tuple
    base_dilation: tuple
    window_dilation: tuple
    reversed: tuple
    x_n: int
    x_c: int
    x_s: tuple
    w_i: int
    w_o: int
    w_s: tuple
    y_n: int
    y_s: tuple
    has_epilogue: bool

    @property
    def taps(self) -> int:
        return prod(self.window)

    @property
    def is_f32(self) -> bool:
        return self.type == "f32"


def convolution_scratch(tile: Tile, machine: Machine) -> Scratch:
    """runtime/conv.h; parameters as hloc/kernels/products/convolution.py says."""
    given = dict(tile.parameters)
    c, batch_groups = _arguments(given, bool(tile.epilogue)), given["batch_groups"]
    if c.type not in FAST_TYPES["conv"]:
        return _generic(c, given["types"], machine)
    way = way_of(given)
    if not way and batch_groups > 1 and batch_groups == c.batch * batch_groups and c.y_features == 1 \
            and c.groups == 1 and c.base_dilation == ONES:
        whole = replace(c, batch=batch_groups, y_features=batch_groups)
        return _moved(whole, True, whole.is_f32 and whole.x_n == 1, whole.is_f32 and whole.w_o == 1, machine)
    c = _settled(c)
    if way == "rows":
        return _by_rows(c, machine)
    chosen = _choose(c, machine)
    if chosen == "product" and batch_groups > 1:             # only the first group's sums are a product
        return _by_product(c, machine).joined(_by_rows(c, machine))
    if chosen == "depthwise":
        return _moved(c, False, c.is_f32 and c.x_c == 1, c.is_f32 and c.w_o == 1, machine)
    return {"product": _by_product, "outer": _by_outer, "spread": _by_spread, "rows": _by_rows}[chosen](c, machine)


def _arguments(given: dict, has_epilogue: bool) -> Convolution:
    unused, groups = 3 - len(given["window"]), given["batch_groups"]

    def three(values: tuple, filler: int) -> tuple:
        return (filler,) * unused + tuple(values)
    _, x_n, x_c, *x_s = given["lhs"]
    _, w_i, w_o, *w_s = given["rhs"]
    y_n, _, *y_s = given["result"] if not has_epilogue else (0, 0, *[0] * len(given["window"]))
    return Convolution(
        given["types"][0], given["batch"] // groups, given["lhs_features"], given["features"] // groups,
        given["feature_groups"], three(given["lhs_size"], 1), three(given["window"], 1), three(given["size"], 1),
        three(given["stride"], 1), three(given["padding_low"], 0), three(given["base_dilation"], 1),
        three(given["window_dilation"], 1), three(given["reversal"], 0), x_n, x_c, three(x_s, 0), w_i, w_o,
        three(w_s, 0), y_n, three(y_s, 0), has_epilogue)


def _settled(c: Convolution) -> Convolution:
    """settle_strides."""
    x_s, y_s = list(c.x_s), list(c.y_s)
    for d in (1, 0):
        x_s[d] = c.x_size[d + 1] * x_s[d + 1] if c.x_size[d] == 1 else x_s[d]
        y_s[d] = c.y_size[d + 1] * y_s[d + 1] if c.y_size[d] == 1 else y_s[d]
    return replace(c, x_c=1 if c.x_features == 1 else c.x_c, x_s=tuple(x_s), y_s=tuple(y_s))


# -- the choice --------------------------------------------------------------------------------------------------------

def _choose(c: Convolution, machine: Machine) -> str:
    if _is_product(c) or _sums_everything(c):
        return "product"
    if c.groups > 1 and c.groups == c.x_features == c.y_features and c.base_dilation == ONES:
        return "depthwise"
    like_gradient = c.taps > 4 * prod(c.y_size) and (c.taps > 128 or (c.x_c != 1 and c.x_n == 1))
    if c.groups == 1 and (like_gradient or c.x_features > 16384):
        return "outer"
    return "spread" if _is_transposed(c, machine) else "rows"


def _is_product(c: Convolution) -> bool:
    if (c.window, c.stride, c.base_dilation) != (ONES, ONES, ONES) or any(c.pad_low) or c.x_size != c.y_size:
        return False
    x_plain = c.x_s[0] == c.x_size[1] * c.x_s[1] and c.x_s[1] == c.x_size[2] * c.x_s[2] \
        and (c.batch == 1 or c.x_n == c.x_size[0] * c.x_s[0])
    y_plain = c.y_s[0] == c.y_size[1] * c.y_s[1] and c.y_s[1] == c.y_size[2] * c.y_s[2] \
        and (c.batch == 1 or c.y_n == c.y_size[0] * c.y_s[0])
    return c.groups == 1 and x_plain and (y_plain or c.has_epilogue)


def _step(features: int, feature_step: int, sizes: tuple, strides: tuple) -> int:
    """step_through; 0: there is no such step."""
    step = expected = 0
    for count, next_step in ((sizes[2], strides[2]), (sizes[1], strides[1]), (sizes[0], strides[0]),
                             (features, feature_step)):
        if count == 1:
            continue
        if step and next_step != expected:
            return 0
        step = step or next_step
        expected = next_step * count
    return step or 1


def _sums_everything(c: Convolution) -> bool:
    for d in range(3):
        if c.y_size[d] != 1 or c.window[d] != c.x_size[d] or c.pad_low[d] or c.base_dilation[d] != 1 \
                or (c.window[d] > 1 and (c.window_dilation[d] != 1 or c.reversed[d])):
            return False
    return c.groups == 1 and _step(c.x_features, c.x_c, c.x_size, c.x_s) != 0 \
        and _step(c.x_features, c.w_i, c.window, c.w_s) != 0


def _is_transposed(c: Convolution, machine: Machine) -> bool:
    if c.base_dilation == ONES or c.stride != ONES or c.window_dilation[2] != 1 or c.taps > 4 * prod(c.y_size):
        return False
    small = prod(c.x_size) * c.taps * c.y_features <= 1 << 18 and c.taps * c.x_features * c.y_features <= 1 << 16
    return c.groups == 1 and c.x_features >= 8 and (c.y_features <= machine.vector_bytes // 4 or small)


# -- the ways ----------------------------------------------------------------------------------------------------------

def _image(c: Convolution, machine: Machine, padded: int | None = None, pitch: int | None = None,
           batch_inner: bool = False) -> int:
    """Floats of x brought into order: arranged_floats(arrange_x)."""
    outer, inner = (c.x_features, c.batch) if batch_inner else (c.batch, c.x_features)
    last = c.x_size[2] if padded is None else padded
    return outer * c.x_size[0] * c.x_size[1] * last * (inner if pitch is None else pitch) + _columns(machine)


def _filter(c: Convolution, machine: Machine) -> int:
    return c.x_features // c.groups * c.taps * c.y_features + _columns(machine)


def _columns(machine: Machine) -> int:
    """HLOC_CONV_COLUMNS."""
    return 2 * machine.vector_bytes // 4


def _moved(c: Convolution, batch_inner: bool, keep_x: bool, keep_w: bool, machine: Machine) -> Scratch:
    """move_operands."""
    x = 0 if keep_x else _image(c, machine, batch_inner=batch_inner)
    w = 0 if keep_w else _filter(c, machine)
    return Scratch.of(first=4 * (x + w + 1))


def _by_product(c: Convolution, machine: Machine) -> Scratch:
    is_product = _is_product(c)
    depth = c.x_features * (1 if is_product else c.taps)
    a = (0, 0, c.x_s[2], c.x_c) if is_product else (0, 0, c.x_n, _step(c.x_features, c.x_c, c.x_size, c.x_s))
    b = (0, 0, c.w_i if is_product else _step(c.x_features, c.w_i, c.window, c.w_s), c.w_o)
    g = Product(c.type, 1, c.batch * prod(c.y_size), c.y_features, depth, a, b, c.has_epilogue)
    return _either(g, machine)


def _either(g: Product, machine: Machine) -> Scratch:
    """Whether the part for products of few rows is there depends on the program's other steps."""
    return product_scratch(g, machine, thin=True).joined(product_scratch(g, machine, thin=False))


def _passed_over(c: Convolution) -> Convolution:
    """pass_over."""
    x_s, x_size, stride = list(c.x_s), list(c.x_size), list(c.stride)
    for d in range(3):
        if c.window[d] == 1 and stride[d] > 1 and not c.pad_low[d] and c.base_dilation[d] == 1 \
                and (c.y_size[d] - 1) * stride[d] < x_size[d]:
            x_s[d], x_size[d], stride[d] = x_s[d] * stride[d], c.y_size[d], 1
    return replace(c, x_s=tuple(x_s), x_size=tuple(x_size), stride=tuple(stride))


def _collides(c: Convolution, step: int, machine: Machine) -> bool:
    """rows_collide."""
    step_bytes, sets = step * (c.stride[2] if c.base_dilation[2] == 1 else 1) * 4, 4096
    while sets > 1 and step_bytes % (2 * 4096 // sets) == 0:
        sets //= 2
    return tile_rows(machine) > 8 * sets and c.taps * c.y_features >= 128


def _by_rows(c: Convolution, machine: Machine) -> Scratch:
    one_piece = c.groups == 1 and c.x_features <= 8 and c.window[2] > 1 and c.window_dilation[2] == 1 \
        and c.base_dilation == ONES and not c.reversed[2] and c.window[2] * c.x_features <= 1024
    c = _passed_over(c)
    padded = (c.y_size[2] - 1) * c.stride[2] + c.window[2] if one_piece else c.x_size[2]
    move_x, move_w = one_piece or not c.is_f32 or c.x_c != 1, one_piece or not c.is_f32
    pitch = c.x_features
    if not one_piece and _collides(c, c.x_features if move_x else c.x_s[2], machine):
        pitch, move_x = pitch + machine.vector_bytes // 4, True
    inner = replace(c, x_features=c.x_features * c.window[2], window=(*c.window[:2], 1)) if one_piece else c
    panels = 0 if _is_few(inner, machine) else _panel_floats(inner, machine)
    first = panels + (_image(c, machine, padded, pitch) if move_x else 0) + (_filter(c, machine) if move_w else 0)
    return _rows(inner, machine, 4 * first)


def _panel_floats(c: Convolution, machine: Machine) -> int:
    columns = _columns(machine)
    return c.groups * -(-(c.y_features // c.groups) // columns) * c.taps * (c.x_features // c.groups) * columns


def _periods(c: Convolution) -> list[int]:
    return [b // gcd(b, s) for b, s in zip(c.base_dilation, c.stride)]


def _positions(c: Convolution) -> int:
    """Of the largest phase."""
    return c.batch * prod(-(-n // p) for n, p in zip(c.y_size, _periods(c)))


def _is_few(c: Convolution, machine: Machine) -> bool:
    panels = -(-(c.y_features // c.groups) // _columns(machine))
    return _positions(c) <= FEW_TILES * tile_rows(machine) and c.groups == 1 \
        and c.x_features >= machine.vector_bytes // 4 and panels >= 2 * machine.cores


def _rows(c: Convolution, machine: Machine, first: int) -> Scratch:
    """hloc_conv_rows."""
    rows, columns, depth = tile_rows(machine), _columns(machine), c.x_features // c.groups
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
    return Scratch.of(first=first, second=second, own=own, threads=busy(tasks, grain, machine))


def _by_outer(c: Convolution, machine: Machine) -> Scratch:
    merged = c.batch <= 8 and c.y_size[2] > 1 and c.stride[2] == 1 and c.base_dilation == ONES
    padded = c.y_size[2] + (c.window[2] - 1) * c.window_dilation[2] if merged else c.x_size[2]
    x = _image(c, machine, padded, batch_inner=True) if merged or not c.is_f32 or c.x_n != 1 else 0
    w = _filter(c, machine) if not c.is_f32 or c.w_o != 1 else 0
    tile, columns = tile_rows(machine), _columns(machine)
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


def _by_spread(c: Convolution, machine: Machine) -> Scratch:
    plain = c.x_s[1] == c.x_size[2] * c.x_s[2] and c.x_s[0] == c.x_size[1] * c.x_s[1]
    moves = not c.is_f32 or not plain
    places, row = prod(c.x_size), c.taps * c.y_features
    images = max(1, min(c.batch, SPREAD_FLOATS // max(1, places * row)))
    x = _image(c, machine) if moves else 0
    second = 4 * (x + _filter(c, machine) + images * places * row + 1)
    piece = max(1, min(c.y_size[2], PIECE_FLOATS // c.y_features))
    a = (places * c.x_features, 0, c.x_features, 1) if moves else (c.x_n, 0, c.x_s[2], c.x_c)
    found = Scratch.of(second=second, own=4 * piece * c.y_features, threads=machine.cores)
    for batches in {images, c.batch % images}:
        g = Product("f32", batches, places, row, c.x_features, a, (0, 0, c.taps * c.y_features, 1))
        found = found.joined(_either(g, machine))
    return found


# -- other element types -----------------------------------------------------------------------------------------------

def _generic(c: Convolution, types: tuple[str, str], machine: Machine) -> Scratch:
    """runtime/generic_conv.h."""
    products, memory = _generic_products(c, types, machine)
    found = Scratch.of(second=memory)
    for g in products:
        found = found.joined(_either(g, machine))
    return found


def generic_products(given: dict, has_epilogue: bool, machine: Machine) -> list[Product]:
    """What a convolution of a type without a routine multiplies; parameters as hloc/kernels/products/convolution.py
    says."""
    return _generic_products(_arguments(given, has_epilogue), given["types"], machine)[0]


def _generic_products(c: Convolution, types: tuple[str, str], machine: Machine) -> tuple[list[Product], int]:
    """C(by_product): its products, and the bytes of what it copies."""
    operand, total = types
    depth, features = c.x_features // c.groups, c.y_features // c.groups
    if c.groups > 1 and depth == features == 1:
        return [], 0
    product = PRODUCT_OF.get(operand if operand == total else f"{operand}_{total}", operand)
    factor, row, k = ELEMENT_TYPES[product].bytes, c.groups * c.taps * depth, c.taps * depth
    plain = (c.window, c.stride, c.base_dilation) == (ONES, ONES, ONES) and not any(c.pad_low) \
        and c.x_size == c.y_size and factor == ELEMENT_TYPES[operand].bytes \
        and _step(c.batch, c.x_n, c.x_size, c.x_s)
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
    return [Product(product, c.groups, m, features, k, a, (0, k * features, features, 1), True)
            for m in sorted(counts) if m], memory
