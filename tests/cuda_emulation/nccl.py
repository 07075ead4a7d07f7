"""A stand-in for libnccl: the functions that hloc/targets/cuda/libraries/nccl.py calls, in NumPy, on the emulated memory.

Devices are threads of one process. What a call asks for is work on the emulated stream: it runs when the stream does, and
meets the others there. What the real library refuses, hangs at or computes wrongly without a word is an AssertionError
here: ranks that call different things, sizes that differ, buffers that overlap in part, arrays outside of an allocation,
messages that nobody takes.

    monkeypatch.setattr(nccl, "library", lambda: library)           # one FakeNccl for all threads
"""
from __future__ import annotations

import collections
import itertools
import threading
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from cuda_emulation.driver import Stream, _piece

DTYPES = [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64,
          ml_dtypes.bfloat16]
OPS = [np.add, np.multiply, np.fmax, np.fmin]                  # NCCL's extremes drop NaNs
PATIENCE = 20.0                                                # seconds


class FakeNccl:
    """calls: what was put on streams, as (name, communicator, rank); version: as ncclGetVersion tells."""

    def __init__(self, version: int = 22105):
        self.version = version
        self.calls: list[tuple[str, str, int]] = []
        self.lock = threading.Condition()
        self.numbers = itertools.count(1)
        self.communicators: dict[int, SimpleNamespace] = {}
        self.meetings: dict[tuple, dict[int, object]] = {}
        self.mail: dict[tuple, collections.deque] = collections.defaultdict(collections.deque)
        self.thread = threading.local()
        self.ncclGetErrorString = lambda code: {0: b"no error", 4: b"invalid argument"}.get(code.value, b"error")  # noqa: N815

    # -- meeting -----------------------------------------------------------------------------------------------------

    def _until(self, condition, why: str) -> None:
        assert self.lock.wait_for(condition, PATIENCE), why

    def _meet(self, place: tuple, count: int, rank: int, value) -> list:
        """The values of all ranks, which come here once each."""
        with self.lock:
            held = self.meetings.setdefault(place, {})
            assert rank not in held, "a rank comes twice"
            held[rank] = value
            self.lock.notify_all()
            self._until(lambda: len(held) == count, f"rank {rank} waits at {place}, where only {sorted(held)} come")
            return [held[r] for r in range(count)]

    def _new(self, place, name: str, count: int, rank: int) -> int:
        with self.lock:
            place._obj.value = handle = next(self.numbers)
            self.communicators[handle] = SimpleNamespace(name=name, count=count, rank=rank, made=0, ran=0)
        return 0

    def ncclGetVersion(self, place) -> int:                                         # noqa: N802 - the library's names
        place._obj.value = self.version
        return 0

    def ncclGetUniqueId(self, place) -> int:                                        # noqa: N802
        place._obj.bytes = b"id %d" % next(self.numbers)
        return 0

    def ncclCommInitRank(self, place, count, id, rank) -> int:                      # noqa: N802
        name = id.bytes.decode()
        assert name.startswith("id ") and 0 <= rank.value < count.value
        self._meet(("init", name), count.value, rank.value, None)
        return self._new(place, name, count.value, rank.value)

    def ncclCommSplit(self, communicator, color, key, place, config) -> int:        # noqa: N802
        own = self.communicators[communicator.value]
        own.made += 1
        told = self._meet(("split", own.name, own.made), own.count, own.rank, (color.value, key.value))
        if color.value < 0:
            return 0
        members = sorted((k, r) for r, (c, k) in enumerate(told) if c == color.value)
        return self._new(place, f"{own.name}/{own.made}.{color.value}", len(members), members.index((key.value, own.rank)))

    def ncclCommAbort(self, communicator) -> int:                                   # noqa: N802
        del self.communicators[communicator.value]
        return 0

    def ncclCommGetAsyncError(self, communicator, place) -> int:                    # noqa: N802
        place._obj.value = 0
        return 0

    # -- groups of calls ---------------------------------------------------------------------------------------------

    def ncclGroupStart(self) -> int:                                                # noqa: N802
        assert getattr(self.thread, "waiting", None) is None, "groups inside of groups"
        self.thread.waiting = []
        return 0

    def ncclGroupEnd(self) -> int:                                                  # noqa: N802
        waiting, self.thread.waiting = self.thread.waiting, None
        assert len({stream for stream, *_ in waiting}) <= 1, "a group on several streams"
        for stream in {stream for stream, *_ in waiting}:
            works = [work for _, *work in waiting]
            Stream.known[stream].do(lambda: self._run(works))
        return 0

    def _put(self, name: str, communicator, stream, *facts) -> int:
        own = self.communicators[communicator.value]
        self.calls.append((name, own.name, own.rank))
        if getattr(self.thread, "waiting", None) is None:
            Stream.known[stream.value].do(lambda: self._run([(name, own, facts)]))
        else:
            self.thread.waiting.append((stream.value, name, own, facts))
        return 0

    def _run(self, works: list) -> None:
        """All sends are on their way before anything is received; a send ends when somebody has taken it."""
        letters = [self._post(own, *facts) for name, own, facts in works if name == "send"]
        for name, own, facts in works:
            if name == "receive":
                self._take(own, *facts)
            elif name != "send":
                own.ran += 1
                facts[-1](own, *facts[:-1])
        with self.lock:
            self._until(lambda: all(letter.taken for letter in letters), "nobody receives what is sent")

    # -- messages ----------------------------------------------------------------------------------------------------

    def ncclSend(self, source, count, type, peer, communicator, stream) -> int:     # noqa: N802
        return self._put("send", communicator, stream, source.value, count.value, peer.value)

    def ncclRecv(self, to, count, type, peer, communicator, stream) -> int:         # noqa: N802
        return self._put("receive", communicator, stream, to.value, count.value, peer.value)

    def _post(self, own, source: int, size: int, peer: int) -> SimpleNamespace:
        assert 0 <= peer < own.count and peer != own.rank
        letter = SimpleNamespace(data=read(source, size), taken=False)
        with self.lock:
            self.mail[own.name, own.rank, peer].append(letter)
            self.lock.notify_all()
        return letter

    def _take(self, own, to: int, size: int, peer: int) -> None:
        box = self.mail[own.name, peer, own.rank]
        with self.lock:
            self._until(lambda: box, f"rank {own.rank} waits for a message of rank {peer}")
            letter = box.popleft()
            letter.taken = True
            self.lock.notify_all()
        write(to, letter.data, size)

    # -- collectives -------------------------------------------------------------------------------------------------

    def ncclAllReduce(self, source, to, count, type, op, communicator, stream) -> int:   # noqa: N802
        return self._put("all-reduce", communicator, stream, source.value, to.value, count.value, type, op, self._reduce)

    def ncclReduceScatter(self, source, to, count, type, op, communicator, stream) -> int:    # noqa: N802
        return self._put("reduce-scatter", communicator, stream, source.value, to.value, count.value, type, op,
                         self._scatter)

    def ncclAllGather(self, source, to, count, type, communicator, stream) -> int:  # noqa: N802
        return self._put("all-gather", communicator, stream, source.value, to.value, count.value, type, self._gather)

    def ncclBroadcast(self, source, to, count, type, root, communicator, stream) -> int:     # noqa: N802
        return self._put("broadcast", communicator, stream, source.value, to.value, count.value, type, root.value,
                         self._broadcast)

    def _all(self, own, what: tuple, source: int, size: int) -> list[np.ndarray]:
        """The operands of all ranks, which must call the same."""
        held = self._meet(("run", own.name, own.ran), own.count, own.rank, (what, read(source, size)))
        assert len({what for what, _ in held}) == 1, [what for what, _ in held]
        return [data for _, data in held]

    def _joined(self, own, what: tuple, source: int, count: int, type: int, op: int) -> np.ndarray:
        dtype = np.dtype(DTYPES[type])
        parts = [data.view(dtype) for data in self._all(own, what, source, count * dtype.itemsize)]
        total = parts[0].copy()
        for part in parts[1:]:
            total = OPS[op](total, part).astype(dtype)
        return total.view(np.uint8)

    def _reduce(self, own, source: int, to: int, count: int, type: int, op: int) -> None:
        total = self._joined(own, ("all-reduce", count, type, op), source, count, type, op)
        apart(source, total.size, to, total.size, same=True)
        write(to, total, total.size)

    def _scatter(self, own, source: int, to: int, count: int, type: int, op: int) -> None:
        total = self._joined(own, ("reduce-scatter", count, type, op), source, count * own.count, type, op)
        size = total.size // own.count
        apart(source, total.size, to, size)
        write(to, total[own.rank * size:][:size], size)

    def _gather(self, own, source: int, to: int, count: int, type: int) -> None:
        size = count * np.dtype(DTYPES[type]).itemsize
        parts = self._all(own, ("all-gather", count, type), source, size)
        apart(source, size, to, size * own.count)
        write(to, np.concatenate(parts), size * own.count)

    def _broadcast(self, own, source: int, to: int, count: int, type: int, root: int) -> None:
        size = count * np.dtype(DTYPES[type]).itemsize
        parts = self._all(own, ("broadcast", count, type, root), source, size)
        apart(source, size, to, size, same=True)
        write(to, parts[root], size)


def apart(source: int, size: int, to: int, other: int, same: bool = False) -> None:
    """Results do not overlap with operands, unless they are in their place."""
    assert source + size <= to or to + other <= source or same and source == to, "an operand overlaps with its result"


def read(address: int, size: int) -> np.ndarray:
    memory, offset = _piece(address, size)
    return memory.bytes[memory.start + offset:][:size].copy()


def write(address: int, data: np.ndarray, size: int) -> None:
    assert data.size == size, f"{data.size} bytes come, {size} are wanted"
    memory, offset = _piece(address, size)
    memory.bytes[memory.start + offset:][:size] = data
    memory.written[offset:offset + size] = 1
