"""Tiny matmuls as loops: one row of the result at a time, with its sums in a Local array.

In: a dot too small for a tile (dot.py), with the fusion's operations on its result. Out: one kernel, or None if the
result has no dimension to vectorize.

    for i:  for j: sum[j] = 0
            for k: for j: sum[j] += a[i, k] * b[k, j]
            for j: out[i, j] = epilogue(sum[j])

Every sum is accumulated in the order of k, as in the element rule of a dot (rules/loops.py); but adjacent sums are
independent. If the terms of a sum are contiguous in both operands, and those of adjacent sums are not, vectors run
along k instead:

            for j: s = 0; for k (VECTOR): s += a[i, k] * b[j, k]; sum[j] = s
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from hloc.ir import Instruction
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elemental.loop import cost_of, shareable
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Apply, Expr, Load, Store
from hloc.kernels.monoids import can_reassociate
from hloc.kernels.products.shallow_dot import lower_shallow_product
from hloc.kernels.rules.elementwise import zero
from hloc.kernels.rules.loops import DotDimensions, accumulator_type, product_result

SHORTEST = 4                    # adjacent sums that are worth an array
FEW = 16                        # sums that compilers keep in registers
SHORTEST_SUM = 16               # contiguous terms that are worth vectors


def lower_small_product(group: Group, dot: Instruction) -> Lowered | None:
    """The kernel of a tiny dot and its epilogue; None if no dimension of the result is long enough."""
    dims = DotDimensions(dot)
    if shallow := lower_shallow_product(group, dot, dims):
        return shallow
    vector = max((d for d, size in enumerate(dot.shape.dimensions) if size > 1), default=None)
    if vector is None or dot.shape.dimensions[vector] < SHORTEST \
            or any(r.shape.num_elements != dot.shape.num_elements for r in group.roots):
        return None
    kind = _LongSums if has_long_terms(dot, dims) else _SmallProduct
    return Lowered((kind(group, dot, dims, vector).kernel(),), can_share=tuple(shareable(group, (dot,))))


def has_long_terms(dot: Instruction, dims: DotDimensions) -> bool:
    """Whether the last dimension of both operands is the only contracted one, and is long. Sums of complex numbers have
    no vectors."""
    ends = (o.shape.rank - 1 for o in dot.operands[:2])
    return all(d == (end,) for d, end in zip((dims.left_contracting, dims.right_contracting), ends)) \
        and dot.operands[0].shape.dimensions[-1] >= SHORTEST_SUM and dot.shape.kind != "complex"


class _SmallProduct:
    """The loops of one kernel, a row of the result at a time. vector: the dimension along which its sums run."""

    def __init__(self, group: Group, dot: Instruction, dims: DotDimensions, vector: int):
        self.outline = Outline(group)
        self.dot = dot
        self.dims = dims
        self.vector = vector
        self.sizes = dot.shape.dimensions
        self.sums = ""

    def kernel(self) -> KernelCall:
        b, type = self.outline.builder, accumulator_type(self.dot)
        others = [d for d in range(len(self.sizes)) if d != self.vector]
        with loops.parallel(b, [self.sizes[d] for d in others]) as outer:
            index: list[Index] = [indexing.ZERO] * len(self.sizes)
            for d, counter in zip(others, outer):
                index[d] = counter
            self.sums = b.local(type, self.sizes[self.vector], "sum")
            self.add_up(index, type)
            with self.along(index):
                self.finish(index, type)
        return self.finished()

    def finished(self) -> KernelCall:
        count = self.dot.shape.num_elements
        cost = cost_of(self.outline, count, self.outline.builder)
        return self.outline.finish(cost=cost._replace(flops=2 * count * self.depth()))

    @contextmanager
    def along(self, index: list[Index], kind: str = VECTOR) -> Iterator[None]:
        """The loop over the sums; `index` follows its counter."""
        with self.outline.builder.loop(self.sizes[self.vector], kind) as index[self.vector]:
            yield

    def place(self, index: list[Index]) -> Expr:
        return self.outline.builder.position(index[self.vector])

    def add_up(self, index: list[Index], type: str) -> None:
        """Compute the sums: from zero, term by term."""
        with self.along(index):
            self.outline.builder.append(Store(self.sums, self.place(index), zero(type)))
        self.accumulate(index, type)

    def add_term(self, index: list[Index], factors: Sequence[Expr], type: str) -> None:
        """sums += one product, in the loop over the sums."""
        old = self.outline.builder.let(Load(self.sums, self.place(index), type))
        product = Apply("multiply", tuple(scalars.convert_to(f, type) for f in factors), type)
        self.outline.builder.append(Store(self.sums, self.place(index), Apply("add", (old, product), type)))

    def finish(self, index: list[Index], type: str) -> None:
        """The epilogue of one element."""
        outline, b = self.outline, self.outline.builder
        position = indexing.linearize(index, self.sizes)
        total = product_result(b.let(Load(self.sums, self.place(index), type)), self.dot.shape.element_type)
        outline.elements.sources[self.dot] = lambda _: total
        outline.store_all(position, [outline.elements.value(r, indexing.delinearize(position, r.shape.dimensions))
                                     for r in outline.group.roots])

    def kind(self, dims: DotDimensions) -> str:
        """SERIAL if an operand has a stride along the sums: a few elements are gathered slower than loaded."""
        if self.sizes[self.vector] > FEW:
            return VECTOR
        for operand, of in zip(self.dot.operands, self.moving_dimensions(dims)):
            if of.get(self.vector, operand.shape.rank - 1) != operand.shape.rank - 1:
                return SERIAL
        return VECTOR

    def depth(self) -> int:
        """Products in one sum."""
        return math.prod(self.dot.operands[0].shape.dimensions[d] for d in self.dims.left_contracting)

    def accumulate(self, index: list[Index], type: str) -> None:
        """sums += a * b, for all of the contracted dimensions; operands that do not depend on the sum are read
        before."""
        b, elements = self.outline.builder, self.outline.elements
        dims, (left, right) = self.dims, self.dot.operands[:2]
        with ExitStack() as stack:
            depth = [stack.enter_context(b.loop(left.shape.dimensions[d])) for d in dims.left_contracting]
            stack.enter_context(b.pinned([self.sums]))
            moves = [self.vector in of for of in self.moving_dimensions(dims)]
            still = [None if moving else b.let(elements.value(operand, own)) for operand, own, moving in
                     zip((left, right), dims.places(index, depth), moves)]
            with self.along(index, self.kind(dims)):
                factors = [value if value is not None else elements.value(operand, own) for operand, own, value in
                           zip((left, right), dims.places(index, depth), still)]
                self.add_term(index, factors, type)

    def moving_dimensions(self, dims: DotDimensions) -> tuple[dict[int, int], dict[int, int]]:
        """The result's dimensions that each operand depends on, and the corresponding ones of the operand."""
        batch, rows = len(dims.left_batch), len(dims.left_free)
        left = dict(enumerate((*dims.left_batch, *dims.left_free)))
        right = {**dict(enumerate(dims.right_batch)), **dict(enumerate(dims.right_free, batch + rows))}
        return left, right


class _LongSums(_SmallProduct):
    """A dot whose terms of a sum are contiguous in both operands: vectors run along them."""

    def add_up(self, index: list[Index], type: str) -> None:
        """sums = the totals of a * b along the contracted dimension, one after the other."""
        b, elements = self.outline.builder, self.outline.elements
        with self.along(index, SERIAL):
            total = b.mutable(type, zero(type), "add" if can_reassociate("add", type) else "")
            with b.loop(self.depth(), VECTOR) as k, b.pinned([total.name]):
                factors = [scalars.convert_to(elements.value(operand, own), type) for operand, own in
                           zip(self.dot.operands, self.dims.places(index, [k]))]
                b.assign(total, Apply("add", (total, Apply("multiply", tuple(factors), type)), type))
            b.append(Store(self.sums, self.place(index), total))
