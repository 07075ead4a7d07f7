"""Several devices under MPI: one process per device, numbered by rank. Needs mpi4py (the `mpi` extra).

    mpirun -n 4 hloc run model.hlo --inputs 'x.{device}.npy'

Collectives exchange bytes; nothing is pickled.
"""
from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloc.devices import device_counts, refuse_unpartitioned
from hloc.errors import RunError, Span, UsageError
from hloc.evaluate.evaluator import Device
from hloc.ir import Instruction, Module, Shape, leaves, numpy_dtype
from hloc.machine import available_cores
from hloc.ops.collectives import counts_of_run
from hloc.ops.values import Value, flatten, unflatten

TIMEOUT = "HLOC_DEVICE_TIMEOUT"
MOST_TAGS = 32768                # of messages, that every MPI has
CLOCK_TURNS = 16                 # tests between two looks at the clock
SPINS, PAUSE = 2000, 1e-4        # tests of a request before a process sleeps between them; for how long, in seconds


def process_count() -> int:
    """How many processes there are. Raises RunError without mpi4py."""
    return _mpi().COMM_WORLD.size


def _mpi():
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise RunError(f"running under MPI needs mpi4py: {error}", hint="pip install 'hloc[mpi]'") from None
    return MPI


def mpi_device(module: Module) -> MpiDevice:
    """This process's device. Raises RunError without mpi4py, or if the number of processes is not the module's."""
    world = _mpi().COMM_WORLD
    replicas, partitions = device_counts(module)
    if replicas * partitions not in (1, world.size):
        raise RunError(f"the module takes {replicas * partitions} devices, not {world.size} processes")
    if world.size > 1:
        refuse_unpartitioned(module)
    replicas, partitions = counts_of_run(module, world.size)
    replica, partition = divmod(world.rank, partitions)
    return MpiDevice(world, replica, partition, replicas, partitions)


def process_device(count: int) -> MpiDevice:
    """The same for a program of so many devices."""
    world = _mpi().COMM_WORLD
    if count != world.size:
        raise RunError(f"the program is for {count} devices, not {world.size} processes")
    return MpiDevice(world, world.rank, 0, count, 1)


class DifferentProgramsError(RunError):
    """All processes know of it, and none waits for another."""


def seconds_to_wait() -> float:
    """How long a device waits for others at a collective. Raises UsageError for what is no number of seconds."""
    text = os.environ.get(TIMEOUT, "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{TIMEOUT}={text!r} is no number of seconds")
    return seconds


class MpiDevice(Device):
    """A device whose peers are the processes of a communicator."""

    def __init__(self, world, replica: int, partition: int, replica_count: int, partition_count: int):
        super().__init__(replica, partition, replica_count, partition_count)
        self.world, self.mpi = world, _mpi()
        shared = world.Split_type(self.mpi.COMM_TYPE_SHARED)         # all processes are here now
        self.processes_here, self.rank_here = shared.size, shared.rank
        shared.Free()
        self.groups: dict[tuple[int, ...], object] = {}
        self.sent: list[tuple[Any, np.ndarray]] = []   # messages on their way
        self.compiled: Any = None                      # the communicator of compiled programs

    def communicator(self, make: Callable[[], Any]) -> Any:
        """That of compiled programs, made once (hloc/targets/cpu/execution/mpi.py)."""
        if self.compiled is None:
            self.compiled = make()
        return self.compiled

    @property
    def neighbours(self) -> int:
        """The processes on this machine."""
        return self.processes_here

    @property
    def place_here(self) -> int:
        return self.rank_here

    def check_same(self, text: str) -> None:
        """Raises DifferentProgramsError, in all processes, where they do not all have this text: they would wait for
        one another at different places."""
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
        everybody = np.empty((self.count, digest.size), np.uint8)
        self.world.Allgather(digest, everybody)
        others = [d for d in range(self.count) if bytes(everybody[d]) != bytes(everybody[0])]
        if others:
            raise DifferentProgramsError(f"process {', '.join(map(str, others))} and process 0 have different modules, "
                                         "options or versions of hloc")

    def abort(self, code: int) -> None:
        """End all processes, this one too: the others may wait for its data."""
        self.world.Abort(code)
        os._exit(code)                                       # some MPI libraries return

    def exchange(self, instruction: Instruction, members: Sequence[int], value: Value) -> list[Value]:
        if len(members) == 1:
            return [value]
        arrays = [np.ascontiguousarray(a) for a in flatten(value)]
        own = np.concatenate([a.reshape(-1).view(np.uint8) for a in arrays]) if arrays else np.zeros(0, np.uint8)
        everybody = np.empty((len(members), own.size), np.uint8)
        name = f"{instruction.opcode} %{instruction.name}"
        self.wait(self.group(tuple(members)).Iallgather(own, everybody), name, members, instruction.span)
        return [_like(value, row) for row in everybody]

    def post(self, instruction: Instruction, target: int, channel: int, value: Value) -> None:
        own = np.concatenate([np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in flatten(value)])
        self.sent.append((self.world.Isend(own, target, channel % MOST_TAGS), own))

    def fetch(self, instruction: Instruction, source: int, channel: int, shape: Shape) -> Value:
        arrays = [np.zeros(s.dimensions, numpy_dtype(s.element_type)) for s in leaves(shape)]
        row = np.empty(sum(a.nbytes for a in arrays), np.uint8)
        name = f"{instruction.opcode} %{instruction.name}"
        self.wait(self.world.Irecv(row, source, channel % MOST_TAGS), name, [source], instruction.span)
        return _like(unflatten(shape, iter(arrays)), row)

    def wait(self, request, name: str, members: Sequence[int], span: Span | None = None) -> None:
        """Raises RunError where the others do not come within the limit."""
        start, limit, turns = time.monotonic(), seconds_to_wait(), 0
        shares = self.neighbours > available_cores()
        while not request.Test():
            turns += 1
            if turns > SPINS:
                time.sleep(PAUSE)
            elif shares:
                os.sched_yield()
            if turns % CLOCK_TURNS == 0 and time.monotonic() - start > limit:
                others = [m for m in members if m != self.number]
                raise RunError(f"device {self.number} has waited {limit:g} s at {name} for the devices {others}", span,
                               hint=f"one of them hangs, or takes longer: {TIMEOUT}=SECONDS sets the limit")

    def group(self, members: tuple[int, ...]):
        """One per group, made when the group first meets: ranks within it are in the order of `members`."""
        if members == tuple(range(self.count)):
            return self.world
        if members not in self.groups:
            self.groups[members] = self.world.Create_group(self.world.Get_group().Incl(list(members)))
        return self.groups[members]


def _like(value: Value, row: np.ndarray) -> Value:
    """The bytes as arrays (or nested tuples of them) such as `value` holds."""
    parts = []
    for array in flatten(value):
        parts.append(row[:array.nbytes].copy().view(array.dtype).reshape(array.shape))
        row = row[array.nbytes:]
    return _nested(value, iter(parts))


def _nested(value: Value, parts) -> Value:
    return tuple(_nested(v, parts) for v in value) if isinstance(value, tuple) else next(parts)
