"""Prints loops as calls of library functions (copy_calls.py).

In: a kernel's statements. Out: C text, and the headers to include for its calls.
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

from hloc.kernels.ir import For
from hloc.targets.cpu.program.interrupt_checks import InterruptCheck
from hloc.targets.cpu.vector_loops.copy_calls import SIZES, TRANSPOSING, transpose_call
from hloc.targets.printer import C, StatementPrinter

HEADERS = {**dict.fromkeys(("widen_f16", "narrow_f32"), "half_rows.h"),
           **{f"{TRANSPOSING}{8 * size}": "transpose.h" for size in SIZES}}


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

    @property
    def headers(self) -> tuple[str, ...]:
        """The files to include for the calls that were printed."""
        return headers_of(self.calls)

    WRITERS: ClassVar[dict[type, Callable[..., None]]] = {
        **StatementPrinter.WRITERS, For: loop, InterruptCheck: stop}


def headers_of(calls: Collection[str]) -> tuple[str, ...]:
    """The files to include for calls of these functions."""
    return tuple(dict.fromkeys(header for name, header in HEADERS.items() if name in calls))
