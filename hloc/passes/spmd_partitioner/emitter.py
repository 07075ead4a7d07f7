"""Writes what one device does: its parts of arrays, and the collectives between devices.

    emitter.reshard(x, sizes, source, target)      slices, gathers, all-to-alls and permutes
    emitter.summed(x, ...)                          reduce-scatter and all-reduce of partial results
    emitter.masked(x, ...)                          what pads an uneven part becomes a value that does nothing

Which device this is comes from partition-id, by tables of one number for each device.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hloc.ir import Computation, Instruction, Module, PaddingDim, Shape, Verbatim, array
from hloc.ops.collectives import EXCHANGES
from hloc.passes.expressions import Body, Expressions, combiner
from hloc.passes.rewriter import Channels, Names
from hloc.passes.spmd_partitioner.choice import Joining
from hloc.passes.spmd_partitioner.resharding import Step, padded, steps_between
from hloc.sharding.factors import local_sizes
from hloc.sharding.meshes import Axes, AxisSharding, DeviceMesh, iota


class Emitter(Body):
    """A computation of one device under construction. like: the instruction that is being partitioned, whose place and
    metadata new ones have; moved: its operand that gets another sharding just now; made_for: see PassContext."""

    def __init__(self, module: Module, mesh: DeviceMesh, channels: Channels, original: Computation,
                 made_for: dict[int, tuple[Instruction, ...]]):
        super().__init__(original.span)
        self.names = Names(())
        self.module, self.mesh, self.channels, self.made_for = module, mesh, channels, made_for
        self.like: Instruction | None = None
        self.moved: Instruction | None = None
        self.e = Expressions(self)
        self._numbers: dict[tuple, Instruction] = {}
        self._resharded: dict[tuple, Instruction] = {}
        self._partition: Instruction | None = None

    def add(self, opcode: str, shape: Shape, operands: Iterable[Instruction] = (),
            attributes: dict[str, Any] | None = None, *, literal: np.ndarray | tuple | None = None) -> Instruction:
        new = super().add(opcode, shape, operands, attributes, literal=literal)
        if self.like is not None:
            new.span = self.like.span
            if "metadata" in self.like.attributes:
                new.attributes.setdefault("metadata", self.like.attributes["metadata"])
            if opcode in EXCHANGES and "channel_id" in new.attributes:          # those of the text may have none
                operands = self.like.operands if self.moved is None else [self.moved]
                self.made_for[new.attributes["channel_id"]] = (*operands, self.like)
        return new

    # -- where this device is ------------------------------------------------------------------------------------------

    def part_number(self, axes: Axes, scale: int = 1) -> Instruction:
        """Which part along such axes this device has, times `scale`; s32."""
        return self.by_device(self.mesh.parts(axes) * scale)

    def by_part(self, axes: Axes, numbers: Sequence[int]) -> Instruction:
        """The number of this device's part along such axes; s32."""
        return self.by_device(np.asarray(numbers)[self.mesh.parts(axes)])

    def by_device(self, table: np.ndarray) -> Instruction:
        """This device's entry of a table whose first dimension is the devices'; s32."""
        if (table == table[0]).all():
            return self.e.constant(table[0], "s32")
        key = (table.shape, table.tobytes())
        if key not in self._numbers:
            if self._partition is None:
                self._partition = self.e.convert(self.e.op("partition-id", shape=array("u32")), "s32")
            zero = [self.e.constant(0, "s32") for _ in table.shape[1:]]
            one = self.e.op("dynamic-slice", self.e.constant(table, "s32"), self._partition, *zero,
                            dynamic_slice_sizes=(1, *table.shape[1:]))
            self._numbers[key] = self.e.reshape(one, *table.shape[1:])
        return self._numbers[key]

    # -- collectives ---------------------------------------------------------------------------------------------------

    def groups(self, axes: Axes) -> Verbatim:
        """Of the devices that differ along such axes."""
        count = self.mesh.count(axes)
        if self.mesh.devices is None:
            others = [a for a in range(len(self.mesh.sizes)) if a not in axes]
            order = iota(self.mesh.sizes, (*others, *axes))
            return Verbatim(f"[{self.mesh.size // count},{count}]<={order}")
        lists = ",".join("{" + ",".join(map(str, g)) + "}" for g in self.mesh.groups(axes).tolist())
        return Verbatim("{" + lists + "}")

    def _collective(self, opcode: str, x: Instruction, shape: Shape, axes: Axes, **attributes: Any) -> Instruction:
        if opcode != "all-to-all":
            attributes["use_global_device_ids"] = True
        return self.e.op(opcode, x, shape=shape, channel_id=self.channels.next(), replica_groups=self.groups(axes),
                         **attributes)

    def all_reduce(self, x: Instruction, axes: Axes, opcode: str) -> Instruction:
        return self._collective("all-reduce", x, x.shape, axes,
                                to_apply=combiner(self.module, opcode, x.shape.element_type))

    def reduce_scatter(self, x: Instruction, dimension: int, axes: Axes, opcode: str) -> Instruction:
        size = x.shape.dimensions[dimension] // self.mesh.count(axes)
        return self._collective("reduce-scatter", x, resized(x.shape, dimension, size), axes, dimensions=(dimension,),
                                to_apply=combiner(self.module, opcode, x.shape.element_type))

    def all_gather(self, x: Instruction, dimension: int, axes: Axes) -> Instruction:
        size = x.shape.dimensions[dimension] * self.mesh.count(axes)
        return self._collective("all-gather", x, resized(x.shape, dimension, size), axes, dimensions=(dimension,))

    def exchange(self, x: Instruction, source: int, target: int, axes: Axes) -> Instruction:
        """Parts along dimension `source` become parts along `target`: an all-to-all of pieces, which are put behind one
        another along `source` again."""
        count, sizes = self.mesh.count(axes), list(x.shape.dimensions)
        pieces = [*sizes[:target], count, sizes[target] // count, *sizes[target + 1:]]
        split = self.e.reshape(x, *pieces)
        swapped = self._collective("all-to-all", split, split.shape, axes, dimensions=(target,))
        place = source if source < target else source + 1             # of dimension `source` among the pieces
        order = [d for d in range(len(pieces)) if d != target]
        order.insert(order.index(place), target)
        turned = self.e.op("transpose", swapped, shape=array(x.shape.element_type, *(pieces[d] for d in order)),
                           dimensions=tuple(order))
        sizes[source] *= count
        sizes[target] //= count
        return self.e.reshape(turned, *sizes)

    def permute(self, x: Instruction, source: Sequence[Axes], target: Sequence[Axes]) -> Instruction:
        """Each device gets the part that it is to have from one that has it."""
        def order(axes: Sequence[Axes]) -> np.ndarray:
            along = tuple(a for one in axes for a in one)
            return np.lexsort((np.arange(self.mesh.size), self.mesh.parts(along)))
        return self.send(x, zip(order(source).tolist(), order(target).tolist()))

    def send(self, x: Instruction, pairs: Iterable[Sequence[int]]) -> Instruction:
        """What the first device of a pair has is given to the second; zeros to those that are second in no pair."""
        text = ",".join(f"{{{source},{target}}}" for source, target in pairs)
        return self.e.op("collective-permute", x, shape=x.shape, channel_id=self.channels.next(),
                         source_target_pairs=Verbatim("{" + text + "}"))

    # -- shardings -----------------------------------------------------------------------------------------------------

    def reshard(self, x: Instruction, sizes: Sequence[int], source: AxisSharding, target: AxisSharding) -> Instruction:
        """This device's part of an array of such sizes under another sharding."""
        key = (x, source.dimensions, target.dimensions)
        if key not in self._resharded:
            now, made = source.dimensions, x
            for step in steps_between(sizes, source.dimensions, target.dimensions, self.mesh):
                made = self._step(made, now, step)
                now = step.sharding
            self._resharded[key] = made
        return self._resharded[key]

    def _step(self, x: Instruction, now: Sequence[Axes], step: Step) -> Instruction:
        d = step.dimension
        if step.kind == "slice":
            return self.own_part(x, d, step.axes)
        if step.kind == "resize":
            return self.with_size(x, d, step.size)
        if step.kind == "gather":
            return self.all_gather(x, d, step.axes)
        if step.kind == "exchange":
            return self.exchange(x, d, step.onto, step.axes)
        return self.permute(x, now, step.sharding)

    def with_size(self, x: Instruction, dimension: int, size: int) -> Instruction:
        """The first `size` elements along a dimension, or padding behind all of them."""
        more = size - x.shape.dimensions[dimension]
        if more <= 0:
            return self.e.slice(x, {dimension: (0, size)}) if more else x
        zero = self.e.constant(np.zeros((), bool), x.shape.element_type)
        return self.pad(x, zero, dimension, 0, more)

    def pad(self, x: Instruction, value: Instruction, dimension: int, low: int, high: int,
            interior: int = 0) -> Instruction:
        """With so many of a value before, behind, and between elements along a dimension."""
        none = PaddingDim(0, 0)
        return self.e.op("pad", x, value, padding=tuple(
            PaddingDim(low, high, interior) if d == dimension else none for d in range(x.shape.rank)))

    def slice_at(self, x: Instruction, dimension: int, start: Instruction, size: int) -> Instruction:
        """`size` elements along a dimension, from a computed place on."""
        zero = self.e.constant(0, start.shape.element_type)
        starts = (start if d == dimension else zero for d in range(x.shape.rank))
        return self.e.op("dynamic-slice", x, *starts, dynamic_slice_sizes=resized(x.shape, dimension, size).dimensions)

    def own_part(self, x: Instruction, dimension: int, axes: Axes) -> Instruction:
        """This device's part of what it has all of along a dimension."""
        part = x.shape.dimensions[dimension] // self.mesh.count(axes)
        return self.slice_at(x, dimension, self.part_number(axes, part), part)

    def joined(self, x: Instruction, joining: Joining, opcode: str) -> Instruction:
        """Partial results, joined."""
        for dimension, axes in joining.scattered:
            x = self.with_size(x, dimension, padded(x.shape.dimensions[dimension], axes, self.mesh))
            x = self.reduce_scatter(x, dimension, axes, opcode)
        return self.all_reduce(x, joining.reduced, opcode) if self.mesh.count(joining.reduced) > 1 else x

    def masked(self, x: Instruction, sizes: Sequence[int], sharding: AxisSharding, dimension: int,
               value: Any) -> Instruction:
        """The part with `value`, a number or a scalar, where it pads a dimension that does not divide evenly."""
        axes = sharding.dimensions[dimension]
        part = x.shape.dimensions[dimension]
        if part * self.mesh.count(axes) == sizes[dimension]:
            return x
        place = self.e.iota("s32", x.shape.dimensions, dimension)
        offset = self.e.spread(self.part_number(axes, part), place.shape)
        inside = self.e.compare(self.e.op("add", place, offset), "LT", self.e.like(sizes[dimension], place))
        fill = self.e.spread(value, x.shape) if isinstance(value, Instruction) else self.e.like(value, x)
        return self.e.chosen(inside, x, fill)

    def local(self, shape: Shape, sharding: AxisSharding) -> Shape:
        """The shape of one device's part, in the same layout."""
        if not shape.is_array:
            return shape
        small = array(shape.element_type, *local_sizes(shape.dimensions, sharding, self.mesh))
        return small.with_layout(shape.layout) if shape.layout else small


def resized(shape: Shape, dimension: int, size: int) -> Shape:
    return array(shape.element_type, *(size if d == dimension else n for d, n in enumerate(shape.dimensions)))
