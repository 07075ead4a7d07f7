"""Cholesky factorizations and triangular solves: Tiles -> C that calls runtime/triangular.h with a plan.

In: a Tile as in hloc/kernels/library_kernels/whole_arrays.py. Out: its function.

    cholesky(tile, "k0_cholesky", machine)     "... hloc_cholesky_f32(&plan, buffers[0], buffers[1]) ..."
"""
from __future__ import annotations

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.c_function import CFunction
from hloc.targets.cpu.plans.slots import constants_text
from hloc.targets.cpu.plans.triangular import PANEL, plan_of_cholesky, plan_of_system, tile_rows
from hloc.targets.cpu.tiles.library_calls import fits, library_function


def cholesky(tile: Tile, name: str, machine: Machine) -> tuple[CFunction]:
    plan = constants_text(plan_of_cholesky(tile, machine).constants)
    return _function(tile, name, "cholesky", f"  static const hloc_cholesky_plan plan = {plan};", machine)


def triangular_solve(tile: Tile, name: str, machine: Machine) -> tuple[CFunction]:
    plan = constants_text(plan_of_system(tile, machine).constants)
    return _function(tile, name, "trisolve", f"  static const hloc_system_plan plan = {plan};", machine)


def _function(tile: Tile, name: str, kind: str, plan: str, machine: Machine) -> tuple[CFunction]:
    kernel = f"{kind}_{tile.buffers[0].type}"
    arrays = (f"buffers[{n}]" for n in range(len(tile.buffers)))
    sizes = fits(kernel, machine.vector_bytes, tile_rows(machine), PANEL)
    return library_function(tile, name, "triangular.h", [plan, sizes], (kernel, "&plan", *arrays))
