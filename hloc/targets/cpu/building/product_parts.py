"""Which parts of the matmul kernels a program needs, from its plans.

In: matmuls and convolutions. Out: names of parts (runtime/gemm_kernel.h), without mandatory ones.

    f32[64,64] by f32[64,64]          ->   BLOCKS, KERNELS_AB: both are read in place
    f32[1000,1000] by f32[1000,192]   ->   BLOCKS, KERNELS_A, PACKING_ROWS: A's rows are read in place, B is packed
"""
from __future__ import annotations

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.building.parts import Parts, add
from hloc.targets.cpu.plans.convolutions import plan_of_tile
from hloc.targets.cpu.plans.matmul import Kind, MatmulPlan, Product, kind_of
from hloc.targets.cpu.plans.matmul_choice import plan_of


def add_product(found: Parts, g: Product, machine: Machine) -> None:
    """Adds the parts for one matmul."""
    plan = plan_of(g, machine)
    if plan:
        add(found, f"gemm_{plan.product.type}.c", _parts_of_plan(plan, kind_of(plan.product.type, machine)))


def _parts_of_plan(plan: MatmulPlan, kind: Kind) -> set[str]:
    """Names are those of the C code."""
    g, p = plan.product, plan.constants
    found = {"TRANSPOSING"} if p.exchanged and g.m > 1 else set()
    if p.is_thin:
        return {"THIN", f"THIN_{'DOTS' if g.b[2] == 1 else 'ROWS'}_{g.m}", *found}
    found |= {"BLOCKS"} | ({"JOINING"} if p.k_part < g.k else set())
    if kind.amx:                                         # no tables
        return found | {_packing(*reversed(g.b[2:]))} | (set() if p.a_in_place else {"PACKING_A"})
    return found | _tables(g, kind, p.a_in_place, p.b_in_place)


def _tables(g: Product, kind: Kind, reads_a: bool, reads_b: bool) -> set[str]:
    """How tiles read both operands, and what is packed; the last tile of A may have an odd number of rows."""
    lanes = kind.lanes
    rest, in_place, packed = g.n % (2 * lanes), reads_a and g.m > 1, not reads_a or g.m % 2
    half, direct = kind.reads_b and 0 < rest <= lanes, g.n >= 2 * lanes and reads_b
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
    """The part of G(pack) that lines of this stride take."""
    return "PACKING_ROWS" if line_stride == 1 and k_stride != 1 else "PACKING"


def add_convolution(found: Parts, tile: Tile, machine: Machine) -> None:
    """Adds those of a Tile of the library kernel "convolution"."""
    plan = plan_of_tile(tile, machine)
    for product in plan.products:
        add_product(found, product, machine)
    if plan.algorithm in ("", "product"):
        return
    add(found, "conv_memory.c", {f"CONV_{plan.convolution.type.upper()}"})
    if plan.algorithm == "pairs":
        add(found, "conv_tiles.c", {"CONV_TILES_OF_PAIRS"})
        add(found, "conv_memory.c", {"CONV_PAIRS"})
    elif plan.choices.by_dots:
        add(found, "conv_dots.c", {"CONV_DOTS"})
