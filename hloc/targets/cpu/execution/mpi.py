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
from functools import cached_property, partial
from itertools import accumulate, chain, islice, pairwise
from typing import Any

import numpy as np

from hloc.errors import RunError
from hloc.evaluate.mpi import MOST_TAGS, DifferentProgramsError, MpiDevice
from hloc.ops.collectives import check_rows
from hloc.targets.cpu.execution.communicators import VERSION, Table
from hloc.targets.cpu.execution.result_memory import bytes_at

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "permute", "send", "recv",
         "ragged_all_to_all")                     # enum hloc_kind
IN_GROUPS = KINDS[:4]                             # what a device in no group leaves out
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

    @cached_property
    def columns(self) -> list[slice]:
        """Where each block is among the bytes of all."""
        return [slice(*ends) for ends in pairwise(accumulate(self.sizes, initial=0))]

    def arrays(self, addresses: Sequence[int | None]) -> list[np.ndarray]:
        """The bytes of each block."""
        return [bytes_at(address, size) for address, size in zip(addresses, self.sizes)]

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


class MpiCommunicator:
    """The table of functions of one process, and what its collectives need. raised: by a callback, for `error`."""

    def __init__(self, device: MpiDevice, library):
        self.device, self.library = device, library
        self.raised: BaseException | None = None
        self.known: dict[tuple[bytes, int], What] = {}
        self.program = b""                                       # the digest of the one that runs
        self.pending: dict[int, Requests] = {}
        self.sent: list[Any] = []                                # requests, which hold what they read
        self.programs: set[bytes] = set()
        starts = {name: Start(self._safely(partial(self._start, getattr(self, name)))) for name in KINDS}
        self.callbacks = {**starts, "done": Done(self._safely(self._done)), "begin": Begin(self._safely(self._begin)),
                          "failed": Failed(lambda _: None), "message": Message(lambda _: b"a collective failed")}
        self.table = Table(VERSION, device.number, device.count, *(
            ctypes.cast(self.callbacks[field[0]], ctypes.c_void_p) for field in Table._fields_[3:]))
        self.address = ctypes.addressof(self.table)

    def error(self, code: int) -> BaseException:
        """What a callback raised."""
        raised, self.raised = self.raised, None
        return raised or RunError(f"a collective stopped with code {code}")

    # -- called from C -----------------------------------------------------------------------------------------------

    def _safely(self, function: Callable[..., None]) -> Callable[..., int]:
        """The function for C, through which no exception passes: what it raises is kept for `error`."""
        def called(_self: int, *given) -> int:
            try:
                function(*given)
            except BaseException as error:
                self.raised = error
                return FAILED
            return 0
        return called

    def _start(self, start: Callable[..., Requests], address: int, given, made) -> None:
        """All up to the first request is done now, the rest by `_done`."""
        what = self.known.get((self.program, address))
        if what is None:
            what = self.known[self.program, address] = what_is(address, self.device.number)
        if what.kind in IN_GROUPS and not what.members:
            self.pending[address] = iter(())
            return
        operands, results = what.counts                   # C's tables of addresses end with the call, arrays do not
        steps = start(what, given[:operands], made[:results])
        self.pending[address] = chain(list(islice(steps, 1)), steps)

    def _done(self, address: int) -> None:
        what = self.known[self.program, address]
        others = what.members or tuple(d for d in (what.source, what.target) if d is not None)
        for request in self.pending.pop(address):
            self.device.wait(request, what.name, others)

    def _begin(self, digest: bytes, count: int) -> None:
        """Processes with different programs all say so."""
        if digest not in self.programs:
            everybody = np.empty((self.device.count, len(digest)), np.uint8)
            request = self.device.world.Iallgather(np.frombuffer(digest, np.uint8), everybody)
            self.device.wait(request, "the start of the program", range(self.device.count))
            if (everybody != everybody[0]).any():
                raise DifferentProgramsError("the processes have different programs")
            self.programs.add(digest)
        self.program = digest

    # -- reductions --------------------------------------------------------------------------------------------------

    def _combine(self, block: _Block, parts: np.ndarray, target: np.ndarray) -> None:
        """Combine the rows of `parts`, each the bytes of one member."""
        rows = (ctypes.c_void_p * len(parts))(*(row.ctypes.data for row in parts))
        self.library.hloc_combine_parts(
            ctypes.byref(block), ctypes.c_int(len(parts)), rows, ctypes.c_int64(target.size // block.element),
            ctypes.c_void_p(target.ctypes.data))

    def _combine_all(self, what: What, received: np.ndarray, made) -> None:
        """received: [members, bytes of all blocks]."""
        for block, columns, result in zip(what.blocks, what.columns, what.arrays(made)):
            self._combine(block, received[:, columns], result)

    def all_reduce(self, what: What, given, made) -> Requests:
        group, count = self.device.group(what.members), len(what.members)
        if sum(what.sizes) <= GATHERED_BYTES:
            everybody = np.empty((count, sum(what.sizes)), np.uint8)
            yield group.Iallgather(_packed(what.arrays(given)), everybody)
            self._combine_all(what, everybody, made)
            return
        shares = []
        for block, operand in zip(what.blocks, what.arrays(given)):
            ends = np.arange(count + 1) * (operand.size // block.element) // count // SHARE * SHARE * block.element
            ends[-1] = operand.size
            starts, lengths = ends[:-1], np.diff(ends)
            parts = np.empty((count, lengths[what.own]), np.uint8)
            request = group.Ialltoallv([operand, (lengths, starts)], parts)
            shares.append((request, parts, starts, lengths))
        yield from [request for request, *_ in shares]
        gathered = []
        for block, (_, parts, starts, lengths), result in zip(what.blocks, shares, what.arrays(made)):
            self._combine(block, parts, result[starts[what.own]:][:parts.shape[1]])
            gathered.append(group.Iallgatherv(self.device.mpi.IN_PLACE, [result, (lengths, starts)]))
        yield from gathered

    def reduce_scatter(self, what: What, given, made) -> Requests:
        count, total = len(what.members), sum(what.sizes)
        sent, received = np.empty((count, total), np.uint8), np.empty((count, total), np.uint8)
        for block, columns, address in zip(what.blocks, what.columns, given):
            sent[:, columns] = _by_member(address, block, count).reshape(count, -1)
        yield self.device.group(what.members).Ialltoall(sent, received)
        self._combine_all(what, received, made)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def all_gather(self, what: What, given, made) -> Requests:
        count, total = len(what.members), sum(what.sizes)
        direct = len(what.blocks) == 1 and what.blocks[0].rows == 1
        everybody = bytes_at(made[0], count * total) if direct else np.empty(count * total, np.uint8)
        everybody = everybody.reshape(count, total)
        yield self.device.group(what.members).Iallgather(_packed(what.arrays(given)), everybody)
        for block, columns, address in zip(what.blocks, what.columns, () if direct else made):
            _by_member(address, block, count)[...] = everybody[:, columns].reshape(count, block.rows, block.run)

    def all_to_all(self, what: What, given, made) -> Requests:
        (block,), (size,), count = what.blocks, what.sizes, len(what.members)
        sent, received = np.empty((count, size), np.uint8), np.empty((count, size), np.uint8)
        for m in range(count):
            sent[m] = _runs(given[m], block).reshape(-1)
        yield self.device.group(what.members).Ialltoall(sent, received)
        for m in range(count):
            _runs(made[m], block)[...] = received[m].reshape(block.rows, block.run)

    def broadcast(self, what: What, given, made) -> Requests:
        for operand, result in zip(what.arrays(given), what.arrays(made)):
            result[...] = operand if what.members and what.own == 0 else 0
            if what.members:
                yield self.device.group(what.members).Ibcast(result, 0)

    def ragged_all_to_all(self, what: What, given, made) -> Requests:
        source, target, vector = what.blocks
        results = bytes_at(made[0], target.rows * target.run).reshape(target.rows, target.run)
        results[...] = bytes_at(given[1], results.size).reshape(results.shape)
        count, dtype = len(what.members), np.dtype(f"{'i' if vector.type[:1] == b's' else 'u'}{vector.element}")
        starts, rows, places = (bytes_at(given[n], vector.rows * vector.element).view(dtype).astype(np.int64)
                                .reshape(count, -1) for n in (2, 3, 4))
        check_rows(what.name, starts, rows, source.rows)
        told, heard = np.stack([rows, places], 1).copy(), np.empty((count, 2, rows.shape[1]), np.int64)
        group = self.device.group(what.members)
        yield group.Ialltoall(told, heard)
        check_rows(what.name, heard[:, 1], heard[:, 0], target.rows)
        operand = bytes_at(given[0], source.rows * source.run).reshape(source.rows, source.run)
        sent = _packed([operand[s:s + n].reshape(-1) for s, n in zip(starts.flat, rows.flat)])
        lengths, coming = rows.sum(1) * source.run, heard[:, 0].sum(1) * target.run
        received = np.empty(int(coming.sum()), np.uint8)
        yield group.Ialltoallv([sent, (lengths, _places(lengths))],
                               [received, (coming, _places(coming))])
        at = 0
        for m in range(count):
            for n, place in zip(*heard[m]):
                results[place:place + n] = received[at:at + n * target.run].reshape(n, target.run)
                at += n * target.run

    # -- messages ----------------------------------------------------------------------------------------------------

    def permute(self, what: What, given, made) -> Requests:
        """Both are on their way before one is waited for."""
        sent = self._sent(what, _packed(what.arrays(given)))
        yield from self.recv(what, given, made)
        yield from sent

    def _sent(self, what: What, own: np.ndarray) -> list[Any]:
        """The request that sends `own`; none without a target."""
        tag = what.collective.number % MOST_TAGS
        return [] if what.target is None else [self.device.world.Isend(own, what.target, tag)]

    def send(self, what: What, given, made) -> Requests:
        """The operand may change afterwards: a copy is sent."""
        self.sent = [request for request in self.sent if not request.Test()]
        self.sent += self._sent(what, _packed(what.arrays(given)).copy())
        yield from ()

    def recv(self, what: What, given, made) -> Requests:
        results = what.arrays(made)
        if what.source is None:
            for array in results:
                array[...] = 0
            return
        whole = results[0] if len(results) == 1 else np.empty(sum(what.sizes), np.uint8)
        yield self.device.world.Irecv(whole, what.source, what.collective.number % MOST_TAGS)
        for array, columns in zip(results, what.columns if len(results) > 1 else ()):
            array[...] = whole[columns]


def _packed(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else np.empty(0, np.uint8)


def _runs(address: int, block: _Block) -> np.ndarray:
    """A block in the array of all blocks: [rows, run]."""
    size = max(0, block.rows - 1) * block.stride + block.run
    return np.lib.stride_tricks.as_strided(bytes_at(address, size if block.rows else 0), (block.rows, block.run),
                                           (block.stride, 1))


def _by_member(address: int, block: _Block, count: int) -> np.ndarray:
    """The blocks of `count` members that make up an array: [count, rows, run]."""
    return bytes_at(address, block.rows * block.stride).reshape(block.rows, count, block.run).transpose(1, 0, 2)


def _places(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]])
