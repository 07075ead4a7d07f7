"""Convolutions of types without an algorithm of their own (runtime/generic_conv.h): patches, and their matmuls.

In: a Convolution, the types of its operands and sums. Out: its choices, and its products.

    f64[2,20,20,16] by f64[3,3,16,24]      patches of 324 rows by 144, then a matmul of f64
"""
from __future__ import annotations

from math import prod

from hloc.ir import ELEMENT_TYPES
from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import PRODUCT_OF
from hloc.targets.cpu.plans.convolution import ONES, Choices, Convolution
from hloc.targets.cpu.plans.matmul import Product

PATCH_BYTES, FRAME_BYTES, MANY_ROWS, FEWEST_ROWS = 1 << 20, 1 << 22, 512, 64
FEW_FEATURES, FEW_PATCH_BYTES = 4, PATCH_BYTES // 8      # of a thread: weights that are not packed


def generic_plan(c: Convolution, types: tuple[str, str], machine: Machine) -> tuple[Choices, list[Product]]:
    operand, total = types
    depth, features = c.depth, c.features
    product = PRODUCT_OF.get(operand if operand == total else f"{operand}_{total}", operand)
    factor, row, k = ELEMENT_TYPES[product].bytes, c.feature_groups * c.taps * depth, c.taps * depth
    copies = factor != ELEMENT_TYPES[operand].bytes
    size = [(y - 1) * s + (w - 1) * d + 1 for y, s, w, d in zip(c.y_size, c.stride, c.window, c.window_dilation)]
    framed = not copies and (c.x_c == 1 or c.x_features == 1) and not any(c.pad_low) \
        and c.base_dilation == ONES and all(n <= x for n, x in zip(size, c.x_size))
    of_one, frame_n = prod(c.y_size), prod(size) * c.x_features
    images = c.batch if framed else max(1, min(c.batch, FRAME_BYTES // max(1, frame_n * factor)))
    in_line = _is_in_line(c, framed)
    rows = 0 if in_line else min(images * of_one, _patch_rows(row, features, factor, machine))
    frame = 0 if framed else images * frame_n
    memory = (frame + rows * row + c.feature_groups * k * features + 1) * factor + c.feature_groups * c.taps * 8
    if in_line:
        counts, a = {of_one}, (0, k, c.stride[2] * (c.x_s[2] if framed else c.x_features), 1)
    else:
        wholes = {images * of_one, c.batch % images * of_one}
        counts, a = {m for whole in wholes for m in (min(rows, whole), whole % rows)}, (0, k, row, 1)
    return Choices(framed=framed, second=memory, images=images, patch_rows=rows), \
        [Product(product, c.feature_groups, m, features, k, a, (0, k * features, features, 1), has_epilogue=True)
         for m in sorted(counts) if m]


def _is_in_line(c: Convolution, framed: bool) -> bool:
    """Whether the frame's positions, as rows, are the patches: windows along one dimension."""
    side_by_side = c.window_dilation[2] == 1 and not c.reversed[2] and (not framed or c.x_s[2] == c.x_features)
    return c.window[0] * c.window[1] * c.y_size[0] * c.y_size[1] == 1 and c.feature_groups == 1 \
        and (side_by_side or c.window[2] == 1)


def _patch_rows(row: int, features: int, factor: int, machine: Machine) -> int:
    """In cache, but enough of them to be worth packing the weights."""
    most = min(FEW_PATCH_BYTES * machine.cores, PATCH_BYTES) if features <= FEW_FEATURES else PATCH_BYTES
    rows = most // (factor * (row + 1))
    return rows if rows >= MANY_ROWS else max(FEWEST_ROWS, min(4 * rows, MANY_ROWS))
