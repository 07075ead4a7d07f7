"""Threads that end, with their child processes, when their results are not needed any more.

    with Workers(2) as workers:
        jobs = [workers.submit(processes.run, ["gcc", "-c", name], 600) for name in names]

If the block ends by an error, such as Ctrl-C, waiting jobs are dropped and running programs are killed before the block
is left, so that a temporary folder around it can be removed. Programs run in sessions of their own (processes.py), so
that a terminal's Ctrl-C reaches hloc first.
"""
from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
_own = threading.local()                  # .stop: that of this thread's Workers


def stop_event() -> threading.Event | None:
    """The event that is set when this thread's result is not needed any more."""
    return getattr(_own, "stop", None)


class Workers(ThreadPoolExecutor):
    """Threads whose jobs may start programs."""

    def __init__(self, count: int):
        self.ends = threading.Event()
        self.adopted: list[threading.Thread] = []
        super().__init__(count, initializer=self._adopt)

    def _adopt(self) -> None:
        self.adopted.append(threading.current_thread())
        _own.stop = self.ends

    def stop(self) -> None:
        """Kill running programs, drop waiting jobs, and join the threads, also one during whose start a signal came:
        the pool does not know that one."""
        self.ends.set()
        self.shutdown(wait=True, cancel_futures=True)
        for thread in self.adopted:
            thread.join()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> bool | None:
        if kind is not None:
            self.stop()
        return super().__exit__(kind, error, trace)


def in_background(jobs: Sequence[Callable[[], T]], count: int = 1, done: Callable[[int], None] = lambda _: None
                  ) -> list[T]:
    """Run jobs, long calls of a library, on `count` other threads. The calling thread can be interrupted meanwhile;
    calls that have begun then continue in the background, and their results are dropped. After an error no other job
    begins; the error of the first job that failed is raised. done: called on these threads with the number of results
    so far."""
    answers: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    waiting, ends = deque(enumerate(jobs)), threading.Event()

    def answering() -> None:
        while waiting and not ends.is_set():
            try:
                number, job = waiting.popleft()
            except IndexError:                              # another thread was faster
                return
            try:
                answers[number] = job()
                done(len(answers))
            except BaseException as error:
                errors[number] = error
                ends.set()
    threads = [threading.Thread(target=answering, daemon=True) for _ in range(min(count, len(jobs)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        ends.set()
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(jobs))]
