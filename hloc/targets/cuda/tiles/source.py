"""Tiles on the GPU: a Tile of the plan -> CUDA C that instantiates a template, and its launches.

In: a kernels.ir.Tile (matrix product, attention, convolution, sort, FFT). Out: its TileCode.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hloc.errors import UnsupportedError
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.libraries import cublaslt
from hloc.targets.cuda.libraries.convolutions import convolution_call, library_convolution
from hloc.targets.cuda.libraries.products import library_product
from hloc.targets.cuda.tiles.attention import attention, attention_variants
from hloc.targets.cuda.tiles.attention_gradient import attention_gradient, attention_gradient_variants
from hloc.targets.cuda.tiles.convolutions import convolution, convolution_variants
from hloc.targets.cuda.tiles.fft import fft
from hloc.targets.cuda.tiles.products import gemm, gemm_variants
from hloc.targets.cuda.tiles.sorting import sort, topk
from hloc.targets.printer import comment


class TileCode(NamedTuple):
    """text: CUDA C; launches: of its kernels, in execution order; scratch: bytes of memory shared by the kernels of the
    Tile. If not 0, a pointer to it is the last argument."""

    text: str
    launches: tuple[Geometry, ...]
    scratch: int = 0


TEMPLATES: dict[str, Callable[..., tuple]] = {
    "gemm": gemm, "attention": attention, "attention_gradient": attention_gradient, "convolution": convolution,
    "sort": sort, "topk": topk, "fft": fft,
}


LIBRARY, CUDNN = "cublasLt", "cuDNN"
VARIANTS: dict[str, Callable[[Tile, Machine], list[str]]] = {
    "gemm": gemm_variants, "attention": attention_variants, "attention_gradient": attention_gradient_variants,
    "convolution": convolution_variants,
}


def variants(tile: Tile, gpu: Machine) -> list[str]:
    """The names of the variants to compute a tile, the cost model's choice first."""
    found = VARIANTS[tile.library_kernel](tile, gpu) if tile.library_kernel in VARIANTS else [""]
    if tile.library_kernel == "gemm" and library_product(tile):
        return [*found, LIBRARY]
    return [*found, CUDNN] if tile.library_kernel == "convolution" and library_convolution(tile) else found


def tile_source(tile: Tile, name: str, gpu: Machine, variant: str = "") -> TileCode:
    """The CUDA C of a tile. variant: one of `variants`, or "" for the cost model's choice. Raises UnsupportedError for
    a library kernel without a template."""
    if variant == LIBRARY:
        return library_call(tile, name)
    if variant == CUDNN:
        return cudnn_call(tile, name, gpu)
    template = TEMPLATES.get(tile.library_kernel)
    if template is None:
        raise UnsupportedError(f"library kernel '{tile.library_kernel}' on target cuda")
    chosen = (variant,) if tile.library_kernel in VARIANTS else ()
    text, launches, *scratch = template(tile, name, gpu, *chosen)
    return TileCode(text, (launches,) if isinstance(launches, Geometry) else tuple(launches), *scratch)


def library_call(tile: Tile, name: str) -> TileCode:
    """A matrix product by cuBLASLt instead of a kernel. Its last argument is a workspace."""
    product = library_product(tile)
    if product is None:
        raise UnsupportedError(f"a product of {dict(tile.parameters)['types'][0]} that cuBLASLt cannot compute")
    lines = comment((*tile.origin, f"computed by cuBLASLt, epilogue: {product.epilogue or 'none'}"))
    start = Geometry(name, (1, 1, 1), (1, 1, 1), product=product)
    return TileCode("\n".join(lines) + "\n", (start,), cublaslt.WORKSPACE)


def cudnn_call(tile: Tile, name: str, gpu: Machine) -> TileCode:
    """A convolution by cuDNN instead of a kernel."""
    found = library_convolution(tile)
    if found is None:
        raise UnsupportedError(f"a convolution of {dict(tile.parameters)['types'][0]} that cuDNN cannot compute")
    return TileCode(*convolution_call(tile, name, gpu, found))
