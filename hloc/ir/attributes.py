"""Structured attribute values. Attributes live in `Instruction.attributes` under their key in the text.

The type of a value depends on the key (hloc/text/attributes.py holds the table):
    dimensions={0,1}, lhs_contracting_dims={1}     tuple of int
    index=1, feature_group_count=2, k=10            int
    is_stable=true                                  bool
    direction=LT, kind=kLoop, fft_type=RFFT         str
    to_apply=%add, condition=, body=                Computation
    branch_computations={a, b}, called_computations tuple of Computation
    window={...}                                    Window
    dim_labels=b01f_01io->b01f                      ConvolutionDimensionNumbers
    padding=1_2_1x0_0                               tuple of PaddingDim
    slice={[0:4:2], [4:8]}                          tuple of SliceDim
    everything else (metadata, sharding, backend_config, replica_groups ...)   Verbatim, the text as written
"""
from __future__ import annotations

from typing import NamedTuple


class Verbatim(str):
    """The text of an attribute that hloc does not parse further."""

    __slots__ = ()


class WindowDim(NamedTuple):
    """One dimension of a window: sizes and strides in elements; padding may be negative."""

    size: int = 1
    stride: int = 1
    padding_low: int = 0
    padding_high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1
    reversal: bool = False


class Window(NamedTuple):
    """The window of a convolution, reduce-window or select-and-scatter: one WindowDim per dimension."""

    dimensions: tuple[WindowDim, ...] = ()


class ConvolutionDimensionNumbers(NamedTuple):
    """Which dimension of each array is batch, feature, spatial; as numbers, from dim_labels."""

    input_batch: int
    input_feature: int
    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]


class PaddingDim(NamedTuple):
    """One dimension of a pad: elements added before, after and between; low and high may be negative."""

    low: int
    high: int
    interior: int = 0


class SliceDim(NamedTuple):
    """One dimension of a slice: start (inclusive), limit (exclusive), stride, in elements."""

    start: int
    limit: int
    stride: int = 1
