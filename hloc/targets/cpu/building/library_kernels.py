"""Which library kernels of runtime/ a program needs, by the functions that it calls.

In: names of functions. Out: names of units: a file of runtime/, or `generic.c:gemm_c64`, one function of a file with
many. Each unit is compiled once per machine (build.py), so a program should name only those that it calls.

    gemm_f32        gemm_f32.c
    conv_rows_f32   the algorithm of most convolutions
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hloc.machine import Machine
from hloc.targets.cpu.plans.complex_matmul import PARTS

FAST_TYPES = {"gemm": ("f32", "f64", "bf16", "f16", "s8", "s16", "s32", "s64"), "conv": ("f32", "bf16", "f16")}
# Matmuls whose sums have the same bits; of u8 and u16, the low bits that these types keep.
SAME_PRODUCT = {"u32": "s32", "u64": "s64", "u8": "s8", "u16": "s16", "pred": "s8"}
# The functions of runtime/generic.c, one per unit, and the types of the matmuls that they call, if not their own.
GENERIC = tuple(f"conv_{type}" for type in (
    "s32", "s64", "u32", "u64", "f64", "c64", "c128", "pred_s32", "s8_s32", "u8_s32", "s16_s32", "u16_s32"))
PRODUCT_OF = {"u32": "s32", "u64": "s64", "pred_s32": "s8", "s8_s32": "s8", "u8_s32": "s32", "s16_s32": "s16",
              "u16_s32": "s16"}
# Those of runtime/topk.c that an installation compiles; a program may ask for any type (plans/sorts.py, topk_elements).
TOPK = tuple(f"topk_{algorithm}_{elements}" for elements in ("f32_f32_32", "bf16_f32_16", "f16_f32_32", "s32_s32_32")
             for algorithm in ("rows", "pieces", "network", "select"))
ATTENTION_UNITS = {"": "attention.c", "pairs": "attention_pairs.c"}
# What a convolution by each algorithm (plans/convolution_algorithms.py) takes beside the product of its type.
ALGORITHM_UNITS = {"rows": ("conv_rows.c", "conv_tiles.c", "conv.c", "conv_dots.c", "conv_memory.c"),
             "pairs": ("conv_rows.c", "conv_tiles.c", "conv_pairs.c", "conv_memory.c"),
             "depthwise": ("conv_depthwise.c", "conv_memory.c"),
             "spread": ("gemm_f32.c", "conv_transposed.c", "conv_memory.c"),
             "winograd": ("conv_tiles.c", "conv_winograd.c", "conv_memory.c")}
ENTRIES = frozenset(["gemm", "topk", "conv", "fft", "attention", "cholesky", "trisolve", "transpose"])


def runtime_units(calls: Iterable[str]) -> list[str]:
    """The units of runtime/ that implement these functions, without the prefix hloc_; other functions need none."""
    entries = (name.partition("_") for name in calls)
    return [unit for kind, _, type in entries if kind in ENTRIES for unit in units_of(kind, type)]


def units_of(kind: str, type: str) -> list[str]:
    """The units for hloc_<kind>_<type>."""
    if kind == "topk":
        return [f"topk.c:topk_{type}"]
    if kind == "attention":
        return [ATTENTION_UNITS[type]]
    if kind in ("cholesky", "trisolve"):
        return [f"triangular_{type}.c"]
    if kind == "gemm" and type in PARTS:
        return [f"complex_{type}.c", f"gemm_{PARTS[type]}.c"]
    if kind not in FAST_TYPES:
        return [f"{kind}_{type}.c" if kind in ("fft", "transpose") else f"{kind}.c"]
    algorithm, _, operand = type.partition("_")
    if kind == "conv" and algorithm in ALGORITHM_UNITS:
        return list(ALGORITHM_UNITS[algorithm])
    if kind == "conv":
        return [f"generic.c:conv_{type}", *units_of("gemm", PRODUCT_OF.get(type, type))]
    return [f"gemm_{type}.c"]


def attention_kind(given: Mapping[str, Any], machine: Machine) -> str:
    """Which of ATTENTION_UNITS a Tile with such parameters (kernels/attention/attention.py) takes."""
    depth, types = given["sizes"][2], {*given["types"], given["weights"]}
    lies = all(row % 2 == 0 and step == 1 for _, row, step, _ in (given["query"], given["key"]))
    return "pairs" if types == {"bf16"} and machine.has_pairs and depth % 2 == 0 and lies else ""


def compilation(unit: str) -> tuple[str, tuple[str, ...]]:
    """The file of a unit, and its macros: those by which runtime/generic.c or topk.c makes one function, conv_s8_s32
    for one."""
    file, _, function = unit.partition(":")
    if not function:
        return file, ()
    kind, _, types = function.partition("_")
    if kind == "topk":
        return file, _topk_macros(types)
    operand, _, total = types.partition("_")
    return file, (
        f"-DHLOC_GENERIC_CONV={types}", f"-DHLOC_OPERAND={operand}", f"-DHLOC_TOTAL={total or operand}",
        f"-DHLOC_PRODUCT={PRODUCT_OF.get(types, types)}")


def _topk_macros(function: str) -> tuple[str, ...]:
    """Those by which runtime/topk.c makes one function, select_bf16_f32_16 for one."""
    algorithm, type, wide, bits = function.split("_")
    value = f"hloc_{type}_to_{wide}(x)" if wide != type and wide.startswith("f") else "x"
    key = value if wide == "pred" or wide.startswith("u") else f"hloc_sort_key_{wide}({value})"
    unused = 0 if wide == "pred" else int(wide[1:]) - int(bits)
    return (f"-DHLOC_GENERIC_TOPK={function}", f"-DHLOC_TOPK_{algorithm.upper()}", f"-DHLOC_TYPE=hloc_{type}",
            f"-DHLOC_KEY=({key} >> {unused})", f"-DHLOC_KEY_BITS={bits}")


def generic_conv(operand: str, total: str) -> str:
    """The entry for one of another type, and sums of type `total`."""
    return operand if operand == total else f"{operand}_{total}"
