"""The memory that a program needs, by purpose, before it runs.

In: an optimized module. Out: a MemoryUse: the sizes that a run allocates, and the buffers alive where most is in use.

    use = memory_use(module, machine, target.workspace)
    use.peak          parameters + results + constants + arena + kept
    use.buffers[0]    the largest: Buffer(4096, "arena", 0, fusion.3, (fusion.3, add.7), 4, 9)

    over = memory_over_time(module, machine, target.workspace)
    over.live[3]      bytes of the arena in use at over.instructions[3]

The arena may be a little larger than `live`, the bytes in use at once: there may be unused gaps. The workspace of
library kernels for packed operands, sorts and transforms is in the arena too, during their step (region "scratch"). Not
in the peak: stacks of threads, one set per process, and Python itself.
"""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from hloc.analysis.packing import align
from hloc.inputs import Parameter
from hloc.ir import Instruction, Module, leaves
from hloc.kernels.buffer_assignment import Home, Value
from hloc.kernels.plan import NO_WORKSPACE, Program, Workspace
from hloc.kernels.planner import Planner, planned
from hloc.machine import Machine


class Buffer(NamedTuple):
    """A piece of memory.

    instructions  who writes it, in the order of the schedule; the parameter itself; none for a constant
    name          what to call it
    first, last   its life on the planner's timeline; what is outside the arena lives always
    """

    size: int
    region: str
    offset: int
    name: str
    instructions: tuple[Instruction, ...]
    first: int
    last: int


class HostUse(NamedTuple):
    """Bytes of the host's memory, S(5)."""

    parameters: int
    results: int
    arena: int

    @property
    def peak(self) -> int:
        return sum(self)


class MemoryUse(NamedTuple):
    """All sizes in bytes, of the device's memory; on_host: those of the host's, which on a CPU is the same memory.

    scratch   of the arena: the most that one step's library kernels take
    kept      what library kernels keep between runs, such as roots of unity
    stacks    of the threads that a program runs on, reserved once per process
    at        the instruction at which `live` bytes of the arena are in use; None without an arena
    """

    parameters: int
    results: int
    constants: int
    arena: int
    scratch: int
    kept: int
    stacks: int
    live: int
    at: Instruction | None
    buffers: tuple[Buffer, ...]
    on_host: HostUse

    @property
    def peak(self) -> int:
        return self.parameters + self.results + self.constants + self.arena + self.kept


class MemoryOverTime(NamedTuple):
    """The memory in use while a program runs, in bytes.

    instructions  in the order of the schedule, those of loops and branches once, where they stand; several may be one
    live          of the arena, at each of them
    outside       parameters, results, constants and what library kernels keep: in use all the time
    buffers       of the arena and of memory lent by results; first and last are positions in `instructions`
    """

    instructions: tuple[Instruction, ...]
    live: tuple[int, ...]
    outside: int
    buffers: tuple[Buffer, ...]

    @property
    def peak_at(self) -> int:
        """The first position at which most of the arena is in use; 0 without an arena."""
        return max(range(len(self.live)), key=self.live.__getitem__, default=0)

    @property
    def by_instruction(self) -> dict[Instruction, int]:
        """`live` by instruction; for one at several positions the maximum."""
        found: dict[Instruction, int] = {}
        for instruction, size in zip(self.instructions, self.live):
            found[instruction] = max(size, found.get(instruction, 0))
        return found

    def alive(self, position: int) -> list[Buffer]:
        """The buffers in use at a position, the largest first."""
        return sorted((b for b in self.buffers if b.first <= position <= b.last), key=lambda b: -b.size)


def memory_use(module: Module, machine: Machine, workspace: Workspace = NO_WORKSPACE) -> MemoryUse:
    """Plan the module, and report its memory by purpose. Raises the errors of planning."""
    planner, program, over = _planned(module, machine, workspace)
    peak = over.peak_at
    makers = {group.home: made for group, made in _makers(planner).items()}
    owners = [p for p in module.entry.parameters for _ in leaves(p.shape)]
    outside = [*(_outside("parameter", v, (owner,)) for v, owner in zip(program.parameters, owners)),
               *(_outside("result", v, makers.get(Home("result", n), ())) for n, v in enumerate(program.results)),
               *(Buffer(c.nbytes, "constant", 0, f"constant {n}", (), 0, 0) for n, c in enumerate(program.constants))]
    given, made = (sum(v.shape.num_bytes for v in values if v.shape.on_host)
                   for values in (program.parameters, program.results))
    on_host = HostUse(given, made, program.host_arena_size)
    return MemoryUse(
        sum(v.shape.num_bytes for v in program.parameters) - on_host.parameters,
        sum(v.shape.num_bytes for v in program.results) - on_host.results, sum(c.nbytes for c in program.constants),
        program.arena_size if program.host_apart else program.arena_size - program.host_arena_size,
        max((v.size for v in planner.scratch), default=0), program.kept, workspace.stack(machine),
        over.live[peak], over.instructions[peak] if over.live[peak] else None,
        tuple(sorted(over.alive(peak) + outside, key=lambda b: -b.size)), on_host)


def memory_over_time(module: Module, machine: Machine, workspace: Workspace = NO_WORKSPACE) -> MemoryOverTime:
    """Plan the module, and report the memory in use at each instruction. Raises the errors of planning."""
    return _planned(module, machine, workspace)[-1]


def _planned(module: Module, machine: Machine, workspace: Workspace) -> tuple[Planner, Program, MemoryOverTime]:
    planner = Planner(module, machine, workspace=workspace)
    program = planned(planner)
    times = [time for time, _ in planner.schedule]
    buffers = [_at_positions(b, times) for b in _arena_buffers(planner)]
    changes = [0] * (len(times) + 1)
    for buffer in buffers:
        if buffer.region not in ("host", "lent"):
            changes[buffer.first] += buffer.size
            changes[buffer.last + 1] -= buffer.size
    return planner, program, MemoryOverTime(tuple(i for _, i in planner.schedule), tuple(accumulate(changes[:-1])),
                                            program.peak - program.arena_size, tuple(buffers))


def _at_positions(buffer: Buffer, times: Sequence[int]) -> Buffer:
    """The buffer with positions in the schedule as its live range: an instruction lasts until the next one's time."""
    first, last = (max(0, bisect_right(times, time) - 1) for time in (buffer.first, buffer.last))
    return buffer._replace(first=first, last=last)


def _arena_buffers(planner: Planner) -> list[Buffer]:
    """The buffers in the arena, and those in results that are written later (region "lent")."""
    found = [Buffer(align(g.size), "lent" if g.lent else "scratch" if g in planner.scratch
                    else "host" if g.on_host else "arena", g.offset, made[0].name, made, g.first, g.last)
             for g, made in _makers(planner).items() if g.home is None and g.first >= 0]
    return sorted(found, key=lambda buffer: buffer.region == "lent")


def _makers(planner: Planner) -> dict[Value, tuple[Instruction, ...]]:
    """For each group of values that share memory, the instructions that write it."""
    found: dict[Value, dict[Instruction, None]] = {}
    for value, instruction in planner.makers.items():
        found.setdefault(planner.assignment.root(value), {})[instruction] = None
    return {group: tuple(instructions) for group, instructions in found.items()}


def _outside(region: str, value: Parameter, made: tuple[Instruction, ...]) -> Buffer:
    """A parameter or result, with the instructions that write it."""
    where = f"{region} (host)" if value.shape.on_host else region
    return Buffer(value.shape.num_bytes, where, 0, value.name, made, 0, 0)
