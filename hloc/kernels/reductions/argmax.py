"""The maximum or minimum float of a row and its position (argmax): first the value, then the position, both in vectors.

In: a Reduction whose one reduce is such a pair, with positions counting along its one reduced loop, and a function that
uses the totals. Out: statements in the Outline's builder. A single chain of comparisons would take ten cycles per
element, and more with mispredicted branches.

    for i (VECTOR): v = max(v, x[i])                      NaN stays, as in the chain
    for i (VECTOR): p = min(p, x[i] == v or x[i] is NaN ? i : the greatest number)
    if v == 0:                                            zeros of both signs are equal; the chain keeps the last
        for i (VECTOR): q = max(q, x[i] == v ? i : 0)
        v = x[q]
    (v, p) taken in by the initial values

Computed values are stored in a Local array by the first loop.
"""
from __future__ import annotations

from hloc.kernels.indexing import Index
from hloc.kernels.ir import INDEX, VECTOR, Apply, Const, Expr, Load, Var
from hloc.kernels.monoids import chosen_float, identity
from hloc.kernels.reductions.nest import Nest
from hloc.kernels.reductions.reduction import Reduction, places_count, side_roots
from hloc.machine import Machine

SHORTEST = 32                   # elements of a row
MOST_OPERATIONS = 12            # of an element that several loops compute
MOST_KEPT = 4096                        # values of a row that are computed only once


def is_argmax(reduction: Reduction, machine: Machine) -> bool:
    """Whether the loops below suit a reduction."""
    if machine.kind != "cpu" or len(reduction.reduces) != 1 or sum(reduction.reduced) != 1:
        return False
    reduce, length = reduction.reduces[0], reduction.extents[-1]
    if not reduction.reduced[-1] or length < SHORTEST or chosen_float(reduce) is None:
        return False
    return (places_count(reduction, reduce) and reduction.operations <= MOST_OPERATIONS
            and not (reduction.has_loops or side_roots(reduction)))


class ArgmaxNest(Nest):
    """The loops of an argmax or argmin kernel. kept: the Local array that holds the values of a row."""

    kept: str | None = None

    def row(self, counters: list[Index]) -> list[list[Expr]]:
        r, b = self.reduction, self.outline.builder
        op, n = chosen_float(r.reduces[0]), len(r.extents) - 1
        assert op is not None                # as is_argmax says
        (_, _, type), (_, _, place_type) = r.accumulators
        best = b.mutable(type, identity(op, type), op)
        self.kept, kept = None, b.local(type, r.extents[n]) if self.keeps_values() else None
        with self.reduced_loop(n, True, VECTOR) as counters[n], b.pinned([best.name]):
            value = self.element(counters)[0]
            if kept:
                value = b.let(value)
                b.store(kept, counters[n], value)
            b.assign(best, Apply(op, (best, value), type))
        self.kept = kept
        last = identity("minimum", place_type)
        place = b.mutable(place_type, last, "minimum")
        with self.reduced_loop(n, True, VECTOR) as counters[n], b.pinned([place.name]):
            value, where = self.element(counters)
            here = Apply("select", (self.is_met(value, best), where, last), place_type)
            b.assign(place, Apply("minimum", (place, here), place_type))
        self.take_last_zero(counters, best, place_type)
        accumulators = self.start(False)
        self.take(accumulators, [[best, place]])
        return [list(accumulators)]

    def take_last_zero(self, counters: list[Index], best: Var, place_type: str) -> None:
        """For a value of zero: take the last element that is zero, since it may have the other sign."""
        b, n = self.outline.builder, len(self.reduction.extents) - 1
        with b.guard([Apply("compare_eq", (best, Const(0.0, best.type)), "pred")]):
            first = Const(0, place_type)
            place = b.mutable(place_type, first, "maximum")
            with self.reduced_loop(n, True, VECTOR) as counters[n], b.pinned([best.name, place.name]):
                value, where = self.element(counters)
                here = Apply("select", (Apply("compare_eq", (value, best), "pred"), where, first), place_type)
                b.assign(place, Apply("maximum", (place, here), place_type))
            counters[n] = b.bind_index(Apply("convert", (place,), INDEX), 0, self.reduction.extents[n] - 1)
            b.assign(best, self.element(counters)[0])

    def element(self, counters: list[Index]) -> list[Expr]:
        """The value and the position at one point."""
        if self.kept is None:
            return self.read(counters)[0][0]
        r, b = self.reduction, self.outline.builder
        place = self.outline.elements.value(r.arrays(r.reduces[0])[1], r.full_index(counters))
        return [b.let(Load(self.kept, b.position(counters[-1]), r.accumulators[0][2])), place]

    def keeps_values(self) -> bool:
        """Whether the values of a row are computed, and few enough to be stored: the later loops then only compare
        them."""
        r = self.reduction
        number = r.arrays(r.reduces[0])[0]
        source = number.operands[0] if number.opcode == "convert" and number not in r.group.parameters else number
        return source not in r.group.parameters and self.chunks == 1 and r.extents[-1] <= MOST_KEPT

    @staticmethod
    def is_met(value: Expr, best: Var) -> Expr:
        """Whether this is the value that was found, which may be NaN."""
        return Apply("or", (Apply("compare_eq", (value, best), "pred"), Apply("compare_ne", (value, value), "pred")),
                     "pred")
