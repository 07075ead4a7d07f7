"""Positions in loops: the element that an iteration accesses, and how far it moves with each counter.

An INDEX expression is a sum of multiples of atoms as it stands (ir.py, indexing.sum_of): its own affine form. An atom
is a name, or an expression that is not such a sum: a quotient, a remainder, a load. In: such expressions, and the forms
of the names in them.

    known = forms([Let p = 32 i0])
    affine(p + i1 + 4, known)                      ->  32 i0 + i1 + 4
    factor_of(32 i0 + i1 + 4, "i0")                ->  32
    stride(affine(p + i1 / 3, known), "i1", ())    ->  None: i1 / 3 does not grow evenly
    without(32 i0 + i1 + 4, "i1")                  ->  32 i0 + 4, where the loop over i1 begins
    range_of(i + 4, {"i": (0, 9)})                 ->  (4, 13)
"""
from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from hloc.ir import row_major
from hloc.kernels.indexing import sum_of, sum_parts
from hloc.kernels.ir import INDEX, SUM, Apply, Const, Expr, For, Let, Load, Stmt, Var
from hloc.kernels.walks import parts, varying, walk


def affine(expr: Expr, known: Mapping[str, Expr]) -> Expr:
    """The form of an INDEX expression; unknown names stand for themselves."""
    terms, constant = sum_parts(expr)
    named = [(known.get(a.name) if isinstance(a, Var) else None, a, times) for a, times in terms]
    if all(form is None for form, *_ in named):
        return expr
    return sum_of([(form or a, times) for form, a, times in named], constant)


def forms(statements: Iterable[Stmt], known: Mapping[str, Expr] | None = None) -> dict[str, Expr]:
    """`known` with the forms of the names of positions in these statements, nested ones too; names of expressions that
    are not sums stand for themselves."""
    found = dict(known or {})
    for s in walk(statements):
        if isinstance(s, Let) and s.value.type == INDEX and (
                isinstance(s.value, (Const, Var)) or isinstance(s.value, Apply) and s.value.op == SUM):
            found[s.name] = affine(s.value, found)
    return found


def of_names(factors: Mapping[str, int], constant: int = 0) -> Expr:
    """The sum of multiples of names."""
    return sum_of([(Var(name, INDEX), times) for name, times in factors.items()], constant)


def flat(chain: Sequence[tuple[str, int]], step: int = 1) -> Expr:
    """The number of an iteration of nested loops (counter, extent), outermost first, times `step`."""
    return of_names({name: step * n for (name, _), n in zip(chain, row_major([extent for _, extent in chain]))})


def plus(form: Expr, other: Expr | int, times: int = 1) -> Expr:
    """The sum of a form and a multiple of another."""
    return sum_of(((form, 1), (other if not isinstance(other, int) else Const(other, INDEX), times)), 0)


def constant_of(form: Expr) -> int:
    return sum_parts(form)[1]


def atoms(form: Expr) -> list[Expr]:
    return [atom for atom, _ in sum_parts(form)[0]]


def factor_of(form: Expr, name: str) -> int:
    """The factor of a name; 0 if it does not occur by itself."""
    return next((times for a, times in sum_parts(form)[0] if isinstance(a, Var) and a.name == name), 0)


def factors_of(form: Expr) -> dict[str, int] | None:
    """The factors of names; None if there are other atoms."""
    terms = list(sum_parts(form)[0])
    names = {a.name: times for a, times in terms if isinstance(a, Var)}
    return names if len(names) == len(terms) else None


def stride(form: Expr, counter: str, inner: Collection[str]) -> int | None:
    """The stride of a form in a loop. inner: other names that may change in the loop; None if the stride may not be
    constant."""
    for part in parts(a for a in atoms(form) if not (isinstance(a, Var) and a.name == counter)):
        if isinstance(part, Load) or isinstance(part, Var) and (part.name == counter or part.name in inner):
            return None
    return factor_of(form, counter)


def without(form: Expr, *names: str) -> Expr:
    """The form with these names set to 0."""
    terms, constant = sum_parts(form)
    return sum_of(((a, times) for a, times in terms if not (isinstance(a, Var) and a.name in names)), constant)


class Along:
    """Positions in a loop: their stride in its counter."""

    def __init__(self, loop: For) -> None:
        self.counter, self.known, self.inner = loop.name, forms(loop.body), varying(loop.body)

    def step(self, position: Expr) -> int | None:
        """The stride of a position in elements; None if it is not constant."""
        return stride(affine(position, self.known), self.counter, self.inner)


def injective(factors: Mapping[str, int], extents: Mapping[str, int]) -> bool:
    """Whether different counter values give different positions. extents: the number of values of each counter."""
    reach = 0
    for times, extent in sorted((abs(factors.get(name, 0)), n) for name, n in extents.items() if n > 1):
        if times <= reach:
            return False
        reach += times * (extent - 1)
    return True


def stays_inside(form: Expr, size: int, extents: Mapping[str, int]) -> bool:
    """Whether a position is in an array of that size at all values of these counters, and depends on nothing else: then
    it may be read even if its value is not used."""
    terms = factors_of(form)
    if terms is None or not terms.keys() <= extents.keys():
        return False
    reach, start = [times * (extents[name] - 1) for name, times in terms.items()], constant_of(form)
    return start + sum(min(n, 0) for n in reach) >= 0 and start + sum(max(n, 0) for n in reach) < size


# -- ranges ------------------------------------------------------------------------------------------------------------

LIMIT = 1 << 30                 # a grid's step may be added before a loop ends
Interval = tuple[int, int]      # the least and the greatest value


class Unknown(Exception):
    """A value that depends on data, or may be too large."""


def range_of(expr: Expr, known: Mapping[str, Interval]) -> Interval:
    """The interval of an INDEX expression, from those of the names in it. Raises Unknown if it depends on data, or if
    it or one of its parts, also of a sum that a compiler may compute on its way, may leave +-LIMIT."""
    if isinstance(expr, Var) and expr.name in known:
        return known[expr.name]
    if isinstance(expr, Apply) and expr.op == "select":
        look(expr.arguments[0], known)
        (a, b), (c, d) = (range_of(e, known) for e in expr.arguments[1:])
        return min(a, c), max(b, d)
    if isinstance(expr, Apply) and expr.op in RULES:
        return small(RULES[expr.op](*(range_of(e, known) for e in expr.arguments)))
    if not isinstance(expr, Const) and not (isinstance(expr, Apply) and expr.op == SUM):
        raise Unknown
    terms, constant = sum_parts(expr)
    low, high = small((constant, constant))
    for atom, times in terms:
        ends = sorted(end * times for end in range_of(atom, known))
        low, high = low + ends[0], high + ends[1]
        small((min(ends[0], low), max(ends[1], high)))
    return low, high


def look(expr: Expr, known: Mapping[str, Interval]) -> None:
    """Ask for the range of every INDEX expression inside of any expression."""
    if expr.type == INDEX:
        range_of(expr, known)
    else:
        for part in [expr.position] if isinstance(expr, Load) else expr.arguments if isinstance(expr, Apply) else ():
            look(part, known)


def small(interval: Interval) -> Interval:
    if interval[0] <= -LIMIT or interval[1] >= LIMIT:
        raise Unknown
    return interval


def _corners(op: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    def rule(a: Interval, b: Interval) -> Interval:
        found = [op(x, y) for x in a for y in b]
        return min(found), max(found)
    return rule


def _quotient(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:
        raise Unknown
    return _corners(lambda x, y: math.trunc(x / y))(a, b)


def _remainder(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:
        raise Unknown
    most = b[1] - 1
    return (0 if a[0] >= 0 else -most), (min(a[1], most) if a[0] >= 0 else most)


RULES: dict[str, Callable[[Interval, Interval], Interval]] = {
    "multiply": _corners(lambda x, y: x * y), "minimum": _corners(min), "maximum": _corners(max),
    "divide": _quotient, "remainder": _remainder,
}
