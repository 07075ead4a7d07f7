"""Nest: what a loop computes, without how it runs: axes, and stages over them.

In: a VECTOR loop of the loop IR. Out: a Nest, or Refused with the reason why there is none.

    vector i1 < 1000 {                axes    i1: 1000
      let t0 = in0[i0 * 1000 + i1]    stages  value t0, reads in0[1000 i0 + i1]
      t1 = t1 + t0 * t0                       combine t1 by add over i1
    }

Steps (steps.py) change the axes; lowering.py makes loops and vectors of them. The text of a nest is that of its loop.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import Along
from hloc.kernels.ir import INDEX, SERIAL, Apply, Assign, Const, Expr, For, Let, Load, Stmt, Store, Var
from hloc.kernels.monoids import MONOIDS, can_reassociate
from hloc.kernels.operations import HEAVY
from hloc.kernels.vectors import is_lane
from hloc.kernels.walks import expressions, operation, parts, taken_in, term_taken_in

UNROLL = "unroll"               # the third kind of an axis, beside those of loops
FLOATS = ("f32", "f64")
DIVISIONS = ("divide", "remainder")
WITHOUT_LANES = ("called_", "stochastic_convert")


class Refused(Exception):
    """A loop that is no nest, or a step that does not apply; the message says why."""


class Axis(NamedTuple):
    """extent: None if only the run knows it; kind: serial, vector (its iterations are lanes) or unroll."""

    name: str
    extent: int | None
    kind: str = SERIAL


class Split(NamedTuple):
    """parent = outer * n + inner. tail: how iterations beyond the last n whole ones run: overlap, peel or mask."""

    parent: str
    outer: str
    inner: str
    n: int
    tail: str


class Stage(NamedTuple):
    """One statement of the loop: a value with a name, a write to memory, or the combination of a term with an
    accumulator."""

    statement: Let | Store | Assign

    @property
    def combine(self) -> str:
        """The operation of an accumulator; "" for other stages."""
        return operation(self.statement.value).op if isinstance(self.statement, Assign) else ""

    @property
    def term(self) -> Expr:
        """The value of one iteration: named, stored or combined."""
        return term_taken_in(self.statement) if isinstance(self.statement, Assign) else self.statement.value


class Nest(NamedTuple):
    """loop: what is computed, as a scalar loop. singles: what of it has no lanes; reduces: whether it has accumulators;
    types: the element types of all values but preds, whose lanes are as wide as what was compared; functions: the most
    functions of floats of many instructions of which each takes the result of the one before. accumulators: reduced
    axes each iteration of which has accumulators of its own; local: arrays that the kernel stored just before;
    is_adjacent: whether neighbouring iterations read and write neighbouring elements, or the same ones; most:
    iterations, where only the run knows how many, 0: unknown."""

    loop: For
    axes: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    singles: Singles
    reduces: bool
    types: frozenset[str]
    functions: int
    splits: tuple[Split, ...] = ()
    accumulators: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    is_adjacent: bool = True
    most: int = 0

    def axis(self, name: str) -> Axis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise Refused(f"no axis {name}: there are {', '.join(a.name for a in self.axes)}")

    @property
    def lets(self) -> dict[str, Expr]:
        """The names of the loop and their values."""
        return {s.name: s.value for s in self.loop.body if isinstance(s, Let)}


def _types(stages: Iterable[Stage]) -> frozenset[str]:
    found: set[str] = set()
    for stage in stages:
        stack: list[Expr] = [stage.term] if stage.term.type != INDEX else []
        while stack:
            e = stack.pop()
            found.add(e.type)
            if isinstance(e, Apply):
                stack += [a for a in e.arguments if a.type != INDEX]
    return frozenset(found - {"pred"}) or frozenset(["u8"])


def _functions(e: Expr, lets: Mapping[str, Expr], known: dict[str, int]) -> int:
    """The most functions of floats of many instructions of which each takes the result of the one before."""
    if isinstance(e, Var) and e.name in lets:
        if e.name not in known:
            known[e.name] = _functions(lets[e.name], lets, known)
        return known[e.name]
    if not isinstance(e, Apply):
        return 0
    return max((_functions(a, lets, known) for a in e.arguments), default=0) + (e.op in HEAVY and e.type in FLOATS)


def most_iterations(extent: int | Expr, named: Mapping[str, Expr]) -> int:
    """The iterations of a loop; for blocks, the last of which is shorter, those of a whole one. 0: unknown."""
    if isinstance(extent, int):
        return extent
    value = named.get(extent.name) if isinstance(extent, Var) else extent
    if isinstance(value, Apply) and value.op == "minimum" and isinstance(value.arguments[0], Const):
        return value.arguments[0].integer
    return 0


def nest_of(loop: For, local: frozenset[str] = frozenset(), most: int = 0) -> Nest:
    """The nest of a VECTOR loop. local: the kernel's local arrays; most: iterations, if not a constant. Raises
    Refused."""
    if not all(isinstance(s, (Let, Store, Assign)) for s in loop.body):
        raise Refused("the body is not straight-line code")
    updates = [s for s in loop.body if isinstance(s, Assign)]
    if updates and (not isinstance(loop.extent, int) or loop.extent < 2):
        raise Refused("the number of iterations is not a constant above 1")
    for update in updates:
        _refuse_update(update, loop)
    singles, stored, is_adjacent = Singles(loop), set[str](), True
    for s in loop.body:
        if any(isinstance(e, Load) and e.buffer in stored for e in parts(expressions(s))):
            raise Refused("what is written is read again")
        stored |= {s.buffer} if isinstance(s, Store) else set()
        for reason in _without_lanes(s, singles):
            is_adjacent = False
            if updates:
                raise Refused(reason)
    stages = tuple(Stage(s) for s in loop.body if isinstance(s, (Let, Store, Assign)))
    axes = (Axis(loop.name, loop.extent if isinstance(loop.extent, int) else None),)
    lets, known = {s.name: s.value for s in loop.body if isinstance(s, Let)}, dict[str, int]()
    return Nest(loop, axes, stages, singles, bool(updates), _types(stages),
                max(_functions(s.term, lets, known) for s in stages), local=local, is_adjacent=is_adjacent, most=most)


def _refuse_update(s: Assign, loop: For) -> None:
    if taken_in(s) is None or operation(s.value).op not in MONOIDS \
            or not can_reassociate(operation(s.value).op, s.value.type):
        raise Refused(f"{s.name} is not combined with a term by an operation that may be reassociated")
    uses = sum(isinstance(e, Var) and e.name == s.name for one in loop.body for e in parts(expressions(one)))
    if uses != 1 or sum(isinstance(one, Assign) and one.name == s.name for one in loop.body) != 1:
        raise Refused(f"{s.name} is used in the loop that combines it")


def _without_lanes(s: Stmt, singles: Singles) -> Iterator[str]:
    """What a statement does that vectors do not; Refused where even its parts hold no vector."""
    if isinstance(s, Store) and singles.along.step(s.position) != 1:
        yield f"{s.buffer} is written at other positions than adjacent ones"
    stack = [e for e in expressions(s)[:1] if e.type != INDEX]
    while stack:
        e = stack.pop()
        if e.type not in ELEMENT_TYPES or not is_lane(e.type):
            raise Refused(f"vectors hold no {e.type}")
        if reason := singles.reason(e):
            yield reason
        elif isinstance(e, Apply):
            stack += [a for a in e.arguments if a.type != INDEX]


class Singles:
    """What of a loop is computed for each iteration by itself. guards: names of conditions on positions."""

    def __init__(self, loop: For) -> None:
        self.along = Along(loop)
        self.guards: set[str] = set()
        for s in loop.body:
            if isinstance(s, Let) and s.value.type == "pred" and self.is_guard(s.value):
                self.guards.add(s.name)

    def is_guard(self, condition: Expr) -> bool:
        return any(isinstance(e, Var) and e.name in self.guards or isinstance(e, Apply) and e.type == "pred"
                   and any(a.type == INDEX for a in e.arguments) for e in parts([condition]))

    def reason(self, e: Expr) -> str:
        """Why an expression is; "" where its lanes are computed together."""
        if isinstance(e, Load):
            near = self.along.step(e.position) in (0, 1)
            return "" if near else f"{e.buffer} is read at other positions than adjacent ones"
        if not isinstance(e, Apply):
            return ""
        if e.op.startswith(WITHOUT_LANES):
            return f"{e.op} is a call"
        if e.op in DIVISIONS and e.type in ("s64", "u64"):
            return "CPUs do not divide vectors of integers of 64 bits"
        if e.op == "select" and self.is_guard(e.arguments[0]) and any(isinstance(a, Load) for a in parts(e.arguments)):
            return "a condition on positions guards what is read"
        if any(a.type == INDEX for a in e.arguments) and (
                e.op != "convert" or ELEMENT_TYPES[e.type].kind == "pred" or self.along.step(e.arguments[0]) is None):
            return f"{e.op} of a position"
        return ""
