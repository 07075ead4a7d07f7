"""Which parts of the library kernels of runtime/ a program needs (parts.py).

In: Tiles, with parameters as the files of hloc/kernels say. Out: Parts.
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import ATTENTION_UNITS, attention_kind
from hloc.targets.cpu.building.parts import Parts, add, of_attention
from hloc.targets.cpu.building.product_parts import add_convolution, add_product
from hloc.targets.cpu.plans.fft import plan_of_fft
from hloc.targets.cpu.plans.matmul import product_of
from hloc.targets.cpu.plans.triangular import plan_of_system


def parts_of_tiles(tiles: Iterable[Tile], machine: Machine) -> Parts:
    """The parts that the steps of a program need."""
    found: Parts = {}
    for tile in tiles:
        given, type = dict(tile.parameters), tile.buffers[0].type
        if tile.library_kernel == "gemm":
            add_product(found, product_of(tile), machine)
        elif tile.library_kernel == "convolution":
            add_convolution(found, tile, machine)
        elif tile.library_kernel == "fft":
            precision = "f64" if type in ("f64", "c128") else "f32"
            add(found, f"fft_{precision}.c", plan_of_fft(tile, machine).parts)
        elif tile.library_kernel == "attention":
            for unit in ATTENTION_UNITS[attention_kind(given, machine)][1:]:
                add(found, unit, of_attention(given["sizes"][0], machine))
        elif tile.library_kernel == "cholesky":
            add(found, f"triangular_{type}.c", {"CHOLESKY"})
        elif tile.library_kernel == "triangular-solve":
            add(found, f"triangular_{type}.c", plan_of_system(tile, machine).parts)
    return found
