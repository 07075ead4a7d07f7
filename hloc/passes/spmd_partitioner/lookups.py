"""Ops with indices on parts: what falls into a device's part is read or written there.

In: indices of the whole array. Out: indices in this device's part; what is read is nothing where it is another's, so
that the sum over the devices is what was to be read. Nothing is -0 for floats: its sum with any number is that number.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from hloc.ir import Instruction, Shape, numpy_dtype
from hloc.passes.spmd_partitioner.emitter import Emitter
from hloc.sharding.meshes import Axes

Divided = Mapping[int, Axes]             # by dimension, of those that are divided: along which axes
_ADDRESSED_BY_S32 = 2 ** 31 - 1


def nothing(shape: Shape) -> np.ndarray:
    """What added to a number gives that number."""
    dtype = numpy_dtype(shape.element_type)
    zero = np.zeros((), dtype)
    if shape.kind == "complex":
        return np.array(complex(-0.0, -0.0), dtype)
    return np.negative(zero) if shape.kind == "float" and np.negative(zero) == 0 else zero


def _index_type(sizes: Sequence[int]) -> str:
    return "s32" if max(sizes, default=0) < _ADDRESSED_BY_S32 // 2 else "s64"


def _clamped(emitter: Emitter, x: Instruction, low: int, high: Sequence[int], vector: int | None) -> Instruction:
    """Indices within low and `high`, by component along dimension `vector`, as far as their type has such numbers; as
    numbers that may be negative."""
    e, limits = emitter.e, ml_dtypes.iinfo(numpy_dtype(x.shape.element_type))
    most = e.constant(np.minimum(np.array(high, object), limits.max).astype(np.int64), x.shape.element_type)
    most = e.broadcast(most, (vector,), x.shape.dimensions) if vector is not None else e.spread(
        e.reshape(most), x.shape)
    x = e.op("maximum", e.op("minimum", x, most), e.like(max(low, int(limits.min)), x))
    return e.convert(x, _index_type(high))


def _vector_dim(indices: Instruction, vector: int) -> int | None:
    return vector if vector < indices.shape.rank else None


def _components(emitter: Emitter, indices: Instruction, table: np.ndarray, vector: int | None) -> Instruction:
    """A number by device and component of an index, for each index."""
    e = emitter.e
    own = e.convert(emitter.by_device(table), indices.shape.element_type)
    return e.broadcast(own, (vector,), indices.shape.dimensions) if vector is not None else e.spread(
        e.reshape(own), indices.shape)


def _offsets(emitter: Emitter, dimensions: Sequence[int], parts: Sequence[int], divided: Divided) -> np.ndarray:
    """By device and component: where this device's part begins."""
    table = np.zeros((emitter.mesh.size, len(dimensions)), np.int64)
    for n, d in enumerate(dimensions):
        if d in divided:
            table[:, n] = emitter.mesh.parts(divided[d]) * parts[d]
    return table


def local_gather_indices(emitter: Emitter, instruction: Instruction, indices: Instruction, parts: Sequence[int],
                         divided: Divided) -> tuple[Instruction, Instruction]:
    """Of a gather: indices in this device's part, and whether they are there, by dimensions of the indices without
    that of their components."""
    e, sizes = emitter.e, instruction.operands[0].shape.dimensions
    dimensions = instruction.get("start_index_map")
    vector = _vector_dim(indices, instruction.get("index_vector_dim"))
    most = [sizes[d] - instruction.get("slice_sizes")[d] for d in dimensions]
    own = _clamped(emitter, indices, 0, most, vector)
    own = e.op("subtract", own, _components(emitter, own, _offsets(emitter, dimensions, parts, divided), vector))
    last = np.array([parts[d] - 1 if d in divided else sizes[d] for d in dimensions])
    last = np.broadcast_to(last, (emitter.mesh.size, len(dimensions)))
    inside = e.op("and", e.compare(own, "GE", e.like(0, own)),
                  e.compare(own, "LE", _components(emitter, own, last, vector)))
    if vector is not None:
        inside = e.reduce(emitter.module, inside, "and", (vector,), True)
    return own, inside


def masked_gather(emitter: Emitter, instruction: Instruction, made: Instruction, inside: Instruction) -> Instruction:
    """What was gathered where it is this device's, elsewhere nothing."""
    e = emitter.e
    batch = [d for d in range(made.shape.rank) if d not in instruction.get("offset_dims")]
    inside = e.broadcast(inside, batch, made.shape.dimensions)
    return e.chosen(inside, made, e.like(nothing(made.shape), made))


def local_scatter_indices(emitter: Emitter, instruction: Instruction, indices: Instruction, parts: Sequence[int],
                          divided: Divided) -> Instruction:
    """Of a scatter: indices in this device's part; outside of it where another has the place, or none."""
    sizes = instruction.operands[0].shape.dimensions
    dimensions = instruction.get("scatter_dims_to_operand_dims")
    vector = _vector_dim(indices, instruction.get("index_vector_dim"))
    most = [parts[d] * emitter.mesh.count(divided[d]) if d in divided else sizes[d] for d in dimensions]
    own = _clamped(emitter, indices, -1, most, vector)
    offsets = _offsets(emitter, dimensions, parts, divided)
    return emitter.e.op("subtract", own, _components(emitter, own, offsets, vector))


# -- slices ------------------------------------------------------------------------------------------------------------

class _Windows:
    """Windows of this device's part that hold all that a slice of the whole has of it. starts: of the slice in this
    part, where divided (they may be outside); begins: of the windows; sizes: of the windows."""

    def __init__(self, emitter: Emitter, whole: Sequence[int], parts: Sequence[int], slices: Sequence[int],
                 indices: Sequence[Instruction], divided: Divided):
        self.emitter, self.e, e = emitter, emitter.e, emitter.e
        kind = _index_type(whole)
        self.sizes = [min(n, parts[d]) if d in divided else n for d, n in enumerate(slices)]
        self.starts: dict[int, Instruction] = {}
        self.begins: list[Instruction] = []
        for d, index in enumerate(indices):
            begin = _clamped(emitter, index, 0, [whole[d] - slices[d]], None)
            begin = e.convert(begin, kind)
            if d in divided:
                self.starts[d] = e.op("subtract", begin, e.convert(emitter.part_number(divided[d], parts[d]), kind))
                begin = self._within(self.starts[d], 0, parts[d] - self.sizes[d])
            self.begins.append(begin)

    def _within(self, x: Instruction, low: int, high: int) -> Instruction:
        return self.e.op("minimum", self.e.op("maximum", x, self.e.like(low, x)), self.e.like(high, x))

    def moved(self, x: Instruction, d: int, places: Instruction, size: int) -> Instruction:
        """`size` elements of `x` along a dimension, which begins `places` before; nothing where it has none."""
        e = self.e
        empty = e.constant(nothing(x.shape), x.shape.element_type)
        start = self._within(e.op("add", places, e.like(size, places)), 0, x.shape.dimensions[d] + size)
        return self.emitter.slice_at(self.emitter.pad(x, empty, d, size, size), d, start, size)


def dynamic_slice(emitter: Emitter, instruction: Instruction, values: Sequence[Instruction], slices: Sequence[int],
                  divided: Divided) -> Instruction:
    """What this device has of a slice, nothing elsewhere."""
    e, (x, *indices) = emitter.e, values
    windows = _Windows(emitter, instruction.operands[0].shape.dimensions, x.shape.dimensions, slices, indices, divided)
    made = e.op("dynamic-slice", x, *windows.begins, dynamic_slice_sizes=tuple(windows.sizes))
    for d in divided:
        made = windows.moved(made, d, e.op("subtract", windows.starts[d], windows.begins[d]), slices[d])
    return made


def dynamic_update_slice(emitter: Emitter, instruction: Instruction, values: Sequence[Instruction],
                         divided: Divided) -> Instruction:
    """Writes what this device has of the places that an update is for."""
    e, (x, update, *indices) = emitter.e, values
    sizes = update.shape.dimensions
    windows = _Windows(emitter, instruction.operands[0].shape.dimensions, x.shape.dimensions, sizes, indices, divided)
    old = e.op("dynamic-slice", x, *windows.begins, dynamic_slice_sizes=tuple(windows.sizes))
    inside: Instruction | None = None
    for d in divided:
        before = e.op("subtract", windows.begins[d], windows.starts[d])           # of the window
        update = windows.moved(update, d, before, windows.sizes[d])
        place = e.iota(before.shape.element_type, (windows.sizes[d],), 0)
        place = e.op("add", place, e.spread(before, place.shape))
        here = e.op("and", e.compare(place, "GE", e.like(0, place)), e.compare(place, "LT", e.like(sizes[d], place)))
        here = e.broadcast(here, (d,), windows.sizes)
        inside = here if inside is None else e.op("and", inside, here)
    assert inside is not None
    return e.op("dynamic-update-slice", x, e.chosen(inside, update, old), *windows.begins)
