"""Several devices on one machine: one thread per device; they meet at collectives.

In: a module and each device's inputs, by device number (replica * num_partitions + partition). Out: each device's
results.

    evaluate_devices(all_reduce_module, [[x0], [x1]]) == [(x0 + x1,), (x0 + x1,)]
"""
from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Protocol

import numpy as np

from hloc.devices import refuse_unpartitioned
from hloc.errors import RunError, Span
from hloc.evaluate.evaluator import CustomCall, Device, Join, Options, evaluate
from hloc.evaluate.standing_threads import StandingThread, Work
from hloc.ir import Instruction, Module, Shape
from hloc.ops.collectives import counts_of_run
from hloc.ops.values import Value

PATIENCE = 0.3                  # seconds for devices to end after Ctrl-C
BLOCK = 1 << 15                  # elements that are combined at once: wider copies of them stay in the L2 cache


def evaluate_devices(module: Module, inputs: Sequence[Sequence[Any]], *,
                     custom_calls: Mapping[str, CustomCall] | None = None,
                     options: Options | None = None) -> list[tuple[np.ndarray, ...]]:
    """Run the entry on as many devices as there are inputs. Raises RunError if devices would wait forever."""
    devices = simulated_devices(module, len(inputs))
    runs = [partial(evaluate, module, arrays, custom_calls=custom_calls, device=device,
                    options=copy(options) if options else None) for device, arrays in zip(devices, inputs)]
    return run_concurrently(devices, runs)


def simulated_devices(module: Module, count: int) -> list[SimulatedDevice]:
    """`count` devices of one simulation. Raises UnsupportedError if the module is not partitioned yet, or names more
    devices."""
    if count > 1:
        refuse_unpartitioned(module)
    return thread_devices(*counts_of_run(module, count))


def thread_devices(replicas: int, partitions: int) -> list[SimulatedDevice]:
    """Devices of one simulation, by their numbers."""
    rendezvous = _Rendezvous(replicas * partitions)
    return [SimulatedDevice(rendezvous, replica, partition, replicas, partitions)
            for replica in range(replicas) for partition in range(partitions)]


def run_concurrently(devices: Sequence[SimulatedDevice], runs: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each device's function returns; each runs in a thread of its own. Devices run once at a time."""
    rendezvous = devices[0].rendezvous
    for late in rendezvous.late:                             # those of a run that was interrupted
        late.ended.wait()
    rendezvous.begin()
    for device in devices:
        device.visits.clear()
    works: list[Work] = []
    try:
        for thread, device, run in zip(rendezvous.standing_threads(), devices, runs):
            work = Work(partial(_run_on, device, run))
            thread.begin(work)
            works.append(work)
        for work in works:
            work.ended.wait()
    except BaseException:                                    # such as Ctrl-C: those that wait for others end
        rendezvous.stop()
        for work in works:
            work.ended.wait(PATIENCE)
        rendezvous.late = [work for work in works if not work.ended.is_set()]
        raise
    failures = [work.error for work in works if work.error is not None]
    if failures:
        raise min(failures, key=_is_consequence)
    return [work.result for work in works]


def _run_on(device: SimulatedDevice, run: Callable[[], Any]) -> Any:
    """One device's work."""
    try:
        return run()
    except BaseException:
        device.rendezvous.failed = True
        raise
    finally:
        device.rendezvous.leave(device.number)


def _is_consequence(error: BaseException) -> int:
    """The cause comes before its consequences."""
    return 2 - error.is_cause if isinstance(error, AbandonedError) else 0


class AbandonedError(RunError):
    """Another device failed, or ended, while this one waited for it. is_cause: the others do not come although none
    has failed."""

    is_cause = False

    def __init__(self, message: str, span: Span | None = None, is_cause: bool = True):
        super().__init__(message, span)
        self.is_cause = is_cause


class SimulatedDevice(Device):
    """A device whose peers are threads of this process."""

    def __init__(self, rendezvous: _Rendezvous, replica: int, partition: int, replica_count: int, partition_count: int):
        super().__init__(replica, partition, replica_count, partition_count)
        self.rendezvous = rendezvous
        self.visits: Counter = Counter()

    @property
    def neighbours(self) -> int:
        return self.count

    @property
    def place_here(self) -> int:
        return self.number

    @property
    def others_failed(self) -> bool:
        return self.rendezvous.failed or self.rendezvous.stopped

    def exchange(self, instruction: Instruction, members: Sequence[int], value: Value) -> list[Value]:
        if len(members) == 1:
            return [value]
        # the started half of an asynchronous op is a copy of its own on each device: its operands are not
        place = (instruction.name, tuple(map(id, instruction.operands)), tuple(members))
        self.visits[place] += 1
        return self.rendezvous.exchange((*place, self.visits[place]), instruction, members, self.number, value)

    def post(self, instruction: Instruction, target: int, channel: int, value: Value) -> None:
        self.rendezvous.post((channel, self.number, target), value)

    def fetch(self, instruction: Instruction, source: int, channel: int, shape: Shape) -> Value:
        return self.rendezvous.fetch((channel, source, self.number), instruction)

    def combined(self, instruction: Instruction, members: Sequence[int], arrays: Sequence[np.ndarray],
                 join: Join) -> list[np.ndarray]:
        """Each member combines its share of the elements of all, block by block, into arrays that all then have."""
        place = list(members).index(self.number)
        own = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
        totals = [np.empty_like(a) for a in own] if place == 0 else None
        held = self.exchange(instruction, members, (own, totals))
        totals = held[0][1]
        for k, total in enumerate(totals):
            first, end = (total.size * p // len(members) for p in (place, place + 1))
            for low in range(first, end, BLOCK):
                high = min(low + BLOCK, end)
                total[low:high] = join([h[0][k][low:high] for h in held])
        self.exchange(instruction, members, ())               # all parts are there, and operands are not read any more
        shared = [total.reshape(a.shape) for total, a in zip(totals, arrays)]
        for total in shared:
            total.flags.writeable = False
        return shared

    def combined_part(self, instruction: Instruction, members: Sequence[int], arrays: Sequence[np.ndarray],
                      join: Join, axis: int) -> list[np.ndarray]:
        parts = super().combined_part(instruction, members, arrays, join, axis)
        self.exchange(instruction, members, ())
        return parts


class _Rendezvous:
    """The shared table of devices: occasion -> device number -> value."""

    def __init__(self, count: int):
        self.condition = threading.Condition()
        self.count = count
        self.compiled: CompiledDevices | None = None          # those of compiled programs
        self.late: list[Work] = []                            # that had not ended when a run was interrupted
        self._threads: list[StandingThread] = []              # one for each device
        self.begin()

    def begin(self) -> None:
        """Before a run."""
        self.running = self.count       # threads that have not ended
        self.waiting = 0                # of them, those that wait for others
        self.table: dict[tuple, dict[int, Value]] = {}
        self.taken: Counter = Counter()
        self.posted: dict[tuple[int, int, int], list[Value]] = {}         # messages: channel, source, target
        self.wanted: set[tuple[int, int, int]] = set()                    # those that a device waits for
        self.stopped = self.failed = False
        if self.compiled is not None:
            self.compiled.reset()

    def standing_threads(self) -> list[StandingThread]:
        """Those of the devices. A fork leaves them behind."""
        if not all(thread.is_there for thread in self._threads):
            self._threads = []
        while len(self._threads) < self.count:
            self._threads.append(StandingThread())
        return self._threads

    def threads(self, make: Callable[[int], CompiledDevices]) -> CompiledDevices:
        """The devices of compiled programs, made once."""
        with self.condition:
            if self.compiled is None:
                self.compiled = make(self.count)
            return self.compiled

    def stop(self) -> None:
        """Let all that wait fail."""
        with self.condition:
            self.stopped = True
            self.condition.notify_all()
        if self.compiled is not None:
            self.compiled.stop()

    def exchange(self, occasion: tuple, instruction: Instruction, members: Sequence[int], number: int,
                 value: Value) -> list[Value]:
        """`occasion`: identifies an execution of an instruction, the same for all members."""
        with self.condition:
            held = self.table.setdefault(occasion, {})
            held[number] = value
            if len(held) == len(members):
                self.waiting -= len(members) - 1          # they can all go on, although they have not woken yet
                self.condition.notify_all()
            else:
                self.waiting += 1
                self._wait(instruction, held, members)
            self.taken[occasion] += 1
            if self.taken[occasion] == len(members):
                del self.table[occasion], self.taken[occasion]
            return [held[m] for m in members]

    def post(self, place: tuple[int, int, int], value: Value) -> None:
        """place: channel, source, target."""
        with self.condition:
            self.posted.setdefault(place, []).append(value)
            if place in self.wanted:
                self.wanted.remove(place)
                self.waiting -= 1
                self.condition.notify_all()

    def fetch(self, place: tuple[int, int, int], instruction: Instruction) -> Value:
        with self.condition:
            if not self.posted.get(place):
                self.waiting += 1
                self.wanted.add(place)
            while not self.posted.get(place):
                self._refuse_if_none_comes(instruction, [place[1]])
                self.condition.wait()
            return self.posted[place].pop(0)

    def _refuse_if_none_comes(self, instruction: Instruction, missing: Sequence[int]) -> None:
        if self.stopped or self.waiting >= self.running:
            self.condition.notify_all()
            raise AbandonedError(f"{instruction.opcode} %{instruction.name} waits for the devices {list(missing)}, "
                                 "which do not come", instruction.span)

    def _wait(self, instruction: Instruction, held: dict[int, Value], members: Sequence[int]) -> None:
        while len(held) < len(members):
            self._refuse_if_none_comes(instruction, [m for m in members if m not in held])
            self.condition.wait()

    def leave(self, device: int) -> None:
        """A device has ended."""
        if self.compiled is not None:
            self.compiled.leave(device)
        with self.condition:
            self.running -= 1
            self.condition.notify_all()


class CompiledDevices(Protocol):
    """What waits for others in compiled programs (hloc/targets/cpu/execution/communicators.py)."""

    def reset(self) -> None: ...

    def leave(self, device: int) -> None: ...

    def stop(self) -> None: ...
