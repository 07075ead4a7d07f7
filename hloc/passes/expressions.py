"""Builds HLO from Python expressions, for expanders.

In: a builder (a Rewriter in the middle of a visit, or a Body below). Out: instructions added to it, with shapes
inferred by the ops' own rows.

    e = Expressions(rewriter)
    y = e.op("multiply", x, e.like(2, x))              multiply(x, broadcast(constant(2)))
    w = e.loop(module, 5, [x], lambda e, i, x: [e.op("add", x, x)])        five doublings in a while
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from hloc.errors import Span
from hloc.ir import Computation, Instruction, Module, PaddingDim, Shape, SliceDim, array, numpy_dtype
from hloc.ir.attributes import Verbatim
from hloc.ops.table import OPS
from hloc.passes.rewriter import Names

PRECISION = ("operand_precision", "algorithm")              # attributes of products
ALL_BITS = Verbatim("{highest,highest}")


class Builder(Protocol):
    """The receiver of instructions: hloc.passes.rewriter.Rewriter, or Body."""

    def add(self, opcode: str, shape: Shape, operands: Any = (), attributes: dict[str, Any] | None = None, *,
            literal: Any = None) -> Instruction: ...


class Body:
    """A computation under construction."""

    def __init__(self, span: Span | None = None) -> None:
        self.names = Names(())
        self.instructions: list[Instruction] = []
        self.span = span

    def add(self, opcode: str, shape: Shape, operands: Iterable[Instruction] = (),
            attributes: dict[str, Any] | None = None, *, literal: np.ndarray | tuple | None = None) -> Instruction:
        new = Instruction(self.names.fresh(opcode), opcode, shape, operands, dict(attributes or {}), literal=literal,
                          span=self.span)
        self.instructions.append(new)
        return new

    def parameter(self, number: int, shape: Shape) -> Instruction:
        new = self.add("parameter", shape)
        new.parameter_number = number
        return new

    def finish(self, module: Module, name: str, root: Instruction) -> Computation:
        """The computation, added to the module before its callers."""
        taken = Names(c.name for c in module.computations)
        made = Computation(taken.unique(name), self.instructions, root, span=self.span)
        module.computations.insert(0, made)
        return made


class Expressions:
    """Ops as methods; the most general is `op`."""

    def __init__(self, builder: Builder, span: Span | None = None):
        self.builder = builder
        self.span = span

    def op(self, opcode: str, *operands: Instruction, shape: Shape | None = None, **attributes: Any) -> Instruction:
        """An instruction; its shape is inferred unless given."""
        if shape is None:
            draft = Instruction("draft", opcode, Shape("opaque"), operands, attributes, span=self.span)
            shape = OPS[opcode].infer(draft)
            assert shape is not None, f"the shape of {opcode} must be given"
        return self.builder.add(opcode, shape, operands, attributes)

    # -- constants -----------------------------------------------------------------------------------------------------

    def constant(self, value: Any, element_type: str) -> Instruction:
        literal = np.asarray(value).astype(numpy_dtype(element_type))
        return self.builder.add("constant", array(element_type, *literal.shape), literal=literal)

    def full(self, value: Any, shape: Shape) -> Instruction:
        """An array of one value."""
        return self.spread(self.constant(value, shape.element_type), shape)

    def like(self, value: Any, x: Instruction) -> Instruction:
        """An array of one value, shaped as `x`."""
        return self.full(value, x.shape)

    def iota(self, element_type: str, dimensions: Sequence[int], dimension: int) -> Instruction:
        return self.op("iota", shape=array(element_type, *dimensions), iota_dimension=dimension)

    # -- shapes --------------------------------------------------------------------------------------------------------

    def broadcast(self, x: Instruction, dimensions: Sequence[int], onto: Sequence[int]) -> Instruction:
        """`x` with its dimensions put at `dimensions` of an array of sizes `onto`."""
        if tuple(onto) == x.shape.dimensions:
            return x
        return self.op("broadcast", x, shape=array(x.shape.element_type, *onto), dimensions=tuple(dimensions))

    def placed(self, x: Instruction, positions: Sequence[int], onto: Sequence[int]) -> Instruction:
        """The same for `positions` that need not be in order."""
        order = sorted(range(len(positions)), key=lambda d: positions[d])
        if order != list(range(len(order))):
            x = self.op("transpose", x, shape=array(x.shape.element_type, *(x.shape.dimensions[d] for d in order)),
                        dimensions=tuple(order))
        return self.broadcast(x, sorted(positions), onto)

    def spread(self, scalar: Instruction, shape: Shape) -> Instruction:
        return self.broadcast(scalar, (), shape.dimensions)

    def reshape(self, x: Instruction, *dimensions: int) -> Instruction:
        if x.shape.dimensions == dimensions:
            return x
        return self.op("reshape", x, shape=array(x.shape.element_type, *dimensions))

    def transpose_last(self, x: Instruction) -> Instruction:
        """The last two dimensions swapped."""
        order = (*range(x.shape.rank - 2), x.shape.rank - 1, x.shape.rank - 2)
        return self.op("transpose", x, dimensions=order)

    def convert(self, x: Instruction, element_type: str) -> Instruction:
        if x.shape.element_type == element_type:
            return x
        return self.op("convert", x, shape=array(element_type, *x.shape.dimensions))

    def bits(self, x: Instruction, element_type: str) -> Instruction:
        """The same bits as another type of the same width."""
        if x.shape.element_type == element_type:
            return x
        return self.op("bitcast-convert", x, shape=array(element_type, *x.shape.dimensions))

    def slice(self, x: Instruction, ranges: dict[int, tuple[int, ...]]) -> Instruction:
        """`x` cut to start:limit or start:limit:stride along some dimensions."""
        parts = tuple(SliceDim(*ranges.get(d, (0, size))) for d, size in enumerate(x.shape.dimensions))
        if all(p == SliceDim(0, size) for p, size in zip(parts, x.shape.dimensions)):
            return x
        return self.op("slice", x, slice=parts)

    def pad(self, x: Instruction, value: Any, padding: Sequence[tuple[int, int]]) -> Instruction:
        """`x`, padded with (low, high) elements of `value`."""
        return self.op("pad", x, self.constant(value, x.shape.element_type),
                       padding=tuple(PaddingDim(low, high) for low, high in padding))

    def take(self, x: Instruction, start: Instruction, dimension: int) -> Instruction:
        """A slice of size one along a dimension; `start` is an s32 scalar."""
        sizes = tuple(1 if d == dimension else n for d, n in enumerate(x.shape.dimensions))
        return self.op("dynamic-slice", x, *self._starts(x, start, dimension), dynamic_slice_sizes=sizes)

    def put(self, x: Instruction, update: Instruction, start: Instruction, dimension: int) -> Instruction:
        """`x` with `update` written at `start` along a dimension."""
        return self.op("dynamic-update-slice", x, update, *self._starts(x, start, dimension))

    def _starts(self, x: Instruction, start: Instruction, dimension: int) -> list[Instruction]:
        zero = self.constant(0, start.shape.element_type)
        return [start if d == dimension else zero for d in range(x.shape.rank)]

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def chosen(self, condition: Instruction, yes: Instruction, no: Instruction) -> Instruction:
        return self.op("select", condition, yes, no)

    def compare(self, x: Instruction, direction: str, y: Instruction) -> Instruction:
        return self.op("compare", x, y, direction=direction)

    def matrix_product(self, a: Instruction, b: Instruction) -> Instruction:
        """a @ b in the last two dimensions; all others are batch dimensions. All bits are multiplied."""
        batch = tuple(range(a.shape.rank - 2))
        shape = array(a.shape.element_type, *a.shape.dimensions[:-1], b.shape.dimensions[-1])
        return self.op("dot", a, b, shape=shape, lhs_batch_dims=batch, rhs_batch_dims=batch,
                       lhs_contracting_dims=(a.shape.rank - 1,), rhs_contracting_dims=(b.shape.rank - 2,),
                       operand_precision=ALL_BITS)

    def reduce(self, module: Module, x: Instruction, opcode: str, dimensions: Sequence[int], start: Any) -> Instruction:
        """The sum ("add"), or another combination, over some dimensions."""
        kind = x.shape.element_type
        return self.op("reduce", x, self.constant(start, kind), dimensions=tuple(dimensions),
                       to_apply=combiner(module, opcode, kind, self.span))

    # -- loops ---------------------------------------------------------------------------------------------------------

    def loop(self, module: Module, count: int, carried: Sequence[Instruction],
             step: Callable[..., Sequence[Instruction]], constants: Sequence[Instruction] = ()) -> list[Instruction]:
        """`step(expressions, i, *carried, *constants)` `count` times; the carried values at the end.

        `i` counts from 0 (s32); `constants` are values from outside, which a loop body reads as carried ones.
        """
        start = self.constant(0, "s32")
        state = [start, *carried, *constants]
        shape = Shape.tuple(v.shape for v in state)
        body = Body(self.span)
        inner, parts = Expressions(body, self.span), _parts(body, shape)
        results = step(inner, *parts)
        following = inner.op("add", parts[0], inner.constant(1, "s32"))
        root = inner.op("tuple", following, *results, *parts[1 + len(carried):])
        test = Body(self.span)
        tester, seen = Expressions(test, self.span), _parts(test, shape)
        more = tester.compare(seen[0], "LT", tester.constant(count, "s32"))
        name = "loop"
        loop = self.op("while", self.op("tuple", *state), shape=shape,
                       condition=test.finish(module, f"{name}_condition", more),
                       body=body.finish(module, f"{name}_body", root))
        return [self.op("get-tuple-element", loop, index=1 + n) for n in range(len(carried))]


def _parts(body: Body, shape: Shape) -> list[Instruction]:
    """All elements of the one parameter of a loop computation."""
    state = body.parameter(0, shape)
    return [body.add("get-tuple-element", s, [state], {"index": n}) for n, s in enumerate(shape.tuple_shapes)]


def combiner(module: Module, opcode: str, element_type: str, span: Span | None = None) -> Computation:
    """A computation that applies `opcode` to two scalars: one in the module if there is, else a new one."""
    wanted = array(element_type)
    for computation in module.computations:
        root, parameters = computation.root, computation.parameters
        if root.opcode == opcode and len(computation.instructions) == 3 and root.operands == parameters \
                and root.shape.compatible(wanted) and all(p.shape.compatible(wanted) for p in parameters):
            return computation
    body = Body(span)
    a, b = body.parameter(0, wanted), body.parameter(1, wanted)
    return body.finish(module, opcode.replace("-", "_"), body.add(opcode, wanted, [a, b]))
