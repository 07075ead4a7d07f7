"""Collectives of a program on GPUs: NCCL on a stream of their own, beside the stream of kernels.

In: the collectives of a plan, and the device of this process or thread. Out: work on the two streams.

    kernels ──┬─ record e ──────── kernels ─────── wait f ── kernels      start(step) ... done(step)
              └─ (communication) wait e ── NCCL ── record f

A start waits for the kernels that were put on their stream before it, done lets those after it wait for the end. Both
are captured into CUDA graphs as branches. Communicators live as long as the device (hloc/evaluate): one of all devices,
and one for each list of groups, made when a program is loaded, on all devices in the same order.
"""
from __future__ import annotations

import atexit
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hloc.errors import RunError
from hloc.evaluate import Device
from hloc.evaluate.mpi import TIMEOUT, seconds_to_wait
from hloc.evaluate.simulate import AbandonedError
from hloc.ir import TOKEN, Instruction, numpy_dtype
from hloc.kernels.plan import Collective, Ref, Step, all_steps
from hloc.ops.collectives import check_rows
from hloc.targets.cuda.execution.host_memory import HostMemory
from hloc.targets.cuda.libraries import nccl

START = Instruction("program", "start", TOKEN)         # where devices meet before a program
BOOT = Path("/proc/sys/kernel/random/boot_id")
SPINS, PAUSE = 2000, 1e-4        # looks at a stream before a process sleeps between them; for how long, in seconds

Message = tuple[int, int, int]   # rank of the other device, address, bytes
Groups = tuple[tuple[int, ...], ...]


class Communicators:
    """NCCL's communicators of one device. gpu: what no other device may have."""

    def __init__(self, device: Device, gpu: str):
        self.library = nccl.Nccl(nccl.library())
        self.device = device
        first = self.library.new_id() if device.number == 0 else bytes(nccl.ID_BYTES)
        told = np.frombuffer(first + gpu.encode().ljust(256)[:256], np.uint8)
        everybody = [bytes(row[0]) for row in device.exchange(START, range(device.count), (told,))]
        refuse_shared([row[nccl.ID_BYTES:] for row in everybody])
        self.world = self.library.world(device.count, device.number, everybody[0][:nccl.ID_BYTES])
        self.groups: dict[Groups, int] = {(tuple(range(device.count)),): self.world}
        atexit.register(self.abort)                    # before the context goes, which was made before

    def add(self, groups: Groups) -> None:
        """The communicator of this device's group; all devices call this."""
        if groups not in self.groups:
            own = next((n for n, g in enumerate(groups) if self.device.number in g), None)
            place = 0 if own is None else groups[own].index(self.device.number)
            self.groups[groups] = self.library.split(self.world, nccl.NO_GROUP if own is None else own, place)

    def abort(self) -> None:
        """Gives all back, and ends what waits on them."""
        atexit.unregister(self.abort)
        for communicator in {c for c in self.groups.values() if c and c != self.world}:
            self.library.abort(communicator)
        self.library.abort(self.world)
        self.groups = {}
        _communicators.pop(self.device, None)


_communicators: WeakKeyDictionary[Device, Communicators] = WeakKeyDictionary()


def refuse_shared(gpus: Sequence[bytes]) -> None:
    """Raises RunError where two devices have the same GPU, which NCCL refuses in fewer words."""
    for number, gpu in enumerate(gpus):
        if gpu in gpus[:number]:
            raise RunError(f"devices {gpus.index(gpu)} and {number} have the same GPU: each needs one of its own",
                           hint="--target cpu runs devices without GPUs")


def name_of_gpu(bus: str) -> str:
    """What tells a GPU from all others of the run, as NCCL tells them apart."""
    boot = BOOT.read_text(encoding="ascii").strip() if BOOT.exists() else ""
    return f"{bus} {boot} {platform.node()}"


class CudaCollectives:
    """The collectives of a program. `cuda` is PyCUDA's driver module, `compute` the stream of kernels, `gpu` the
    device's; address: of a piece of memory; table: memory of table_bytes (container.py); host: the arrays in the host's
    memory, which copies go to and come from. The context is current in all calls."""

    def __init__(self, cuda, device: Device, steps: Sequence[Step], compute, gpu, address: Callable[[Ref], int],
                 table: int = 0, host: HostMemory | None = None):
        self.host = host
        self.cuda, self.device, self.compute, self.address, self.table = cuda, device, compute, address, table
        self.stream = cuda.Stream(1)                   # CU_STREAM_NON_BLOCKING
        self.events: dict[tuple[int, str], tuple[Any, Any]] = {}
        self.running: dict[tuple[int, str], Collective] = {}     # started since the last wait, outside of graphs
        self.communicators: Communicators | None = None
        collectives = [step for step in all_steps(steps) if isinstance(step, Collective) and not step.is_done]
        if any(meets_others(step) for step in collectives):
            if device not in _communicators:
                _communicators[device] = Communicators(device, name_of_gpu(gpu.pci_bus_id()))
            self.communicators = _communicators[device]
        for step in collectives:
            key = step.number, step.kind
            if key not in self.events:
                flags = cuda.event_flags.DISABLE_TIMING
                self.events[key] = cuda.Event(flags), cuda.Event(flags)
            if any(len(g) > 1 for g in step.groups) and self.communicators is not None:
                self.communicators.add(step.groups)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def start(self, step: Collective) -> None:
        before, after = self.events[step.number, step.kind]
        before.record(self.compute)
        self.stream.wait_for_event(before)
        getattr(self, "_" + step.kind.replace("-", "_"))(step)
        after.record(self.stream)
        self.running[step.number, step.kind] = step

    def done(self, step: Collective) -> None:
        _, after = self.events[step.number, step.kind]
        self.compute.wait_for_event(after)

    def wait(self, stream) -> None:
        """Waits for a stream, on which work may wait for other devices. Raises RunError if they do not come in time, or
        one has failed."""
        begun, limit, turns = time.monotonic(), seconds_to_wait(), 0
        while not stream.is_done():
            turns += 1
            if turns < SPINS:
                continue
            time.sleep(PAUSE)
            if self.communicators is not None:
                self.communicators.library.check(self.communicators.world)
            if self.device.others_failed:
                self._give_up()
                raise AbandonedError("another device failed", is_cause=False)
            if time.monotonic() - begun > limit:
                where = self._name_of_running()
                self._give_up()
                raise RunError(f"device {self.device.number} has waited {limit:g} s {where} for other devices",
                               hint=f"one of them hangs, or takes longer: {TIMEOUT}=SECONDS sets the limit")
        self.running.clear()

    def _give_up(self) -> None:
        if self.communicators is not None:
            self.communicators.abort()

    def _name_of_running(self) -> str:
        """Where it waits: at the first collective that has not ended, if it is in no graph."""
        for key, step in self.running.items():
            if not self.events[key][1].query():
                name = f" %{step.instruction.name}" if step.instruction is not None else ""
                return f"at {step.kind}{name}"
        return "in a graph"

    # -- what a collective does on the stream of communication --------------------------------------------------------

    @property
    def handle(self) -> int:
        return int(self.stream.handle)

    def _group(self, step: Collective) -> tuple[int, ...]:
        """The members of this device's group, in order; () if it is in none."""
        return next((g for g in step.groups if self.device.number in g), ())

    def _calls(self, communicator: int | None = None) -> tuple[nccl.Nccl, int]:
        """NCCL, and a communicator: of all where none is given."""
        assert self.communicators is not None
        return self.communicators.library, communicator or self.communicators.world

    def _of(self, step: Collective) -> tuple[nccl.Nccl, int]:
        assert self.communicators is not None
        return self._calls(self.communicators.groups[step.groups])

    def _arrays(self, step: Collective) -> list[tuple[int, int, int]]:
        """Address of the operand, address of the result, bytes of the block, of each array."""
        return [(self.address(a), self.address(r), b.rows * b.run)
                for a, r, b in zip(step.arguments, step.results, step.blocks)]

    def _copy(self, to: int, source: int, size: int) -> None:
        if size and to != source:
            self.cuda.memcpy_dtod_async(to, source, size, self.stream)

    def _clear(self, refs: Sequence[Ref], sizes: Sequence[int]) -> None:
        for ref, size in zip(refs, sizes):
            if size:
                self.cuda.memset_d8_async(self.address(ref), 0, size, self.stream)

    def _transfer(self, step: Collective) -> None:
        """Between the device's memory and its host's."""
        assert self.host is not None                   # one of the two is there
        (source,), (made,) = step.arguments, step.results
        self.host.copy(self.address(made), self.address(source), source.size, self.stream)

    def _all_reduce(self, step: Collective) -> None:
        self._each(step, lambda library, communicator, to, source, size, block: library.all_reduce(
            communicator, to, source, size, block.type, block.op, self.handle))

    def _reduce_scatter(self, step: Collective) -> None:
        self._each(step, lambda library, communicator, to, source, size, block: library.reduce_scatter(
            communicator, to, source, size, block.type, block.op, self.handle))

    def _all_gather(self, step: Collective) -> None:
        self._each(step, lambda library, communicator, to, source, size, block: library.all_gather(
            communicator, to, source, size, self.handle))

    def _collective_broadcast(self, step: Collective) -> None:
        if not self._group(step):
            self._clear(step.results, [b.rows * b.run for b in step.blocks])
        self._each(step, lambda library, communicator, to, source, size, block: library.broadcast(
            communicator, to, source, size, self.handle))

    def _each(self, step: Collective, call: Callable[..., None]) -> None:
        """Calls NCCL for each array, as one operation; a device by itself has its own arrays."""
        members = self._group(step)
        arrays = [(to, source, size, block) for (source, to, size), block in zip(self._arrays(step), step.blocks)
                  if size]
        if len(members) == 1:
            for to, source, size, _ in arrays:
                self._copy(to, source, size)
        elif members and arrays:
            library, communicator = self._of(step)
            with library.grouped():
                for array in arrays:
                    call(library, communicator, *array)

    def _all_to_all(self, step: Collective) -> None:
        members = self._group(step)
        if members:
            (block,) = step.blocks
            size = block.rows * block.run
            self._exchange(step, members.index(self.device.number),
                           [(m, self.address(ref), size) for m, ref in enumerate(step.arguments)],
                           [(m, self.address(ref), size) for m, ref in enumerate(step.results)])

    def _collective_permute(self, step: Collective) -> None:
        self._messages(step, step.arguments, step.results)

    def _send(self, step: Collective) -> None:
        self._messages(step, step.arguments, ())

    def _recv(self, step: Collective) -> None:
        self._messages(step, (), step.results)

    def _messages(self, step: Collective, given: Sequence[Ref], made: Sequence[Ref]) -> None:
        """Between the pairs; zeros where no source is. What a device sends to itself is a copy."""
        own, sizes = self.device.number, [b.rows * b.run for b in step.blocks]
        sources = [s for s, t in step.pairs if t == own][:1]
        if not sources:
            self._clear(made, sizes)
        self._exchange(step, own,
                       [(t, self.address(ref), n) for s, t in step.pairs if s == own for ref, n in zip(given, sizes)],
                       [(s, self.address(ref), n) for s in sources for ref, n in zip(made, sizes)])

    def _exchange(self, step: Collective, own: int, sent: Sequence[Message], received: Sequence[Message]) -> None:
        """Messages as one operation. own: this device's rank among those of the step's group, or of all."""
        to_itself, from_itself = ([m for m in messages if m[0] == own] for messages in (sent, received))
        for (_, source, size), (_, to, _) in zip(to_itself, from_itself):
            self._copy(to, source, size)
        sent, received = ([m for m in messages if m[0] != own and m[2]] for messages in (sent, received))
        if not sent and not received:
            return
        library, communicator = self._of(step) if step.groups else self._calls()
        with library.grouped():
            for peer, address, size in sent:
                library.send(communicator, peer, address, size, self.handle)
            for peer, address, size in received:
                library.receive(communicator, peer, address, size, self.handle)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _ragged_all_to_all(self, step: Collective) -> None:
        """The host asks how many rows go where: it waits for the operands, and this is in no graph."""
        members = self._group(step)
        source, target, vector = step.blocks
        size, row = vector.rows * vector.run, target.run
        self._copy(self.address(step.results[0]), self.address(step.arguments[1]), target.rows * row)
        if not members or not size:
            return
        own, part = members.index(self.device.number), size // len(members)
        for place, ref in enumerate(step.arguments[3:5]):          # counts, and where the rows go
            first = self.address(ref)
            self._exchange(step, own, [(m, first + m * part, part) for m in range(len(members))],
                           [(m, self.table + place * size + m * part, part) for m in range(len(members))])
        dtype = numpy_dtype(vector.type)
        starts, counts, coming, places = (
            self._read(address, size).view(dtype).astype(np.int64).reshape(len(members), -1)
            for address in (*map(self.address, step.arguments[2:4]), self.table, self.table + size))
        name = f"ragged-all-to-all %{step.instruction.name}" if step.instruction is not None else "ragged-all-to-all"
        check_rows(name, starts, counts, source.rows)
        check_rows(name, places, coming, target.rows)
        given, made = self.address(step.arguments[0]), self.address(step.results[0])
        self._exchange(step, own, _rows(given, starts, counts, row), _rows(made, places, coming, row))

    def _read(self, address: int, size: int) -> np.ndarray:
        array = np.empty(size, np.uint8)
        self.cuda.memcpy_dtoh_async(array, address, self.stream)
        self.wait(self.stream)
        return array


def _rows(address: int, starts: np.ndarray, counts: np.ndarray, row: int) -> list[Message]:
    return [(m, address + int(start) * row, int(count) * row)
            for m in range(len(starts)) for start, count in zip(starts[m], counts[m])]


def meets_others(step: Collective) -> bool:
    """Whether devices exchange anything, not each by itself."""
    return any(len(g) > 1 for g in step.groups) or any(s != t for s, t in step.pairs)

