"""Functions whose whole work is one call of a library kernel.

    library_function(tile, "k0_fft", "fft.h", [], ("fft_f32", "&plan", ...))
      ->  void k0_fft(void *const *buffers) { if (hloc_fft_f32(&plan, ...)) hloc_out_of_memory = 1; }
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.kernels.ir import Tile
from hloc.targets.c_expressions import Call
from hloc.targets.c_function import CFunction, c_function, includes
from hloc.targets.printer import C, StatementPrinter, comment

OUT_OF_MEMORY = "extern _Thread_local int hloc_out_of_memory;"


def library_function(tile: Tile, name: str, header: str, facts: Iterable[str], call: Call,
                     declared: str = "") -> tuple[CFunction]:
    """facts: lines before the call, which returns whether memory was missing; declared: what it calls back."""
    printer = StatementPrinter(C)
    lines = [
        *comment(tile.origin), *includes([header]), *declared.splitlines(), OUT_OF_MEMORY,
        f"void {name}(void *const *buffers) {{", *facts, f"  if ({printer.call(*call)}) hloc_out_of_memory = 1;", "}",
        ""]
    return (c_function(name, lines, printer, headers=[header], origin=tile.origin),)


def fields_text(**values: object) -> str:
    """Designated initializers: .m = 3, .a_row = 1; sequences become braces."""
    return ", ".join(f".{name} = {_value(v)}" for name, v in values.items())


def _value(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return "{" + ", ".join(_value(v) for v in value) + "}"
    return str(int(value)) if isinstance(value, bool) else str(value)


def fits(kernel: str, *sizes: int) -> str:
    """A line of C by which the program links only with a library kernel compiled for these sizes (runtime/fits.h)."""
    return f"  HLOC_PLANNED_FOR({kernel}, {', '.join(str(int(size)) for size in (*sizes, 0, 0, 0)[:4])})"
