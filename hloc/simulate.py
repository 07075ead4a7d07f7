"""Several devices on one machine: the reference evaluator once per device, in threads that meet at collectives.

In: a module and each device's inputs, by device number (replica * num_partitions + partition). Out: each device's
results.

    evaluate_devices(all_reduce_module, [[x0], [x1]]) == [(x0 + x1,), (x0 + x1,)]
"""
from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from hloc.errors import RunError
from hloc.evaluate import CustomCall, Device, Evaluator, Options
from hloc.inputs import check_inputs
from hloc.ir import Instruction, Module
from hloc.ops.values import Value


def device_counts(module: Module) -> tuple[int, int]:
    """replica_count and num_partitions of the module's header."""
    return int(module.attributes.get("replica_count", 1)), int(module.attributes.get("num_partitions", 1))


def evaluate_devices(module: Module, inputs: Sequence[Sequence[Any]], *,
                     custom_calls: Mapping[str, CustomCall] | None = None,
                     options: Options | None = None) -> list[tuple[np.ndarray, ...]]:
    """Run the entry on as many devices as there are inputs. Raises RunError where devices wait for each other forever.

    Where the header does not say how many replicas and partitions there are, all devices are partitions if it names
    partitions, else replicas.
    """
    replicas, partitions = device_counts(module)
    count = len(inputs)
    if replicas * partitions != count:
        replicas, partitions = (1, count) if partitions > 1 else (count, 1)
    meeting = _Meeting(count)
    runs = [_Run(module, arrays, meeting, divmod(number, partitions) + (replicas, partitions), custom_calls, options)
            for number, arrays in enumerate(inputs)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    failures = [run.error for run in runs if run.error is not None]
    if failures:
        raise min(failures, key=lambda e: isinstance(e, _Abandoned))      # the cause before its consequences
    return [run.results for run in runs]


class _Abandoned(RunError):
    """Another device failed while this one waited for it."""


class _Run(threading.Thread):
    """One device's evaluation."""

    def __init__(self, module: Module, arrays: Sequence[Any], meeting: _Meeting, place: tuple[int, int, int, int],
                 custom_calls, options: Options | None):
        super().__init__(daemon=True)
        self.arrays = check_inputs(module, arrays)
        self.meeting = meeting
        self.evaluator = Evaluator(module, custom_calls=custom_calls, options=copy(options) if options else None,
                                   device=_SharedDevice(meeting, *place))
        self.results: tuple[np.ndarray, ...] = ()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.results = self.evaluator.run(self.arrays)
        except BaseException as error:                                    # handed to the caller's thread
            self.error = error
        finally:
            self.meeting.leave()


class _SharedDevice(Device):
    def __init__(self, meeting: _Meeting, replica: int, partition: int, replica_count: int, partition_count: int):
        super().__init__(replica, partition, replica_count, partition_count)
        self.meeting = meeting
        self.visits: Counter = Counter()

    def exchange(self, instruction: Instruction, members: Sequence[int], value: Value) -> list[Value]:
        if len(members) == 1:
            return [value]
        # the started half of an asynchronous op is a copy of its own on each device: its operands are not
        place = (instruction.name, tuple(map(id, instruction.operands)), tuple(members))
        self.visits[place] += 1
        return self.meeting.exchange((*place, self.visits[place]), instruction, members, self.number, value)


class _Meeting:
    """Where devices leave values for each other. `table`: occasion -> device number -> value."""

    def __init__(self, count: int):
        self.condition = threading.Condition()
        self.running = count            # threads that have not ended
        self.waiting = 0                # of them, those that wait for others
        self.table: dict[tuple, dict[int, Value]] = {}
        self.taken: Counter = Counter()

    def exchange(self, occasion: tuple, instruction: Instruction, members: Sequence[int], number: int,
                 value: Value) -> list[Value]:
        """`occasion`: which execution of which instruction this is, the same for all members."""
        with self.condition:
            held = self.table.setdefault(occasion, {})
            held[number] = value
            if len(held) == len(members):
                self.waiting -= len(members) - 1          # they can all go on, though they have not woken yet
                self.condition.notify_all()
            else:
                self.waiting += 1
                self._wait(instruction, held, members)
            self.taken[occasion] += 1
            if self.taken[occasion] == len(members):
                del self.table[occasion], self.taken[occasion]
            return [held[m] for m in members]

    def _wait(self, instruction: Instruction, held: dict[int, Value], members: Sequence[int]) -> None:
        while len(held) < len(members):
            if self.waiting >= self.running:
                self.condition.notify_all()
                missing = [m for m in members if m not in held]
                raise _Abandoned(f"{instruction.opcode} %{instruction.name} waits for the devices {missing}, "
                                 "which do not come", instruction.span)
            self.condition.wait()

    def leave(self) -> None:
        with self.condition:
            self.running -= 1
            self.condition.notify_all()
