"""The pieces of random HLO modules (random_modules.py): choices, and a computation that is being written.

    Seeded(7)                    choices from a seed, the same ones everywhere
    Drawn(draw, st.integers)     choices by hypothesis, which then makes the module smaller

A module is written computation by computation. A Body is one of them while it is being written: it knows the values that
are there, gives one that fits a wish (`some`, `like`), or makes one. What kinds of instructions there are stands in
random_ops.py; everything here and there asks a Choices, so that one source of choices drives it all.
"""
from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hloc.ir import ELEMENT_TYPES

COMMON = ("f32",) * 8 + ("s32",) * 4 + ("pred",) * 2
RARE = tuple(name for name, row in ELEMENT_TYPES.items() if row.dtype is not None)
SIZES = (1, 2, 3, 4, 5, 2, 3, 4, 7, 8, 1, 17, 0)
LARGE_SIZES = (1, 2, 3, 4, 5, 16, 17, 31, 33, 64, 65, 8, 100, 127, 0, 9)    # some vectors, and what is left of one
EDGE_SIZES = (1, 0, 2, 1, 3, 5, 0, 7, 11, 13)                              # none, one, primes
MOST_ELEMENTS, MOST_IN_LARGE = 700, 60_000
INTEGERS = ("s32", "s32", "s64", "u32", "s8", "u8", "u64", "s16")


def braces(numbers: Sequence[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def joined(numbers: Sequence[Any]) -> str:
    return "x".join(map(str, numbers))


class Choices:
    """Where all decisions come from; a subclass says how a number is chosen."""

    def integer(self, low: int, high: int) -> int:
        raise AssertionError("a subclass chooses")

    def pick(self, items: Sequence[Any]) -> Any:
        return items[self.integer(0, len(items) - 1)]

    def chance(self, percent: int) -> bool:
        """True in about `percent` of 100 cases; the simplest choice is False."""
        return self.integer(0, 99) >= 100 - percent

    def subset(self, items: Sequence[Any], count: int) -> list[Any]:
        """`count` different ones, in their order."""
        left = list(items)
        while len(left) > count:
            del left[self.integer(0, len(left) - 1)]
        return left

    def order(self, items: Sequence[Any]) -> list[Any]:
        left, found = list(items), []
        while left:
            found.append(left.pop(self.integer(0, len(left) - 1)))
        return found


class Seeded(Choices):
    """Choices from a seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)


class Drawn(Choices):
    """Choices by hypothesis: `draw` is what composite strategies get."""

    def __init__(self, draw: Callable, integers: Callable):
        self.draw, self.integers = draw, integers

    def integer(self, low: int, high: int) -> int:
        return self.draw(self.integers(low, high)) if high > low else low


class Value(NamedTuple):
    """An array that a computation has computed."""

    name: str
    type: str
    dims: tuple[int, ...]

    @property
    def kind(self) -> str:
        return ELEMENT_TYPES[self.type].kind

    @property
    def size(self) -> int:
        return math.prod(self.dims)


class Program:
    """The module while it is being written."""

    def __init__(self, choices: Choices, layouts: bool, types: Sequence[str], large: bool = False, edges: bool = False):
        self.choices, self.layouts, self.types, self.edges = choices, layouts, types, edges
        self.sizes = LARGE_SIZES if large else EDGE_SIZES if edges else SIZES
        self.most_elements = MOST_IN_LARGE if large else MOST_ELEMENTS
        self.computations: list[str] = []
        self.known: dict[str, str] = {}          # computations that are shared, by what they compute
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem.replace('-', '_')}.{self.count}"

    def shared(self, key: str, text: str) -> str:
        """The name of a computation with this text: `$` stands for its name."""
        if key not in self.known:
            self.known[key] = self.name(key.split(" ")[0])
            self.computations.append(text.replace("$", self.known[key]))
        return self.known[key]

    def element_type(self) -> str:
        return self.choices.pick(self.types)

    def dims(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.choices.pick((2, 1, 2, 3, 0, 1, 4)) if rank is None else rank
        dims = [self.choices.pick(self.sizes) for _ in range(rank)]
        while math.prod(dims) > self.most_elements:
            dims[dims.index(max(dims))] = 2
        return tuple(dims)

    def shape(self, element_type: str, dims: Sequence[int], plain: bool = False) -> str:
        """The text of a shape; with a layout of its own in modules that have layouts."""
        text = f"{element_type}[{','.join(map(str, dims))}]"
        if not self.layouts or len(dims) < 2 or plain or not self.choices.chance(60):
            return text
        return f"{text}{{{','.join(map(str, self.choices.order(range(len(dims)))))}}}"


class Body:
    """A computation while it is being written. `makers` are the kinds of instructions that it may hold."""

    def __init__(self, program: Program, makers: Sequence[Callable[[Body], None]], depth: int = 0):
        self.program, self.choices, self.makers, self.depth = program, program.choices, makers, depth
        self.lines: list[str] = []
        self.values: list[Value] = []
        self.parameters = 0

    # -- writing -------------------------------------------------------------------------------------------------------

    def line(self, shape: str, opcode: str, operands: Sequence[Value | str] = (), *attributes: str,
             stem: str = "") -> str:
        name = self.program.name(stem or opcode)
        inside = ", ".join(o if isinstance(o, str) else o.name for o in operands)
        self.lines.append(f"{name} = {shape} {opcode}({inside}){''.join(', ' + a for a in attributes)}")
        return name

    def emit(self, element_type: str, dims: Sequence[int], opcode: str, operands: Sequence[Value | str] = (),
             *attributes: str) -> Value:
        """Write an instruction whose result is an array."""
        name = self.line(self.program.shape(element_type, dims), opcode, operands, *attributes)
        value = Value(name, element_type, tuple(dims))
        self.values.append(value)
        return value

    def emit_tuple(self, shapes: Sequence[tuple], opcode: str, operands: Sequence[Value | str],
                   *attributes: str) -> list[Value]:
        """An instruction that returns several arrays, and the taking apart of its result."""
        texts = [self.program.shape(t, d, plain=True) for t, d in shapes]
        name = self.line(f"({', '.join(texts)})", opcode, operands, *attributes)
        return [self.emit_plain(t, d, "get-tuple-element", [name], f"index={n}") for n, (t, d) in enumerate(shapes)]

    def emit_plain(self, element_type: str, dims: Sequence[int], opcode: str, operands: Sequence[Value | str],
                   *attributes: str) -> Value:
        """The same as `emit`, in the row-major layout."""
        name = self.line(self.program.shape(element_type, dims, plain=True), opcode, operands, *attributes)
        self.values.append(Value(name, element_type, tuple(dims)))
        return self.values[-1]

    def shape_of(self, value: Value) -> str:
        """The shape as it was written, with its layout."""
        start = f"{value.name} = "
        line = next(text for text in self.lines if text.startswith(start))
        return line[len(start):].split(" ")[0]

    def parameter(self, element_type: str, dims: Sequence[int]) -> Value:
        value = self.emit(element_type, dims, "parameter", [str(self.parameters)])
        self.parameters += 1
        return value

    def finish(self, name: str, root: str, head: str = "") -> str:
        """The whole text; `root` is the name of the instruction that is returned."""
        lines = [("  ROOT " if text.startswith(root + " = ") else "  ") + text for text in self.lines]
        return f"{head}{name} {{\n" + "\n".join(lines) + "\n}\n"

    # -- choosing ------------------------------------------------------------------------------------------------------

    def some(self, fits: Callable[[Value], bool] = lambda value: True, types: Sequence[str] | None = None,
             rank: int | None = None) -> Value:
        """A value that is there and fits, the younger the likelier, or else a new one of `types` and `rank`.

        A new one may not fit; callers then write nothing.
        """
        found = [v for v in self.values if fits(v) and (types is None or v.type in types)
                 and (rank is None or len(v.dims) == rank)]
        if found and not self.choices.chance(10):
            return found[max(self.choices.integer(-len(found), len(found) - 1), self.choices.integer(0, len(found) - 1))]
        common = [t for t in self.program.types if types is None or t in types]
        return self.fresh(self.choices.pick(common or list(types)), self.program.dims(rank))

    def like(self, element_type: str, dims: Sequence[int]) -> Value:
        """A value of exactly this shape."""
        dims = tuple(dims)
        found = [v for v in self.values if v.type == element_type and v.dims == dims]
        if found and not self.choices.chance(25):
            return self.choices.pick(found[::-1])
        same = [v for v in self.values if v.dims == dims and may_convert(v.type, element_type)]
        if same and self.choices.chance(20):
            return self.emit(element_type, dims, "convert", [self.choices.pick(same)])
        return self.fresh(element_type, dims)

    def fresh(self, element_type: str, dims: Sequence[int]) -> Value:
        """A new value out of nothing."""
        how = self.choices.integer(0, 3)
        if how == 0 and self.depth == 0:
            return self.parameter(element_type, dims)
        if how == 1 and dims and ELEMENT_TYPES[element_type].kind in ("signed", "unsigned", "float") \
                and ELEMENT_TYPES[element_type].bits >= 8:
            return self.emit(element_type, dims, "iota", (), f"iota_dimension={self.choices.integer(0, len(dims) - 1)}")
        if how == 2 and math.prod(dims) <= 12:
            return self.constant(element_type, dims)
        scalar = self.constant(element_type, ())
        return self.emit(element_type, dims, "broadcast", [scalar], "dimensions={}") if dims else scalar

    def constant(self, element_type: str, dims: Sequence[int]) -> Value:
        return self.emit(element_type, dims, "constant", [literal(self.choices, element_type, dims)])

    def index(self, limit: int) -> Value:
        """A scalar integer that is a number around 0 to `limit`, sometimes outside."""
        element_type = self.choices.pick(INTEGERS)
        found = [v for v in self.values if not v.dims and v.type == element_type]
        if found and self.choices.chance(40):
            return self.choices.pick(found)
        if self.depth == 0 and self.choices.chance(40):
            return self.parameter(element_type, ())
        low = 0 if element_type.startswith("u") else -2
        return self.emit(element_type, (), "constant", [str(self.choices.integer(low, min(limit + 2, largest(element_type))))])

    def size(self, usual: Sequence[int]) -> int:
        """A dimension that an instruction brings in: one of the usual ones, at the edges of what is allowed any."""
        return self.choices.pick((*usual, *EDGE_SIZES) if self.program.edges else usual)

    def unread(self) -> list[Value]:
        """What no instruction reads yet."""
        read = {word for line in self.lines for word in re.findall(r"[\w.]+", line.partition("(")[2])}
        return [v for v in self.values if v.name not in read]

    def grow(self, count: int) -> None:
        """Write about `count` more instructions."""
        for _ in range(count):
            self.choices.pick(self.makers)(self)


def largest(integer_type: str) -> int:
    row = ELEMENT_TYPES[integer_type]
    return (1 << (row.bits - 1 if row.kind == "signed" else row.bits)) - 1


def may_convert(source: str, target: str) -> bool:
    return source != target and (ELEMENT_TYPES[source].kind != "complex" or ELEMENT_TYPES[target].kind == "complex")


# -- constants ---------------------------------------------------------------------------------------------------------

FLOATS = ("1", "0", "2", "-1", "0.5", "3", "-2.5", "0.125", "1.75", "10", "-0.3", "100")
SPECIAL_FLOATS = ("nan", "inf", "-inf", "-0")


def literal(choices: Choices, element_type: str, dims: Sequence[int]) -> str:
    """The text of a constant's value."""
    if not dims:
        return number(choices, element_type)
    if 0 in dims:
        inner = literal(choices, element_type, dims[1:]) if dims[0] and len(dims) > 1 else ""
        return "{" + ", ".join([inner] * dims[0] if inner else []) + "}"
    return "{" + ", ".join(literal(choices, element_type, dims[1:]) for _ in range(dims[0])) + "}"


def number(choices: Choices, element_type: str) -> str:
    kind, bits = ELEMENT_TYPES[element_type].kind, ELEMENT_TYPES[element_type].bits
    if kind == "pred":
        return choices.pick(("false", "true"))
    if kind == "complex":
        return f"({choices.pick(FLOATS)}, {choices.pick(FLOATS)})"
    if kind == "float":
        if element_type == "f8e8m0fnu":
            return choices.pick(("1", "2", "0.5", "4"))
        special = choices.chance(6) and element_type in ("f16", "bf16", "f32", "f64")
        return choices.pick(SPECIAL_FLOATS if special else FLOATS if bits >= 16 else FLOATS[:9] if bits == 8 else FLOATS[:5])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "signed" else (0, (1 << bits) - 1)
    if choices.chance(8):
        return str(choices.pick((low, high)))
    return str(min(max(choices.pick((1, 0, 2, 3, -1, 5, 7, -4, 10)), low), high))
