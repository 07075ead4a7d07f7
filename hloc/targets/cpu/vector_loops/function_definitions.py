"""The functions of rows that kernels call instead of inlining them (function_outlining.py).

    static void hloc_row_sin_f32(float *to, const float *a0, long n) {
      #pragma omp simd
      for (long i = 0; i < n; i++) to[i] = hloc_sin_f32(a0[i]);
    }

In: statements of a kernel. Out: C definitions of the called functions, made by the passes for one such loop.
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.kernels.ir import INDEX, VECTOR, Apply, Buffer, For, Kernel, Load, Stmt, Store, Var
from hloc.kernels.walks import walk
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cpu.vector_loops.call_fission import call_fission
from hloc.targets.cpu.vector_loops.function_calls import name_of
from hloc.targets.cpu.vector_loops.function_outlining import ROUND, ROW
from hloc.targets.cpu.vector_loops.loop_schedules import loop_schedules
from hloc.targets.functions import guarded
from hloc.targets.printer import StatementPrinter, pointer_type
from hloc.targets.vectors import vector_definitions


def row_definitions(statements: Iterable[Stmt], machine: Machine, printer: StatementPrinter) -> list[str]:
    """The functions of rows that the statements call, each once; `printer` counts their calls and loops."""
    calls = {name_of(s.value): s.value for s in walk(statements)
             if isinstance(s, Store) and isinstance(s.value, Apply) and s.value.op.startswith(ROW)}
    return [guarded(f"hloc_{name}", _definition(name, call, machine, printer)) for name, call in calls.items()]


def _definition(name: str, call: Apply, machine: Machine, printer: StatementPrinter) -> str:
    i = Var("i", INDEX)
    rows = [Buffer(f"a{n}", a.type, 0) for n, a in enumerate(call.arguments)]
    arguments = tuple(Load(row.name, i, row.type) if isinstance(a, Load) else Var(row.name, row.type)
                      for row, a in zip(rows, call.arguments))
    parameters = [f"{pointer_type(row) if isinstance(a, Load) else c_type(a.type) + ' '}{row.name}"
                  for row, a in zip(rows, call.arguments)]
    op = call.op.removeprefix(ROW)
    value = Apply(op, arguments, call.type)
    if op.startswith(ROUND):
        value = Apply("convert", (Apply("convert", arguments, op.removeprefix(ROUND)),), call.type)
    loop = For("i", Var("n", INDEX), VECTOR, (Store("to", i, value),))
    kernel = loop_schedules(call_fission(Kernel("row", tuple(rows), (loop,)), machine), machine)
    signature = ", ".join((f"{c_type(call.type)} *to", *parameters, "long n"))
    head, body = f"HLOC_CALLED HLOC_WIDE void hloc_{name}({signature}) {{", printer.block(kernel.body, 1)
    return "\n".join([*vector_definitions(kernel.body, printer), head, body, "}"])
