"""Threads that end, with their child processes, when their results are not needed any more.

    with Workers(2) as workers:
        jobs = [workers.submit(processes.run, ["gcc", "-c", name], 600) for name in names]

If the block ends by an error, such as Ctrl-C, waiting jobs are dropped and running programs are killed before the block
is left, so that a temporary folder around it can be removed. Programs run in sessions of their own (processes.py), so
that a terminal's Ctrl-C reaches hloc first.
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

_own = threading.local()                  # .stop: that of this thread's Workers


def stop_event() -> threading.Event | None:
    """The event that is set when this thread's result is not needed any more."""
    return getattr(_own, "stop", None)


class Workers(ThreadPoolExecutor):
    """Threads whose jobs may start programs."""

    def __init__(self, count: int):
        self.ends = threading.Event()
        super().__init__(count, initializer=self._adopt)

    def _adopt(self) -> None:
        _own.stop = self.ends

    def stop(self) -> None:
        """Kill running programs, drop waiting jobs, and join the threads."""
        self.ends.set()
        self.shutdown(wait=True, cancel_futures=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> bool | None:
        if kind is not None:
            self.stop()
        return super().__exit__(kind, error, trace)


def in_background(work: Callable[[], Any]) -> Any:
    """Run `work`, a long call of a library, on another thread. The calling thread can be interrupted meanwhile; the
    call then continues in the background, and its result is dropped."""
    answer: list = []

    def answering() -> None:
        try:
            answer.extend((True, work()))
        except BaseException as error:
            answer.extend((False, error))
    thread = threading.Thread(target=answering, daemon=True)
    thread.start()
    thread.join()
    good, what = answer
    if good:
        return what
    raise what
