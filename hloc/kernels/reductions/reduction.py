"""The parts of a reduction kernel: the reduces of a group, their accumulators, and the results computed from them.

In: a Group with reduces of the same dimensions. Out: a Reduction, and the parts that its kernels put together: the
elements accumulated at one point, the accumulators' initial values, their combination, the stored results.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from hloc.errors import UnsupportedError
from hloc.ir import Instruction, Shape
from hloc.kernels import indexing, scalars
from hloc.kernels.group import Group, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Expr
from hloc.kernels.monoids import identity, is_identity, monoid
from hloc.kernels.rules.loops import element_types


@dataclass
class Reduction:
    """The reduces of a group and the loops of their input space (extents; reduced: which are summed over). work: of one
    element, as a Builder counts it; has_loops: computing one takes loops of its own."""

    group: Group
    reduces: list[Instruction]
    dimensions: tuple[int, ...]
    extents: list[int] = field(default_factory=list)
    reduced: list[bool] = field(default_factory=list)
    work: float = 0.0
    has_loops: bool = False

    @property
    def kept_extents(self) -> list[int]:
        return [n for n, r in zip(self.extents, self.reduced) if not r]

    @property
    def results(self) -> int:
        return math.prod(self.kept_extents)

    def initial(self, reduce: Instruction) -> list[Instruction]:
        return reduce.operands[len(reduce.operands) // 2:]

    def arrays(self, reduce: Instruction) -> list[Instruction]:
        return reduce.operands[:len(reduce.operands) // 2]

    def monoid(self, reduce: Instruction) -> str | None:
        return monoid(reduce.get("to_apply")) if len(reduce.operands) == 2 else None

    @property
    def accumulators(self) -> list[tuple[Instruction, int, str]]:
        """(reduce, its result number, computation type) for every accumulator."""
        return [(r, k, scalars.computation_type(t)) for r in self.reduces for k, t in enumerate(element_types(r))]

    def full_index(self, counters: list[Index]) -> tuple[Index, ...]:
        return indexing.delinearize(indexing.linearize(counters, self.extents), self.dimensions)

    def kept(self, counters: list[Index]) -> Index:
        """The flat position of a result."""
        kept = [c for c, r in zip(counters, self.reduced) if not r]
        return indexing.linearize(kept, self.kept_extents)


def point_values(reduction: Reduction, outline: Outline, counters: list[Index]) -> list[list[Expr]]:
    """The elements that each reduce accumulates at one point; results of the input's size are stored once everything is
    computed."""
    index = reduction.full_index(counters)
    values = [[outline.elements.value(a, index) for a in reduction.arrays(r)] for r in reduction.reduces]
    flat = indexing.linearize(index, reduction.dimensions)
    aside = [(leaf, outline.elements.value(root, indexing.delinearize(flat, root.shape.dimensions)))
             for leaf, root in side_roots(reduction)]
    for leaf, value in aside:
        outline.store(leaf, flat, value)
    return values


def side_roots(reduction: Reduction) -> list[tuple[int, Instruction]]:
    """(leaf, root) of the results that have the input's size and do not depend on the reduces."""
    found = []
    for leaf, root, _ in result_leaves(reduction.group):
        if root.opcode != "reduce" and root.shape.num_elements == math.prod(reduction.dimensions) \
                and not depends(root, reduction.reduces):
            found.append((leaf, root))
    return found


def places_count(reduction: Reduction, reduce: Instruction) -> bool:
    """Whether the second input of a reduce is the number of the element along its one reduced loop, in a type that
    holds all of them."""
    places = reduction.arrays(reduce)[1]
    gone = [d for d in reduce.get("dimensions") if reduction.dimensions[d] > 1]
    return places.opcode == "iota" and [places.get("iota_dimension")] == gone \
        and identity("minimum", places.shape.element_type).real >= reduction.dimensions[gone[0]]


def depends(root: Instruction, reduces: list[Instruction]) -> bool:
    stack, seen = [root], set()
    while stack:
        top = stack.pop()
        if top in reduces:
            return True
        if top not in seen:
            seen.add(top)
            stack.extend(top.operands)
    return False


def result_leaves(group: Group) -> list[tuple[int, Instruction, int]]:
    """(leaf, root, number within a variadic root) of every result."""
    found: list[tuple[int, Instruction, int]] = []
    for root in group.roots:
        count = len(root.shape.tuple_shapes) if root.shape.is_tuple else 1
        found += [(len(found) + k, root, k) for k in range(count)]
    return found


def start(reduction: Reduction, outline: Outline, reduce: Instruction, number: int) -> Expr:
    """The initial value of an accumulator: the identity, if the reduce's initial value can be added at the end."""
    op = reduction.monoid(reduce)
    if op is not None:
        return identity(op, element_types(reduce)[number])
    return outline.elements.value(reduction.initial(reduce)[number], ())


def finished(reduction: Reduction, outline: Outline, totals: list[Expr]) -> list[Expr]:
    """Accumulators combined with the initial values, rounded to their element types."""
    results: list[Expr] = []
    for (reduce, number, _), total in zip(reduction.accumulators, totals):
        op = reduction.monoid(reduce)
        initial = reduction.initial(reduce)[number]
        source = reduction.group.operand(initial) if initial in reduction.group.parameters else initial
        if op is not None and not is_identity(source, op):
            total = outline.elements.combined(reduce, [outline.elements.value(initial, ()), total])[0]
        results.append(scalars.rounded(total, element_types(reduce)[number]))
    return results


def store_results(reduction: Reduction, outline: Outline, position: Index, totals: list[Expr]) -> None:
    """Store every result that is a reduce or computed from reduces, at one kept position."""
    results = {(r, k): v for (r, k, _), v in zip(reduction.accumulators, finished(reduction, outline, totals))}
    side = {leaf for leaf, _ in side_roots(reduction)}
    bind_sources(reduction, outline, results, position)
    values = []
    for leaf, root, number in result_leaves(reduction.group):
        if leaf in side:
            continue
        if root.opcode == "reduce":
            values.append((leaf, results[root, number]))
        else:
            own = indexing.delinearize(position, root.shape.dimensions)
            values.append((leaf, outline.elements.value(root, own)))
    for leaf, value in values:
        outline.store(leaf, position, value)


def bind_sources(reduction: Reduction, outline: Outline, results: dict, position: Index) -> None:
    """Make the finished reduces readable for the rest of the fusion."""
    def reader(shape: Shape, value: Expr, where: Instruction) -> Callable:
        def read(index: tuple[Index, ...]) -> Expr:
            if indexing.linearize(index, shape.dimensions) != position:
                raise UnsupportedError("a reduce read at another position than the one being computed", where.span)
            return value
        return read
    named = {r: reader(r.shape, results[r, 0], r) for r in reduction.reduces if not r.shape.is_tuple}
    for member in reduction.group.members:
        if member.opcode == "get-tuple-element" and member.operands[0] in reduction.reduces:
            named[member] = reader(member.shape, results[member.operands[0], member.get("index")], member)
    outline.elements.sources.update(named)
