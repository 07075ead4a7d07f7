"""Vector types of the loop IR: `f32x16` holds 16 f32, `mask32x16` the results of 16 comparisons in lanes of 32 bits.

    vector("f32", 16)        "f32x16"      vector("f32", 1): "f32"
    lanes_of("f32x16")       16            1 for the type of one element
    element_of("f32x16")     "f32"

Elements have the type that they have in memory; a pred in memory is a byte, so that there are both predx16 (stored) and
masks (computed). A mask's lanes have the width of what was compared; `convert` changes it.

Operations apply to all lanes, but for those of ACROSS_LANES. A Load or Store of a vector takes adjacent elements, which
need no alignment.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from hloc.ir import ELEMENT_TYPES

VECTOR_TYPE = re.compile(r"([a-z]\w*?)x(\d+)")
MASKS = {f"mask{bits}": bits for bits in (8, 16, 32, 64)}
ACROSS_LANES = {
    "splat": "all lanes have the value of a scalar",
    "series": "integers: lane i is start + i * immediate[0]; start is an INDEX",
    "shuffle": "lane i is lane immediate[i] of the first vector, behind whose lanes those of the second are counted",
    "lane": "the scalar in lane immediate[0]; of a mask a pred",
}


def vector(element: str, lanes: int) -> str:
    """The type of so many elements; of one, the element's own (of a mask pred)."""
    return f"{element}x{lanes}" if lanes > 1 else "pred" if element in MASKS else element


@cache
def _split(type: str) -> tuple[str, int]:
    match = VECTOR_TYPE.fullmatch(type)
    return (match[1], int(match[2])) if match and is_lane(match[1]) and int(match[2]) > 1 else (type, 1)


def is_lane(element: str) -> bool:
    """Whether a vector may hold elements of this type: whole bytes, and no complex numbers."""
    facts = ELEMENT_TYPES.get(element)
    return element in MASKS or facts is not None and facts.bits in (8, 16, 32, 64) and facts.kind != "complex"


def is_vector(type: str) -> bool:
    return _split(type)[1] > 1


def lanes_of(type: str) -> int:
    return _split(type)[1]


def element_of(type: str) -> str:
    return _split(type)[0]


def bits_of(element: str) -> int:
    """The bits of one lane."""
    return MASKS.get(element) or ELEMENT_TYPES[element].bits


def bytes_of(type: str) -> int:
    """The bytes of a vector, or of one element."""
    return bits_of(element_of(type)) * lanes_of(type) // 8


def compared(type: str) -> str:
    """The type of a comparison of two vectors."""
    return vector(f"mask{bits_of(element_of(type))}", lanes_of(type))


def fault(op: str, types: Sequence[str], result: str, immediate: Sequence[int]) -> str:
    """What is wrong with the types of an operation that has vectors among arguments and result; "" if nothing is.
    Operations on all lanes: only the number of lanes, and the widths of masks, which scalars do not have."""
    first, lanes = types[0], lanes_of(result)
    if op == "splat":
        fine = lanes > 1 and list(types) == [vector(element_of(result), 1)]
    elif op == "series":
        kind = ELEMENT_TYPES[element_of(result)].kind if element_of(result) in ELEMENT_TYPES else ""
        fine = lanes > 1 and list(types) == ["index"] and kind in ("signed", "unsigned") and len(immediate) == 1
    elif op == "shuffle":
        fine = len(types) == 2 and types[0] == types[1] and element_of(first) == element_of(result) \
            and len(immediate) == lanes > 1 and all(0 <= i < 2 * lanes_of(first) for i in immediate)
    elif op == "lane":
        fine = result == vector(element_of(first), 1) and len(immediate) == 1 and 0 <= immediate[0] < lanes_of(first)
    else:
        fine = all(lanes_of(t) == lanes for t in types)
        if op == "select":
            fine = fine and types[0] == compared(result)
    return "" if fine else "no such operation on vectors of these types"
