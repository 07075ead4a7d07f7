"""Nest: what a loop computes, without how it runs: axes, and stages over them.

In: a VECTOR loop of the loop IR with accumulators. Out: a Nest, or Refused with the reason why there is none.

    vector i1 < 1000 {                axes    i1: 1000
      let t0 = in0[i0 * 1000 + i1]    stages  value t0, reads in0[1000 i0 + i1]
      t1 = t1 + t0 * t0                       combine t1 by add over i1
    }

Steps (steps.py) change the axes; lowering.py makes loops and vectors of them. The text of a nest is that of its loop.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import Along
from hloc.kernels.ir import INDEX, SERIAL, Apply, Assign, Expr, For, Let, Load, Store, Var
from hloc.kernels.monoids import MONOIDS, can_reassociate
from hloc.kernels.vectors import is_lane
from hloc.kernels.walks import expressions, operation, parts, taken_in, term_taken_in

UNROLL = "unroll"               # the third kind of an axis, beside those of loops
WITHOUT_LANES = ("called_", "row_", "widen", "narrow", "bits_read", "stochastic_convert")


class Refused(Exception):
    """A loop that is no nest, or a step that does not apply; the message says why."""


class Axis(NamedTuple):
    """kind: serial, vector (its iterations are lanes) or unroll."""

    name: str
    extent: int
    kind: str = SERIAL


class Split(NamedTuple):
    """parent = outer * n + inner. tail: how iterations beyond the last n whole ones run: overlap, or peel."""

    parent: str
    outer: str
    inner: str
    n: int
    tail: str


class Stage(NamedTuple):
    """One statement of the loop: a value with a name, a write to memory, or the combination of a term with an
    accumulator. loads: all of its value."""

    statement: Let | Store | Assign
    loads: tuple[Load, ...]

    @property
    def combine(self) -> str:
        """The operation of an accumulator; "" for other stages."""
        return operation(self.statement.value).op if isinstance(self.statement, Assign) else ""

    @property
    def term(self) -> Expr:
        """The value of one iteration: named, stored or combined."""
        return term_taken_in(self.statement) if isinstance(self.statement, Assign) else self.statement.value


class Nest(NamedTuple):
    """loop: what is computed, as a scalar loop. accumulators: reduced axes each iteration of which has accumulators of
    its own; local: arrays that the kernel stored just before."""

    loop: For
    axes: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    splits: tuple[Split, ...] = ()
    accumulators: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()

    def axis(self, name: str) -> Axis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise Refused(f"no axis {name}: there are {', '.join(a.name for a in self.axes)}")

    @property
    def types(self) -> frozenset[str]:
        """The element types of all values but preds, whose lanes are as wide as what was compared."""
        found: set[str] = set()
        for stage in self.stages:
            stack: list[Expr] = [stage.term] if stage.term.type != INDEX else []
            while stack:
                e = stack.pop()
                found.add(e.type)
                if isinstance(e, Apply):
                    stack += [a for a in e.arguments if a.type != INDEX]
        return frozenset(found - {"pred"}) or frozenset(["u8"])


def nest_of(loop: For, local: frozenset[str] = frozenset()) -> Nest:
    """The nest of a VECTOR loop that reduces. local: the kernel's local arrays. Raises Refused."""
    if not isinstance(loop.extent, int) or loop.extent < 2:
        raise Refused("the number of iterations is not a constant above 1")
    if not all(isinstance(s, (Let, Store, Assign)) for s in loop.body):
        raise Refused("the body is not straight-line code")
    updates = [s for s in loop.body if isinstance(s, Assign)]
    if not updates:
        raise Refused("nothing is reduced")
    for s in updates:
        _refuse_update(s, loop)
    along = Along(loop)
    return Nest(loop, (Axis(loop.name, loop.extent),),
                tuple(Stage(s, tuple(_loads(s, along))) for s in loop.body if isinstance(s, (Let, Store, Assign))),
                local=local)


def is_nest(loop: For) -> bool:
    """Whether a loop is a nest, and so has a schedule."""
    try:
        nest_of(loop)
    except Refused:
        return False
    return True


def _refuse_update(s: Assign, loop: For) -> None:
    if taken_in(s) is None or operation(s.value).op not in MONOIDS \
            or not can_reassociate(operation(s.value).op, s.value.type):
        raise Refused(f"{s.name} is not combined with a term by an operation that may be reassociated")
    uses = sum(isinstance(e, Var) and e.name == s.name for one in loop.body for e in parts(expressions(one)))
    if uses != 1 or sum(isinstance(one, Assign) and one.name == s.name for one in loop.body) != 1:
        raise Refused(f"{s.name} is used in the loop that combines it")


def _loads(s: Let | Store | Assign, along: Along) -> Iterator[Load]:
    """The loads of a statement. Refuses what has no form in vectors."""
    if isinstance(s, Store) and along.step(s.position) != 1:
        raise Refused(f"{s.buffer} is written at other positions than adjacent ones")
    stack: list[Expr] = [s.value] if not isinstance(s, Let) or s.value.type != INDEX else []
    while stack:
        e = stack.pop()
        if isinstance(e, Load):
            if along.step(e.position) not in (0, 1) or e.type == INDEX:
                raise Refused(f"{e.buffer} is read at other positions than adjacent ones")
            yield e
        elif isinstance(e, Apply):
            _refuse_operation(e, along)
            stack += [a for a in e.arguments if a.type != INDEX]
        if e.type not in ELEMENT_TYPES or not is_lane(e.type):
            raise Refused(f"vectors hold no {e.type}")


def _refuse_operation(e: Apply, along: Along) -> None:
    if e.op.startswith(WITHOUT_LANES):
        raise Refused(f"{e.op} is a call")
    if any(a.type == INDEX for a in e.arguments):
        kind = ELEMENT_TYPES[e.type].kind
        if e.op != "convert" or kind == "pred" or along.step(e.arguments[0]) is None:
            raise Refused(f"{e.op} of a position")
