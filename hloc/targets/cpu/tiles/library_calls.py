"""Functions whose whole work is one call of a library kernel.

    library_function(tile, "k0_topk", "topk.h", [], ("topk_f32", "buffers[0]", ...))
      ->  void k0_topk(void *const *buffers) { if (hloc_topk_f32(buffers[0], ...)) hloc_out_of_memory = 1; }
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.kernels.ir import Tile
from hloc.targets.c_expressions import Call
from hloc.targets.c_function import CFunction, c_function, includes
from hloc.targets.printer import C, StatementPrinter, comment


def library_function(tile: Tile, name: str, header: str, facts: Iterable[str], call: Call) -> CFunction:
    """facts: lines before the call, which returns whether memory was missing."""
    printer = StatementPrinter(C)
    return c_function(name, [
        *comment(tile.origin), *includes([header]), "extern _Thread_local int hloc_out_of_memory;",
        f"void {name}(void *const *buffers) {{", *facts, f"  if ({printer.call(*call)}) hloc_out_of_memory = 1;", "}",
        ""], printer, headers=[header], origin=tile.origin)
