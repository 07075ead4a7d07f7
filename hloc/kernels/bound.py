"""Computations on bound parameters, whose arrays are the same in all runs: done once, in the first run.

In: the buffer assignment of a planner, and the numbers of these parameters. Out: `setup`, the drafts of the steps that
compute only from such arrays, and that pack operands for library kernels; `held`, the sizes of their results, which
persist (Program.setup, Program.held).

    w = f32[1024,1024] parameter(1), bound        setup: pack w        every run: y = dot(x, packed w)
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hloc.kernels.buffer_assignment import BufferAssignment, Home, Value
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import FLAG_BYTES, Packing

Place = tuple[Value, "tuple[int, int] | None"]           # a value, or a part of it


class BoundValues:
    """Collects setup's steps (drafts of the planner) and their results."""

    def __init__(self, assignment: BufferAssignment, parameters: frozenset[int]):
        self.assignment, self.parameters = assignment, parameters
        self.setup: list[Any] = []
        self.held: list[int] = []
        self.packed: dict[Any, Value] = {}

    def hold(self, size: int) -> Value:
        """Memory that setup writes."""
        if not self.held:
            self.held.append(FLAG_BYTES)
        self.held.append(size)
        return self.assignment.new(size, Home("held", len(self.held) - 1))

    def is_held(self, value: Value) -> bool:
        """Whether a value is a bound parameter, or was computed from such."""
        home = self.assignment.root(value).home
        return home is not None and (home.region == "held" or home.region == "parameter"
                                     and home.index in self.parameters)

    def are_all_of(self, values: Sequence[Value]) -> bool:
        """Whether an instruction of such operands computes the same in all runs, from bound parameters."""
        homes = [self.assignment.root(value).home for value in values]
        return any(map(self.is_held, values)) and all(
            self.is_held(value) or home is not None and home.region == "constant" for value, home in zip(values, homes))

    def with_packed(self, kernel: Kernel | Tile, values: Sequence[Place], packing_of: Callable[[Tile], Packing | None],
                    draft: Callable[[Tile, Place, Value], Any]) -> tuple[Kernel | Tile, Value | None]:
        """The kernel that reads an operand packed, and where setup packs it; as it was, and None, where no operand is
        the same in all runs. draft makes the step that packs: of a Tile, the operand and the target."""
        packing = packing_of(kernel) if self.parameters and isinstance(kernel, Tile) else None
        if packing is None or not self.is_held(values[packing.operand][0]):
            return kernel, None
        value, part = values[packing.operand]
        key = self.assignment.root(value), part, packing.packs.structure()
        if key not in self.packed:
            self.packed[key] = self.hold(packing.bytes)
            self.setup.append(draft(packing.packs, (value, part), self.packed[key]))
        return packing.reads, self.packed[key]
