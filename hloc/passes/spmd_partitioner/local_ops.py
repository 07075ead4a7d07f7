"""One op on parts of its operands.

In: an op with a rule, the axes of each factor, and its operands as parts. Out: the op on one device's parts, with the
attributes that hold sizes made to fit, partial results joined.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from hloc.ir import Instruction, PaddingDim, Shape, SliceDim, Verbatim, numpy_dtype
from hloc.passes.spmd_partitioner import lookups
from hloc.passes.spmd_partitioner.choice import Joining
from hloc.passes.spmd_partitioner.emitter import Emitter
from hloc.passes.spmd_partitioner.running import continued, window_along
from hloc.passes.spmd_partitioner.windows import Fetched, concatenated, fetch, rolled, selected_and_scattered
from hloc.sharding.factors import FactorAxes
from hloc.sharding.meshes import Axes, AxisSharding
from hloc.sharding.rules import ShardingRule, combiner_of

# Attributes that speak of whole arrays.
DROPPED = ("sharding",)


class LocalOp:
    """One op being written. operands: shardings that its operands have been brought to."""

    def __init__(self, emitter: Emitter, instruction: Instruction, rule: ShardingRule, known: FactorAxes,
                 operands: Sequence[AxisSharding | None], results: Sequence[AxisSharding], partial: Axes):
        self.emitter, self.instruction, self.rule, self.known = emitter, instruction, rule, known
        self.operands, self.results, self.partial = operands, results, partial
        self.started: Instruction | None = None                  # what a reduction of all elements starts from
        self.fetched: dict[tuple[int, int], Fetched] = {}        # by operand and dimension

    def write(self, values: Sequence[Instruction], joining: Joining | None) -> Instruction:
        """The op on the parts `values`; its result is whole where it has been joined."""
        values = self._prepared(self._reaching(list(values)))
        shape = self._shape(self.instruction.shape, iter(self.results))
        made = self._written(values, shape)
        if self.rule.again and self.partial:
            return self._reduced_again(made, values[len(values) // 2:])
        if joining is None or not self.partial:
            return made
        return self._joined(made, joining)

    def _written(self, values: Sequence[Instruction], shape: Shape) -> Instruction:
        opcode, located = self.instruction.opcode, self._located()
        if located:
            return _AT_INDICES[opcode](self, values, shape, located)
        special = _WRITERS.get(opcode)
        return special(self, values, shape) if special else self.plain(values, shape)

    def plain(self, values: Sequence[Instruction], shape: Shape) -> Instruction:
        """The op itself."""
        return self.emitter.add(self.instruction.opcode, shape, values, self._attributes(values, shape))

    def _located(self) -> dict[int, Axes]:
        """The dimensions of the first operand that are divided where indices say the places, and the axes along
        them."""
        return {d: self.known[f] for d, factors in enumerate(self.rule.operands[0] if self.rule.located else ())
                for f in factors if f in self.rule.located and f in self.known}

    def _shape(self, shape: Shape, results: Iterator[AxisSharding]) -> Shape:
        if shape.is_aggregate:
            return Shape.tuple(self._shape(s, results) for s in shape.tuple_shapes)
        return self.emitter.local(shape, next(results)) if shape.is_array else shape

    def _attributes(self, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
        attributes = {k: v for k, v in self.instruction.attributes.items() if k not in DROPPED}
        fit = SIZED.get(self.instruction.opcode)
        if fit is not None:
            attributes |= fit(self, values, shape)
        if "operand_layout_constraints" in attributes:
            attributes["operand_layout_constraints"] = Verbatim("{" + ", ".join(str(v.shape) for v in values) + "}")
        return attributes

    def _reaching(self, values: list[Instruction]) -> list[Instruction]:
        """Operands with what parts of factors read beyond their own parts."""
        for reach in self.rule.reaches:
            axes, number, sharding = self.known.get(reach.factor, ()), reach.operand, self.operands[reach.operand]
            if axes and sharding is not None:
                size = self.instruction.operands[number].shape.dimensions[reach.dimension]
                one = fetch(self.emitter, values[number], reach, size, self.rule.sizes[reach.factor], axes,
                            bool(sharding.dimensions[reach.dimension]), self._filling(values, number))
                self.fetched[number, reach.dimension], values[number] = one, one.value
            elif reach.wraps:
                values[number] = rolled(self.emitter, values[number], reach.dimension, reach.offset)
        return values

    def _filling(self, values: Sequence[Instruction], number: int) -> Instruction | None:
        """What an op with windows has for elements outside of an operand; None where it reads none."""
        opcode, shape = self.instruction.opcode, values[number].shape
        if opcode == "pad":
            return values[1]
        if opcode == "reduce-window" and combiner_of(self.instruction) is not None:
            return self.emitter.e.constant(self._identity(shape), shape.element_type)
        if opcode == "convolution" or opcode == "select-and-scatter" and number == 1:
            return self.emitter.e.constant(0, shape.element_type)
        return None

    # -- partial results -----------------------------------------------------------------------------------------------

    @property
    def combiner(self) -> str:
        """What joins partial results."""
        if "to_apply" in self.instruction.attributes:
            return combiner_of(self.instruction) or "add"
        return "or" if self.instruction.shape.kind == "pred" else "add"

    def _prepared(self, values: list[Instruction]) -> list[Instruction]:
        """Operands, where padding of a reduced dimension does not change a result, and what counts once is on one
        device only."""
        if not self.partial or self.rule.again:
            return self._without_padding(values)
        if self.instruction.opcode == "reduce":
            self.started = values[1]
            values[1] = self.emitter.e.constant(self._identity(values[1].shape), values[1].shape.element_type)
        values = self._without_padding(values)
        for number in self.rule.once:
            value = values[number]
            first = self.emitter.e.compare(self.emitter.part_number(self.partial), "EQ",
                                           self.emitter.e.constant(0, "s32"))
            values[number] = self.emitter.e.chosen(
                self.emitter.e.spread(first, value.shape.with_element_type("pred")), value,
                self.emitter.e.like(self._identity(value.shape), value))
        return values

    def _without_padding(self, values: list[Instruction]) -> list[Instruction]:
        for number, (mapping, sharding) in enumerate(zip(self.rule.operands, self.operands)):
            if sharding is None:
                continue
            sizes = self.instruction.operands[number].shape.dimensions
            for d, factors in enumerate(mapping):
                if (number, d) in self.fetched:
                    continue
                if any(f in self.rule.reduced - self.rule.located and f in self.known for f in factors):
                    values[number] = self.emitter.masked(values[number], sizes, sharding, d,
                                                         self._neutral(values, number))
        return values

    def _neutral(self, values: Sequence[Instruction], number: int) -> Any:
        """What an operand has where it pads a dimension that is reduced."""
        if self.rule.again:
            return values[len(values) // 2 + number]
        return self._identity(values[number].shape) if self.instruction.opcode == "reduce" else 0

    def _identity(self, shape: Shape) -> np.ndarray:
        """What the combiner joins to nothing."""
        dtype = numpy_dtype(shape.element_type)
        opcode = self.combiner
        if opcode in ("add", "or"):
            return np.zeros((), dtype)
        if opcode == "multiply":
            return np.ones((), dtype)
        if opcode == "and":
            return np.array(True) if dtype == np.bool_ else np.array(-1).astype(dtype)
        if shape.kind == "pred":
            return np.array(opcode == "minimum")
        if shape.kind == "float":
            infinite = np.array(-np.inf if opcode == "maximum" else np.inf).astype(dtype)
            finite = ml_dtypes.finfo(dtype)
            return infinite if np.isinf(infinite.astype(np.float64)) else np.array(
                finite.min if opcode == "maximum" else finite.max, dtype)
        limits = ml_dtypes.iinfo(dtype)
        return np.array(limits.min if opcode == "maximum" else limits.max).astype(dtype)

    def _reduced_again(self, made: Instruction, starts: Sequence[Instruction]) -> Instruction:
        """The result from the partial results of all devices: these are gathered, and reduced by the same op."""
        e, parts = self.emitter.e, [made]
        if made.shape.is_tuple:
            parts = [e.op("get-tuple-element", made, index=n) for n in range(len(starts))]
        ahead = [e.reshape(p, 1, *p.shape.dimensions) for p in parts]
        together = [self.emitter.all_gather(p, 0, self.partial) for p in ahead]
        return self.emitter.add("reduce", made.shape, [*together, *starts], self._attributes(together, made.shape) | {
            "dimensions": (0,)})

    def _joined(self, made: Instruction, joining: Joining) -> Instruction:
        e = self.emitter.e
        joined = self.emitter.joined(made, joining, self.combiner)
        if self.instruction.opcode != "reduce":
            return joined
        assert self.started is not None
        if _is_constant(self.started, self._identity(made.shape)):
            return joined
        return e.op(self.combiner, joined, e.spread(self.started, joined.shape))

    # -- ops that are written otherwise --------------------------------------------------------------------------------

    def iota(self, values: Sequence[Instruction], shape: Shape) -> Instruction:
        """It counts on from part to part, in whole numbers: sums of other types round, or have no zero."""
        d = self.instruction.get("iota_dimension")
        axes = self.results[0].dimensions[d]
        if not axes:
            return self.plain(values, shape)
        e = self.emitter.e
        place = e.iota("s32", shape.dimensions, d)
        place = e.op("add", place, e.spread(self.emitter.part_number(axes, shape.dimensions[d]), shape))
        return e.convert(place, shape.element_type)

    def reverse(self, values: Sequence[Instruction], shape: Shape) -> Instruction:
        """Along dimensions whose elements have been fetched they have been reversed."""
        rest = tuple(d for d in self.instruction.get("dimensions") if (0, d) not in self.fetched)
        return self.emitter.e.op("reverse", values[0], dimensions=rest) if rest else values[0]

    def concatenate(self, values: Sequence[Instruction], shape: Shape) -> Instruction:
        if not self.fetched:
            return self.plain(values, shape)
        (d,) = self.instruction.get("dimensions")
        sizes = [o.shape.dimensions[d] for o in self.instruction.operands]
        return concatenated(self.emitter, [self.fetched[n, d] for n in range(len(sizes))], sizes, d,
                            self.results[0].dimensions[d])

    def reduce_window(self, values: Sequence[Instruction], shape: Shape) -> Instruction:
        factors = self.rule.running & self.known.keys()
        if not factors:
            return self.plain(values, shape)
        (factor,), (x, start) = factors, values
        d = self.rule.operands[0].index((factor,))
        identity, kind, window = self._identity(shape), shape.element_type, self.instruction.get("window")
        sizes, sharding = self.instruction.operands[0].shape.dimensions, self.operands[0]
        assert sharding is not None
        x = self.emitter.masked(x, sizes, sharding, d, identity)
        own = window._replace(dimensions=window_along(window.dimensions, d, shape.dimensions[d], self.rule.downward))
        nothing = self.emitter.e.constant(identity, kind)
        made = self.emitter.add("reduce-window", shape, [x, nothing], self._attributes([x, nothing], shape) | {
            "window": own})
        made = continued(self.emitter, made, d, self.known[factor], self.combiner, identity, self.rule.downward)
        return made if _is_constant(start, identity) else self.emitter.e.op(
            self.combiner, made, self.emitter.e.spread(start, made.shape))

    def select_and_scatter(self, values: Sequence[Instruction], shape: Shape) -> Instruction:
        made = self.plain(values, values[0].shape)
        for (number, d), one in self.fetched.items():
            if number == 0:
                made = selected_and_scattered(self.emitter, made, values[2], d, shape.dimensions[d], one,
                                              self.results[0].dimensions[d])
        return made

    # -- along dimensions of which indices say the places --------------------------------------------------------------

    def gather(self, values: Sequence[Instruction], shape: Shape, divided: lookups.Divided) -> Instruction:
        parts = values[0].shape.dimensions
        own, inside = lookups.local_gather_indices(self.emitter, self.instruction, values[1], parts, divided)
        made = self.plain([values[0], own], shape)
        return lookups.masked_gather(self.emitter, self.instruction, made, inside)

    def scatter(self, values: Sequence[Instruction], shape: Shape, divided: lookups.Divided) -> Instruction:
        count = len(values) // 2
        own = lookups.local_scatter_indices(self.emitter, self.instruction, values[count], values[0].shape.dimensions,
                                            divided)
        return self.plain([*values[:count], own, *values[count + 1:]], shape)

    def slice(self, values: Sequence[Instruction], shape: Shape, divided: lookups.Divided) -> Instruction:
        starts = [self.emitter.e.constant(s.start, "s32") for s in self.instruction.get("slice")]
        return self.dynamic_slice([*values, *starts], shape, divided)

    def dynamic_slice(self, values: Sequence[Instruction], shape: Shape, divided: lookups.Divided) -> Instruction:
        return lookups.dynamic_slice(self.emitter, self.instruction, values, shape.dimensions, divided)

    def dynamic_update_slice(self, values: Sequence[Instruction], shape: Shape,
                             divided: lookups.Divided) -> Instruction:
        return lookups.dynamic_update_slice(self.emitter, self.instruction, values, divided)


_WRITERS = {"iota": LocalOp.iota, "concatenate": LocalOp.concatenate, "reverse": LocalOp.reverse,
            "reduce-window": LocalOp.reduce_window, "select-and-scatter": LocalOp.select_and_scatter}
_AT_INDICES = {"gather": LocalOp.gather, "scatter": LocalOp.scatter, "slice": LocalOp.slice,
               "dynamic-slice": LocalOp.dynamic_slice, "dynamic-update-slice": LocalOp.dynamic_update_slice}


def _is_constant(value: Instruction | None, wanted: np.ndarray) -> bool:
    if value is None or value.opcode != "constant" or not isinstance(value.literal, np.ndarray):
        return False
    return value.literal.dtype == wanted.dtype and value.literal.tobytes() == wanted.tobytes()


# -- attributes that hold sizes ----------------------------------------------------------------------------------------

Fit = Callable[[LocalOp, Sequence[Instruction], Shape], "dict[str, Any]"]


def _slice(op: LocalOp, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
    sizes = op.instruction.operands[0].shape.dimensions

    def part(d: int, s: SliceDim, own: int) -> SliceDim:
        if (0, d) in op.fetched:
            return SliceDim(0, own, s.stride)
        return s if (s.start, s.limit, s.stride) != (0, sizes[d], 1) else SliceDim(0, own)
    return {"slice": tuple(part(d, s, own) for d, (s, own) in enumerate(zip(
        op.instruction.get("slice"), values[0].shape.dimensions)))}


def _pad(op: LocalOp, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
    return {"padding": tuple(
        PaddingDim(one.low, one.high, one.dilation - 1) if (one := op.fetched.get((0, d))) else padding
        for d, padding in enumerate(op.instruction.get("padding")))}


def _dynamic_slice(op: LocalOp, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
    return {"dynamic_slice_sizes": shape.dimensions}


def _gather(op: LocalOp, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
    sizes, own = op.instruction.operands[0].shape.dimensions, values[0].shape.dimensions
    return {"slice_sizes": tuple(part if taken == size else taken
                                 for taken, size, part in zip(op.instruction.get("slice_sizes"), sizes, own))}


def _reduce_window(op: LocalOp, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
    return _window(op, range(shape.rank if shape.is_array else shape.tuple_shapes[0].rank))


def _convolution(op: LocalOp, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
    numbers = op.instruction.get("dim_labels")
    return _window(op, numbers.input_spatial, [values[1].shape.dimensions[d] for d in numbers.kernel_spatial])


def _window(op: LocalOp, dimensions: Sequence[int], sizes: Sequence[int] = ()) -> dict[str, Any]:
    """The window on operands that have been fetched along some dimensions: they have their padding."""
    window = op.instruction.get("window")
    if window is None:
        return {}
    found = []
    for n, (d, w) in enumerate(zip(dimensions, window.dimensions)):
        one = op.fetched.get((0, d))
        if one is not None:
            w = w._replace(padding_low=one.low, padding_high=one.high, base_dilation=one.dilation,
                           size=sizes[n] if sizes else w.size)
        found.append(w)
    return {"window": window._replace(dimensions=tuple(found))}


SIZED: dict[str, Fit] = {"slice": _slice, "pad": _pad, "dynamic-slice": _dynamic_slice, "gather": _gather,
                         "reduce-window": _reduce_window, "convolution": _convolution}
