"""How long the C compiler will take for a piece of generated code: so that units which compile side by side are equal.

In: a kernel's function, or C text of a driver. Out: milliseconds, fitted to gcc -O2 on 660 kernels of the models
(correlation 0.88, where the length of the text alone has 0.37): what counts is less what is written than what is
inlined.

    kernel_cost(CFunction("k", text, calls=(("sin_f32", 1),)))         some 15 more than without the sine

And how long it took: which units, and which kernels in them. The compiler reports no time per function: a kernel's part
of its unit is estimated, but for one that stands alone.

    times: list[UnitTime] = []
    with timed(times, "kernels", functions): compile them
"""
from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.targets.c_function import CFunction

FUNCTION, PER_CHARACTER, LOOP, TEMPLATE = 6, 0.0054, 3.5, 77
DRIVER_PER_CHARACTER = 0.008
# Included once per instance.
TEMPLATES = ("gemm_tile.h", "gemm_kernel.h", "gemm_thin.h", "gemm_unit.h", "fft_lines.h", "fft_steps.h", "sort.h",
             "sort_network.h", "sort_select.h", "sort_piece.h", "sort_end.h", "generic.c", "topk.c", "generic_conv.h",
             "triangular_rows.h", "transpose_blocks.h")
# Functions of hloc/targets/c that are long once they are inlined, by their names without hloc_: milliseconds of each.
LONG = ("sin", "cos", "tan", "asin", "acos", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "atan2", "power",
        "log1p", "expm1", "erf", "erf_inv", "cbrt", "logistic")
CALLS = {**{f"{op}_{type}": 16 for op in LONG for type in ("f32", "f64")},
         **{f"{op}_{type}": 9 for op in ("exp", "log", "sqrt", "rsqrt") for type in ("f32", "f64")},
         **{name: milliseconds for type, milliseconds in (("f16", 17), ("bf16", 4))
            for name in (f"f32_to_{type}", f"{type}_to_f32", f"widen_row_{type}", f"narrow_row_{type}")},
         **{name: 6 for type in ELEMENT_TYPES if type[:2] in ("f8", "f6", "f4")
            for name in (f"f32_to_{type}", f"{type}_to_f32")}}
OF_COMPLEX = 58
SHORT_OF_COMPLEX = ("add", "subtract", "multiply", "negate", "real", "imag", "complex", "compare", "select", "convert")


def kernel_cost(function: CFunction) -> float:
    """Milliseconds for one kernel, without the start of the compiler; comments above it cost nothing."""
    templates = sum(header in TEMPLATES for header in function.headers)
    return (FUNCTION + PER_CHARACTER * function.size + LOOP * function.loops + TEMPLATE * templates
            + sum(_call_cost(name) * times for name, times in function.calls))


def _call_cost(name: str) -> float:
    if name.endswith(("_c64", "_c128")):
        return 0 if name.startswith(SHORT_OF_COMPLEX) else OF_COMPLEX
    return CALLS.get(name, 0)


def driver_cost(text: str) -> float:
    """Milliseconds for the driver."""
    return FUNCTION + DRIVER_PER_CHARACTER * len(text)


class KernelTime(NamedTuple):
    """A C function. about: the instruction that it computes ("" for one that kernels call); seconds: estimated, see
    above."""

    name: str
    about: str
    seconds: float


class UnitTime(NamedTuple):
    """One call of the C compiler. name: what it compiled; kernels: what the unit holds, the slowest first."""

    name: str
    seconds: float
    kernels: tuple[KernelTime, ...]


@contextmanager
def timed(times: list[UnitTime], name: str, functions: Sequence[CFunction] = ()) -> Iterator[None]:
    """Adds what is done inside to `times`. functions: of the unit."""
    start = time.perf_counter()
    yield
    times.append(unit_time(name, time.perf_counter() - start, functions))


def unit_time(name: str, seconds: float, functions: Sequence[CFunction]) -> UnitTime:
    """The seconds of a unit, dealt out to its kernels."""
    costs = [kernel_cost(f) for f in functions]
    each = [KernelTime(f.name, f.about, seconds * cost / sum(costs)) for f, cost in zip(functions, costs)]
    return UnitTime(name, seconds, tuple(sorted(each, key=lambda k: -k.seconds)))
