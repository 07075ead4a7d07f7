"""Matmuls: a Tile of the library kernel "gemm" with sizes and strides, and an epilogue from the surrounding fusion.

In: a dot, or a kOutput fusion with a dot as its hero. Out: the tile; before it a kernel for each operand that is not a
strided view (it is packed in order, or converted, in a scratch buffer), unless it is computed while the tile is loaded
(prologues.py). Products that are tiny, and those of few terms per sum, are plain loops.

Tile "gemm": C[b, i, j] = sum over k of A[b, i, k] B[b, k, j], b = outer * inner_batches + inner. Buffers: "lhs", "rhs",
what the epilogue reads, what is written. Parameters (strides in elements, offsets are of the first element):
    types      (element type of the operands (buffers say where rhs has another), type of the sums)
    sizes      (m, n, k)
    batches    (outer, inner)
    lhs        (offset, outer, inner, row, column)      column goes with k; with a prologue, strides as if contiguous
    rhs        (offset, outer, inner, row, column)      row goes with k
    result     (outer, inner, row, column) of buffer "out0", used without an epilogue
    algorithm  the dot's own attribute, if it has one and the machine is a GPU
Epilogue: statements over INDEX Vars "batch", "row", "column" and Var("acc", type of the sums), run for every element.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

from hloc.analysis.prologues import multiply_adds
from hloc.analysis.strides import collapsed
from hloc.ir import ELEMENT_TYPES, Instruction, row_major
from hloc.kernels import indexing, scalars
from hloc.kernels.elemental.loop import loop_kernel, lower_loop, shareable, store_roots
from hloc.kernels.elements import Indices
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.ir import Expr, Prologue, Stmt
from hloc.kernels.products.convolution import lower_convolution
from hloc.kernels.products.epilogues import algorithm_fact, call_of, epilogue_statements, stores_itself, tile_types
from hloc.kernels.products.operands import Access, OperandKernels, behind_conversion, strided
from hloc.kernels.products.prologues import DEPTH, INNER, OUTER, computed_access, prologue
from hloc.kernels.products.size_thresholds import SMALL, TINY
from hloc.kernels.rules.loops import is_short
from hloc.machine import Machine
from hloc.ops.products import dot_dimensions

TENSOR_F8 = ("f8e4m3fn", "f8e5m2")      # multiplied by tensor cores
THIN = 8                        # contiguous rows or columns, among many
WORTH_ORDER = 16                # multiplications per element of a packed operand
BATCH, ROW, COLUMN = "batch", "row", "column"
SIDES = ("lhs", "rhs")


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


Line = tuple[int, int, int, int]            # size, and strides in the left array, the right one and the result
Lines = tuple[Line, Line, Line, Line, Line]         # outer and inner batch, rows, columns, terms of sums


def lower_product(group: Group, machine: Machine) -> Lowered:
    """A dot, with the fusion's operations on its result."""
    dots = [m for m in group.members if m.opcode == "dot"]
    if any(m.opcode == "convolution" for m in group.members):
        return lower_convolution(group, machine)
    if len(dots) != 1 or not _has_plain_form(dots[0]):
        return lower_loop(group, machine)
    if not _is_tiny(dots[0], machine):
        return ProductLowering(group, machine, dots[0]).lowered()
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
    call = call._replace(kernel=call.loops._replace(cost=cost))
    return Lowered((*operands.calls, call), tuple(operands.scratch), can_share=tuple(shareable(group, (dot,))))


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


class ProductLowering:
    """The kernels of one product."""

    def __init__(self, group: Group, machine: Machine, dot: Instruction):
        self.group = group
        self.product = Product(dot)
        self.dot = dot
        self.machine = machine
        self.gpu = machine.kind == "gpu"
        self.operands = OperandKernels(group, machine)

    def lowered(self) -> Lowered:
        *types, total = self.types()
        sides = [self.access(n, t) for n, t in enumerate(types)]
        lines = self.split(*sides)
        if lines is None:
            sides = [self.operands.in_order(self.source(n, side.type), side.type, self.product.order(n))
                     if side.argument and side.argument.kind != "scratch" else side for n, side in enumerate(sides)]
            lines = self.split(*sides)
        assert lines is not None                # arrays in order have one dimension of each kind
        tile = self.tile(types[0], total, sides, lines, Outline(self.group))
        return Lowered((*self.operands.calls, tile), tuple(self.operands.scratch),
                       can_share=tuple(shareable(self.group, (self.dot,))))

    def access(self, number: int, type: str) -> Access:
        """An operand as it is in memory, or computed while it is loaded, or else packed in order."""
        operand, order = self.source(number, type), self.product.order(number)
        found = strided(self.group, operand, type) if operand.shape.element_type == type else None
        if found is None and self.gpu:
            found = computed_access(self.group, self.dot, number, operand, type, order, self.machine)
        return found or self.operands.in_order(operand, type, order)

    def types(self) -> tuple[str, str, str]:
        """(lhs type, rhs type, sum type) that the tile computes in. GPUs multiply f8 without conversion, also of two
        types."""
        left, right = (o.shape.element_type for o in self.dot.operands[:2])
        if self.gpu and left in TENSOR_F8 and right in TENSOR_F8 \
                and scalars.computation_type(self.dot.shape.element_type) == "f32":
            return left, right, "f32"
        type, total = tile_types(self.group, self.dot, self.machine)
        return type, type, total

    def source(self, number: int, type: str) -> Instruction:
        """The operand; without its conversion if the tile reads the source type."""
        operand = self.dot.operands[number]
        inner = behind_conversion(self.group, operand)
        return inner if inner.shape.element_type == type else operand

    # -- the tile

    def split(self, lhs: Access, rhs: Access) -> Lines | None:
        """The dimensions, if one of each kind is enough. On a CPU it is not where few rows (columns) are contiguous, as
        in images with channels last: packed in order, they are one product instead of many thin ones."""
        batch, rows, columns, summed = self.product.groups(lhs, rhs)
        for free, other in ((rows, columns), (columns, rows)):
            if not self.gpu and len(free) > 1 and free[-1][0] <= THIN \
                    and math.prod(size for size, *_ in other) >= WORTH_ORDER:
                return None
        while len(rows) > 1 and len(batch) < 2:
            batch, rows = [*batch, rows[0]], rows[1:]
        while len(columns) > 1 and len(batch) < 2:
            batch, columns = [*batch, columns[0]], columns[1:]
        if len(batch) > 2 or len(rows) > 1 or len(columns) > 1 or len(summed) > 1:
            return None
        one = (1, 0, 0, 0)
        outer = batch[0] if len(batch) == 2 else one
        inner = batch[-1] if batch else one
        return outer, inner, (rows or [one])[0], (columns or [one])[0], (summed or [one])[0]

    def tile(self, type: str, total: str, sides: list[Access], lines: Lines, outline: Outline,
             more: tuple = ()) -> KernelCall:
        """outline: with what else the tile reads; more: parameters."""
        (lhs, rhs), (outer, inner, row, column, summed) = sides, lines
        epilogue = self.epilogue(outline, type, total, lines)
        made = [self.prologue(n, side, lines) for n, side in enumerate(sides) if side.argument is None]
        parameters = (("types", (type, total)), ("sizes", (row[0], column[0], summed[0])),
                      ("batches", (outer[0], inner[0])),
                      ("lhs", (lhs.offset, outer[1], inner[1], row[1], summed[1])),
                      ("rhs", (rhs.offset, outer[2], inner[2], summed[2], column[2])),
                      ("result", (outer[3], inner[3], row[3], column[3])), *more,
                      *algorithm_fact(self.dot, self.machine))
        return call_of(self.group, "gemm", tuple(zip(SIDES, sides)), [*(own for _, own in made), outline], parameters,
                       epilogue, multiply_adds(self.dot), tuple(p for p, _ in made))

    def prologue(self, number: int, side: Access, lines: Lines) -> tuple[Prologue, Outline]:
        """An operand as an expression of its position in the tile."""
        extents = [(name, line[0], line[1 + number]) for name, line in zip(
            (OUTER, INNER, ROW, DEPTH), (*lines[:2], lines[2 + number], lines[4]))]
        return prologue(self.group, self.source(number, side.type), SIDES[number], side, self.product.order(number),
                        extents)

    def epilogue(self, outline: Outline, type: str, total: str, lines: Lines) -> tuple[Stmt, ...]:
        """Statements that finish one element; () if the sum is only stored."""
        if stores_itself(outline, self.dot, type, total):
            return ()
        outer, inner, row, column, _ = lines
        batch = indexing.variable(BATCH, outer[0] * inner[0])
        parts = (indexing.floor_divide(batch, inner[0]), indexing.modulo(batch, inner[0]),
                 indexing.variable(ROW, row[0]), indexing.variable(COLUMN, column[0]))
        position = indexing.strided(parts, (outer[3], inner[3], row[3], column[3]))
        return epilogue_statements(outline, self.dot, total, position)
