"""Operands of matmuls and convolutions that are packed once for all runs: bound parameters.

In: a Tile. Out: a Packing (hloc/kernels/plan.py) if the library kernel would pack that operand at each call; None if it
reads the operand in place, or if each task packs its own part.

    f32[128,1024] by f32[1024,1024]     operand 1, 4 MiB: panels of B
    f32[1,1024] by f32[1024,1024]       None: the operand is read once, at memory speed
    f32[1,56,56,64] by f32[3,3,64,64]   operand 1, 512 KiB: filters transformed for Winograd
"""
from __future__ import annotations

from hloc.analysis.packing import align
from hloc.kernels.ir import Tile
from hloc.kernels.plan import Packing
from hloc.machine import Machine
from hloc.targets.cpu.plans.complex_matmul import PARTS
from hloc.targets.cpu.plans.convolutions import moved_filter, plan_of_tile
from hloc.targets.cpu.plans.matmul import Product, kind_of, product_of
from hloc.targets.cpu.plans.matmul_choice import plan_of
from hloc.targets.cpu.plans.winograd import transformed_filters

PACKS, READS = ("packing", "packs"), ("packing", "reads")      # of a Tile's parameters


def packing_of(tile: Tile, machine: Machine) -> Packing | None:
    """How a Tile's library kernel packs an operand before it computes, or None."""
    found = None
    if tile.library_kernel == "gemm":
        found = _of_product(product_of(tile), machine)
    elif tile.library_kernel == "convolution":
        found = _of_convolution(tile, machine)
    if found is None or not found[1]:
        return None
    operand, size = found
    return Packing(operand, align(size + machine.vector_bytes), _with(tile, PACKS), _with(tile, READS))


def _of_product(g: Product, machine: Machine) -> tuple[int, int] | None:
    """runtime/gemm.h: the operand that is b_packed, and its bytes."""
    plan = plan_of(g, machine)
    if plan is None or g.type in PARTS or plan.constants.is_thin or plan.constants.b_in_place:
        return None
    inner, kind = plan.product, kind_of(g.type, machine)
    panels = -(-inner.n // kind.columns) * (1 if inner.b[:2] == (0, 0) else g.batches)
    corrections = -(-g.k // plan.constants.k_block) * kind.columns * kind.sum if kind.offsets_a else 0
    return 0 if plan.constants.exchanged else 1, panels * (kind.units(g.k) * kind.columns * kind.unit + corrections)


def _of_convolution(tile: Tile, machine: Machine) -> tuple[int, int] | None:
    """runtime/conv.h: w_packed."""
    plan = plan_of_tile(tile, machine)
    c, by = plan.convolution, plan.choices
    if c.batch_groups > 1 or plan.algorithm not in ("rows", "pairs", "winograd"):
        return None
    if plan.algorithm == "winograd":
        return 1, 4 * (transformed_filters(c, machine) + moved_filter(c, machine))
    return 1, by.first - 4 * by.at_panels             # none where each task packs its own panels


def _with(tile: Tile, fact: tuple[str, str]) -> Tile:
    return tile._replace(parameters=(*tile.parameters, fact))
