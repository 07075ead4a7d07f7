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
from hloc.targets.cuda.convolutions import convolution, convolution_ways
from hloc.targets.cuda.fft import fft
from hloc.targets.cuda.products import gemm, gemm_ways
from hloc.targets.cuda.sorting import sort, topk


class TileCode(NamedTuple):
    """text: CUDA C; launches: its kernels, in the order to run them; scratch: bytes that the kernels of one Tile share,
    given as a last pointer where there are any."""

    text: str
    launches: tuple[Geometry, ...]
    scratch: int = 0


TEMPLATES: dict[str, Callable[..., tuple]] = {
    "gemm": gemm, "convolution": convolution, "sort": sort, "topk": topk, "fft": fft,
}


WAYS: dict[str, Callable[[Tile, Machine], list[str]]] = {"gemm": gemm_ways, "convolution": convolution_ways}


def ways(tile: Tile, gpu: Machine) -> list[str]:
    """The ways in which a tile can be computed, by name, the cost model's choice first."""
    return WAYS[tile.routine](tile, gpu) if tile.routine in WAYS else [""]


def tile_source(tile: Tile, name: str, gpu: Machine, way: str = "") -> TileCode:
    """The CUDA C of one tile, in one of its ways ("": the cost model's choice). Raises UnsupportedError for a routine
    without a template."""
    template = TEMPLATES.get(tile.routine)
    if template is None:
        raise UnsupportedError(f"routine '{tile.routine}' on target cuda")
    text, launches, *scratch = template(tile, name, gpu, way) if tile.routine in WAYS else template(tile, name, gpu)
    return TileCode(text, (launches,) if isinstance(launches, Geometry) else tuple(launches), *scratch)
