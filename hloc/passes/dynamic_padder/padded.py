"""The representation of an array with dynamic dimensions: an array at the bounds, and a size for each such dimension.

    f32[<=8,4] x      =>      Padded(f32[8,4] array, (s32[] size, None))

Elements beyond the sizes are arbitrary; ops that read them first set them to a value (`Sizes.masked`).
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from hloc.ir import Instruction, Shape, array, leaves
from hloc.passes.expressions import Expressions


class Padded(NamedTuple):
    """sizes: one per dimension, None if the dimension is static."""

    array: Instruction
    sizes: tuple[Instruction | None, ...]

    @property
    def rank(self) -> int:
        return len(self.sizes)


def has_dynamic(shape: Shape) -> bool:
    """Whether an array in the shape has a dynamic dimension."""
    return any(leaf.is_dynamic for leaf in leaves(shape))


def static(shape: Shape) -> Shape:
    """The array shape with its bounds as sizes."""
    return replace(shape, dynamic_dimensions=()) if shape.is_dynamic else shape


class Sizes(Expressions):
    """Expressions of sizes (s32 scalars), and of arrays with sizes."""

    def number(self, value: int) -> Instruction:
        return self.constant(value, "s32")

    def size(self, x: Padded, dimension: int) -> Instruction:
        known = x.sizes[dimension]
        return known if known is not None else self.number(x.array.shape.dimensions[dimension])

    def product(self, factors: list[Instruction]) -> Instruction:
        result = self.number(1)
        for factor in factors:
            result = self.op("multiply", result, factor)
        return result

    def plus(self, x: Instruction, value: int) -> Instruction:
        return self.op("add", x, self.number(value)) if value else x

    def times(self, x: Instruction, value: int) -> Instruction:
        return self.op("multiply", x, self.number(value)) if value != 1 else x

    def over(self, x: Instruction, value: int) -> Instruction:
        """x / value rounded down, for nonnegative x."""
        return self.op("divide", x, self.number(value)) if value != 1 else x

    def at_least(self, x: Instruction, value: int) -> Instruction:
        return self.op("maximum", x, self.number(value))

    def inside(self, x: Padded, dimensions: list[int]) -> Instruction | None:
        """pred: the element is within the sizes of these dimensions. None if all of them are static."""
        found: Instruction | None = None
        sizes = x.array.shape.dimensions
        for d in dimensions:
            size = x.sizes[d]
            if size is None:
                continue
            place = self.iota("s32", sizes, d)
            within = self.compare(place, "LT", self.spread(size, place.shape))
            found = within if found is None else self.op("and", found, within)
        return found

    def masked(self, x: Padded, value: Instruction | Any, dimensions: list[int] | None = None) -> Instruction:
        """The array with `value` (a scalar instruction, or a number) beyond the sizes of `dimensions`, or of all."""
        inside = self.inside(x, list(range(x.rank)) if dimensions is None else dimensions)
        if inside is None:
            return x.array
        if not isinstance(value, Instruction):
            value = self.constant(value, x.array.shape.element_type)
        shape = array(x.array.shape.element_type, *x.array.shape.dimensions)
        return self.chosen(inside, x.array, self.spread(value, shape))
