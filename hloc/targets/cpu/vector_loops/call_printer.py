"""Prints loops as calls of library functions: copies (copy_calls.py), moves of small pixels
(pixel_calls.py).

In: a kernel's statements. Out: C text, and the headers to include for its calls.
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from typing import ClassVar

from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, PARALLEL, SERIAL, Const, For, Let, Var
from hloc.targets.cpu.program.interrupt_checks import InterruptCheck
from hloc.targets.cpu.vector_loops.copy_calls import SIZES, STREAMING, TRANSPOSING, streaming_store_call, transpose_call
from hloc.targets.cpu.vector_loops.pixel_calls import FUNCTIONS as PIXELS
from hloc.targets.cpu.vector_loops.pixel_calls import pixel_call
from hloc.targets.printer import C, StatementPrinter

HEADERS = {**dict.fromkeys(("widen_f16", "narrow_f32"), "half_rows.h"),
           **{f"{TRANSPOSING}{8 * size}": "transpose.h" for size in SIZES}, STREAMING: "stream_rows.h",
           **dict.fromkeys(PIXELS, "pixels.h")}


class RowPrinter(StatementPrinter):
    """Prints C with such calls; far: arrays of streaming_store_call."""

    def __init__(self, far: frozenset[str] = frozenset()) -> None:
        super().__init__(C)
        self.far = far
        self.numbers = count()

    def loop(self, s: For, indent: int) -> None:
        call = streaming_store_call(s, self.far, self) or transpose_call(s, self)
        if call is not None:
            self.line(indent, f"{self.call(*call)};")
        else:
            super().loop(self.rest(s, indent), indent)

    def rest(self, s: For, indent: int) -> For:
        """The remaining iterations of a loop over pixels, after a call that does most of them."""
        found = pixel_call(s, self)
        if found is None:
            return s
        call = self.call(*found)
        if s.kind == PARALLEL:
            self.line(indent, f"begin += {call};")
            return s
        moved, rest = Var(f"{s.name}_moved{next(self.numbers)}", INDEX), Var(f"{s.name}_rest", INDEX)
        self.line(indent, f"const long {moved.name} = {call};")
        total = Const(s.extent, INDEX) if isinstance(s.extent, int) else s.extent
        left = index_apply("subtract", total, moved)
        return For(rest.name, left, SERIAL, (Let(s.name, index_apply("add", moved, rest)), *s.body))

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
