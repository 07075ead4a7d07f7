"""Views: arrays that can be read from another array's memory by strides.

In: a chain of reshapes, transposes, slices and broadcasts. Out: for each dimension of the reader its stride in the
memory at the end of the chain, or None if strides are not enough.

    transpose of f32[8,64], read as [64,8]                     strides 1 and 64
    reshape of that to [512]                                   None: neighbours are 64 apart, but not always
    slice {[0:8], [32:64]} of f32[8,64], read as [8,2,16]      strides 64, 16, 1
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.analysis.fusible import RESHAPES
from hloc.ir import Instruction, row_major

VIEWS = RESHAPES | {"transpose", "slice", "broadcast"}

View = tuple[tuple[int, int], ...]          # (size, stride) of each dimension of the reader, without those of size one


def collapsed(dimensions: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Dimensions (size, stride in each of some arrays), outermost first, without those of size one. Adjacent ones are
    one dimension where they are one in all arrays."""
    result: list[tuple[int, ...]] = []
    for size, *strides in dimensions:
        if size == 1:
            continue
        if result and all(outer == size * inner for outer, inner in zip(result[-1][1:], strides)):
            size *= result.pop()[0]
        result.append((size, *strides))
    return result


def whole(dimensions: tuple[int, ...]) -> View:
    """The view of an array itself."""
    return tuple((n, stride) for n, stride in zip(dimensions, row_major(dimensions)) if n != 1)


def behind(producer: Instruction, view: View) -> View | None:
    """The view of the producer's operand, where `view` is one of its result; None if there is none."""
    if producer.opcode in RESHAPES:
        return view
    if producer.opcode not in VIEWS or 0 in producer.shape.dimensions:
        return None
    sizes = producer.shape.dimensions
    strides = row_major(sizes)
    found = []
    for size, stride in view:
        if stride == 0:
            found.append((size, 0))
            continue
        home = next((d for d, n in enumerate(sizes) if n != 1 and stride % strides[d] == 0
                     and stride * size <= strides[d] * n), None)
        if home is None:
            return None
        found.append((size, stride // strides[home] * step_in_operand(producer, home)))
    return tuple(found)


def step_in_operand(producer: Instruction, dimension: int) -> int:
    """The stride in the operand's memory for one step along a dimension of the result."""
    source = producer.operands[0].shape.dimensions
    strides = row_major(source)
    if producer.opcode == "transpose":
        return strides[producer.get("dimensions")[dimension]]
    if producer.opcode == "slice":
        return strides[dimension] * producer.get("slice")[dimension].stride
    kept = producer.get("dimensions", ())
    if dimension not in kept or source[kept.index(dimension)] == 1:
        return 0
    return strides[kept.index(dimension)]
