"""Threads that stand ready for work: to start a thread takes 0.1 ms, to wake one a fifth of that.

    thread = StandingThread()
    run = Work(lambda: 6 * 7)
    thread.begin(run)
    run.ended.wait();  run.result == 42
"""
from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Work:
    """A function to call once. ended: set when it has returned or raised; then result, or error, is there."""

    def __init__(self, function: Callable[[], Any]):
        self.function = function
        self.ended = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def do(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:                                    # for the thread that wants the result
            self.error = error
        finally:
            self.ended.set()


class StandingThread:
    """Does works one after another, in the order in which they come. It ends with the process, or when nothing refers
    to this object any more."""

    def __init__(self) -> None:
        self._works: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._works,), daemon=True)
        self._thread.start()
        weakref.finalize(self, self._works.put, None).atexit = False

    def begin(self, work: Work) -> None:
        self._works.put(work)

    @property
    def is_there(self) -> bool:
        """Whether the thread exists: not in the child of a fork."""
        return self._thread.is_alive()


def _serve(works: SimpleQueue[Work | None]) -> None:
    while (work := works.get()) is not None:
        work.do()
        del work                                              # a thread that waits keeps no results
