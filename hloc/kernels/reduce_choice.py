"""The largest or smallest float of a row, and its place: first the value, then the place, both by vectors.

In: a Reduction whose one reduce is such a pair (argmax), places counting along its one reduced loop, and what to do
with the totals. Out: statements in the Outline's builder. One chain of comparisons would take ten cycles for an
element, and more where branches are guessed wrong.

    for i (VECTOR): v = max(v, x[i])                      NaN stays, as in the chain
    for i (VECTOR): p = min(p, x[i] == v or x[i] is NaN ? i : the greatest number)
    (v, p) taken in by the initial values

Of zeros of both signs the value may be the other one: they are equal.
"""
from __future__ import annotations

from hloc.kernels.indexing import Index
from hloc.kernels.ir import VECTOR, Apply, Expr, Var
from hloc.kernels.monoids import chosen_float, identity
from hloc.kernels.reduce_nest import MOST_OPERATIONS, Nest
from hloc.kernels.reduction import Reduction, side_roots
from hloc.machine import Machine

SHORTEST, SHORTEST_BF16 = 16, 32        # elements of a row


def is_choice(reduction: Reduction, machine: Machine) -> bool:
    """Whether the loops below suit a reduction."""
    if machine.kind != "cpu" or len(reduction.reduces) != 1 or sum(reduction.reduced) != 1:
        return False
    reduce, length = reduction.reduces[0], reduction.extents[-1]
    shortest = SHORTEST_BF16 if reduction.arrays(reduce)[0].shape.element_type == "bf16" else SHORTEST
    if not reduction.reduced[-1] or length < shortest or chosen_float(reduce) is None:
        return False
    places = reduction.arrays(reduce)[1]
    if identity("minimum", places.shape.element_type).value < length:
        return False
    counts = places.opcode == "iota" and (places.get("iota_dimension"),) == tuple(
        d for d in reduce.get("dimensions") if reduction.dimensions[d] > 1)
    return counts and reduction.operations <= MOST_OPERATIONS and not (reduction.has_loops or side_roots(reduction))


class ChoiceNest(Nest):
    """The loops of a reduction kernel that chooses."""

    def row(self, counters: list[Index]) -> list[Expr]:
        r, b = self.reduction, self.outline.builder
        op, n = chosen_float(r.reduces[0]), len(r.extents) - 1
        (_, _, type), (_, _, place_type) = r.accumulators
        best = b.mutable(type, identity(op, type), op)
        with self.reduced_loop(n, True, VECTOR) as counters[n], b.pinned([best.name]):
            b.assign(best, Apply(op, (best, self.element(counters)[0]), type))
        last = identity("minimum", place_type)
        place = b.mutable(place_type, last, "minimum")
        with self.reduced_loop(n, True, VECTOR) as counters[n], b.pinned([place.name]):
            value, where = self.element(counters)
            here = Apply("select", (self.is_met(value, best), where, last), place_type)
            b.assign(place, Apply("minimum", (place, here), place_type))
        accumulators = self.start(False)
        self.take(accumulators, [[best, place]])
        return list(accumulators)

    def element(self, counters: list[Index]) -> list[Expr]:
        """The number and the place at one point."""
        return self.values(counters)[0][0]

    @staticmethod
    def is_met(value: Expr, best: Var) -> Expr:
        """Whether this is the number that was found; that may be NaN."""
        return Apply("or", (Apply("compare_eq", (value, best), "pred"), Apply("compare_ne", (value, value), "pred")),
                     "pred")
