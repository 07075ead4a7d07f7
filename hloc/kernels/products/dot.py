"""Matmuls: a Tile of the library kernel "gemm" with sizes and strides, and an epilogue from the surrounding fusion.

In: a dot, or a kOutput fusion with a dot as its hero. Out: the tile (gemm.py); before it a kernel for each operand
that is not a strided view (it is packed in order, or converted, in a scratch buffer), unless it is computed while the
tile is loaded (prologues.py). Products that are tiny, and those of few terms per sum, are plain loops.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hloc.analysis.prologues import multiply_adds
from hloc.analysis.strides import collapsed
from hloc.ir import ELEMENT_TYPES, Instruction, row_major
from hloc.kernels import indexing, scalars
from hloc.kernels.elemental.loop import loop_kernel, lower_loop, store_roots
from hloc.kernels.elements import Indices
from hloc.kernels.group import Group, Lowered, Outline
from hloc.kernels.ir import Expr
from hloc.kernels.products.convolution import lower_convolution
from hloc.kernels.products.epilogues import tile_types
from hloc.kernels.products.gemm import Lines, gemm_call, lines_of
from hloc.kernels.products.operands import Access, OperandKernels
from hloc.kernels.products.prologues import DEPTH, INNER, OUTER, ROW, access_of, prologue
from hloc.kernels.products.size_thresholds import SMALL, TINY
from hloc.kernels.rules.loops import is_short
from hloc.machine import Machine
from hloc.ops.products import dot_dimensions

TENSOR_F8 = ("f8e4m3fn", "f8e5m2")      # multiplied by tensor cores
THIN = 8                        # contiguous rows or columns, among many
WORTH_ORDER = 16                # multiplications per element of a packed operand


@dataclass
class Product:
    """A dot in terms of groups of dimensions; each group is a list of (size, lhs stride, rhs stride, result stride)."""

    dot: Instruction

    def __post_init__(self) -> None:
        self.dims = dims = dot_dimensions(self.dot)
        self.left_free, self.right_free = (free(o.shape.rank) for free, o in zip(
            (dims.lhs_free, dims.rhs_free), self.dot.operands))
        self.contracted = sorted(zip(dims.lhs_contracting, dims.rhs_contracting))

    def groups(self, lhs: Access, rhs: Access) -> tuple[list, list, list, list]:
        """batch, rows, columns, contracted: collapsed as far as all strides allow."""
        left, right = (o.shape.dimensions for o in self.dot.operands[:2])
        out = row_major(self.dot.shape.dimensions)
        both = list(zip(self.dims.lhs_batch, self.dims.rhs_batch))
        batch = [(left[a], lhs.strides[a], rhs.strides[b], out[n]) for n, (a, b) in enumerate(both)]
        rows = [(left[a], lhs.strides[a], 0, out[n]) for n, a in enumerate(self.left_free, len(both))]
        columns = [(right[b], 0, rhs.strides[b], out[n])
                   for n, b in enumerate(self.right_free, len(both) + len(self.left_free))]
        summed = [(left[a], lhs.strides[a], rhs.strides[b], 0) for a, b in self.contracted]
        return collapsed(batch), collapsed(rows), collapsed(columns), collapsed(summed)

    def order(self, number: int) -> tuple[int, ...]:
        """The dimensions of an operand as [batch, free, contracted] (lhs) or [batch, contracted, free] (rhs)."""
        depth = (pair[number] for pair in self.contracted)
        if number == 0:
            return (*self.dims.lhs_batch, *self.left_free, *depth)
        return (*self.dims.rhs_batch, *depth, *self.right_free)


def lower_product(group: Group, machine: Machine) -> Lowered:
    """A dot, with the fusion's operations on its result."""
    dots = [m for m in group.members if m.opcode == "dot"]
    if any(m.opcode == "convolution" for m in group.members):
        return lower_convolution(group, machine)
    if len(dots) != 1 or not _has_plain_form(dots[0]):
        return lower_loop(group, machine)
    if not _is_tiny(dots[0], machine):
        return _lower_gemm(group, machine, dots[0])
    return _lower_sums(group, machine, dots[0]) if machine.kind == "cpu" else lower_loop(group, machine)


def _lower_sums(group: Group, machine: Machine, dot: Instruction) -> Lowered:
    """Loops over the results. A right operand that many rows read is packed first, if it is narrow or its columns are
    not contiguous, unless vectors run along the terms of sums."""
    if any(r.shape.num_elements != dot.shape.num_elements for r in group.roots):
        return lower_loop(group, machine)
    right, product, operands = dot.operands[1], Product(dot), OperandKernels(group, machine)
    type, order = scalars.computation_type(right.shape.element_type), product.order(1)
    in_place = order[-1] == right.shape.rank - 1 and right.shape.element_type == type
    packed = not in_place and is_short(dot) \
        and multiply_adds(dot) >= WORTH_ORDER * right.shape.num_elements
    if packed:
        operands.in_order(right, type, order)

    def emit(outline: Outline, index: Indices) -> None:
        def read(own: Indices) -> Expr:
            place = indexing.linearize([own[d] for d in order], [right.shape.dimensions[d] for d in order])
            return outline.builder.load(outline.scratch_buffer(0, type, right.shape.num_elements, "read"), type, place)
        if packed:
            outline.elements.sources[right] = read
        outline.elements.sums_in_lanes = True
        store_roots(outline, index)
    call = loop_kernel(group, machine, group.roots[0].shape.dimensions, emit)
    cost = call.loops.cost._replace(flops=2 * multiply_adds(dot))             # as of a tile
    return operands.lowered(dot, call._replace(kernel=call.loops._replace(cost=cost)))


def _has_plain_form(dot: Instruction) -> bool:
    types = [dot.shape.element_type, *(o.shape.element_type for o in dot.operands)]
    return len(dot.operands) == 2 and dot.get("sparsity") is None \
        and all(ELEMENT_TYPES[t].kind != "other" for t in types)


def _is_tiny(dot: Instruction, machine: Machine) -> bool:
    """Whether plain loops are faster than a tile. Vectors hold no complex numbers: loops over these are fast only where
    sums are written out."""
    work = multiply_adds(dot)
    if machine.kind != "cpu":
        return work <= TINY
    batches = math.prod(dot.operands[0].shape.dimensions[d] for d in dot_dimensions(dot).lhs_batch)
    return is_short(dot) or work <= SMALL * batches and dot.shape.kind != "complex"


def _lower_gemm(group: Group, machine: Machine, dot: Instruction) -> Lowered:
    """A tile, and before it the kernels that pack operands."""
    product, operands = Product(dot), OperandKernels(group, machine)
    *types, total = _types(group, dot, machine)
    sides = [access_of(operands, dot, n, type, product.order(n)) for n, type in enumerate(types)]
    lines = _lines(product, sides, machine)
    if lines is None:
        sides = [operands.in_order(operands.source(dot, n, side.type), side.type, product.order(n))
                 if side.argument and side.argument.kind != "scratch" else side for n, side in enumerate(sides)]
        lines = _lines(product, sides, machine)
    assert lines is not None                    # arrays in order have one dimension of each kind
    made = [prologue(operands, dot, n, side, product.order(n), _extents(n, lines))
            for n, side in enumerate(sides) if side.argument is None]
    return operands.lowered(dot, gemm_call(operands, dot, total, sides, lines, Outline(group), made))


def _types(group: Group, dot: Instruction, machine: Machine) -> tuple[str, str, str]:
    """(lhs type, rhs type, sum type) that the tile computes in. GPUs multiply f8 without conversion, also of two
    types."""
    left, right = (o.shape.element_type for o in dot.operands[:2])
    if machine.kind == "gpu" and left in TENSOR_F8 and right in TENSOR_F8 \
            and scalars.computation_type(dot.shape.element_type) == "f32":
        return left, right, "f32"
    type, total = tile_types(group, dot, machine)
    return type, type, total


def _lines(product: Product, sides: Sequence[Access], machine: Machine) -> Lines | None:
    """The dimensions, if one of each kind is enough. On a CPU it is not where few rows (columns) are contiguous, as in
    images with channels last: packed in order, they are one product instead of many thin ones."""
    batch, rows, columns, summed = product.groups(*sides)
    for free, other in ((rows, columns), (columns, rows)):
        if machine.kind == "cpu" and len(free) > 1 and free[-1][0] <= THIN \
                and math.prod(size for size, *_ in other) >= WORTH_ORDER:
            return None
    while len(rows) > 1 and len(batch) < 2:
        batch, rows = [*batch, rows[0]], rows[1:]
    while len(columns) > 1 and len(batch) < 2:
        batch, columns = [*batch, columns[0]], columns[1:]
    return lines_of(batch, rows, columns, summed)


def _extents(number: int, lines: Lines) -> list[tuple[str, int, int]]:
    """The dimensions of an operand in the tile: name, size and stride."""
    return [(name, line[0], line[1 + number]) for name, line in zip(
        (OUTER, INNER, ROW, DEPTH), (*lines[:2], lines[2 + number], lines[4]))]
