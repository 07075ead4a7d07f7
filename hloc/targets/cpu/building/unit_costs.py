"""How long the C compiler will take for a piece of generated code: so that units which compile side by side are equal.

In: C text of a kernel or driver. Out: milliseconds, fitted to gcc -O2 on 660 kernels of the models (correlation 0.88,
where the length of the text alone has 0.37): what counts is less what is written than what is inlined.

    kernel_cost("... hloc_sin_f32(x) ...")         some 15 more than without the sine
"""
from __future__ import annotations

import re

FUNCTION, PER_CHARACTER, LOOP, TEMPLATE = 6, 0.0054, 3.5, 77
DRIVER_PER_CHARACTER = 0.008
# Included once per instance.
TEMPLATES = ("gemm_tile.h", "gemm_kernel.h", "gemm_choice.h", "gemm_thin.h", "fft_lines.h", "fft_steps.h", "sort.h",
             "sort_network.h", "sort_select.h", "sort_piece.h", "sort_end.h", "generic_conv.h", "triangular_rows.h",
             "transpose_blocks.h")
_LOOP = re.compile(r"\bfor \(")
# Functions of hloc/targets/c that are long once they are inlined.
_CALLS = tuple((re.compile(rf"\bhloc_(?:{names})\("), milliseconds) for names, milliseconds in (
    (r"(?!add|subtract|multiply|negate|real|imag|complex|compare|select|convert)\w+_c(?:64|128)", 58),
    (r"(?:sin|cos|tan|tanh|atan2|power|log1p|expm1|erf|erf_inv|cbrt|logistic|a?cosh?|a?sinh?|atanh)_f(?:32|64)", 16),
    (r"(?:exp|log|r?sqrt)_f(?:32|64)", 9),
    (r"f32_to_f16|f16_to_f32|(?:widen|narrow)_row_f16", 17),
    (r"f32_to_f[864]\w*|f[864]e\w*_to_f32", 6),
    (r"f32_to_bf16|bf16_to_f32|(?:widen|narrow)_row_bf16", 4)))


def kernel_cost(text: str) -> float:
    """Milliseconds for one kernel, without the start of the compiler; comments above it cost nothing."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("/*"))
    templates = sum(code.count(f'#include "{name}"') for name in TEMPLATES)
    return (FUNCTION + PER_CHARACTER * len(code) + LOOP * len(_LOOP.findall(code)) + TEMPLATE * templates
            + sum(milliseconds * len(calls.findall(code)) for calls, milliseconds in _CALLS))


def driver_cost(text: str) -> float:
    """Milliseconds for the driver."""
    return FUNCTION + DRIVER_PER_CHARACTER * len(text)
