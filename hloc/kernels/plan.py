"""The plan: an ordered list of steps over statically placed buffers, which a target runs once per call.

In: a scheduled, fused, laid-out Module. Out (hloc/kernels/planner.py): a Program. All offsets and sizes are in bytes,
offsets are multiples of ALIGNMENT (hloc/analysis/packing.py) within their region.

    Program(kernels=(add,), steps=(Launch(0, (Ref("parameter", 0, 0, 16384), ..., Ref("result", 0, 0, 16384))),), ...)
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Union

import numpy as np

from hloc.inputs import Parameter
from hloc.ir import Instruction, Shape
from hloc.kernels.ir import Kernel, Tile
from hloc.machine import Machine

TRANSFER = "transfer"           # the kind of a Collective that is a copy between a GPU's memory and its host's
FLAG_BYTES = 4                  # of Program.held: an s32


class Ref(NamedTuple):
    """A piece of memory. region: parameter (index = flattened entry parameter), result (flattened result),
    constant (index into Program.constants), arena (index 0), held (index into Program.held), host (index 0: of a GPU,
    the arena in its host's memory)."""

    region: str
    index: int                          # type: ignore[assignment]     # hides tuple.index, which nothing calls
    offset: int
    size: int

    def part(self, start: int, size: int) -> Ref:
        """A part of that size, at that start in bytes."""
        return self._replace(offset=self.offset + start, size=size)


class Launch(NamedTuple):
    """Run a kernel; one Ref per Buffer of it, in order. instruction: what it computes; None in a saved plan. scratch:
    workspace of a target's library kernel, if it needs some (Workspace). packed: an operand packed for a library kernel
    (Packing); a step that packs it writes there, and has that operand as its only argument."""

    kernel: int
    arguments: tuple[Ref, ...]
    instruction: Instruction | None = None
    scratch: Ref | None = None
    packed: Ref | None = None


class Copy(NamedTuple):
    """Copy source.size bytes; the pieces do not overlap (or are the same). instruction: the one that needs the copy."""

    destination: Ref
    source: Ref
    instruction: Instruction | None = None


class Counter(NamedTuple):
    """A number that is known in each round of a counted loop: at the start of round n the memory at `place` gets what
    is at `values`, n times its size further. Nothing in the loop writes there, so a step that is recorded for one round
    may read the constant instead."""

    place: Ref
    values: Ref

    def in_round(self, number: int) -> Ref:
        """The constant of a round."""
        return self.values._replace(offset=self.values.offset + number * self.values.size)


class WhileLoop(NamedTuple):
    """Run `condition`, then while the pred at `flag` is true: `body`, `condition`. trip_count: known number or None;
    instruction: the while itself; None in a saved plan. On a GPU a loop with a known number of rounds has no condition,
    and no flag; counters: of such a loop. by_device: a GPU should decide
    by itself how long the loop goes on."""

    condition: tuple[Step, ...]
    flag: Ref | None
    body: tuple[Step, ...]
    trip_count: int | None = None
    instruction: Instruction | None = None
    counters: tuple[Counter, ...] = ()
    by_device: bool = False


class Branch(NamedTuple):
    """Run branches[selector]; the selector is an s32 clamped to the last branch, or a pred (true: branch 0).
    instruction, by_device: as in a WhileLoop."""

    selector: Ref
    selector_type: str
    branches: tuple[tuple[Step, ...], ...]
    instruction: Instruction | None = None
    by_device: bool = False


class HostCall(NamedTuple):
    """Call a Python function with NumPy views of its arguments: a custom call. `instruction` is the call itself, for
    functions that read its attributes (hloc/ops/custom_calls.py); None in a saved plan. scratch: as in a Launch, if the
    target makes the call itself."""

    target: str
    arguments: tuple[tuple[Ref, Shape], ...]
    results: tuple[tuple[Ref, Shape], ...]
    instruction: Instruction | None = None
    scratch: Ref | None = None


class Block(NamedTuple):
    """One array of a collective: a block is `rows` runs of `run` bytes, which are `stride` bytes apart in the array of
    the blocks of all members. op, combine: of a reduction, add ... or "other", and the kernel that combines elements of
    all members (collectives.py)."""

    type: str
    rows: int
    run: int
    stride: int
    op: str = ""
    combine: int | None = None


class Collective(NamedTuple):
    """Exchange arrays with other devices, as targets/cpu/runtime/communicator.h says. It is started by one step and
    done by another: between them nothing may touch its arrays.

    number     of this collective among those of the program; a send and its recv have the same
    kind       of the operation: all-reduce ...; or TRANSFER, which meets no other device
    is_done    whether this step waits for the end
    arguments, results     the arrays, or blocks of them
    groups, pairs          of devices
    """

    number: int
    kind: str
    is_done: bool
    arguments: tuple[Ref, ...]
    results: tuple[Ref, ...]
    blocks: tuple[Block, ...]
    groups: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    instruction: Instruction | None = None


class DeviceNumber(NamedTuple):
    """Store device / divisor % modulus, a u32: the number of the device's replica or partition."""

    result: Ref
    divisor: int
    modulus: int
    instruction: Instruction | None = None


Step = Union[Launch, Copy, WhileLoop, Branch, HostCall, Collective, DeviceNumber]


def all_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Every step of a plan, including those in loops and branches; in no particular order."""
    stack = list(steps)
    while stack:
        step = stack.pop()
        yield step
        if isinstance(step, WhileLoop):
            stack.extend(step.condition + step.body)
        elif isinstance(step, Branch):
            stack.extend(s for branch in step.branches for s in branch)


def with_inner(step: Step, change: Callable[[tuple[Step, ...]], tuple[Step, ...]]) -> Step:
    """A loop or branch with the steps inside of it changed; any other step itself."""
    if isinstance(step, WhileLoop):
        return step._replace(condition=change(step.condition), body=change(step.body))
    if isinstance(step, Branch):
        return step._replace(branches=tuple(map(change, step.branches)))
    return step


class Packing(NamedTuple):
    """The packing of an operand for a library kernel, as a separate step: for operands that never change.

    operand    the number of the buffer that is packed
    bytes      of the operand, packed
    packs      the Tile that packs it
    reads      the Tile that is given it packed
    """

    operand: int
    bytes: int
    packs: Tile
    reads: Tile


class Workspace(NamedTuple):
    """The memory that a target's library kernels need beside their arguments, in bytes, as reported by the target.

    scratch    (Tile or HostCall, machine) -> for the time of that step; it lies in the arena
    kept       (kernels, machine) -> between runs, until the process ends
    stack      (machine) -> stacks of the threads on which programs run; one set per process, no part of the peak
    packing    (Tile, machine) -> how one of its operands is packed before; None: none is
    """

    scratch: Callable[[Tile | HostCall, Machine], int] = lambda *_: 0
    kept: Callable[[Sequence[Kernel | Tile], Machine], int] = lambda *_: 0
    stack: Callable[[Machine], int] = lambda _: 0
    packing: Callable[[Tile, Machine], Packing | None] = lambda *_: None


NO_WORKSPACE = Workspace()              # of library kernels that allocate memory of their own


class Program(NamedTuple):
    """Everything a target needs: deduplicated kernels, steps, constants, sizes.

    kept       bytes that library kernels keep between runs
    gaps       of the arena, offset and size: what nothing may touch, where $HLOC_SANITIZE asks for them
    setup      steps of the first run alone: what is computed from bound parameters and from nothing else
    held       bytes of the arrays that setup makes; they stay. The first is a flag, zero until setup is done
    devices    replicas times partitions that the program is for
    host_arena_size    bytes of the arena in the host's memory, S(5)
    host_apart         whether the host's memory is another than the device's; else that arena is part of arena_size
    """

    name: str
    kernels: tuple[Kernel | Tile, ...]
    steps: tuple[Step, ...]
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    constants: tuple[np.ndarray, ...]
    arena_size: int
    kept: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    setup: tuple[Step, ...] = ()
    held: tuple[int, ...] = ()
    devices: int = 1
    host_arena_size: int = 0
    host_apart: bool = False

    @property
    def meets(self) -> bool:
        """Whether a run takes a communicator: it exchanges arrays with other devices, or reads its own number."""
        return any(isinstance(step, DeviceNumber) or isinstance(step, Collective) and step.kind != TRANSFER
                   for step in all_steps(self.steps))

    @property
    def communicating(self) -> int:
        """How many devices the program is for, if its runs take a communicator; else 0."""
        return self.devices if self.meets else 0

    @property
    def on_host(self) -> int:
        """Bytes in the host's memory: parameters and results in S(5), and its arena."""
        signature = sum(v.shape.num_bytes for v in (*self.parameters, *self.results) if v.shape.on_host)
        return signature + self.host_arena_size

    @property
    def peak(self) -> int:
        """Bytes of one memory that a run needs: parameters, results, constants, the arena, and the memory kept by
        library kernels and setup. Of a GPU's memory, without its host's."""
        signature = sum(v.shape.num_bytes for v in (*self.parameters, *self.results)
                        if not (self.host_apart and v.shape.on_host))
        return signature + sum(c.nbytes for c in self.constants) + self.arena_size + self.kept + sum(self.held)
