"""Which annotations of the user's program are why the program of one device has its collectives.

    x = f32[8,6] parameter(0), sharding={mesh['data'=2], [{}, {'data'}]}
    d = f32[8,4] dot(x, w)              =>   all-reduce(dot(...)): Cause(axes=("data",), annotation=x)

A collective works along axes of the mesh. Some array of the operation that it was made for is divided along each of
them: by an annotation, or because sharding_propagation took it over from one.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hloc.analysis.communication import axes_between, counts_of
from hloc.ir import Instruction, Module
from hloc.ops.collectives import EXCHANGES
from hloc.parallel import Partition
from hloc.tools.mesh_axes import axis_sizes, with_names


class Cause(NamedTuple):
    """axes: names of the mesh's; annotation: the instruction of the user's program whose sharding has them."""

    axes: tuple[str, ...]
    annotation: Instruction


Causes = Mapping[int, tuple[Cause, ...]]


def sharding_causes(module: Module, divided: Partition, asked: Mapping[str, int] | None) -> dict[
        int, tuple[Cause, ...]]:
    """Of each collective that the partitioner made, by its channel. asked: the sizes of axes that the user names."""
    mesh = with_names(divided.mesh, axis_sizes(module, divided, asked))
    if mesh is None:
        return {}
    counts, found = counts_of(divided.module), {}
    for instruction in divided.module.instructions():
        arrays = divided.made_for.get(instruction.get("channel_id", 0))
        if instruction.opcode in EXCHANGES and arrays is not None:
            axes = axes_between(instruction, counts, mesh)
            causes = ((mesh.named([a]), _annotation(arrays, a, divided)) for a in axes)
            found[instruction.get("channel_id")] = by_annotation(
                Cause((name,), annotation) for name, annotation in causes if annotation is not None)
    return found


def _annotation(arrays: Iterable[Instruction], axis: int, divided: Partition) -> Instruction | None:
    """From which the first of these that has an axis has it."""
    return next((divided.origins[a][axis] for a in arrays if axis in divided.origins.get(a, {})), None)


def causes_of(collective: Instruction, causes: Causes, joined: Mapping[int, Iterable[int]]) -> tuple[Cause, ...]:
    """Of a collective after passes, with those that became one with it; joined: their channels, by its channel."""
    return by_annotation(cause for channel in _channels(collective.get("channel_id", 0), joined)
                         for cause in causes.get(channel, ()))


def _channels(channel: int, joined: Mapping[int, Iterable[int]]) -> Iterator[int]:
    stack, seen = [channel], set()
    while stack:
        one = stack.pop()
        if one not in seen:
            seen.add(one)
            yield one
            stack.extend(joined.get(one, ()))


def by_annotation(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Each annotation once, with all of its axes."""
    found: dict[Instruction, dict[str, None]] = {}
    for cause in causes:
        found.setdefault(cause.annotation, {}).update(dict.fromkeys(cause.axes))
    return tuple(Cause(tuple(axes), annotation) for annotation, axes in found.items())
