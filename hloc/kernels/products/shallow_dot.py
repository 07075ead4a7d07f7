"""Matmuls of many rows with few terms per sum, in blocks of contiguous rows.

In: a dot or a convolution of 1x1 windows whose left operand and result are contiguous rows, in a type other than that
of its sums or with a right operand whose columns are not contiguous, with its epilogue. Out: one kernel, or None for
other forms. The inputs and results of a block are converted in long contiguous loops; the right operand is packed and
converted once; sums stay in registers.

    for k, j: table[k, j] = b[k, j]
    for blocks of rows:  for i in block: terms[i] = a[i]
                         for r in block: for j: sums[r, j] = terms[r, 0] * table[0, j] + terms[r, 1] * table[1, j] ...
                         for i in block: out[i] = sums[i]
"""
from __future__ import annotations

import math
from functools import reduce

from hloc.ir import Instruction
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elemental.loop import cost_of, shareable
from hloc.kernels.elements import Indices, always
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Apply, Expr, Load
from hloc.kernels.products.size_thresholds import NARROW, has_few_terms
from hloc.kernels.rules.elementwise import zero
from hloc.kernels.rules.loops import DotDimensions, accumulator_type, product_result

BLOCK = 2048                    # elements of a block, of the wider of operand and result: it stays in the L1 cache
FEWEST_COLUMNS, FEWEST_ROWS = 4, 64
FEWEST_AT_ONCE = 2              # rows of a block, if something is computed from the result
FEWEST_TRANSPOSED = 2           # columns that are not contiguous: such as points by a transposed matrix


def lower_shallow_product(group: Group, dot: Instruction, dims: DotDimensions) -> Lowered | None:
    """The kernel of the product and its epilogue; None if rows are not contiguous, or are few."""
    product = _ShallowProduct(group, dot, dims)
    if not product.is_fitting():
        return None
    return Lowered((product.kernel(),), can_share=tuple(shareable(group, (dot,))))


class _ShallowProduct:
    """rows, columns, depth: the product's sizes; type: of its sums."""

    def __init__(self, group: Group, dot: Instruction, dims: DotDimensions):
        self.outline = Outline(group)
        self.dot, self.dims = dot, dims
        self.left, self.right = dot.operands[:2]
        self.type = accumulator_type(dot)
        self.rows = self.size(self.left, dims.left_free)
        self.depth = self.size(self.left, dims.left_contracting)
        self.columns = self.size(self.right, dims.right_free)
        self.block = max(1, BLOCK // max(self.columns, self.depth))

    @staticmethod
    def size(operand: Instruction, dimensions: tuple[int, ...]) -> int:
        return math.prod(operand.shape.dimensions[d] for d in dimensions)

    def is_fitting(self) -> bool:
        dims, group = self.dims, self.outline.group
        in_order = (*dims.left_free, *dims.left_contracting) == tuple(range(self.left.shape.rank))
        converts = any(o.shape.element_type != self.type for o in (self.left, self.right))
        transposes = self.right.shape.rank - 1 not in dims.right_free
        fewest = FEWEST_TRANSPOSED if transposes else FEWEST_COLUMNS
        return (in_order and (converts or transposes) and not dims.left_batch and self.depth > 0
                and self.rows >= FEWEST_ROWS and fewest <= self.columns and self.has_few_terms()
                and all(r.shape.num_elements == self.dot.shape.num_elements for r in group.roots))

    def has_few_terms(self) -> bool:
        """Whether there are few terms, for rows of this length; results that are used further pass through the L1
        cache, a few rows at a time, and f16 is also rounded there."""
        if self.outline.group.roots == [self.dot]:
            return has_few_terms(self.depth, self.columns)
        rounds = self.dot.shape.element_type == "f16"
        return has_few_terms(self.depth, self.columns, NARROW if rounds else BLOCK // FEWEST_AT_ONCE)

    def kernel(self) -> KernelCall:
        outline, b = self.outline, self.outline.builder
        self.table = b.local(self.type, self.depth * self.columns, "table")
        with b.loop(self.depth * self.columns, VECTOR) as i:
            b.store(self.table, i, self.value(self.right, self.right_index(i)))
        spread = {member: self.spread(member) for member in outline.group.members if self.is_of_columns(member)}
        with loops.parallel(b, [-(-self.rows // self.block)]) as (block,):
            terms = b.local(self.type, self.block * self.depth, "terms")
            with loops.block_loop(b, self.rows * self.depth, self.block * self.depth, block) as i:
                value = self.value(self.left, indexing.delinearize(i, self.left.shape.dimensions))
                b.store(terms, self.inside(i, self.depth, block), value)
            if outline.group.roots == [self.dot] and not scalars.is_narrow(self.dot.shape.element_type):
                self.store_rows(terms, block)
            else:
                self.finish_block(terms, block, spread)
        work = 2 * self.rows * self.columns * self.depth
        return outline.finish(cost=cost_of(outline, self.dot.shape.num_elements, b)._replace(flops=work))

    def store_rows(self, terms: str, block: Index) -> None:
        """Store sums that are the final result."""
        b = self.outline.builder
        with loops.block_loop(b, self.rows, self.block, block, SERIAL) as row, b.pinned([terms]):
            factors = self.factors(terms, row, block)
            with b.loop(self.columns, VECTOR) as column:
                total = product_result(self.sum(factors, column), self.dot.shape.element_type)
                self.outline.store_all(indexing.add(indexing.scale(row, self.columns), column), [total])

    def finish_block(self, terms: str, block: Index, spread: dict[Instruction, str]) -> None:
        """All sums of a block, then the epilogue, in contiguous loops."""
        outline, b, sizes = self.outline, self.outline.builder, self.dot.shape.dimensions
        sums = b.local(self.type, self.block * self.columns, "sums")
        with loops.block_loop(b, self.rows, self.block, block, SERIAL) as row:
            inside = indexing.scale(self.inside(row, 1, block), self.columns)
            with b.pinned([terms, sums]):
                factors = self.factors(terms, row, block)
                with b.loop(self.columns, VECTOR) as column:
                    b.store(sums, indexing.add(inside, column), self.sum(factors, column))
        with loops.block_loop(b, self.rows * self.columns, self.block * self.columns, block) as i, b.pinned([sums]):
            place = b.position(self.inside(i, self.columns, block))
            for member, name in spread.items():
                element = Load(name, place, scalars.computation_type(member.shape.element_type))
                outline.elements.sources[member] = always(element)
            total = product_result(Load(sums, place, self.type), self.dot.shape.element_type)
            outline.elements.sources[self.dot] = always(total)
            index = indexing.delinearize(i, sizes)
            outline.store_all(i, [outline.elements.value(r, indexing.reshape(index, sizes, r.shape.dimensions))
                                  for r in outline.group.roots])

    def is_of_columns(self, member: Instruction) -> bool:
        """Whether the epilogue reads a value per column that is the same for all rows."""
        rows = len(self.dims.left_free)
        return (member.opcode == "broadcast" and member.operands[0].shape.rank > 0
                and member.shape.dimensions == self.dot.shape.dimensions
                and all(d >= rows for d in member.get("dimensions", ())))

    def spread(self, member: Instruction) -> str:
        """An array with these values for each row of a block: it is also read contiguously."""
        b, elements = self.outline.builder, self.outline.elements
        name = b.local(scalars.computation_type(member.shape.element_type), self.block * self.columns, "spread")
        with b.loop(self.block * self.columns, VECTOR) as i:
            index = indexing.delinearize(indexing.modulo(i, self.columns), self.dot.shape.dimensions)
            b.store(name, i, elements.value(member, index))
        return name

    def factors(self, terms: str, row: Index, block: Index) -> list[Expr]:
        """The terms of a row."""
        b = self.outline.builder
        first = indexing.scale(self.inside(row, 1, block), self.depth)
        return [b.let(Load(terms, b.position(indexing.shift(first, k)), self.type)) for k in range(self.depth)]

    def sum(self, factors: list[Expr], column: Index) -> Expr:
        """The sum of a row and a column, added up in order."""
        b = self.outline.builder

        def add(total: Expr, k: int) -> Expr:
            element = Load(self.table, b.position(indexing.shift(column, k * self.columns)), self.type)
            return Apply("add", (total, Apply("multiply", (factors[k], element), self.type)), self.type)
        total: Expr = zero(self.type)
        return reduce(add, range(self.depth), total)

    def inside(self, index: Index, size: int, block: Index) -> Index:
        """A position, in units of `size` for each row, within a block."""
        return indexing.subtract(index, indexing.scale(block, self.block * size))

    def value(self, operand: Instruction, index: Indices) -> Expr:
        return scalars.convert_to(self.outline.elements.value(operand, index), self.type)

    def right_index(self, flat: Index) -> Indices:
        """The element of the right operand at a flat position of [depth, columns]."""
        d, sizes = self.dims, self.right.shape.dimensions
        deep, wide = indexing.floor_divide(flat, self.columns), indexing.modulo(flat, self.columns)
        found = {**dict(zip(d.right_contracting, indexing.delinearize(deep, [sizes[n] for n in d.right_contracting]))),
                 **dict(zip(d.right_free, indexing.delinearize(wide, [sizes[n] for n in d.right_free])))}
        return tuple(found.get(n, indexing.ZERO) for n in range(len(sizes)))
