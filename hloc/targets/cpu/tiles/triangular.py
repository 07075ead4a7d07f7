"""Cholesky factorizations and triangular solves: Tiles -> C that calls runtime/triangular.h.

In: a Tile as in hloc/kernels/library_kernels/triangular.py. Out: its function.

    cholesky(tile, "k0_cholesky", machine)     "... hloc_cholesky_f32(1, 64, 8, buffers[0], buffers[1]) ..."
"""
from __future__ import annotations

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.c_function import CFunction
from hloc.targets.cpu.tiles.library_calls import library_function


def cholesky(tile: Tile, name: str, machine: Machine) -> CFunction:
    given, type = dict(tile.parameters), tile.buffers[0].type
    sizes = (str(int(given["lower"])), str(given["size"]), str(given["batch"]))
    return library_function(tile, name, "triangular.h", [], (f"cholesky_{type}", *sizes, "buffers[0]", "buffers[1]"))


def triangular_solve(tile: Tile, name: str, machine: Machine) -> CFunction:
    given, type = dict(tile.parameters), tile.buffers[0].type
    forms = ", ".join(str(int(given[key])) for key in ("left_side", "lower", "transpose", "unit_diagonal"))
    facts = f"  static const hloc_trisolve s = {{{given['size']}, {given['sides']}, {given['batch']}, {forms}}};"
    arrays = (f"buffers[{n}]" for n in range(3))
    return library_function(tile, name, "triangular.h", [facts], (f"trisolve_{type}", "&s", *arrays))
