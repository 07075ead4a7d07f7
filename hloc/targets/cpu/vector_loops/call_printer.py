"""Prints two nested loops that transpose elements as a call of a library function (runtime/transpose.h), which shuffles
registers.

In: a kernel's statements. Out: C text, and the headers to include for its calls.

    for j < 64: for i < 32 (VECTOR): t[64 i + j] = x[500 j + i]     ->   hloc_transpose_32(x, 500, t, 64, 64, 32);
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import affine, factor_of, factors_of, forms, without
from hloc.kernels.ir import INDEX, Const, Expr, For, Load, Store
from hloc.kernels.walks import are_lets
from hloc.targets.c_expressions import Call, ExpressionPrinter
from hloc.targets.cpu.program.interrupt_checks import InterruptCheck
from hloc.targets.printer import C, StatementPrinter

SIZES = (1, 2, 4, 8)            # bytes of an element
FEWEST = 4                      # rows, and columns: fewer fill too little of a register
HEADERS = {**dict.fromkeys(("widen_f16", "narrow_f32"), "half_rows.h"),
           **{f"transpose_{8 * size}": "transpose.h" for size in SIZES}}


class RowPrinter(StatementPrinter):
    """Prints C with such calls."""

    def __init__(self) -> None:
        super().__init__(C)

    def loop(self, s: For, indent: int) -> None:
        call = transpose_call(s, self)
        if call is not None:
            self.line(indent, f"{self.call(*call)};")
        else:
            super().loop(s, indent)

    def stop(self, s: InterruptCheck, indent: int) -> None:
        self.line(indent, "if (HLOC_STOPS()) return;")

    WRITERS: ClassVar[dict[type, Callable[..., None]]] = {
        **StatementPrinter.WRITERS, For: loop, InterruptCheck: stop}


def headers_of(calls: Collection[str]) -> tuple[str, ...]:
    """The files to include for calls of these functions."""
    return tuple(dict.fromkeys(header for name, header in HEADERS.items() if name in calls))


def transpose_call(loop: For, printer: ExpressionPrinter) -> Call | None:
    """The call, if one array is contiguous along one of two loops, and the other along the other; else None."""
    inner = loop.body[-1] if loop.body else None
    store = inner.body[-1] if isinstance(inner, For) and inner.body else None
    if not isinstance(inner, For) or not isinstance(store, Store) or not isinstance(store.value, Load) \
            or store.buffer == store.value.buffer:
        return None
    before = (*loop.body[:-1], *inner.body[:-1])
    known = forms(before)
    length = Const(inner.extent, INDEX) if isinstance(inner.extent, int) else affine(inner.extent, known)
    target, source = affine(store.position, known), affine(store.value.position, known)
    if not are_lets(before) or any(s.name not in known or factors_of(known[s.name]) is None for s in before) \
            or any(factors_of(form) is None for form in (target, source, length)) or factor_of(length, loop.name):
        return None
    outer, inside = (loop.name, loop.extent), (inner.name, length.integer if isinstance(length, Const) else length)
    for row, column in ((outer, inside), (inside, outer)):
        if factor_of(target, row[0]) == factor_of(source, column[0]) == 1:
            break
    else:
        return None
    pitches, bytes = (factor_of(source, row[0]), factor_of(target, column[0])), ELEMENT_TYPES[store.value.type].bytes
    if bytes not in SIZES or min(pitches) < 1 \
            or any(isinstance(extent, int) and extent < FEWEST for _, extent in (row, column)):
        return None
    start, to = (_pointer(name, without(form, loop.name, inner.name), printer)
                 for name, form in ((store.value.buffer, source), (store.buffer, target)))
    rows, columns = (printer.extent(extent) for _, extent in (row, column))
    return f"transpose_{8 * bytes}", start, str(pitches[0]), to, str(pitches[1]), rows, columns


def _pointer(buffer: str, place: Expr, printer: ExpressionPrinter) -> str:
    """The C expression for that position in a buffer."""
    return buffer if place == Const(0, INDEX) else f"{buffer} + {printer.expression(place)}"
