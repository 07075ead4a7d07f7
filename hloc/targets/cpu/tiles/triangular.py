"""Cholesky factorizations and triangular solves: Tiles -> C that calls runtime/triangular.h.

In: a Tile as in hloc/kernels/library_kernels/triangular.py. Out: the text of a function.

    cholesky(tile, "k0_cholesky", machine)     "... hloc_cholesky_f32(1, 64, 8, buffers[0], buffers[1]) ..."
"""
from __future__ import annotations

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.printer import comment


def cholesky(tile: Tile, name: str, machine: Machine) -> str:
    given, type = dict(tile.parameters), tile.buffers[0].type
    sizes = f"{int(given['lower'])}, {given['size']}, {given['batch']}"
    return _function(tile, name, [], f"hloc_cholesky_{type}({sizes}, buffers[0], buffers[1])")


def triangular_solve(tile: Tile, name: str, machine: Machine) -> str:
    given, type = dict(tile.parameters), tile.buffers[0].type
    forms = ", ".join(str(int(given[key])) for key in ("left_side", "lower", "transpose", "unit_diagonal"))
    facts = f"  static const hloc_trisolve s = {{{given['size']}, {given['sides']}, {given['batch']}, {forms}}};"
    return _function(tile, name, [facts], f"hloc_trisolve_{type}(&s, buffers[0], buffers[1], buffers[2])")


def _function(tile: Tile, name: str, facts: list[str], call: str) -> str:
    return "\n".join([*comment(tile.origin), '#include "triangular.h"', "extern int hloc_out_of_memory;",
                      f"void {name}(void *const *buffers) {{", *facts,
                      f"  if ({call}) hloc_out_of_memory = 1;", "}", ""])
