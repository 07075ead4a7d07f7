"""Which sections of scalar.h (targets/c) a unit includes: all of them take gcc as long as a small kernel.

In: the C text of a unit, and the functions that it calls. Out: the text with #defines above it that base.h reads
(HLOC_READS).

    "... hloc_exp_f32(x) ...", ["exp_f32"]   ->   #define HLOC_ALL 0
                                                  #define HLOC_WITH_f32 1
                                                  #define HLOC_WITH_floats 1
                                                  ... hloc_exp_f32(x) ...
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.ir.types import ELEMENT_TYPES

INTEGERS = {"pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"}
FLOATS = {"f32", "f64"}
COMPLEX = {"c64", "c128"}
INVERSE = {"asin", "acos", "asinh", "acosh", "atanh"}
NEAR = {"near", "far"}
NARROW = set(ELEMENT_TYPES) - INTEGERS - FLOATS - COMPLEX | {"key", "odd"}
NAMED = {"convert": {"convert"}, "stochastic": {"stochastic"}, "random": {"threefry2x32", "philox4x32", "rotate"},
         "bits": {"popcnt", "count", "mulhi"}}
WORDS = frozenset({*ELEMENT_TYPES, "key", "odd", *INVERSE, *NEAR}.union(*NAMED.values()))


def words_in(text: str) -> frozenset[str]:
    """The words that may stand in names of functions which a text calls: with them, needed_sections names no section
    too few, and may name some too many."""
    return frozenset(word for word in WORDS if f"_{word}" in text)


def with_needed_sections(text: str, calls: Iterable[str]) -> str:
    """The unit with #defines for the sections of the functions that it calls."""
    names = ("ALL 0", *(f"WITH_{c} 1" for c in needed_sections(calls)))
    return "".join(f"#define HLOC_{name}\n" for name in names) + text


def needed_sections(calls: Iterable[str]) -> list[str]:
    """The arguments of HLOC_READS for functions, by their names without hloc_: types of computation, and sections,
    sorted."""
    words = {word for name in set(calls) for word in name.split("_")}
    found = {name for name, some in NAMED.items() if words & some}
    if words & COMPLEX or "stochastic" in found:
        found |= {"floats", *FLOATS}
    if words & COMPLEX:
        found |= {"complex"} | ({"inverse"} if words & INVERSE else set()) | ({"near"} if words & NEAR else set())
    if words & FLOATS:
        found |= {"floats"}
    if words & NARROW:
        found |= {"narrow"}
    if words & INTEGERS:
        found |= {"integers"}
    return sorted(found | words & (INTEGERS | FLOATS))
