"""The maximum or minimum of a row and its position (argmax): first the value, then the position, both in vectors,
or by the lanes of a GPU.

In: a Reduction whose one reduce is such a pair, with positions counting along its one reduced loop, and a function that
uses the totals. Out: statements in the Outline's builder. A single chain of comparisons would take ten cycles per
element, and more with mispredicted branches; on a GPU one thread would follow it.

    for i (VECTOR): v = max(v, x[i])                      NaN stays
    for i (VECTOR): p = min(p, x[i] == v or x[i] is NaN ? i : the greatest number)
    if v == 0:                                            zeros of both signs are equal; reducers may keep the last
        for i (VECTOR): q = max(q, x[i] == v ? i : the least number)
        v = x[q]
    (v, p) taken in by the initial values

Where a reducer does not keep the first NaN, a row that has one is reduced in a chain.
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.indexing import Index
from hloc.kernels.ir import INDEX, SERIAL, VECTOR, Apply, Const, Expr, Var
from hloc.kernels.monoids import FIRST, Choice, choice, identity
from hloc.kernels.reductions.nest import Nest
from hloc.kernels.reductions.reduction import Reduction, places_count, side_roots

SHORTEST = 32                   # elements of a row


def is_argmax(reduction: Reduction) -> bool:
    """Whether the loops below suit a reduction."""
    if len(reduction.reduces) != 1 or sum(reduction.reduced) != 1 \
            or not reduction.reduced[-1] or reduction.extents[-1] < SHORTEST:
        return False
    reduce = reduction.reduces[0]
    return choice(reduce) is not None and places_count(reduction, reduce) \
        and not reduction.has_loops and not side_roots(reduction)


class ArgmaxNest(Nest):
    """The loops of an argmax or argmin kernel."""

    has_lanes = True

    def row(self, counters: list[Index]) -> list[Expr]:
        r, b = self.reduction, self.outline.builder
        chosen, n = choice(r.reduces[0]), len(r.extents) - 1
        assert chosen is not None                # as is_argmax says
        (_, _, type), _ = r.accumulators
        best = b.mutable(type, identity(chosen.op, type), chosen.op)
        with self.reduced_loop(n, VECTOR) as counters[n], b.pinned([best.name]):
            b.assign(best, Apply(chosen.op, (best, self.read(counters)[0][0]), type))
        place = self.place(counters, best, chosen.place, chosen.first_nan)
        accumulators = self.start(False)
        if ELEMENT_TYPES[type].kind != "float":
            self.take(accumulators, [[best, place]])
            return list(accumulators)
        self.take_zero(counters, best, place, chosen)
        if chosen.first_nan:
            self.take(accumulators, [[best, place]])
            return list(accumulators)
        with b.guard([Apply("compare_eq", (best, best), "pred")]):
            self.take(accumulators, [[best, place]])
        with b.guard([Apply("compare_ne", (best, best), "pred")]), \
                self.reduced_loop(n, SERIAL) as counters[n], b.pinned([a.name for a in accumulators]):
            self.take(accumulators, [self.read(counters)[0]])
        return list(accumulators)

    def place(self, counters: list[Index], best: Var, which: str, is_nan: bool = False) -> Var:
        """The FIRST or LAST position of a value. is_nan: whether it may be NaN."""
        b, n, type = self.outline.builder, len(self.reduction.extents) - 1, self.reduction.accumulators[1][2]
        op = "minimum" if which == FIRST else "maximum"
        place = b.mutable(type, identity(op, type), op)
        with self.reduced_loop(n, VECTOR) as counters[n], b.pinned([best.name, place.name]):
            value, where = self.read(counters)[0]
            is_met: Expr = Apply("compare_eq", (value, best), "pred")
            if is_nan and ELEMENT_TYPES[best.type].kind == "float":
                is_met = Apply("or", (is_met, Apply("compare_ne", (value, value), "pred")), "pred")
            here = Apply("select", (is_met, where, identity(op, type)), type)
            b.assign(place, Apply(op, (place, here), type))
        return place

    def take_zero(self, counters: list[Index], best: Var, place: Var, chosen: Choice) -> None:
        """For a value of zero: take the element that is chosen of those that are zero, since they differ in sign."""
        b, n = self.outline.builder, len(self.reduction.extents) - 1
        with b.guard([Apply("compare_eq", (best, Const(0.0, best.type)), "pred")]):
            where = place if chosen.value == chosen.place else self.place(counters, best, chosen.value)
            counters[n] = b.bind_index(Apply("convert", (where,), INDEX), 0, self.reduction.extents[n] - 1)
            b.assign(best, self.read(counters)[0][0])
