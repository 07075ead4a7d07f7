"""The stages of a nest for adjacent iterations at once: scalar expressions of a loop body become vectors.

In: a Nest, the first iteration, and the number of lanes. Out: statements that name the values, what each accumulator
takes in, and the stores.

    let t0 = in0[i1]            let t0_v1 = in0[16 * g]:f32x16
    t1 = t1 + t0 * t0           t1 takes in t0_v1 * t0_v1

A value that is the same for all iterations stays a scalar until an operation needs it in all lanes. A new name begins
with that of the value, accumulator, buffer or loop that it is a part of; hloc/tools/report/lines.py gives it back.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, SERIAL, Apply, Assign, Const, Expr, For, Let, Load, Local, Stmt, Store, Var
from hloc.kernels.operations import HEAVY
from hloc.kernels.schedule.nest import Nest, term_of
from hloc.kernels.vectors import MASKS, bits_of, compared, element_of, is_vector, vector
from hloc.kernels.walks import with_parts

# Conversions that have no instruction of their own, by way of another type.
THROUGH = {(small, wide): "s32" for small in ("s8", "u8", "s16", "u16") for wide in ("f32", "f64")}
BITS_OF_BF16 = 16
LOGIC = ("and", "or", "xor")
PARTS = VALUE, ACCUMULATOR, GROUP, PLACE, ROW = "v", "a", "g", "at", "r"


def part_name(name: str, kind: str, names: Iterator[int]) -> str:
    """A new name for a part of what has this name: t3_v14."""
    return f"{name}_{kind}{next(names)}"


def in_all_lanes(value: Expr, lanes: int) -> Expr:
    """A value as a vector: a scalar in all lanes, a pred as a mask."""
    if lanes == 1 or is_vector(value.type):
        return value
    element = "mask8" if value.type == "pred" else value.type
    return Apply("splat", (value,), vector(element, lanes))


def is_rounded(value: Expr) -> bool:
    """Whether a value in bf16 was rounded from f32: rounding and widening are then one function."""
    return isinstance(value, Apply) and value.op.startswith("convert") and element_of(value.arguments[0].type) == "f32"


class Piece(NamedTuple):
    """values: Lets, and loops over single lanes; taken: the term of each accumulator, by its name; stores: of the
    results."""

    values: tuple[Stmt, ...]
    taken: dict[str, Expr]
    stores: tuple[Stmt, ...]


def piece(nest: Nest, start: Expr, lanes: int, names: Iterator[int], count: Expr | None = None) -> Piece:
    """All stages for the iterations start ... start + lanes - 1; with a count, only for so many of them. names: numbers
    for new names."""
    return _Lanes(nest, start, lanes, names, count).piece()


class _Lanes:
    """stage: the name of the stage that is computed."""

    def __init__(self, nest: Nest, start: Expr, lanes: int, names: Iterator[int], count: Expr | None) -> None:
        self.nest, self.start, self.lanes, self.names, self.count = nest, start, lanes, names, count
        self.singles, self.along = nest.singles, nest.singles.along
        self.known: dict[str, Expr] = {}
        self.values: list[Stmt] = []
        self.stage = ""

    def piece(self) -> Piece:
        taken: dict[str, Expr] = {}
        stores: list[Stmt] = []
        for s in self.nest.loop.body:
            assert isinstance(s, (Let, Store, Assign))          # as nest_of has it
            if isinstance(s, Let) and s.value.type == INDEX:
                self.known[s.name] = self.place(s.value)
                continue
            self.stage = s.buffer if isinstance(s, Store) else s.name
            value = self.value(term_of(s))
            if isinstance(s, Let):
                self.known[s.name] = self.named(s.name, value)
            elif isinstance(s, Assign):
                taken[s.name] = self.named(s.name, value)
            else:
                stores += self.stored(s, self.in_memory(self.spread(self.named(s.buffer, value))))
        return Piece(tuple(self.values), taken, tuple(stores))

    def stored(self, s: Store, value: Expr) -> Iterable[Stmt]:
        """The lanes of a value in memory."""
        if self.lanes == 1 or self.along.step(s.position) == 1 and self.count is None:
            return (Store(s.buffer, self.place(s.position), value),)
        array = Local(part_name(s.buffer, VALUE, self.names), element_of(value.type), self.lanes)
        lane = Var(part_name(self.nest.loop.name, PLACE, self.names), INDEX)
        one = Store(s.buffer, self.of_lane(s.position, lane), Load(array.name, lane, array.type))
        return array, Store(array.name, Const(0, INDEX), value), For(lane.name, self.extent, SERIAL, (one,))

    @property
    def extent(self) -> int | Expr:
        """The number of lanes that are iterations of the loop."""
        if self.count is None:
            return self.lanes
        return self.count.integer if isinstance(self.count, Const) else self.count

    def one_by_one(self, e: Expr) -> Expr:
        """An expression computed for each lane by itself."""
        if self.lanes == 1:
            return self.of_lane(e, Const(0, INDEX))
        array = Local(part_name(self.stage, VALUE, self.names), e.type, self.lanes)
        lane = Var(part_name(self.nest.loop.name, PLACE, self.names), INDEX)
        one = Store(array.name, lane, self.of_lane(e, lane))
        self.values += [array, For(lane.name, self.extent, SERIAL, (one,))]
        return Load(array.name, Const(0, INDEX), vector(e.type, self.lanes))

    def of_lane(self, e: Expr, lane: Expr) -> Expr:
        """An expression of the loop for one lane."""
        if isinstance(e, Var) and e.name == self.nest.loop.name:
            return index_apply("add", self.start, lane)
        if isinstance(e, Var):
            let = self.nest.lets.get(e.name)
            return e if let is None else self.of_lane(let, lane)
        return with_parts(e, lambda part: self.of_lane(part, lane))

    def named(self, name: str, value: Expr) -> Expr:
        if isinstance(value, (Const, Var)):
            return value
        let = Let(part_name(name, VALUE, self.names), value)
        self.values.append(let)
        return Var(let.name, value.type)

    def in_memory(self, value: Expr) -> Expr:
        """A value as it is stored: masks as bytes."""
        is_mask = element_of(value.type) in MASKS
        return Apply("convert", (value,), vector("pred", self.lanes)) if is_mask else value

    def place(self, position: Expr) -> Expr:
        """An INDEX of the first iteration."""
        if isinstance(position, Var):
            return self.start if position.name == self.nest.loop.name else self.known.get(position.name, position)
        if isinstance(position, Apply) and position.type != INDEX or isinstance(position, Load):
            return self.value(position)
        return with_parts(position, self.place)

    def value(self, e: Expr) -> Expr:
        if isinstance(e, Var):
            return self.known.get(e.name, e)
        if isinstance(e, Const):
            return e
        if self.singles.reason(e):
            return self.of_memory(self.one_by_one(e))
        if isinstance(e, Load):
            return self.load(e)
        if e.op == "convert" and e.arguments[0].type == INDEX:
            return self.position_value(e)
        arguments = tuple(map(self.value, e.arguments))
        if not any(is_vector(a.type) for a in arguments):
            return e._replace(arguments=arguments)
        return self.apply(e, arguments)

    def load(self, e: Load) -> Expr:
        if not self.along.step(e.position):
            return Load(e.buffer, self.place(e.position), e.type)
        if self.count is not None:
            return self.of_memory(self.one_by_one(e))
        return self.of_memory(Load(e.buffer, self.place(e.position), vector(e.type, self.lanes)))

    def of_memory(self, value: Expr) -> Expr:
        """A value as it is computed: bytes as masks."""
        is_mask = element_of(value.type) == "pred" and self.lanes > 1
        return Apply("convert", (value,), vector("mask8", self.lanes)) if is_mask else value

    def position_value(self, e: Apply) -> Expr:
        """A position as a number."""
        start, step = self.place(e.arguments[0]), self.along.step(e.arguments[0])
        if not step or self.lanes == 1:
            return Apply("convert", (start,), e.type)
        integer = e.type if ELEMENT_TYPES[e.type].kind in ("signed", "unsigned") else "s64"
        series = Apply("series", (start,), vector(integer, self.lanes), (step,))
        return series if integer == e.type else self.convert(series, e.type, "convert")

    def apply(self, e: Apply, arguments: tuple[Expr, ...]) -> Expr:
        """An operation on all lanes."""
        if e.op.startswith("convert"):
            return self.convert(arguments[0], e.type, e.op)
        if e.op == "select":
            return self.select(e.type, *arguments)
        if e.arguments[0].type == "pred" and e.op in (*LOGIC, "not"):
            bits = max(bits_of(element_of(a.type)) for a in arguments if is_vector(a.type))
            return Apply(e.op, tuple(self.mask(a, bits) for a in arguments), vector(f"mask{bits}", self.lanes))
        spread = tuple(self.spread(self.unmasked(a)) for a in arguments)
        result = compared(spread[0].type) if e.type == "pred" else vector(e.type, self.lanes)
        value = Apply(e.op, spread, result, e.immediate)
        return self.named(self.stage, value) if e.op in HEAVY else value

    def unmasked(self, value: Expr) -> Expr:
        """A mask that is compared, as bytes."""
        return self.in_memory(value) if element_of(value.type) in MASKS else value

    def select(self, type: str, which: Expr, yes: Expr, no: Expr) -> Expr:
        if type == "pred":
            bits = max(bits_of(element_of(a.type)) for a in (which, yes, no) if is_vector(a.type))
            result = vector(f"mask{bits}", self.lanes)
            return Apply("select", tuple(self.mask(a, bits) for a in (which, yes, no)), result)
        result = vector(type, self.lanes)
        return Apply("select", (self.mask(which, bits_of(type)), self.spread(yes), self.spread(no)), result)

    def mask(self, value: Expr, bits: int) -> Expr:
        """A pred as a mask of lanes of so many bits."""
        result = vector(f"mask{bits}", self.lanes)
        if value.type == result:
            return value
        return Apply("convert" if is_vector(value.type) else "splat", (value,), result)

    def convert(self, value: Expr, type: str, op: str) -> Expr:
        """A conversion of all lanes, by way of another type where that is faster."""
        source, result = element_of(value.type), vector(type, self.lanes)
        if source in MASKS:
            return self.of_mask(value, type)
        if type == "pred":
            return Apply("compare_ne", (value, self.spread(Const(0, source))), compared(value.type))
        if (source, type) in THROUGH:
            value = Apply("convert", (value,), vector(THROUGH[source, type], self.lanes))
        if type == "f32" and is_rounded(value):
            return self.named(self.stage, Apply(op, (value,), result))
        if (source, type) == ("bf16", "f32"):
            bits = Apply("convert", (Apply("bitcast", (value,), vector("u16", self.lanes)),), vector("u32", self.lanes))
            moved = Apply("shift_left", (bits, self.spread(Const(BITS_OF_BF16, "u32"))), bits.type)
            return Apply("bitcast", (moved,), result)
        return Apply(op, (value,), result)

    def of_mask(self, value: Expr, type: str) -> Expr:
        facts = ELEMENT_TYPES[type]
        through = "f32" if facts.kind == "float" and facts.bits < 32 else type
        number = Apply("convert", (value,), vector(through, self.lanes))
        return number if through == type else Apply("convert", (number,), vector(type, self.lanes))

    def spread(self, value: Expr) -> Expr:
        return in_all_lanes(value, self.lanes)
