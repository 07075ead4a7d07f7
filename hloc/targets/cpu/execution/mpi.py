"""The communicator of an MPI process: runtime/communicator.h through mpi4py, by callbacks from C.

In: an MpiDevice (hloc/evaluate/mpi.py), and a program's library, which combines elements. Out: the table of functions.

A function starts MPI's operations and notes how to go on: a generator that yields requests, one at a time, and after
the last one has the results in place. `done` waits for them. Large all-reduces exchange shares, combine them and gather
the sums: as many bytes as MPI's own, and the same numbers in the same order on all devices. Small ones gather all.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hloc.errors import RunError
from hloc.evaluate.mpi import MOST_TAGS, DifferentProgramsError, MpiDevice
from hloc.ops.collectives import check_rows
from hloc.targets.cpu.execution.communicator_table import VERSION, Table

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "permute", "send", "recv",
         "ragged_all_to_all")                     # enum hloc_kind
GATHERED_BYTES = 1 << 15                          # of the operands of an all-reduce of which all get all
FAILED = 1
SHARE = 64                                        # elements: shares begin at multiples of it

Start = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
                         ctypes.POINTER(ctypes.c_void_p))
Done = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
Begin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32)
Failed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)
Requests = Iterator[Any]


class _Block(ctypes.Structure):
    """hloc_block."""

    _fields_ = (("type", ctypes.c_char_p), ("op", ctypes.c_char_p), ("element", ctypes.c_int64),
                ("rows", ctypes.c_int64), ("run", ctypes.c_int64), ("stride", ctypes.c_int64),
                ("combine", ctypes.c_void_p))


class _Collective(ctypes.Structure):
    """hloc_collective."""

    _fields_ = (("kind", ctypes.c_int), ("number", ctypes.c_int32), ("count", ctypes.c_int32),
                ("name", ctypes.c_char_p), ("blocks", ctypes.POINTER(_Block)),
                ("groups", ctypes.POINTER(ctypes.c_int32)), ("pairs", ctypes.POINTER(ctypes.c_int32)))


@dataclass
class What:
    """A collective as this device sees it. members: of its group, none: it is in no group; own: its place among them;
    source, target: of messages, None: there is none."""

    collective: _Collective
    members: tuple[int, ...]
    own: int
    source: int | None
    target: int | None

    @cached_property
    def blocks(self) -> list[_Block]:
        """Those of the index vectors of a ragged all-to-all, too."""
        count = 3 if self.kind == "ragged_all_to_all" else self.collective.count
        return [self.collective.blocks[n] for n in range(count)]

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes of each block."""
        return [b.rows * b.run for b in self.blocks]

    @property
    def counts(self) -> tuple[int, int]:
        """How many operands and results there are."""
        if self.kind == "all_to_all":
            return len(self.members), len(self.members)
        own = self.collective.count
        return {"send": (own, 0), "recv": (0, own), "ragged_all_to_all": (6, 1)}.get(self.kind, (own, own))

    @property
    def kind(self) -> str:
        return KINDS[self.collective.kind]

    @property
    def name(self) -> str:
        return self.collective.name.decode(errors="replace")


def what_is(address: int, device: int) -> What:
    """The collective at an address."""
    collective = _Collective.from_address(address)
    members: tuple[int, ...] = ()
    place, groups, pairs = 1, collective.groups, collective.pairs
    for _ in range(groups[0]):
        own = tuple(groups[place + 1:place + 1 + groups[place]])
        members = own if device in own else members
        place += 1 + groups[place]
    ends = [(pairs[n], pairs[n + 1]) for n in range(1, 2 * pairs[0], 2)]
    return What(collective, members, members.index(device) if members else 0,
                next((s for s, t in ends if t == device), None), next((t for s, t in ends if s == device), None))


def view(address: int | None, size: int) -> np.ndarray:
    """Bytes of C's."""
    if not size:
        return np.empty(0, np.uint8)
    assert address is not None
    block: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(block, np.uint8)


def share_of(count: int, own: int, members: int) -> int:
    """Where the share of a member begins, of so many elements."""
    return count if own == members else count * own // members // SHARE * SHARE


class MpiCommunicator:
    """The table of functions of one process, and what its collectives need. raised: by a callback, for `error`."""

    def __init__(self, device: MpiDevice, library):
        self.device, self.library = device, library
        self.raised: BaseException | None = None
        self.bytes = device.mpi.BYTE
        self.known: dict[tuple[bytes, int], What] = {}
        self.program = b""                                       # the digest of the one that runs
        self.pending: dict[int, Requests] = {}
        self.sent: list[tuple[Any, np.ndarray]] = []             # requests, and what they read
        self.programs: set[bytes] = set()
        starts = {name: Start(self._safely(getattr(self, name))) for name in KINDS}
        self.callbacks = {**starts, "done": Done(self._done), "begin": Begin(self._begin),
                          "failed": Failed(lambda _: None), "message": Message(lambda _: b"a collective failed")}
        self.table = Table(VERSION, device.number, device.count, *(
            ctypes.cast(self.callbacks[field[0]], ctypes.c_void_p) for field in Table._fields_[3:]))
        self.address = ctypes.addressof(self.table)

    def error(self, code: int) -> BaseException:
        """What a callback raised."""
        raised, self.raised = self.raised, None
        return raised or RunError(f"a collective stopped with code {code}")

    # -- called from C -----------------------------------------------------------------------------------------------

    def _safely(self, start: Callable[..., Requests]) -> Callable[..., int]:
        """A function for C. What it raises is kept for `error`."""
        def begun(_self: int, address: int, given, made) -> int:
            try:
                what = self.known.get((self.program, address))
                if what is None:
                    what = self.known[self.program, address] = what_is(address, self.device.number)
                operands, results = what.counts           # C's tables of addresses end with the call, arrays do not
                self.pending[address] = self._begun(start(what, given[:operands], made[:results]))
            except BaseException as error:                       # no exception passes through C
                self.raised = error
                return FAILED
            return 0
        return begun

    @staticmethod
    def _begun(steps: Requests) -> Requests:
        """The same steps, of which the first is started."""
        first = next(steps, None)

        def all_of_them() -> Requests:
            if first is not None:
                yield first
                yield from steps
        return all_of_them()

    def _done(self, _self: int, address: int) -> int:
        try:
            what = self.known[self.program, address]
            others = what.members or tuple(d for d in (what.source, what.target) if d is not None)
            for request in self.pending.pop(address):
                self.device.wait(request, what.name, others)
        except BaseException as error:
            self.raised = error
            return FAILED
        return 0

    def _begin(self, _self: int, digest: bytes, count: int) -> int:
        """Processes with different programs all say so."""
        try:
            if digest not in self.programs:
                everybody = np.empty((self.device.count, len(digest)), np.uint8)
                request = self.device.world.Iallgather(np.frombuffer(digest, np.uint8), everybody)
                self.device.wait(request, "the start of the program", range(self.device.count))
                if (everybody != everybody[0]).any():
                    raise DifferentProgramsError("the processes have different programs")
                self.programs.add(digest)
            self.program = digest
        except BaseException as error:
            self.raised = error
            return FAILED
        return 0

    # -- reductions --------------------------------------------------------------------------------------------------

    def _combine(self, block: _Block, parts: Sequence[int], count: int, target: int) -> None:
        """Combine so many elements of parts at these addresses."""
        pointers = (ctypes.c_void_p * len(parts))(*parts)
        self.library.hloc_combine_parts(ctypes.byref(block), ctypes.c_int(len(parts)), pointers, ctypes.c_int64(count),
                                        ctypes.c_void_p(target))

    def all_reduce(self, what: What, given, made) -> Requests:
        if not what.members:
            return
        if sum(what.sizes) <= GATHERED_BYTES:
            yield from self._gather_and_combine(what, given, made)
            return
        group, count = self.device.group(what.members), len(what.members)
        shares = [[share_of(size // b.element, m, count) * b.element for m in range(count + 1)]
                  for b, size in zip(what.blocks, what.sizes)]
        requests, received = [], []
        for a, (ends, size) in enumerate(zip(shares, what.sizes)):
            own = ends[what.own + 1] - ends[what.own]
            parts = np.empty((count, own), np.uint8)
            lengths = [high - low for low, high in zip(ends, ends[1:])]
            requests.append(group.Ialltoallv([view(given[a], size), lengths, ends[:-1], self.bytes],
                                             [parts, [own] * count, [own * m for m in range(count)], self.bytes]))
            received.append(parts)
        yield from requests
        gathered = []
        for a, (ends, size) in enumerate(zip(shares, what.sizes)):
            base, own = received[a].ctypes.data, received[a].shape[1]
            self._combine(what.blocks[a], [base + m * own for m in range(count)], own // what.blocks[a].element,
                          made[a] + ends[what.own])
            lengths = [high - low for low, high in zip(ends, ends[1:])]
            whole = [view(made[a], size), lengths, ends[:-1], self.bytes]
            gathered.append(group.Iallgatherv(self.device.mpi.IN_PLACE, whole))
        yield from gathered

    def _gather_and_combine(self, what: What, given, made) -> Requests:
        own, total = _packed([view(given[a], size) for a, size in enumerate(what.sizes)]), sum(what.sizes)
        everybody = np.empty((len(what.members), total), np.uint8)
        yield self.device.group(what.members).Iallgather(own, everybody)
        at = everybody.ctypes.data
        for a, (block, size) in enumerate(zip(what.blocks, what.sizes)):
            self._combine(block, [at + m * total for m in range(len(what.members))], size // block.element, made[a])
            at += size

    def reduce_scatter(self, what: What, given, made) -> Requests:
        if not what.members:
            return
        count, total = len(what.members), sum(what.sizes)
        sent, received = np.empty((count, total), np.uint8), np.empty((count, total), np.uint8)
        at = 0
        for a, (block, size) in enumerate(zip(what.blocks, what.sizes)):
            given_blocks = view(given[a], block.rows * block.stride).reshape(block.rows, count, block.run)
            sent[:, at:at + size] = given_blocks.transpose(1, 0, 2).reshape(count, size)
            at += size
        yield self.device.group(what.members).Ialltoall(sent, received)
        at = received.ctypes.data
        for a, (block, size) in enumerate(zip(what.blocks, what.sizes)):
            self._combine(block, [at + m * total for m in range(count)], size // block.element, made[a])
            at += size

    # -- blocks ------------------------------------------------------------------------------------------------------

    def all_gather(self, what: What, given, made) -> Requests:
        if not what.members:
            return
        count, total = len(what.members), sum(what.sizes)
        own = _packed([view(given[a], size) for a, size in enumerate(what.sizes)])
        direct = len(what.blocks) == 1 and what.blocks[0].rows == 1
        everybody = view(made[0], count * total).reshape(count, total) if direct else np.empty((count, total), np.uint8)
        yield self.device.group(what.members).Iallgather(own, everybody)
        at = 0
        for a, (block, size) in enumerate(zip(what.blocks, what.sizes)):
            if direct:
                break
            results = view(made[a], block.rows * block.stride).reshape(block.rows, count, block.run)
            results[...] = everybody[:, at:at + size].reshape(count, block.rows, block.run).transpose(1, 0, 2)
            at += size

    def all_to_all(self, what: What, given, made) -> Requests:
        if not what.members:
            return
        (block,), (size,), count = what.blocks, what.sizes, len(what.members)
        sent, received = np.empty((count, size), np.uint8), np.empty((count, size), np.uint8)
        for m in range(count):
            sent[m] = _runs(given[m], block).reshape(-1)
        yield self.device.group(what.members).Ialltoall(sent, received)
        for m in range(count):
            _runs(made[m], block)[...] = received[m].reshape(block.rows, block.run)

    def broadcast(self, what: What, given, made) -> Requests:
        for a, size in enumerate(what.sizes):
            results = view(made[a], size)
            if not what.members:
                results[...] = 0
                continue
            if what.own == 0:
                results[...] = view(given[a], size)
            yield self.device.group(what.members).Ibcast(results, 0)

    def ragged_all_to_all(self, what: What, given, made) -> Requests:
        source, target, vector = what.blocks
        results = view(made[0], target.rows * target.run).reshape(target.rows, target.run)
        results[...] = view(given[1], results.size).reshape(results.shape)
        count, dtype = len(what.members), np.dtype(f"{'i' if vector.type[:1] == b's' else 'u'}{vector.element}")
        starts, rows, places = (view(given[n], vector.rows * vector.element).view(dtype).astype(np.int64)
                                .reshape(count, -1) for n in (2, 3, 4))
        check_rows(what.name, starts, rows, source.rows)
        told, heard = np.stack([rows, places], 1).copy(), np.empty((count, 2, rows.shape[1]), np.int64)
        group = self.device.group(what.members)
        yield group.Ialltoall(told, heard)
        check_rows(what.name, heard[:, 1], heard[:, 0], target.rows)
        operand = view(given[0], source.rows * source.run).reshape(source.rows, source.run)
        sent = _packed([operand[s:s + n].reshape(-1) for s, n in zip(starts.flat, rows.flat)])
        lengths, coming = rows.sum(1) * source.run, heard[:, 0].sum(1) * target.run
        received = np.empty(int(coming.sum()), np.uint8)
        yield group.Ialltoallv([sent, lengths, _places(lengths), self.bytes],
                               [received, coming, _places(coming), self.bytes])
        at = 0
        for m in range(count):
            for n, place in zip(*heard[m]):
                results[place:place + n] = received[at:at + n * target.run].reshape(n, target.run)
                at += n * target.run

    # -- messages ----------------------------------------------------------------------------------------------------

    def permute(self, what: What, given, made) -> Requests:
        yield from self._both(self._sending(what, given), self.recv(what, given, made))

    @staticmethod
    def _both(sending: Any, receiving: Requests) -> Requests:
        """Both are on their way before one is waited for."""
        yield from receiving
        if sending is not None:
            yield sending

    def _sending(self, what: What, given) -> Any:
        if what.target is None:
            return None
        own = _packed([view(given[a], size) for a, size in enumerate(what.sizes)])
        return self.device.world.Isend(own, what.target, what.collective.number % MOST_TAGS)

    def send(self, what: What, given, made) -> Requests:
        """The operand may change afterwards: a copy is sent."""
        self.sent = [(request, array) for request, array in self.sent if not request.Test()]
        if what.target is not None:
            own = _packed([view(given[a], size) for a, size in enumerate(what.sizes)]).copy()
            self.sent.append((self.device.world.Isend(own, what.target, what.collective.number % MOST_TAGS), own))
        yield from ()

    def recv(self, what: What, given, made) -> Requests:
        results = [view(made[a], size) for a, size in enumerate(what.sizes)]
        if what.source is None:
            for array in results:
                array[...] = 0
            return
        whole = results[0] if len(results) == 1 else np.empty(sum(what.sizes), np.uint8)
        yield self.device.world.Irecv(whole, what.source, what.collective.number % MOST_TAGS)
        at = 0
        for array in results if len(results) > 1 else ():
            array[...] = whole[at:at + array.size]
            at += array.size


def _packed(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else np.empty(0, np.uint8)


def _runs(address: int, block: _Block) -> np.ndarray:
    """A block in the array of all blocks: [rows, run]."""
    size = max(0, block.rows - 1) * block.stride + block.run
    return np.lib.stride_tricks.as_strided(view(address, size if block.rows else 0), (block.rows, block.run),
                                           (block.stride, 1))


def _places(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]])
