"""An array that waits for its reader in the host's memory: copied there when it is made, and back before it is read.

    a = f32[1000] exponential(x)        a = f32[1000] exponential(x)
    ... the peak ...               =>   a.host = f32[1000]{0:S(5)} copy(a)
    c = f32[1000] add(b, a)             ... the peak, without a ...
                                        a.back = f32[1000] copy(a.host)
                                        c = f32[1000] add(b, a.back)

Only for a target whose host has another memory. The copies take the time of the bus, twice.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hloc.analysis.aliasing import Value
from hloc.ir import Computation, Instruction
from hloc.machine import Machine
from hloc.passes.hlo_rematerialization.profile import Profile
from hloc.passes.hlo_rematerialization.readers import redirect
from hloc.passes.hlo_rematerialization.recomputation import Clones, Saved
from hloc.passes.rewriter import Names


class Offloading(NamedTuple):
    """Copy `source` to the host behind position `made`, and back before position `before`. saved: bytes at the peak."""

    computation: Computation
    source: Instruction
    value: Value
    made: int
    before: int
    saved: int
    seconds: float

    @property
    def key(self) -> tuple[object, ...]:
        return "host", self.value, self.computation.instructions[self.before]

    @property
    def saved_memory(self) -> Saved:
        """What a report says."""
        return Saved("kept on the host", self.source, self.computation.instructions[self.before], self.saved, 0,
                     self.seconds)

    def apply(self, names: Names, clones: Clones) -> Callable[[], None]:
        """Insert both copies; later readers read the second one. Returns what undoes it."""
        order, shape = self.computation.instructions, self.source.shape
        far = Instruction(names.fresh(f"{self.source.name}.host"), "copy", shape.in_space(True), [self.source], {},
                          span=self.source.span)
        near = Instruction(names.fresh(f"{self.source.name}.back"), "copy", shape.in_space(False), [far], {},
                           span=self.source.span)
        self.computation.instructions = [*order[:self.made + 1], far, *order[self.made + 1:]]
        replaced = {i: near for i in order if _is_leaf(i, self.value)}
        undo_readers = redirect(self.computation, self.before + 1, [near], replaced, names)

        def undo() -> None:
            undo_readers()
            self.computation.instructions = order
        return undo


def _is_leaf(instruction: Instruction, value: Value) -> bool:
    """Whether the instruction is the array of a value: its maker, or that element of a tuple that its maker gives."""
    if instruction.shape.is_array and instruction is value.instruction:
        return True
    return instruction.opcode == "get-tuple-element" and instruction.operands[0] is value.instruction \
        and instruction.get("index") == value.leaf


def offloading(profile: Profile, value: Value, before: int, machine: Machine) -> Offloading | None:
    """How a value, which waits for a reader at `before`, waits on the host. None if it is not one array by itself."""
    order, maker = profile.computation.instructions, value.instruction
    if profile.overwritten.get(value, before) < before:
        return None
    source = next((i for i in order if _is_leaf(i, value)), None)
    if source is None or not source.shape.is_array or maker.shape.is_tuple and not all(
            s.is_array for s in maker.shape.tuple_shapes):
        return None
    seconds = 2 * (value.size / machine.host_bandwidth + machine.launch_seconds)
    return Offloading(profile.computation, source, value, profile.position[source], before, value.size, seconds)
