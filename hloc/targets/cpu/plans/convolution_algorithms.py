"""The algorithm of runtime/conv.h for a convolution, chosen at compile time, so that a program contains only that
algorithm.

In: a Convolution. Out: its algorithm:

    depthwise   conv_depthwise.c: a window per channel
    spread      conv_transposed.c: base dilation
    rows        conv.c: all others
    pairs       conv_pairs.c: bf16 in pairs, instead of rows, on CPUs that multiply pairs faster than f32. CPUs with
                AMX do not.
    winograd    conv_winograd.c: windows of 3x3, instead of rows, if blocks need fewer multiplications (winograd.py).

Names are those of the C code.
"""
from __future__ import annotations

from math import prod

from hloc.machine import Machine
from hloc.targets.cpu.plans.convolution import ONES, Convolution
from hloc.targets.cpu.plans.matmul import tile_rows
from hloc.targets.cpu.plans.winograd import goes_by_blocks

SPREAD_FLOATS = 1 << 20            # of conv_transposed.c


def algorithm_of(c: Convolution, machine: Machine) -> str:
    """Convolutions that are matmuls are none of these (kernels/products/convolution_products.py)."""
    if c.feature_groups > 1 and c.feature_groups == c.x_features == c.y_features and c.base_dilation == ONES:
        return "depthwise"
    if _is_transposed(c, machine):
        return "spread"
    if c.type == "bf16" and machine.has_pairs and _is_of_pairs(c, machine):
        return "pairs"
    return "winograd" if goes_by_blocks(c, machine) else "rows"


def by_images(c: Convolution) -> Convolution:
    """Filter gradients, whose features are images: these become another dimension of the window. Those of a depthwise
    convolution, whose batch groups are channels, are one themselves. Others as they are."""
    unused = (c.x_size[0], c.window[0], c.y_size[0], c.stride[0], c.pad_low[0]) == (1, 1, 1, 1, 0)
    of_channels = c.batch_groups > 1 and c.batch == c.y_features == 1
    if c.feature_groups > 1 or c.base_dilation != ONES or not unused or not (of_channels or _is_filter_gradient(c)):
        return c
    c = c._replace(
        x_features=1, x_c=1, x_size=(c.x_features, *c.x_size[1:]), x_s=(c.x_c, *c.x_s[1:]), w_i=1,
        window=(c.x_features, *c.window[1:]), w_s=(c.w_i, *c.w_s[1:]), window_dilation=(1, *c.window_dilation[1:]),
        reversed=(0, *c.reversed[1:]))
    if not of_channels:
        return c
    channels = c.batch_groups
    return c._replace(x_features=channels, y_features=channels, feature_groups=channels, batch_groups=1, x_n=0,
                      x_c=c.x_n)


def _is_filter_gradient(c: Convolution) -> bool:
    return c.x_c != 1 and c.taps > 4 * prod(c.y_size) and not c.reversed[2]


def _is_transposed(c: Convolution, machine: Machine) -> bool:
    if c.base_dilation == ONES or c.stride != ONES or c.window_dilation[2] != 1 or c.taps > 4 * prod(c.y_size):
        return False
    small = prod(c.x_size) * c.taps * c.y_features <= 1 << 18 and c.taps * c.x_features * c.y_features <= 1 << 16
    return c.feature_groups == 1 and c.x_features >= 8 and (c.y_features <= machine.vector_bytes // 4 or small)


def _is_of_pairs(c: Convolution, machine: Machine) -> bool:
    """Whether there are enough input and output features, and neighbouring ones form pairs, in memory or in a copy."""
    depth, lanes = c.depth, machine.vector_bytes // 4
    in_place = not any(n % 2 for n in (c.x_n, *c.x_s)) and not rows_collide(c, c.x_s[2], 2, machine)
    return depth >= lanes and depth % 2 == 0 and c.features > lanes // 2 and (c.x_c != 1 or in_place)


def rows_collide(c: Convolution, step: int, element_bytes: int, machine: Machine) -> bool:
    """As in conv_operands.h: rows of a tile begin every `step` floats; whether most fall into the same few sets of the
    L1 cache."""
    step_bytes, sets = step * (c.stride[2] if c.base_dilation[2] == 1 else 1) * element_bytes, 4096
    while sets > 1 and step_bytes % (2 * 4096 // sets) == 0:
        sets //= 2
    return tile_rows(machine) > 8 * sets and c.taps * c.y_features >= 128
