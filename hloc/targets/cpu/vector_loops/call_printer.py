"""Prints loops as calls of library functions: conversions of contiguous f16 (half_conversion.py), transposing copies
(transpose_calls.py), moves of small pixels (pixel_calls.py), and functions of rows (function_calls.py).

In: a kernel's statements. Out: C text; `headers`: the includes that the calls need.
"""
from __future__ import annotations

import re
from itertools import count

from hloc.kernels.ir import INDEX, PARALLEL, SERIAL, Apply, Const, For, Let, Var
from hloc.targets.cpu.program.interrupt_checks import InterruptCheck
from hloc.targets.cpu.vector_loops.function_calls import function_call
from hloc.targets.cpu.vector_loops.half_conversion import FUNCTIONS, ROUNDING, SINGLE, row_call
from hloc.targets.cpu.vector_loops.pixel_calls import FUNCTIONS as PIXELS
from hloc.targets.cpu.vector_loops.pixel_calls import pixel_call
from hloc.targets.cpu.vector_loops.streaming_store_calls import FUNCTION as STREAMING
from hloc.targets.cpu.vector_loops.streaming_store_calls import streaming_store_call
from hloc.targets.cpu.vector_loops.transpose_calls import FUNCTION as TRANSPOSING
from hloc.targets.cpu.vector_loops.transpose_calls import transpose_calls
from hloc.targets.printer import C, StatementPrinter

HEADERS = {"half_rows.h": re.compile(rf"\b({'|'.join((*FUNCTIONS.values(), ROUNDING, *SINGLE))})\("),
           "transpose.h": re.compile(rf"\b{TRANSPOSING}\d+\("), "stream_rows.h": re.compile(rf"\b{STREAMING}\("),
           "pixels.h": re.compile(rf"\b({'|'.join(PIXELS)})\(")}


class RowPrinter(StatementPrinter):
    """Prints C with such calls; far: arrays of streaming_store_calls.py."""

    def __init__(self, far: frozenset[str] = frozenset()) -> None:
        super().__init__(C)
        self.far = far
        self.numbers = count()

    def loop(self, s: For, indent: int) -> None:
        call = row_call(s) or function_call(s) or streaming_store_call(s, self.far)
        calls = transpose_calls(s) if call is None else [call]
        for line in calls:
            self.line(indent, line)
        if not calls:
            super().loop(self.rest(s, indent), indent)

    def rest(self, s: For, indent: int) -> For:
        """The remaining iterations of a loop over pixels, after a call that does most of them."""
        call = pixel_call(s)
        if call is None:
            return s
        if s.kind == PARALLEL:
            self.line(indent, f"begin += {call};")
            return s
        moved, rest = Var(f"{s.name}_moved{next(self.numbers)}", INDEX), Var(f"{s.name}_rest", INDEX)
        self.line(indent, f"const long {moved.name} = {call};")
        total = Const(s.extent, INDEX) if isinstance(s.extent, int) else s.extent
        left = Apply("subtract", (total, moved), INDEX)
        return For(rest.name, left, SERIAL, (Let(s.name, Apply("add", (moved, rest), INDEX)), *s.body))

    def stop(self, s: InterruptCheck, indent: int) -> None:
        self.line(indent, "if (HLOC_STOPS()) return;")

    WRITERS = {**StatementPrinter.WRITERS, For: loop, InterruptCheck: stop}


def headers(text: str) -> list[str]:
    """The includes that the calls in C text need."""
    return [f'#include "{name}"' for name, call in HEADERS.items() if call.search(text)]
