"""Which parts of the matmul kernels a program needs, from sizes and strides.

In: matmuls and convolutions. Out: names of parts (runtime/gemm_kernel.h), without mandatory ones: those that
runtime/gemm_choice.h chooses with one thread per core. The C code checks whether a table of kernels exists, and reads
operands in another algorithm if it does not.

    f32[64,64] by f32[64,64]          ->   BLOCKS, KERNELS_AB: both are read in place
    f32[1000,1000] by f32[1000,192]   ->   BLOCKS, KERNELS_A, PACKING_ROWS: A's rows are read in place, B is packed
"""
from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import FAST_TYPES
from hloc.targets.cpu.building.parts import Parts, add
from hloc.targets.cpu.scratch.convolution import arguments
from hloc.targets.cpu.scratch.convolution_algorithms import algorithm_of, product_of_convolution, products_of_spread
from hloc.targets.cpu.scratch.products import (
    Kind,
    Product,
    choose,
    exchange,
    goes_thin,
    is_exchanged,
    kind_of,
    product_of_reals,
    reads_in_place,
)
from hloc.targets.cpu.tiles.complex_products import PARTS

MOST_DOTS = 8                    # features in are_dots of runtime/conv_rows.c, with the widest vectors


def add_product(found: Parts, g: Product, machine: Machine) -> None:
    """Adds the parts for one matmul."""
    if g.type in PARTS:
        g = product_of_reals(g)[0]
    if g.type in FAST_TYPES["gemm"]:
        add(found, f"gemm_{g.type}.c", parts_of_product(g, machine))


@lru_cache(maxsize=4096)         # layers of a model have equal matmuls
def parts_of_product(g: Product, machine: Machine) -> frozenset[str]:
    """The parts that runtime/gemm_tile.h will choose; names are those of the C code."""
    kind = kind_of(g.type, machine)
    exchanged = is_exchanged(g, kind, machine)
    if exchanged:
        g = exchange(g)
    found = {"TRANSPOSING"} if exchanged and g.m > 1 else set()
    if goes_thin(g, kind):
        return frozenset({"THIN", f"THIN_{'DOTS' if g.b[2] == 1 else 'ROWS'}_{g.m}", *found})
    for least_work in (6e5, 2e5):                            # whether threads are awake
        blocks = choose(g, kind, machine, exchanged, least_work)
        found |= {"JOINING"} if blocks.k_part < g.k else set()
        reads_a, reads_b = reads_in_place(g, kind, machine, blocks)
        if kind.amx:                                         # no tables
            found |= {_packing(*reversed(g.b[2:]))} | (set() if reads_a else {"PACKING_A"})
        else:
            found |= _tables(g, kind, machine, reads_a, reads_b)
    return frozenset({"BLOCKS", *found})


def _tables(g: Product, kind: Kind, machine: Machine, reads_a: bool, reads_b: bool) -> set[str]:
    """G(can_read) of runtime/gemm_choice.h: how tiles read both operands, and what is packed."""
    lanes = machine.vector_bytes // kind.sum
    rest, in_place, packed = g.n % (2 * lanes), reads_a and g.m > 1, not reads_a or g.m % 2
    half, direct = kind.has_halves and 0 < rest <= lanes, g.n >= 2 * lanes and reads_b
    wide = (rest and not half) or (g.n >= 2 * lanes and not reads_b)
    found = ({"A"} if in_place and wide else set()) | ({""} if packed and wide else set())
    if direct:
        found |= ({"AB"} if in_place else set()) | ({"B"} if packed else set())
    if half:
        found |= ({"HALF_A"} if in_place else set()) | ({"HALF"} if packed else set())
    packs = {_packing(*g.a[2:])} if packed else set()
    if not reads_b or (rest and not (half and rest == lanes)):
        packs |= {_packing(*reversed(g.b[2:]))}
    return {f"KERNELS_{name}".rstrip("_") for name in found} | packs


def _packing(line_stride: int, k_stride: int) -> str:
    """HLOC_HAS_PACK."""
    return "PACKING_ROWS" if line_stride == 1 and k_stride != 1 else "PACKING"


def add_convolution(found: Parts, given: Mapping, has_epilogue: bool, machine: Machine) -> None:
    """Adds those of a convolution with parameters as hloc/kernels/products/convolution.py says."""
    operand = given["types"][0]
    if operand not in FAST_TYPES["conv"]:
        from hloc.targets.cpu.scratch.convolutions import generic_products
        for product in generic_products(given, has_epilogue, machine):
            add_product(found, product, machine)
        return
    c = arguments(given, has_epilogue)
    algorithm = algorithm_of(c, machine)
    if algorithm == "product":
        add_product(found, product_of_convolution(c), machine)
        return
    add(found, "conv_memory.c", {f"CONV_{operand.upper()}"})
    if algorithm == "spread":
        for product in products_of_spread(c):
            add_product(found, product, machine)
    elif algorithm == "pairs":
        add(found, "conv_tiles.c", {"CONV_TILES_OF_PAIRS"})
        add(found, "conv_memory.c", {"CONV_PAIRS"})
    elif algorithm == "rows" and c.y_features // c.groups <= MOST_DOTS:
        add(found, "conv_dots.c", {"CONV_DOTS"})
