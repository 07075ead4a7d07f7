"""Positions as affine forms: the element that an iteration of a loop accesses, and the stride of the loop.

In: INDEX expressions, which are sums as they stand (ir.py), and the forms of the names in them. Out: an Affine: a sum
of integer multiples of atoms, and a constant. An atom is a name, or an expression that is not such a sum: a quotient, a
remainder, a load.

    known = forms([Let p = 32 i0])
    affine(p + i1 + 4, known)                      ->  32 i0 + i1 + 4
    affine(p + i1 / 3, known).step("i1", ())       ->  None: i1 / 3 does not grow evenly
    affine(p + i1 + 4, known).without("i1")        ->  32 i0 + 4, where the loop over i1 begins
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from hloc.kernels.indexing import sum_of, sum_parts
from hloc.kernels.ir import INDEX, Expr, For, Let, Load, Stmt, Var
from hloc.kernels.walks import parts, varying, walk


class Affine(NamedTuple):
    """sum(factor * atom) + constant, in elements. No factor is 0."""

    terms: Mapping[Expr, int]
    constant: int = 0

    def __add__(self, other: Affine) -> Affine:       # type: ignore[override]      # tuples join
        return self.plus(other, 1)

    def plus(self, other: Affine, times: int) -> Affine:
        """The sum of this form and a multiple of another."""
        terms = dict(self.terms)
        for atom, factor in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor * times
        return Affine({a: f for a, f in terms.items() if f}, self.constant + other.constant * times)

    def scaled(self, factor: int) -> Affine:
        return Affine({a: f * factor for a, f in self.terms.items()} if factor else {}, self.constant * factor)

    def factor(self, name: str) -> int:
        """The factor of a name; 0 if it does not occur by itself."""
        return self.terms.get(Var(name, INDEX), 0)

    @property
    def factors(self) -> dict[str, int] | None:
        """The factors of names; None if there are other atoms."""
        names = {a.name: f for a, f in self.terms.items() if isinstance(a, Var)}
        return names if len(names) == len(self.terms) else None

    def step(self, counter: str, inner: Collection[str]) -> int | None:
        """The stride of the form in a loop. inner: other names that may change in the loop; None if the stride may not
        be constant."""
        counted = Var(counter, INDEX)
        for part in parts(a for a in self.terms if a != counted):
            if isinstance(part, Load) or isinstance(part, Var) and (part.name == counter or part.name in inner):
                return None
        return self.terms.get(counted, 0)

    def without(self, *names: str) -> Affine:
        """The form with these names set to 0."""
        out = {Var(name, INDEX) for name in names}
        return self._replace(terms={a: f for a, f in self.terms.items() if a not in out})

    def expression(self) -> Expr:
        """The form as an INDEX expression."""
        return sum_of(self.terms.items(), self.constant)


def of_names(factors: Mapping[str, int], constant: int = 0) -> Affine:
    """The form with these factors of names."""
    return Affine({Var(name, INDEX): f for name, f in factors.items() if f}, constant)


def affine(expr: Expr, known: Mapping[str, Affine]) -> Affine:
    """The form of an INDEX expression; unknown names stand for themselves."""
    atoms, constant = sum_parts(expr)
    terms: dict[Expr, int] = {}
    for atom, factor in atoms:
        named = known.get(atom.name) if isinstance(atom, Var) else None
        if named is None:
            terms[atom] = terms.get(atom, 0) + factor
            continue
        constant += named.constant * factor
        for inner, times in named.terms.items():
            terms[inner] = terms.get(inner, 0) + times * factor
    return Affine({a: f for a, f in terms.items() if f}, constant)


def forms(statements: Iterable[Stmt], known: Mapping[str, Affine] | None = None) -> dict[str, Affine]:
    """`known` with the forms of the names of positions in these statements, nested ones too; names of expressions that
    are not sums stand for themselves."""
    found = dict(known or {})
    for s in walk(statements):
        if isinstance(s, Let) and s.value.type == INDEX:
            form = affine(s.value, found)
            if isinstance(s.value, Var) or s.value not in form.terms:
                found[s.name] = form
    return found


class Along:
    """Positions in a loop: their stride in its counter."""

    def __init__(self, loop: For) -> None:
        self.counter, self.known, self.inner = loop.name, forms(loop.body), varying(loop.body)

    def step(self, position: Expr) -> int | None:
        """The stride of a position in elements; None if it is not constant."""
        return affine(position, self.known).step(self.counter, self.inner)

    def start(self, position: Expr) -> Expr:
        """A position with a stride, at the start of the loop."""
        return affine(position, self.known).without(self.counter).expression()


def injective(factors: Mapping[str, int], extents: Mapping[str, int]) -> bool:
    """Whether different counter values give different positions. extents: the number of values of each counter."""
    reach = 0
    for factor, extent in sorted((abs(factors.get(name, 0)), n) for name, n in extents.items() if n > 1):
        if factor <= reach:
            return False
        reach += factor * (extent - 1)
    return True
