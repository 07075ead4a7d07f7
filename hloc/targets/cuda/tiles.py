"""Tiles on the GPU: a Tile of the plan -> CUDA C that instantiates a template, and how it starts.

In: a kernels.ir.Tile (matrix product, convolution, sort, FFT). Out: its TileCode.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hloc.errors import UnsupportedError
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.convolutions import convolution
from hloc.targets.cuda.fft import fft
from hloc.targets.cuda.products import gemm
from hloc.targets.cuda.sorting import sort, topk


class TileCode(NamedTuple):
    """text: CUDA C; launches: its kernels, in the order to run them; scratch: bytes that the kernels of one Tile share,
    given as a last pointer where there are any."""

    text: str
    launches: tuple[Geometry, ...]
    scratch: int = 0


TEMPLATES: dict[str, Callable[[Tile, str, Machine], tuple]] = {
    "gemm": gemm, "convolution": convolution, "sort": sort, "topk": topk, "fft": fft,
}


def tile_source(tile: Tile, name: str, gpu: Machine) -> TileCode:
    """The CUDA C of one tile. Raises UnsupportedError for a routine without a template."""
    template = TEMPLATES.get(tile.routine)
    if template is None:
        raise UnsupportedError(f"routine '{tile.routine}' on target cuda")
    text, launches, *scratch = template(tile, name, gpu)
    return TileCode(text, (launches,) if isinstance(launches, Geometry) else tuple(launches), *scratch)
