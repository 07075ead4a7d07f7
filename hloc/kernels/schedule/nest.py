"""Nest: what a loop computes, without how it runs, and the steps that say how.

In: a VECTOR loop of the loop IR. Out: a Nest, or Refused with the reason why there is none.

    vectorize(i1,16) rfactor(i1,4)

Steps of nests, each a function from a Nest to a Nest that raises Refused where it does not apply:

    vectorize(i,n)     n iterations are the lanes of a vector, each with accumulators of its own. How iterations run
                       that fill no vector follows from the loop: the last whole vector is moved back, and ignores what
                       was combined before; where it would read what two stores have just written, shorter vectors
                       follow; where there are less than n, or only the run knows how many, they are lanes of a vector
                       that is read and written element by element
    rfactor(i,n)       n vectors at once, with accumulators of their own, which are joined at the end

lowering.py makes loops and vectors of them. A loop over rows, in which there are others, is a nest of rows.py.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import Along
from hloc.kernels.ir import INDEX, Apply, Assign, Const, Expr, For, Let, Load, Stmt, Store, Var
from hloc.kernels.monoids import MONOIDS, can_reassociate
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.vectors import is_lane
from hloc.kernels.walks import expressions, operation, parts, taken_in

DIVISIONS = ("divide", "remainder")
WITHOUT_LANES = ("called_", "stochastic_convert")
MOST_AT_ONCE = 16               # vectors


class Nest(NamedTuple):
    """loop: what is computed, as a scalar loop. singles: what of it has no lanes; reduces: whether it has accumulators;
    types: the element types of all values but preds, whose lanes are as wide as what was compared; is_adjacent:
    whether neighbouring iterations read and write neighbouring elements, or the same ones; in_place: whether it writes
    arrays that it reads; most: iterations, where only the run knows how many, 0: unknown.

    Steps set the others. lanes: of a vector, 0: of none; copies: vectors at once."""

    loop: For
    singles: Singles
    reduces: bool
    types: frozenset[str]
    is_adjacent: bool = True
    in_place: bool = False
    most: int = 0
    lanes: int = 0
    copies: int = 1

    @property
    def iterations(self) -> int | None:
        """None if only the run knows them."""
        return self.loop.extent if isinstance(self.loop.extent, int) else None

    @property
    def key(self) -> tuple:
        """Equal for nests with the same schedules."""
        return self.loop, self.most

    @property
    def lets(self) -> dict[str, Expr]:
        """The names of the loop and their values."""
        return {s.name: s.value for s in self.loop.body if isinstance(s, Let)}


def term_of(s: Let | Store | Assign) -> Expr:
    """The value of one iteration: named, stored, or combined with an accumulator."""
    term = taken_in(s) if isinstance(s, Assign) else s.value
    assert term is not None                     # as nest_of has it
    return term


def _types(loop: For) -> frozenset[str]:
    found, stack = set[str](), [term_of(s) for s in loop.body if isinstance(s, (Let, Store, Assign))]
    while stack:
        e = stack.pop()
        if e.type != INDEX:
            found.add(e.type)
            stack += e.arguments if isinstance(e, Apply) else ()
    return frozenset(found - {"pred"}) or frozenset(["u8"])


def most_iterations(extent: int | Expr, named: Mapping[str, Expr]) -> int:
    """The iterations of a loop; for blocks, the last of which is shorter, those of a whole one. 0: unknown."""
    if isinstance(extent, int):
        return extent
    value = named.get(extent.name) if isinstance(extent, Var) else extent
    if isinstance(value, Apply) and value.op == "minimum" and isinstance(value.arguments[0], Const):
        return value.arguments[0].integer
    return 0


def nest_of(loop: For, most: int = 0) -> Nest:
    """The nest of a VECTOR loop. most: iterations, if not a constant. Raises Refused."""
    if not all(isinstance(s, (Let, Store, Assign)) for s in loop.body):
        raise Refused("the body is not straight-line code")
    updates = [s for s in loop.body if isinstance(s, Assign)]
    if updates and (not isinstance(loop.extent, int) or loop.extent < 2):
        raise Refused("the number of iterations is not a constant above 1")
    for update in updates:
        _refuse_update(update, loop)
    singles, read, stored, is_adjacent = Singles(loop), set[str](), set[str](), True
    for s in loop.body:
        loaded = {e.buffer for e in parts(expressions(s)) if isinstance(e, Load)}
        if loaded & stored:
            raise Refused("what is written is read again")
        read |= loaded
        stored |= {s.buffer} if isinstance(s, Store) else set()
        for reason in _without_lanes(s, singles):
            is_adjacent = False
            if updates:
                raise Refused(reason)
    return Nest(loop, singles, bool(updates), _types(loop), is_adjacent, bool(read & stored), most)


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


# -- steps -------------------------------------------------------------------------------------------------------------

def vectorize(nest: Nest, axis: str, lanes: int) -> Nest:
    """Iterations are lanes."""
    if axis != nest.loop.name or nest.lanes:
        raise Refused(f"no axis {axis} for lanes: there is {nest.loop.name}, once")
    if lanes < 2 or lanes & lanes - 1:
        raise Refused(f"lanes are a power of two: not {lanes}")
    if nest.reduces and lanes > (nest.iterations or 0):
        raise Refused(f"{axis} has {nest.iterations} iterations: lanes that are none would be combined")
    return nest._replace(lanes=lanes)


def rfactor(nest: Nest, axis: str, n: int) -> Nest:
    """n vectors at once, with accumulators of their own."""
    if not (nest.reduces and nest.lanes) or axis != nest.loop.name:
        raise Refused(f"{axis} is not the axis of a loop with lanes that combines")
    if not 2 <= n <= min(MOST_AT_ONCE, (nest.iterations or 0) // nest.lanes):
        raise Refused(f"2 to {MOST_AT_ONCE} vectors run at once, and no more than there are: not {n}")
    return nest._replace(copies=n)


NEST_STEPS: dict[str, Callable[..., Nest]] = {f.__name__: f for f in (vectorize, rfactor)}
