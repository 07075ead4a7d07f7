"""Index algebra: positions as sums of loop variables times strides, simplified so that emitted loops are simple.

An Index is `sum(coefficient * atom) + constant`. An atom is a loop variable with a known range, or the quotient or
remainder of an Index by a constant if it cannot be simplified. Reshapes produce no divisions if the ranges allow it:

    i = variable("i", 12); j = variable("j", 64)
    delinearize(linearize((i, j), (12, 64)), (768,))     -> (64*i + j,)
    delinearize((64*i + j,), (12, 64))                   -> (i, j), no division left

Indices are immutable, compare by content, and know their bounds. All divisions are floor divisions by positive
constants.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from hloc.ir import row_major
from hloc.kernels.ir import INDEX, SUM, Apply, Const, Expr, Var

VARIABLE, QUOTIENT, REMAINDER = "variable", "quotient", "remainder"


class Atom(NamedTuple):
    """A loop variable (or a name bound to an index value), inner // divisor, or inner % divisor; low <= it <= high."""

    kind: str
    name: str
    divisor: int
    inner: Index            # ZERO for variables
    low: int
    high: int


class Index(NamedTuple):
    """sum(coefficient * atom) + constant, terms sorted by atom."""

    terms: tuple[tuple[Atom, int], ...]
    constant: int = 0


def constant(value: int) -> Index:
    return Index((), value)


ZERO = constant(0)


def variable(name: str, extent: int) -> Index:
    """A loop variable that runs from 0 to extent - 1."""
    return bounded(name, 0, extent - 1)


def bounded(name: str, low: int, high: int) -> Index:
    """A named index value between low and high, both inclusive."""
    if low >= high:
        return constant(low)
    return Index(((Atom(VARIABLE, name, 1, ZERO, low, high), 1),))


def bounds(index: Index) -> tuple[int, int]:
    """The least and the greatest value (inclusive) that the index may have."""
    low = high = index.constant
    for atom, coefficient in index.terms:
        ends = (atom.low * coefficient, atom.high * coefficient)
        low += min(ends)
        high += max(ends)
    return low, high


def add(a: Index, b: Index) -> Index:
    if not b.terms:
        return Index(a.terms, a.constant + b.constant) if b.constant else a
    if not a.terms:
        return Index(b.terms, a.constant + b.constant) if a.constant else b
    table = dict(a.terms)
    for atom, coefficient in b.terms:
        table[atom] = table.get(atom, 0) + coefficient
    return _normal(table, a.constant + b.constant)


def shift(a: Index, offset: int) -> Index:
    return Index(a.terms, a.constant + offset) if offset else a


def scale(a: Index, factor: int) -> Index:
    if factor == 1:
        return a
    if factor == 0:
        return ZERO
    return Index(tuple((atom, c * factor) for atom, c in a.terms), a.constant * factor)


def subtract(a: Index, b: Index) -> Index:
    return add(a, scale(b, -1))


def _normal(table: dict[Atom, int], offset: int) -> Index:
    """Drop zero terms, join d*(x // d) + x % d into x, and d*(x // d % e) + x % d into x % (d*e), sort."""
    for atom in [a for a in table if a.kind == REMAINDER]:
        factor, whole = table.get(atom, 0), atom.inner
        above = floor_divide(whole, atom.divisor) if factor else ZERO
        for other in [a for a, c in table.items() if c and c == factor * atom.divisor]:
            if other.kind == QUOTIENT and other == _single(above):
                joined = whole
            elif other.kind == REMAINDER and other.inner == above:
                joined = modulo(whole, atom.divisor * other.divisor)
            else:
                continue
            rest = {a: c for a, c in table.items() if a not in (atom, other) and c}
            return add(Index(tuple(sorted(rest.items())), offset), scale(joined, factor))
    return Index(tuple(sorted((a, c) for a, c in table.items() if c)), offset)


def _single(index: Index) -> Atom | None:
    """The atom, if the index is nothing but one."""
    return index.terms[0][0] if len(index.terms) == 1 and index.terms[0][1] == 1 and not index.constant else None


def floor_divide(a: Index, divisor: int) -> Index:
    return divided(a, divisor)[0]


def modulo(a: Index, divisor: int) -> Index:
    return divided(a, divisor)[1]


def divided(a: Index, divisor: int) -> tuple[Index, Index]:
    """(a // divisor, a mod divisor), without divisions if strides and bounds allow. The remainder is never negative."""
    if divisor == 1:
        return a, ZERO
    whole = Index(tuple((t, c // divisor) for t, c in a.terms if c % divisor == 0), a.constant // divisor)
    rest = Index(tuple((t, c) for t, c in a.terms if c % divisor), a.constant % divisor)
    quotient, remainder = _divided_rest(rest, divisor)
    return add(whole, quotient), remainder


def _divided_rest(rest: Index, divisor: int) -> tuple[Index, Index]:
    low, high = bounds(rest)
    if low // divisor == high // divisor:
        return constant(low // divisor), shift(rest, -(low // divisor) * divisor)
    common = math.gcd(divisor, *(c for _, c in rest.terms))
    if common > 1:
        smaller = Index(tuple((t, c // common) for t, c in rest.terms), rest.constant // common)
        quotient, remainder = divided(smaller, divisor // common)
        return quotient, shift(scale(remainder, common), rest.constant % common)
    steps, unit, place = _in_steps(rest, divisor)
    if unit:
        quotient, remainder = divided(steps, divisor // unit)
        return quotient, add(scale(remainder, unit), place)
    quotient = Index(((Atom(QUOTIENT, "", divisor, rest, low // divisor, high // divisor), 1),))
    remainder = Index(((Atom(REMAINDER, "", divisor, rest, 0, divisor - 1), 1),))
    inner = _single(rest)
    if inner is not None and inner.kind == QUOTIENT:
        return floor_divide(inner.inner, inner.divisor * divisor), remainder
    if inner is not None and inner.kind == REMAINDER and inner.divisor % divisor == 0:
        quotient, remainder = divided(inner.inner, divisor)
        return modulo(quotient, inner.divisor // divisor), remainder
    return quotient, remainder


def _in_steps(index: Index, divisor: int) -> tuple[Index, int, Index]:
    """(steps, unit, place): the index is unit * steps + place, unit divides the divisor, and 0 <= place < unit, so that
    a quotient depends only on the steps. unit is 0 if there is no such form."""
    for unit in sorted({math.gcd(divisor, c) for _, c in index.terms} - {1}, reverse=True):
        place = Index(tuple((t, c) for t, c in index.terms if c % unit), index.constant % unit)
        low, high = bounds(place)
        if 0 <= low and high < unit and place != index:
            steps = Index(tuple((t, c // unit) for t, c in index.terms if c % unit == 0), index.constant // unit)
            return steps, unit, place
    return ZERO, 0, index


def linearize(indices: Sequence[Index], dimensions: Sequence[int]) -> Index:
    """The flat row-major position of a multi-index."""
    return strided(indices, row_major(dimensions))


def strided(indices: Iterable[Index], strides: Iterable[int]) -> Index:
    """The sum of indices times strides."""
    total = ZERO
    for index, stride in zip(indices, strides):
        total = add(total, scale(index, stride))
    return total


def delinearize(position: Index, dimensions: Sequence[int]) -> tuple[Index, ...]:
    """The multi-index of a flat row-major position in 0 .. product(dimensions) - 1."""
    result: list[Index] = []
    for size in reversed(dimensions[1:]):
        position, place = divided(position, size)
        result.append(place)
    return (position, *reversed(result)) if dimensions else ()


def reshape(indices: Sequence[Index], source: Sequence[int], target: Sequence[int]) -> tuple[Index, ...]:
    """A multi-index of an array of dimensions `source` as one of the same elements in dimensions `target`.

    Works group by group between equal prefix products, so that untouched dimensions stay as they are.
    """
    if 0 in source:
        return tuple(ZERO for _ in target)
    ends = [{product: n for n, product in reversed([*enumerate(accumulate(dimensions, mul), 1)])}
            for dimensions in (source, target)]          # the product of the first dimensions -> how many, at least
    whole, result, i, j = math.prod(source), list[Index](), 0, 0
    for product in sorted((ends[0].keys() & ends[1].keys()) - {1} | {whole}):
        next_i, next_j = (d[product] for d in ends) if product < whole else (len(source), len(target))
        result += delinearize(linearize(indices[i:next_i], source[i:next_i]), target[j:next_j])
        i, j = next_i, next_j
    return tuple(result)


def variables(index: Index) -> set[str]:
    """Names of all variables in an index, through quotients and remainders."""
    found: set[str] = set()
    stack = [index]
    while stack:
        for atom, _ in stack.pop().terms:
            if atom.kind == VARIABLE:
                found.add(atom.name)
            else:
                stack.append(atom.inner)
    return found


def coefficient_of(index: Index, name: str) -> int | None:
    """The stride of a variable in an index; None if it is inside a quotient or remainder."""
    factor = 0
    for atom, c in index.terms:
        if atom.kind == VARIABLE:
            factor += c if atom.name == name else 0
        elif name in variables(atom.inner):
            return None
    return factor


def index_apply(op: str, a: Expr, b: Expr) -> Expr:
    """a op b of add, subtract, multiply or divide, without operations on constants and ones."""
    if op in ("add", "subtract"):
        return sum_of(((a, 1), (b, 1 if op == "add" else -1)), 0)
    if op == "multiply" and isinstance(b, Const):
        return sum_of([(a, b.integer)], 0)
    if op == "multiply" and isinstance(a, Const):
        return sum_of([(b, a.integer)], 0)
    if op == "divide" and isinstance(b, Const) and b.integer >= 1:
        if b.value == 1:
            return a
        if isinstance(a, Const) and a.integer >= 0:
            return Const(a.integer // b.integer, INDEX)
    return Apply(op, (a, b), INDEX)


def to_expr(index: Index) -> Expr:
    """The loop IR's expression of an index; all dividends are non-negative."""
    return sum_of(((_atom_expr(atom), factor) for atom, factor in index.terms), index.constant)


def sum_of(terms: Iterable[tuple[Expr, int]], constant: int) -> Expr:
    """The INDEX expression of the sum of (expression, factor) terms and a constant: sums in it become part of it."""
    table: dict[Expr, int] = {}
    for term, factor in terms:
        if isinstance(term, Const):
            constant += term.integer * factor
        elif isinstance(term, Apply) and term.op == SUM:
            constant += term.immediate[-1] * factor
            for atom, times in zip(term.arguments, term.immediate):
                table[atom] = table.get(atom, 0) + times * factor
        else:
            table[term] = table.get(term, 0) + factor
    kept = [one for one in table.items() if one[1]]
    if not kept:
        return Const(constant, INDEX)
    if len(kept) == 1:
        (atom, factor), = kept
        return atom if factor == 1 and not constant else Apply(SUM, (atom,), INDEX, (factor, constant))
    kept.sort(key=_rank)
    return Apply(SUM, tuple(atom for atom, _ in kept), INDEX, (*(factor for _, factor in kept), constant))


def sum_parts(expr: Expr) -> tuple[Iterable[tuple[Expr, int]], int]:
    """The (atom, factor) terms of an INDEX expression, and its constant."""
    if isinstance(expr, Const):
        return (), expr.integer
    if isinstance(expr, Apply) and expr.op == SUM:
        return zip(expr.arguments, expr.immediate), expr.immediate[-1]
    return ((expr, 1),), 0


def sum_text(expr: Apply, inside: Callable[[Expr], str]) -> tuple[str, bool]:
    """The text of a sum, in loop IR as in C, and whether it is a product. inside: the text of a factor. A sum that
    falls with its largest stride begins with its constant."""
    *factors, constant = expr.immediate
    text = str(constant) if factors[0] < 0 else ""
    for atom, factor in zip(expr.arguments, factors):
        sign = " - " if factor < 0 else " + " if text else ""
        text += sign + inside(atom) + (f" * {abs(factor)}" if abs(factor) != 1 else "")
    if constant and factors[0] > 0:
        text += f" {'-' if constant < 0 else '+'} {abs(constant)}"
    return text, len(factors) == 1 and factors[0] > 0 and not constant


def _rank(term: tuple[Expr, int]) -> tuple[int, bool, str]:
    """The order of a sum's terms: large strides first, then variables last, by name of variable, operation or array."""
    return -abs(term[1]), isinstance(term[0], Var), str(term[0][0])


def _atom_expr(atom: Atom) -> Expr:
    if atom.kind == VARIABLE:
        return Var(atom.name, INDEX)
    inner = atom.inner
    low, _ = bounds(inner)
    steps = max(0, -(low // atom.divisor))
    divisor = Const(atom.divisor, INDEX)
    raised = to_expr(shift(inner, steps * atom.divisor))
    if atom.kind == REMAINDER:
        return Apply("remainder", (raised, divisor), INDEX)
    return index_apply("add", Apply("divide", (raised, divisor), INDEX), Const(-steps, INDEX))
