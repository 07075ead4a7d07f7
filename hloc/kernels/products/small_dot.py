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

from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elemental.loop import cost_of, shareable
from hloc.kernels.elements import Indices
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Apply, Expr, Load, Store
from hloc.kernels.monoids import can_reassociate
from hloc.kernels.products.shallow_dot import lower_shallow_product
from hloc.kernels.rules.elementwise import zero
from hloc.kernels.rules.loops import DotDimensions, accumulator_type, product_result

SHORTEST = 4                    # adjacent sums that are worth an array
UNROLLED = 8                    # terms that are added to sums in registers
FEW = 16                        # sums that compilers keep in registers
SHORTEST_SUM = 16               # contiguous terms that are worth vectors
SEVERAL_VECTORS = 32            # contiguous terms that are summed faster than an operand is staged
ROWS_WORTH_STAGING = 3          # rows multiplied with each column of a small operand
WIDTHS = 4, 8, 16               # fewer sums are padded to these; more: to a multiple of the second


def lower_small_product(group: Group, dot: Instruction) -> Lowered | None:
    """The kernel of a tiny dot and its epilogue; None if no dimension of the result is long enough."""
    return _lowered(group, dot, DotDimensions(dot))


def has_long_terms(dot: Instruction, dims: DotDimensions) -> bool:
    """Whether the last dimension of both operands is the only contracted one, and is long."""
    ends = (o.shape.rank - 1 for o in dot.operands[:2])
    return all(d == (end,) for d, end in zip((dims.left_contracting, dims.right_contracting), ends)) \
        and dot.operands[0].shape.dimensions[-1] >= SHORTEST_SUM


def _lowered(group: Group, dot: Instruction, dims: DotDimensions) -> Lowered | None:
    shallow = lower_shallow_product(group, dot, dims)
    if shallow:
        return shallow
    vector = max((d for d, size in enumerate(dot.shape.dimensions) if size > 1), default=None)
    if vector is None or any(r.shape.num_elements != dot.shape.num_elements for r in group.roots):
        return None
    kind: type[_SmallProduct]
    if is_staged(dot, dims):
        kind = _StagedProduct
    elif dot.shape.dimensions[vector] >= SHORTEST:
        kind = _LongSums if has_long_terms(dot, dims) else _SmallProduct
    else:
        return None
    return Lowered((kind(group, dot, dims, vector).kernel(),), can_share=tuple(shareable(group, (dot,))))


def is_staged(dot: Instruction, dims: DotDimensions) -> bool:
    """Whether the dot is many products whose right operand is worth staging in a Local array: its columns are strided,
    or its elements need conversion, and several rows are multiplied with each."""
    left, right = (o.shape for o in dot.operands[:2])
    columns = [d for d in dims.right_free if right.dimensions[d] > 1]
    rows = math.prod(left.dimensions[d] for d in dims.left_free)
    if len(columns) != 1 or not dims.left_batch or rows < ROWS_WORTH_STAGING:
        return False
    if has_long_terms(dot, dims) and left.kind != "complex":
        return left.dimensions[-1] < SEVERAL_VECTORS
    return columns[0] != right.rank - 1 or scalars.is_narrow(right.element_type) \
        or ELEMENT_TYPES[right.element_type].bytes == 1


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
        left = self.dot.operands[0].shape.dimensions
        total = 1
        for d in self.dims.left_contracting:
            total *= left[d]
        return total

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
                     zip((left, right), self.operand_indices(dims, index, depth), moves)]
            with self.along(index, self.kind(dims)):
                factors = [value if value is not None else elements.value(operand, own) for operand, own, value in
                           zip((left, right), self.operand_indices(dims, index, depth), still)]
                self.add_term(index, factors, type)

    def moving_dimensions(self, dims: DotDimensions) -> tuple[dict[int, int], dict[int, int]]:
        """The result's dimensions that each operand depends on, and the corresponding ones of the operand."""
        batch, rows = len(dims.left_batch), len(dims.left_free)
        left = dict(enumerate((*dims.left_batch, *dims.left_free)))
        right = {**dict(enumerate(dims.right_batch)), **dict(enumerate(dims.right_free, batch + rows))}
        return left, right

    def operand_indices(self, dims: DotDimensions, index: list[Index], depth: list[Index]) -> tuple[Indices, Indices]:
        """The element of each operand at `depth` of the sum, for the result's element at `index`."""
        batch, rows = len(dims.left_batch), len(dims.left_free)
        left = dict(zip((*dims.left_batch, *dims.left_free, *dims.left_contracting), (*index[:batch + rows], *depth)))
        right = dict(zip((*dims.right_batch, *dims.right_free, *dims.right_contracting),
                         (*index[:batch], *index[batch + rows:], *depth)))
        lhs, rhs = (tuple(own.get(d, indexing.ZERO) for d in range(operand.shape.rank))
                    for own, operand in zip((left, right), self.dot.operands))
        return lhs, rhs


class _LongSums(_SmallProduct):
    """A dot whose terms of a sum are contiguous in both operands: vectors run along them."""

    def add_up(self, index: list[Index], type: str) -> None:
        """sums = the totals of a * b along the contracted dimension, one after the other."""
        b, elements = self.outline.builder, self.outline.elements
        with self.along(index, SERIAL):
            total = b.mutable(type, zero(type), "add" if can_reassociate("add", type) else "")
            with b.loop(self.depth(), VECTOR) as k, b.pinned([total.name]):
                factors = [scalars.convert_to(elements.value(operand, own), type) for operand, own in
                           zip(self.dot.operands, self.operand_indices(self.dims, index, [k]))]
                b.assign(total, Apply("add", (total, Apply("multiply", tuple(factors), type)), type))
            b.append(Store(self.sums, self.place(index), total))


class _StagedProduct(_SmallProduct):
    """A dot of many products: the right operand of each is staged in a Local array, in the type of the sums, with
    contiguous columns padded to whole vectors.

    for n (PARALLEL):  for k, j: staged[k, j] = b[n, k, j] (or b[n, j, k])
                       for i: the sums of row i, out of a[n, i, k] * staged[k, j]
    """

    def __init__(self, group: Group, dot: Instruction, dims: DotDimensions, vector: int):
        super().__init__(group, dot, dims, vector)
        columns = self.sizes[vector]
        self.width = next((w for w in WIDTHS if columns <= w), -(-columns // WIDTHS[1]) * WIDTHS[1])
        self.staged = ""

    def kernel(self) -> KernelCall:
        b, type, batches = self.outline.builder, accumulator_type(self.dot), len(self.dims.left_batch)
        with loops.parallel(b, self.sizes[:batches]) as batch:
            index: list[Index] = [*batch, *(indexing.ZERO for _ in self.sizes[batches:])]
            self.staged = b.local(type, self.depth() * self.width, "staged")
            self.stage(index, type)
            self.sums = b.local(type, self.width, "sum")
            with ExitStack() as stack, b.pinned([self.staged]):
                for d in range(batches, batches + len(self.dims.left_free)):
                    index[d] = stack.enter_context(b.loop(self.sizes[d]))
                self.add_up(index, type)
                with super().along(index):
                    self.finish(index, type)
        return self.finished()

    @contextmanager
    def along(self, index: list[Index], kind: str = VECTOR) -> Iterator[None]:
        """The loop over the sums, those of the filling too."""
        with self.outline.builder.loop(self.width, kind) as index[self.vector]:
            yield

    def stage(self, index: list[Index], type: str) -> None:
        """staged = the right operand of the product at `index`."""
        b, right, dims = self.outline.builder, self.dot.operands[1], self.dims
        if self.width > self.sizes[self.vector]:
            with b.loop(self.depth() * self.width, VECTOR) as place:
                b.append(Store(self.staged, b.position(place), zero(type)))
        apart = right.shape.rank - 1 in dims.right_contracting
        with ExitStack() as stack:
            if apart:
                stack.enter_context(super().along(index, SERIAL))
            depth = [stack.enter_context(b.loop(right.shape.dimensions[d])) for d in dims.right_contracting]
            if not apart:
                stack.enter_context(super().along(index, SERIAL))
            value = self.outline.elements.value(right, self.operand_indices(dims, index, depth)[1])
            b.append(Store(self.staged, self.staged_place(index, depth), scalars.convert_to(value, type)))

    def staged_place(self, index: list[Index], depth: list[Index]) -> Expr:
        right = self.dot.operands[1].shape.dimensions
        sizes = (*(right[d] for d in self.dims.right_contracting), self.width)
        return self.outline.builder.position(indexing.linearize([*depth, index[self.vector]], sizes))

    def accumulate(self, index: list[Index], type: str) -> None:
        b, left = self.outline.builder, self.dot.operands[0]
        with ExitStack() as stack:
            *outer, last = (left.shape.dimensions[d] for d in self.dims.left_contracting)
            depth = [stack.enter_context(b.loop(size)) for size in outer]
            for k in loops.unrolled(b, last, UNROLLED):
                with b.pinned([self.sums]):
                    inner = [*depth, k]
                    factor = b.let(self.outline.elements.value(left, self.operand_indices(self.dims, index, inner)[0]))
                    with self.along(index):
                        self.add_term(index, (factor, Load(self.staged, self.staged_place(index, inner), type)), type)
