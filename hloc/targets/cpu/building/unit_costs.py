"""How long the C compiler will take for a piece of generated code: so that units which compile side by side are equal.

In: a kernel's function, or C text of a driver. Out: milliseconds, fitted to gcc -O2 on 660 kernels of the models
(correlation 0.88, where the length of the text alone has 0.37): what counts is less what is written than what is
inlined.

    kernel_cost(CFunction("k", text, calls=(("sin_f32", 1),)))         some 15 more than without the sine
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES
from hloc.targets.c_function import CFunction

FUNCTION, PER_CHARACTER, LOOP, TEMPLATE = 6, 0.0054, 3.5, 77
DRIVER_PER_CHARACTER = 0.008
# Included once per instance.
TEMPLATES = ("gemm_tile.h", "gemm_kernel.h", "gemm_thin.h", "gemm_plain.h", "fft_lines.h", "fft_steps.h", "sort.h",
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
