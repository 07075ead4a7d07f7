"""Prints the loops that call a function for a row (function_outlining.py).

    for lane < n (SERIAL):  b[lane] = row_sin(a[lane])     ->      hloc_row_sin_f32(b, a, n);

In: a loop. Out: the call, in C; the called functions are in function_definitions.py.
"""
from __future__ import annotations

from hloc.kernels.ir import SERIAL, Apply, For, Load, Store
from hloc.targets.c_expressions import Call, ExpressionPrinter
from hloc.targets.cpu.vector_loops.function_outlining import ROW


def function_call(s: For, printer: ExpressionPrinter) -> Call | None:
    """The call that replaces a loop; None for other loops."""
    row = s.body[0] if len(s.body) == 1 and s.kind == SERIAL else None
    if not isinstance(row, Store) or not isinstance(row.value, Apply) or not row.value.op.startswith(ROW):
        return None
    arguments = [a.buffer if isinstance(a, Load) else printer.expression(a) for a in row.value.arguments]
    extent = printer.extent(s.extent)
    return (name_of(row.value), row.buffer, *arguments, extent)


def name_of(call: Apply) -> str:
    """The name without hloc_, from the function and its argument types; a suffix marks the rows if some arguments are
    not rows."""
    kinds = "".join("r" if isinstance(a, Load) else "x" for a in call.arguments)
    return f"{call.op}_{call.arguments[-1].type}" + (f"_{kinds}" if "x" in kinds else "")
