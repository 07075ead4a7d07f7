"""Rounds to f16 with the CPU's conversion instructions: VECTOR loops are split at their roundings, in groups of a few
vectors.

In: a VECTOR loop whose rows of f16 are already Local arrays of f32 (half_conversion.py). Out: the same in groups of up
to LANES elements; each rounding is a loop of its own, which is printed as a call (`half_rows.h`). Compilers keep the
arrays of one group in registers, since each is read and written whole. A rounding has a latency of 25 cycles: the
vectors of a group do not wait for each other (gelu: 2.3 times as fast as with single vectors).

    for i < 256 (VECTOR):  b[i] = f32(f16(a[i] * a[i])) + 1

    for g < 16:  for k < 16 (VECTOR): r[k] = a[16 g + k] * a[16 g + k]
                 for k < 16 (VECTOR): r[k] = f32(f16(r[k]))               hloc_round_row_f16(r, r, 16)
                 for k < 16 (VECTOR): b[16 g + k] = r[k] + 1

Loops that reduce are not split.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from hloc.kernels.affine import Affine, affine, forms
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import (
    INDEX,
    SERIAL,
    VECTOR,
    Apply,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Local,
    Stmt,
    Store,
    Var,
)
from hloc.kernels.walks import expressions, parts, walk, with_parts

VECTOR_LANES = 16               # of f32 in the widest vectors
LANES = 64                      # of the largest groups
MOST_ROUNDINGS = 48             # of one loop: each is a loop for the compiler


def lanes_of(extent: int | Expr) -> int:
    """Elements in a group of a loop with this extent."""
    if not isinstance(extent, int):
        return LANES
    lanes = VECTOR_LANES
    while lanes < min(extent, LANES):
        lanes *= 2
    return lanes


def whole_groups(size: int) -> int:
    """The number of elements of an array that are accessed to compute `size` of them."""
    return -(-size // lanes_of(size)) * lanes_of(size)


def in_groups(loop: For, rows: frozenset[str], size: int, around: Around | None = None) -> tuple[Stmt, ...]:
    """The loops that replace a VECTOR loop; none if it cannot be split, or if it rounds nothing to f16 and its rows are
    in memory.

    rows: Local arrays of whole groups that the loop accesses at its counter only; size: its largest extent.
    around(first element, lane, lanes): the statements before and after the loops of a group, if rows are as short as a
    group; the loop must then consist of whole groups.
    """
    return _Groups(loop, rows, size, around).rewritten()


def is_rounding(expr: Expr) -> bool:
    """Whether this rounds to f16 and widens again."""
    return rounded_by(expr) is not None


def rounded_by(expr: Expr) -> Expr | None:
    """The value that such an expression rounds; None for others."""
    inner = expr.arguments[0] if _converts(expr, "f32") else None
    return inner.arguments[0] if inner is not None and _converts(inner, "f16") and inner.arguments[0].type == "f32" \
        else None


def has_groups(kernel: Kernel) -> bool:
    """Whether a kernel has loops over groups, whose arrays stay in registers only with vectors of a whole group."""
    return any(isinstance(s, Store) and isinstance(rounded_by(s.value), Load) for s in walk(kernel.body))


def _converts(expr: Expr, target: str) -> TypeGuard[Apply]:
    return isinstance(expr, Apply) and expr.op == "convert" and expr.type == target


Around = Callable[[Expr, Var, int], tuple[Sequence[Stmt], Sequence[Stmt]]]


@dataclass
class _Groups:
    """One loop. lanes: elements in a group; cuts_rest: the remainder after the whole groups stays a loop of its own;
    repeated: Lets that each small loop recomputes, known: the forms of positions among them; arrays: the arrays of the
    other values."""

    loop: For
    rows: frozenset[str]
    size: int
    around: Around | None = None
    lanes: int = LANES
    cuts_rest: bool = False
    repeated: dict[str, Expr] = field(default_factory=dict)
    known: dict[str, Affine] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    locals: list[Local] = field(default_factory=list)
    body: list[For] = field(default_factory=list)

    def rewritten(self) -> tuple[Stmt, ...]:
        """The loops; none if the loop must stay."""
        statements, count = self.loop.body, self.loop.extent
        roundings = [e for s in statements for e in parts(expressions(s)) if is_rounding(e)]
        fewest = 0 if self.around else 1            # rows as short as a group stay in registers
        if not fewest <= len(roundings) <= MOST_ROUNDINGS or not self.can_be_cut(statements):
            return ()
        for s in statements:
            self.statement(s)
        last = [s.body[-1] for s in self.body]
        if not self.around and not any(isinstance(s, Store) and is_rounding(s.value) for s in last):
            return ()
        before, after = self.around(self.first, self.lane, self.lanes) if self.around else ((), ())
        groups = self.groups(count)
        main = For(f"{self.loop.name}_group", groups, SERIAL, (*before, *self.locals, *self.body, *after))
        return (main, self.rest(groups, count)) if self.cuts_rest else (main,)

    def can_be_cut(self, statements: Iterable[Stmt]) -> bool:
        """Whether this is straight-line code without accumulators, over whole groups or over rows."""
        if not all(isinstance(s, (Let, Store)) for s in statements):
            return False
        extent = self.loop.extent
        self.lanes = lanes_of(extent if isinstance(extent, int) else self.size)
        if self.around:
            return isinstance(extent, int) and extent % self.lanes == 0
        touched = {e.buffer for s in statements for e in parts(expressions(s)) if isinstance(e, Load)}
        touched |= {s.buffer for s in statements if isinstance(s, Store)}
        if touched <= self.rows:
            return True
        if isinstance(extent, int) and extent % VECTOR_LANES == 0 and extent < LANES:
            self.lanes = VECTOR_LANES
        self.cuts_rest = not isinstance(extent, int) or extent % self.lanes != 0
        return not self.cuts_rest or not isinstance(extent, int) or extent > LANES

    # statements

    def statement(self, s: Stmt) -> None:
        if isinstance(s, Let):
            self.let(s.name, self.value(s.value))
        else:
            assert isinstance(s, Store)
            self.store(s.buffer, self.lane if self.is_group(s.buffer) else self.value(s.position), s.value)

    def along_lanes(self, *statements: Stmt) -> For:
        return For(self.lane.name, self.lanes, VECTOR, statements)

    def let(self, name: str, value: Expr) -> None:
        """Give a name to a value: positions and plain loads are recomputed in each loop. (gcc would turn a loop that
        copies 16 elements into a call of memcpy, in vectors of half the size.)"""
        if isinstance(value, Load) and value.buffer in self.own:
            self.arrays[name] = value.buffer
        elif self.is_plain(value) or (isinstance(value, Load) and self.stores_last):
            self.repeated[name] = value
            self.known = forms([Let(name, value)], self.known)
        else:
            self.arrays[name] = self.kept(value).buffer

    def is_plain(self, value: Expr) -> bool:
        loads = [e.buffer for e in parts([value]) if isinstance(e, Load)]
        is_small = not isinstance(value, Apply) or value.type in (INDEX, "pred")
        return is_small and all(name in self.rows or name in self.own for name in loads)

    def kept(self, value: Expr) -> Load:
        """A value in an array of one group."""
        array = self.array(value.type)
        self.emit(Store(array.buffer, self.lane, value))
        return array

    def array(self, type: str) -> Load:
        """A load from a new array of one group."""
        name = f"{self.loop.name}_r{len(self.locals)}"
        self.locals.append(Local(name, type, self.lanes))
        return Load(name, self.lane, type)

    def store(self, buffer: str, position: Expr, value: Expr) -> None:
        """A store in a loop of its own, into which a rounding may be merged. A value that is stored unchanged to a row
        that will be narrowed is rounded instead of copied."""
        known = self.value(value) if isinstance(value, Var) else None
        if isinstance(known, Load) and known.buffer in self.own and buffer in self.rows:
            self.round(known, buffer, self.lane if position == self.lane else self.place)
        elif (exact := rounded_by(value)) is not None and position in (self.lane, Var(self.loop.name, INDEX)):
            inner = self.kept(self.value(exact))
            self.round(inner, buffer, self.lane if position == self.lane else self.place)
        else:
            self.emit(Store(buffer, position, self.value(value)))

    def round(self, source: Load, buffer: str, position: Expr) -> None:
        again = Apply("convert", (Apply("convert", (source,), "f16"),), "f32")
        self.body.append(self.along_lanes(Store(buffer, position, again)))

    def emit(self, s: Store) -> None:
        """A loop over the lanes of a group, with the names that its statement needs."""
        stack, needed = [s.position, s.value], set()
        while stack:
            for e in parts([stack.pop()]):
                if isinstance(e, Var) and e.name not in needed:
                    needed.add(e.name)
                    stack += [self.repeated[e.name]] if e.name in self.repeated else []
        names = [Let(self.loop.name, self.place)] if self.loop.name in needed else []
        names += [Let(name, value) for name, value in self.repeated.items() if name in needed]
        self.body.append(self.along_lanes(*names, s))

    @property
    def stores_last(self) -> bool:
        """Whether nothing is read after a store, whose array may be one that is read."""
        stores = [n for n, s in enumerate(self.loop.body) if isinstance(s, Store)]
        return len(stores) <= 1 and stores in ([], [len(self.loop.body) - 1])

    @property
    def own(self) -> set[str]:
        return {local.name for local in self.locals}

    @property
    def lane(self) -> Var:
        return Var(f"{self.loop.name}_lane", INDEX)

    @property
    def first(self) -> Expr:
        return index_apply("multiply", Var(f"{self.loop.name}_group", INDEX), Const(self.lanes, INDEX))

    @property
    def place(self) -> Expr:
        return index_apply("add", self.first, self.lane)

    def is_group(self, buffer: str) -> bool:
        """Whether a row is as short as a group."""
        return self.around is not None and buffer in self.rows

    # expressions

    def value(self, expr: Expr) -> Expr:
        """An expression whose roundings, innermost first, have become loops."""
        if isinstance(expr, Var):
            return Load(self.arrays[expr.name], self.lane, expr.type) if expr.name in self.arrays else expr
        if isinstance(expr, Load):
            return expr._replace(position=self.lane if self.is_group(expr.buffer) else self.value(expr.position))
        if not isinstance(expr, Apply):
            return expr
        exact = rounded_by(expr)
        if exact is not None:
            return self.rounded(exact)
        if expr.op == "select" and not all(self.is_safe(a) for a in expr.arguments[1:]):
            condition, *choices = expr.arguments
            return expr._replace(arguments=(self.value(condition), *(self.named(c) for c in choices)))
        return with_parts(expr, self.value)

    def rounded(self, inner: Expr) -> Load:
        """A rounded value, in an array of one group; a row in memory is rounded directly from there."""
        value = self.value(inner)
        if isinstance(value, Var) and isinstance(self.repeated.get(value.name), Load):
            value = self.repeated[value.name]
        base = self.base(value.position) if isinstance(value, Load) else None
        if base is None or not isinstance(value, Load):
            array = self.kept(value)
            self.round(array, array.buffer, self.lane)
            return array
        array = self.array("f32")
        place = index_apply("add", index_apply("add", base, self.first), self.lane)
        self.round(value._replace(position=place), array.buffer, self.lane)
        return array

    def base(self, position: Expr) -> Expr | None:
        """The position at the start of the loop, if its stride in the loop is one element."""
        form = affine(position, self.known)
        return form.without(self.loop.name).expression() if form.step(self.loop.name, self.repeated) == 1 else None

    def is_safe(self, expr: Expr) -> bool:
        """Whether an expression may be computed although it is not selected: it reads rows only."""
        return all(e.buffer in self.rows for e in parts([expr]) if isinstance(e, Load))

    def named(self, expr: Expr) -> Expr:
        """The unchanged expression, with the arrays of its names."""
        if isinstance(expr, Var):
            return self.value(expr)
        if isinstance(expr, Load) and self.is_group(expr.buffer):
            return expr._replace(position=self.lane)
        return with_parts(expr, self.named)

    def groups(self, count: int | Expr) -> int | Expr:
        """The number of groups; whole ones if the remainder is computed separately."""
        more = 0 if self.cuts_rest else self.lanes - 1
        if isinstance(count, int):
            return (count + more) // self.lanes
        rounded_up = index_apply("add", count, Const(more, INDEX)) if more else count
        return index_apply("divide", rounded_up, Const(self.lanes, INDEX))

    def rest(self, groups: int | Expr, count: int | Expr) -> For:
        """The original loop, over the remainder after the whole groups."""
        whole, all_of_it = (Const(n, INDEX) if isinstance(n, int) else n for n in (groups, count))
        done, counter = index_apply("multiply", whole, Const(self.lanes, INDEX)), f"{self.loop.name}_rest"
        place = Let(self.loop.name, index_apply("add", done, Var(counter, INDEX)))
        extent: int | Expr = index_apply("subtract", all_of_it, done)
        if isinstance(whole, Const) and isinstance(all_of_it, Const):
            extent = all_of_it.integer - whole.integer * self.lanes
        return For(counter, extent, VECTOR, (place, *self.loop.body))
