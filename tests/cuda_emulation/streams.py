"""Streams, events and captured graphs of the emulated device."""
from __future__ import annotations

import collections
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cuda_emulation.memory import Allocation, Error

if TYPE_CHECKING:
    from cuda_emulation.conditional_nodes import Handle


class Queue:
    """Work in order. It is done at once; a late queue does it when it must: when somebody waits for it."""

    def __init__(self, late: bool = False):
        self.late = late
        self.items: collections.deque = collections.deque()

    def put(self, work) -> None:
        self.items.append(work)
        if not self.late:
            self.run()

    def run(self, until=None) -> None:
        """All work, or that up to and including `until`."""
        while self.items:
            work = self.items.popleft()
            work()
            if work is until:
                return


class Mark:
    """The place of an event in a queue."""

    def __init__(self, queue: Queue):
        self.queue, self.when = queue, None

    def __call__(self) -> None:
        self.when = time.perf_counter()

    def wait(self) -> None:
        if self.when is None:
            self.queue.run(until=self)
        assert self.when is not None


class Stream(Queue):
    """A queue, or, while it is captured, a branch of a graph. Which streams of a thread are late, tests say by
    `late_ones`, from the number of a stream in its thread: what a wait or an event does not order then has the worst
    order, so that what is missing shows in the results."""

    known: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
    late_ones: frozenset[int] = frozenset()
    in_thread = threading.local()

    def __init__(self, flags: int = 0):
        number = getattr(self.in_thread, "count", 0)
        self.in_thread.count = number + 1
        super().__init__(number in self.late_ones)
        self.handle, self.thread = id(self), threading.get_ident()
        self.capture: Capture | None = None
        self.early = False                                  # what is captured next is a kernel that starts early
        self.known[self.handle] = self

    def do(self, work) -> None:
        if self.early:
            raise Error("only a kernel can start early")
        if self.capture is not None:
            self.capture.items.append((self, work))
        else:
            self.put(work)

    def do_kernel(self, work) -> None:
        """work: takes whether it starts early, as it does if the graph says so."""
        early, self.early = self.early, False
        self.do(KernelStart(work, early))

    def wait_for_event(self, event: Event) -> None:
        mark = event.mark
        if isinstance(mark, CapturedMark):
            if mark.capture.ended or self.capture not in (None, mark.capture):
                raise Error("cuStreamWaitEvent failed: the event was recorded in a capture that has ended, or in another")
            self.capture = mark.capture
            self.capture.items.append((self, mark.wait))
        elif self.capture is not None:
            raise Error("cuStreamWaitEvent failed: dependency created on uncaptured work in another stream")
        elif mark is not None:
            self.put(mark.wait)

    def is_done(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        if self.capture is not None:
            raise Error("cuStreamSynchronize failed: operation not permitted when stream is capturing")
        self.run()
        for memory in list(Allocation.living.values()):
            memory.check()


class KernelStart(NamedTuple):
    """A kernel in a queue or a graph."""

    run: Callable[[bool], None]
    early: bool

    def __call__(self) -> None:
        self.run(self.early)


class event_flags:                   # noqa: N801 - PyCUDA's name
    DISABLE_TIMING = 2


class Event:
    def __init__(self, flags: int = 0):
        self.mark: Mark | CapturedMark | None = None

    def record(self, stream: Stream) -> None:
        if stream.capture is not None:
            self.mark = CapturedMark(stream.capture, stream)
            stream.capture.items.append((stream, self.mark))
        else:
            self.mark = Mark(stream)
            stream.put(self.mark)

    def query(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        self.mark.wait()

    def time_since(self, earlier: Event) -> float:
        return (self.mark.when - earlier.mark.when) * 1e3


class CapturedMark:
    """The place of an event in a graph."""

    def __init__(self, capture: Capture, stream: Stream):
        self.capture, self.stream = capture, stream

    def wait(self) -> None:
        raise AssertionError("only a graph that runs waits")

    __call__ = wait


class Capture:
    """A graph: what each of its streams does, in the order of the calls. It runs with queues in the place of streams,
    which are late where the streams are."""

    numbers = itertools.count(1)

    def __init__(self, origin: Stream | None, parent: Capture | None = None):
        self.origin, self.ended, self.parent = origin, False, parent
        self.items: list[tuple[Stream, object]] = []
        self.number, self.instances = next(Capture.numbers), 0
        self.root: Capture = parent.root if parent is not None else self
        self.handles: list[Handle] = []                     # of a root: of all nodes
        self.loose: set[int] = set()                        # nodes that were added, and that nothing comes behind yet
        self.known[self.number] = self

    known: weakref.WeakValueDictionary[int, Capture] = weakref.WeakValueDictionary()

    def launch(self) -> None:
        """A run of the whole graph."""
        for handle in self.handles:
            handle.value, handle.runs = handle.default, True
        try:
            self.run()
        finally:
            for handle in self.handles:
                handle.runs = False

    def joined(self) -> bool:
        """Whether the origin has waited for the last work of all other streams."""
        last: dict[Stream, int] = {}
        waited: dict[Stream, int] = {}
        for number, (stream, work) in enumerate(self.items):
            mark = getattr(work, "__self__", None)
            if isinstance(mark, CapturedMark) and stream is self.origin:
                place = next(n for n, (_, other) in enumerate(self.items) if other is mark)
                waited[mark.stream] = max(waited.get(mark.stream, -1), place)
            elif not isinstance(work, CapturedMark):
                last[stream] = number
        return all(waited.get(s, -1) > n for s, n in last.items() if s is not self.origin)

    def run(self) -> None:
        queues = {stream: Queue(stream.late) for stream, _ in self.items}
        marks: dict[CapturedMark, Mark] = {}
        for stream, work in self.items:
            if isinstance(work, CapturedMark):
                marks[work] = work = Mark(queues[stream])
            elif isinstance(mark := getattr(work, "__self__", None), CapturedMark):
                work = marks[mark].wait
            queues[stream].put(work)
        for queue in queues.values():
            queue.run()
