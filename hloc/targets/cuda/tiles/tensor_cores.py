"""Number formats of tensor cores: element types and an algorithm -> Numbers, the struct of numbers.cuh to use.

    numbers_of("bf16", "bf16", "f32", "", gpu).name == "hloc_numbers_bf16"
    numbers_of("f32", "f32", "f32", "dot_tf32_tf32_f32", gpu).name == "hloc_numbers_tf32<1, 0>"

Products of f32 without an algorithm are computed at full precision, without tensor cores.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.machine import Machine

F8 = ("f8e4m3fn", "f8e5m2")
TF32 = "dot_tf32_tf32_f32"
FIRST_F8 = 89                       # sm_89: the first architecture with f8 tensor cores


class Numbers(NamedTuple):
    """name: of the struct; element: C type in memory; stored_bytes: of an element in shared memory; word: elements per
    register; sums: type of the sums; parts: number of parts of a split word; products: of parts, per product of
    words."""

    name: str
    element: str
    stored_bytes: int
    word: int
    sums: str
    parts: int = 1
    products: int = 1


PLAIN = {"bf16": Numbers("hloc_numbers_bf16", "unsigned short", 2, 2, "f32"),
         "f16": Numbers("hloc_numbers_f16", "unsigned short", 2, 2, "f32"),
         "s8": Numbers("hloc_numbers_s8", "signed char", 1, 4, "s32")}
ALGORITHMS = {"dot_bf16_bf16_f32": Numbers("hloc_numbers_f32_as<hloc_rounded_bf16>", "float", 2, 2, "f32"),
              "dot_f16_f16_f32": Numbers("hloc_numbers_f32_as<hloc_rounded_f16>", "float", 2, 2, "f32"),
              TF32: Numbers("hloc_numbers_tf32<1, 0>", "float", 4, 1, "f32"),
              "dot_tf32_tf32_f32_x3": Numbers("hloc_numbers_tf32<2, 1>", "float", 4, 1, "f32", 2, 3),
              "dot_bf16_bf16_f32_x3": Numbers("hloc_numbers_split<2, 1>", "float", 4, 2, "f32", 2, 3),
              "dot_bf16_bf16_f32_x6": Numbers("hloc_numbers_split<3, 2>", "float", 4, 2, "f32", 3, 6),
              "dot_bf16_bf16_f32_x9": Numbers("hloc_numbers_split<3, 4>", "float", 4, 2, "f32", 3, 9)}


def numbers_of(lhs: str, rhs: str, total: str, algorithm: str, gpu: Machine) -> Numbers | None:
    """How tensor cores compute a product of these element types; None if they cannot."""
    found: Numbers | None
    if lhs in F8 and rhs in F8:
        found = _f8(lhs, rhs, gpu)
    elif lhs == rhs == "f32":
        found = ALGORITHMS.get(algorithm)
    else:
        found = PLAIN.get(lhs) if lhs == rhs else None
    return found if found and found.sums == total else None


def _f8(lhs: str, rhs: str, gpu: Machine) -> Numbers:
    if int(gpu.arch.removeprefix("sm_").rstrip("af")) >= FIRST_F8:
        return Numbers(f"hloc_numbers_{lhs}_{rhs}", "unsigned char", 1, 4, "f32")
    return Numbers(f"hloc_numbers_f8_as_f16<hloc_{lhs}_to_f32, hloc_{rhs}_to_f32>", "unsigned char", 2, 2, "f32")
