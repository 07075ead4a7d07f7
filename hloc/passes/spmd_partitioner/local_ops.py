"""One op on parts of its operands.

In: an op with a rule, the axes of each factor, and its operands as parts. Out: the op on one device's parts, with the
attributes that hold sizes made to fit, partial results joined.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from hloc.ir import Instruction, Shape, SliceDim, Verbatim, numpy_dtype
from hloc.passes.spmd_partitioner.choice import Joining
from hloc.passes.spmd_partitioner.emitter import Emitter
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

    def write(self, values: Sequence[Instruction], joining: Joining | None) -> Instruction:
        """The op on the parts `values`; its result is whole where it has been joined."""
        values = self._prepared(list(values))
        shape = self._shape(self.instruction.shape, iter(self.results))
        made = self.emitter.add(self.instruction.opcode, shape, values, self._attributes(values, shape))
        if self.instruction.opcode == "iota":
            made = self._shifted(made)
        if joining is None or not self.partial:
            return made
        return self._joined(made, joining)

    def _shape(self, shape: Shape, results: Iterator[AxisSharding]) -> Shape:
        if shape.is_aggregate:
            return Shape.tuple(self._shape(s, results) for s in shape.tuple_shapes)
        return self.emitter.local(shape, next(results)) if shape.is_array else shape

    def _attributes(self, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
        attributes = {k: v for k, v in self.instruction.attributes.items() if k not in DROPPED}
        fit = SIZED.get(self.instruction.opcode)
        if fit is not None:
            attributes |= fit(self.instruction, values, shape)
        if "operand_layout_constraints" in attributes:
            attributes["operand_layout_constraints"] = Verbatim("{" + ", ".join(str(v.shape) for v in values) + "}")
        return attributes

    # -- partial results -----------------------------------------------------------------------------------------------

    @property
    def combiner(self) -> str:
        """What joins partial results."""
        return (combiner_of(self.instruction) if "to_apply" in self.instruction.attributes else None) or "add"

    def _prepared(self, values: list[Instruction]) -> list[Instruction]:
        """Operands, of which what pads a reduced dimension does nothing; what counts once is on one device only."""
        if not self.partial:
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
                if any(f in self.rule.reduced and f in self.known for f in factors):
                    neutral = self._identity(values[number].shape) if self.rule.once == () and \
                        self.instruction.opcode == "reduce" else 0
                    values[number] = self.emitter.masked(values[number], sizes, sharding, d, neutral)
        return values

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

    def _joined(self, made: Instruction, joining: Joining) -> Instruction:
        e = self.emitter.e
        joined = self.emitter.joined(made, joining, self.combiner)
        if self.instruction.opcode != "reduce":
            return joined
        assert self.started is not None
        if _is_constant(self.started, self._identity(made.shape)):
            return joined
        return e.op(self.combiner, joined, e.spread(self.started, joined.shape))

    def _shifted(self, made: Instruction) -> Instruction:
        """An iota counts on from part to part."""
        d = self.instruction.get("iota_dimension")
        axes = self.results[0].dimensions[d]
        if not axes:
            return made
        e = self.emitter.e
        offset = e.convert(self.emitter.part_number(axes, made.shape.dimensions[d]), made.shape.element_type)
        return e.op("add", made, e.spread(offset, made.shape))


def _is_constant(value: Instruction | None, wanted: np.ndarray) -> bool:
    if value is None or value.opcode != "constant" or not isinstance(value.literal, np.ndarray):
        return False
    return value.literal.dtype == wanted.dtype and value.literal.tobytes() == wanted.tobytes()


# -- attributes that hold sizes ----------------------------------------------------------------------------------------

Fit = Callable[[Instruction, Sequence[Instruction], Shape], "dict[str, Any]"]


def _slice(instruction: Instruction, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
    sizes, own = instruction.operands[0].shape.dimensions, values[0].shape.dimensions
    return {"slice": tuple(s if (s.start, s.limit, s.stride) != (0, size, 1) else SliceDim(0, part)
                           for s, size, part in zip(instruction.get("slice"), sizes, own))}


def _dynamic_slice(instruction: Instruction, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
    return {"dynamic_slice_sizes": shape.dimensions}


def _gather(instruction: Instruction, values: Sequence[Instruction], shape: Shape) -> dict[str, Any]:
    sizes, own = instruction.operands[0].shape.dimensions, values[0].shape.dimensions
    return {"slice_sizes": tuple(part if taken == size else taken
                                 for taken, size, part in zip(instruction.get("slice_sizes"), sizes, own))}


SIZED: dict[str, Fit] = {"slice": _slice, "dynamic-slice": _dynamic_slice, "gather": _gather}
