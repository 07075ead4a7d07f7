"""Which parts of the routines of products a program needs: told from sizes and strides.

In: Products and convolutions. Out: names of parts (runtime/gemm_kernel.h), but for those that are always there. A table
of kernels that a product could use and that is not there costs time, nothing else: the C code asks whether it is. But
those for packed operands, and what packs them, are what remains then: they are left out where they are certainly not
needed.

    f32[64,64] by f32[64,64]          ->   KERNELS_AB: both are read in place
    f32[1000,1000] by f32[1000,992]   ->   KERNELS_A, KERNELS, PACKING: A's rows may be read in place, B's panels are
                                           packed
"""
from __future__ import annotations

from collections.abc import Mapping

from hloc.machine import Machine
from hloc.targets.cpu.building.parts import Parts, add
from hloc.targets.cpu.building.routines import FAST_TYPES
from hloc.targets.cpu.scratch.convolution_ways import arguments, product_of_convolution, products_of_spread, way_of
from hloc.targets.cpu.scratch.products import (
    ALIASED_ROWS,
    SHORT,
    Kind,
    Product,
    exchange,
    goes_thin,
    is_exchanged,
    kind_of,
    product_of_reals,
    tile_rows,
)
from hloc.targets.cpu.tiles.complex_products import PARTS

MOST_DOTS = 8                    # features in are_dots of runtime/conv_rows.c, with the widest vectors
PACKED = frozenset({"KERNELS", "PACKING"})
READ_A = PACKED | {"KERNELS_A"}
READ_BOTH = READ_A | {"KERNELS_B", "KERNELS_AB", "KERNELS_HALF", "KERNELS_HALF_A"}


def tables(kind: Kind) -> frozenset[str]:
    """All that a type of element has: HLOC_READS_A, HLOC_READS_B."""
    return READ_BOTH if kind.has_halves else READ_A if kind.is_memory and not kind.turns else PACKED


def add_product(found: Parts, g: Product, machine: Machine) -> None:
    """Adds the parts for one product."""
    if g.type in PARTS:
        g = product_of_reals(g)[0]
    if g.type in FAST_TYPES["gemm"]:
        add(found, f"gemm_{g.type}.c", parts_of_product(g, machine))


def parts_of_product(g: Product, machine: Machine) -> frozenset[str]:
    """Those that runtime/gemm_tile.h may choose, with any number of threads; names are those of the C code."""
    kind, rows = kind_of(g.type, machine), tile_rows(machine)
    exchanged = is_exchanged(g, kind, machine)
    if exchanged:
        g = exchange(g)
    if goes_thin(g, kind):
        return frozenset({"THIN", f"THIN_{'DOTS' if g.b[2] == 1 else 'ROWS'}_{g.m}"})
    lanes, work = machine.vector_bytes // kind.sum, g.m * g.n * g.k
    small, skinny, narrow = work <= 3e6, g.m <= 4 * rows, kind.has_halves and g.n <= lanes
    whole_rows = g.epilogue_arrays >= 4 and not small and not skinny and g.n <= 2048 and not exchanged
    flat = not (small or skinny or narrow or whole_rows) and g.m <= 32 * rows and g.batches == 1
    aliased = g.a[2] * kind.element % 4096 == 0 and not narrow and min(rows, g.m) > ALIASED_ROWS // 2
    b_readable = kind.has_halves and g.b[3] == 1
    streams = skinny and b_readable and g.n * g.k * kind.element > 512 << 10
    packs = streams and g.m > (4 if g.k <= SHORT else rows)
    reads_b = b_readable and not flat and not packs and (small or skinny or g.batches > 1)
    reads_a = kind.is_memory and not kind.turns and g.a[3] == 1 and not flat and not (aliased and g.k > 64)
    found = _tables(g, kind, lanes, reads_a, reads_b)
    if reads_a and not (small and kind.group == 1):              # which blocks there are depends on the threads
        found |= _tables(g, kind, lanes, False, reads_b)
    return frozenset(found if small else found | PACKED)


def _tables(g: Product, kind: Kind, lanes: int, reads_a: bool, reads_b: bool) -> set[str]:
    """G(can_read) of runtime/gemm_choice.h: how tiles read both operands."""
    rest, in_place, packed = g.n % (2 * lanes), reads_a and g.m > 1, not reads_a or g.m % 2
    half, direct = kind.has_halves and 0 < rest <= lanes, g.n >= 2 * lanes and reads_b
    wide = (rest and not half) or (g.n >= 2 * lanes and not reads_b)
    found = ({"A"} if in_place and wide else set()) | ({""} if packed and wide else set())
    if direct:
        found |= ({"AB"} if in_place else set()) | ({"B"} if packed else set())
    if half:
        found |= ({"HALF_A"} if in_place else set()) | ({"HALF"} if packed else set())
    packs = packed or not reads_b or (rest and not (half and rest == lanes))
    return {f"KERNELS_{name}".rstrip("_") for name in found} | ({"PACKING"} if packs else set())


def add_convolution(found: Parts, given: Mapping, has_epilogue: bool, machine: Machine) -> None:
    """Adds those of a convolution with parameters as hloc/kernels/products/convolution.py says."""
    operand = given["types"][0]
    if operand not in FAST_TYPES["conv"]:
        from hloc.targets.cpu.scratch.convolutions import generic_products
        for product in generic_products(given, has_epilogue, machine):
            add_product(found, product, machine)
        return
    c = arguments(given, has_epilogue)
    way = way_of(c, machine)
    if way == "product":
        add_product(found, product_of_convolution(c), machine)
        return
    add(found, "conv_memory.c", {f"CONV_{operand.upper()}"})
    if way == "spread":
        for product in products_of_spread(c):
            add_product(found, product, machine)
    elif way == "rows" and c.y_features // c.groups <= MOST_DOTS:
        add(found, "conv_dots.c", {"CONV_DOTS"})
