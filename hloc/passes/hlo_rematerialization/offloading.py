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
from hloc.passes.hlo_rematerialization.recomputation import Clones, Saved
from hloc.passes.rewriter import Names

RESHAPES = frozenset(["bitcast", "reshape"])


class Offloading(NamedTuple):
    """Copy `source` to the host behind position `made`, and back before position `before`. saved: bytes at the peak."""

    computation: Computation
    source: Instruction
    value: Value
    made: int
    before: int
    saved: int
    seconds: float
    chain: tuple[Instruction, ...] = ()

    @property
    def wanted(self) -> Instruction:
        return self.source

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
        order, old_operands = self.computation.instructions, {}
        shape = self.source.shape
        far = Instruction(names.fresh(f"{self.source.name}.host"), "copy", shape.in_space(True), [self.source], {},
                          span=self.source.span)
        near = Instruction(names.fresh(f"{self.source.name}.back"), "copy", shape.in_space(False), [far], {},
                           span=self.source.span)
        views: list[Instruction] = []
        made: dict[Instruction, Instruction] = {}
        readers = order[self.before:]
        for reader in readers:
            if reader.opcode in RESHAPES:
                continue                                    # copied with its readers
            anew = [self._replaced(o, near, made, names, views) for o in reader.operands]
            if anew != reader.operands:
                old_operands[reader], reader.operands = reader.operands, anew
        behind = self.made + 1
        self.computation.instructions = [*order[:behind], far, *order[behind:self.before], near, *views, *readers]

        def undo() -> None:
            self.computation.instructions = order
            for reader, operands in old_operands.items():
                reader.operands = operands
        return undo

    def _replaced(self, operand: Instruction, near: Instruction, made: dict[Instruction, Instruction], names: Names,
                  new_views: list[Instruction]) -> Instruction:
        """The replacement of `operand`: the array that came back, if it is that array or a reshape of it."""
        views: list[Instruction] = []
        source = operand
        while source.opcode in RESHAPES:
            views.append(source)
            source = source.operands[0]
        is_it = source is self.value.instruction and source.shape.is_array or source.opcode == "get-tuple-element" and (
            source.operands[0] is self.value.instruction and source.get("index") == self.value.leaf)
        if not is_it:
            return operand
        for view in reversed(views):
            if view not in made:
                made[view] = view.copy(name=names.fresh(view.name), control_predecessors=(),
                                       operands=[made.get(view.operands[0], near)])
                new_views.append(made[view])
        return made[operand] if views else near


def offloading(profile: Profile, value: Value, before: int, machine: Machine) -> Offloading | None:
    """How a value, which waits for a reader at `before`, waits on the host. None if it is not one array by itself."""
    order, maker = profile.computation.instructions, value.instruction
    if profile.overwritten.get(value, before) < before:
        return None
    source = maker if maker.shape.is_array else next(
        (i for i in order if i.opcode == "get-tuple-element" and i.operands[0] is maker and i.shape.is_array
         and i.get("index") == value.leaf), None)
    if source is None or not source.shape.is_array or maker.shape.is_tuple and not all(
            s.is_array for s in maker.shape.tuple_shapes):
        return None
    seconds = 2 * (value.size / machine.host_bandwidth + machine.launch_seconds)
    return Offloading(profile.computation, source, value, profile.position[source], before, value.size, seconds)
