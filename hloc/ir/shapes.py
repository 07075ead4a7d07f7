"""Shapes and layouts: immutable values, compared by content.

    Shape("f32", (2, 3), layout=Layout((1, 0)))   prints f32[2,3]{1,0}
    Shape.tuple([a, b])                           prints (a, b)

Dimensions are in elements. A bounded dynamic dimension keeps its bound and is marked in `dynamic_dimensions`;
an unbounded one has the size UNBOUNDED. Source: xla/shape.h, xla/layout.h.
"""
from __future__ import annotations

import builtins
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hloc.ir.types import ELEMENT_TYPES

UNBOUNDED = -1
HOST_SPACE = 5                  # the memory space of the host, S(5): xla/layout.h, Layout::kHostMemorySpace
_SPACE = re.compile(r"S\((\d+)\)")
_AGGREGATES = ("tuple", "buffer")
_WITHOUT_ELEMENTS = (*_AGGREGATES, "token", "opaque")


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of an array in memory. `minor_to_major[0]` is the contiguous dimension.

    `suffix` is the text after the colon (tiles, memory space, element size ...) in XLA's canonical spelling.
    """

    minor_to_major: tuple[int, ...]
    suffix: str = ""

    @property
    def memory_space(self) -> int:
        """The number of the memory that holds the array: 0, or that of S(n)."""
        found = _SPACE.search(self.suffix)
        return int(found[1]) if found else 0

    def __str__(self) -> str:
        order = ",".join(map(str, self.minor_to_major))
        return f"{{{order}:{self.suffix}}}" if self.suffix else f"{{{order}}}"


_default_layouts: tuple[Layout, ...] = tuple(Layout(tuple(range(rank - 1, -1, -1))) for rank in range(16))


def default_layout(rank: int) -> Layout:
    """Row-major: the last dimension is the most minor."""
    return _default_layouts[rank] if rank < 16 else Layout(tuple(range(rank - 1, -1, -1)))


@dataclass(frozen=True, slots=True)
class Shape:
    """An array, a tuple of shapes, a token or an opaque. `tuple_shapes` is () but for a tuple or a buffer."""

    element_type: str
    dimensions: tuple[int, ...] = ()
    tuple_shapes: tuple[Shape, ...] = ()
    dynamic_dimensions: tuple[bool, ...] = ()      # () when all dimensions are static
    layout: Layout | None = None

    @staticmethod
    def tuple(shapes: Iterable[Shape]) -> Shape:
        return Shape("tuple", (), tuple(shapes))

    @property
    def is_array(self) -> bool:
        return self.element_type not in _WITHOUT_ELEMENTS

    @property
    def is_aggregate(self) -> bool:
        """Whether it is made of `tuple_shapes`: a tuple (an empty one too) or a buffer."""
        return self.element_type in _AGGREGATES

    @property
    def is_tuple(self) -> bool:
        return self.element_type == "tuple"

    @property
    def is_token(self) -> bool:
        return self.element_type == "token"

    @property
    def rank(self) -> int:
        return len(self.dimensions)

    @property
    def kind(self) -> str:
        """pred, signed, unsigned, float, complex or other."""
        return ELEMENT_TYPES[self.element_type].kind

    @property
    def is_dynamic(self) -> bool:
        """Whether this array (not its tuple elements) has a dynamic dimension."""
        return any(self.dynamic_dimensions)

    @property
    def num_elements(self) -> int:
        """Elements of an array (bounds of dynamic dimensions); 0 for other shapes."""
        return math.prod(self.dimensions) if self.is_array else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays in the shape; types under a byte take one byte per element."""
        return sum(leaf.num_elements * ELEMENT_TYPES[leaf.element_type].bytes for leaf in leaves(self))

    @property
    def minor_to_major(self) -> builtins.tuple[int, ...]:
        """The layout's order; row-major without a layout."""
        return self.layout.minor_to_major if self.layout else default_layout(self.rank).minor_to_major

    @property
    def has_default_layout(self) -> bool:
        """Row-major without tiles (or without a layout)."""
        return self.minor_to_major == default_layout(self.rank).minor_to_major

    def with_layout(self, layout: Layout | None) -> Shape:
        return replace(self, layout=layout)

    def with_default_layout(self) -> Shape:
        """The same shape with every array in row-major order (tuples: element by element)."""
        if self.is_aggregate:
            return replace(self, tuple_shapes=tuple(s.with_default_layout() for s in self.tuple_shapes))
        return replace(self, layout=default_layout(self.rank)) if self.is_array else self

    @property
    def on_host(self) -> bool:
        """Whether this array (not its tuple elements) is in the host's memory, S(5)."""
        return self.layout is not None and bool(self.layout.suffix) and self.layout.memory_space == HOST_SPACE

    def in_space(self, on_host: bool) -> Shape:
        """The same array in the host's memory or the device's."""
        if self.on_host == on_host:
            return self
        suffix = self.layout.suffix if self.layout is not None else ""
        suffix = _SPACE.sub("", suffix) + (f"S({HOST_SPACE})" if on_host else "")
        return replace(self, layout=Layout(self.minor_to_major, suffix))

    def with_element_type(self, element_type: str) -> Shape:
        return replace(self, element_type=element_type)

    def with_dimensions(self, dimensions: Iterable[int]) -> Shape:
        """The same element type with other static dimensions, row-major."""
        dimensions = tuple(dimensions)
        return Shape(self.element_type, dimensions, layout=default_layout(len(dimensions)))

    def compatible(self, other: Shape) -> bool:
        """Equal except for layouts and dynamic dimensions, as XLA's ShapeUtil::Compatible."""
        if self is other:
            return True
        if self.element_type != other.element_type or self.dimensions != other.dimensions:
            return False
        mine, theirs = self.tuple_shapes, other.tuple_shapes
        return len(mine) == len(theirs) and all(a.compatible(b) for a, b in zip(mine, theirs))

    def __str__(self) -> str:
        return self.to_string(layouts=True)

    def to_string(self, layouts: bool = True) -> str:
        """XLA's text, e.g. (f32[2,3]{1,0}, token[])."""
        if self.element_type == "tuple":
            parts = [s.to_string(layouts) for s in self.tuple_shapes]
            marked = [f"/*index={i}*/{p}" if i and i % 5 == 0 else p for i, p in enumerate(parts)]
            return f"({', '.join(marked)})"
        if self.element_type == "buffer":
            (inner,) = self.tuple_shapes
            return f"b({inner.to_string(layouts)})"
        dynamic = self.dynamic_dimensions or (False,) * len(self.dimensions)
        dims = ",".join(map(_dimension_text, self.dimensions, dynamic))
        text = f"{self.element_type}[{dims}]"
        if layouts and self.layout is not None and (self.rank or self.layout.suffix):
            text += str(self.layout)
        return text


def _dimension_text(size: int, dynamic: bool) -> str:
    if size == UNBOUNDED:
        return "?"
    return f"<={size}" if dynamic else str(size)


def array(element_type: str, *dimensions: int) -> Shape:
    """A static row-major array shape: array("f32", 2, 3)."""
    return Shape(element_type, dimensions, layout=default_layout(len(dimensions)))


TOKEN = Shape("token")


def leaves(shape: Shape) -> Iterator[Shape]:
    """The array shapes inside, in order, without tokens and opaques."""
    stack = [shape]
    while stack:
        top = stack.pop()
        if top.is_aggregate:
            stack.extend(reversed(top.tuple_shapes))
        elif top.is_array:
            yield top


def parts_of(shape: Shape) -> list[Shape]:
    """All parts that are no tuples, in order: arrays, tokens, opaques. A sharding annotation has one entry for each."""
    found, stack = [], [shape]
    while stack:
        top = stack.pop()
        if not top.is_aggregate:
            found.append(top)
        else:
            stack.extend(reversed(top.tuple_shapes))
    return found


def row_major(dimensions: Sequence[int]) -> tuple[int, ...]:
    """Elements between neighbours along each dimension of a row-major array."""
    result = [1] * len(dimensions)
    for d in range(len(dimensions) - 2, -1, -1):
        result[d] = result[d + 1] * dimensions[d + 1]
    return tuple(result)


def strides(shape: Shape) -> tuple[int, ...]:
    """Elements between neighbours along each dimension, by the layout's order (tiles are not applied)."""
    result = [0] * shape.rank
    step = 1
    for dimension in shape.minor_to_major:
        result[dimension] = step
        step *= shape.dimensions[dimension]
    return tuple(result)
