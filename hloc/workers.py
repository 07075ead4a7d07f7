"""Threads whose work ends when nobody waits for it any more, and with it the programs that it has started.

    with Workers(2) as workers:
        jobs = [workers.submit(processes.run, ["gcc", "-c", name], 600) for name in names]

Where that block ends by an error, Ctrl-C among them, waiting jobs are dropped and programs that run are killed, and
only then the block is left: a folder around it can be removed. Programs are sessions of their own (processes.py), so
that a terminal's Ctrl-C reaches hloc first.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

_own = threading.local()                  # .stop: of the Workers that this thread belongs to


def stop_event() -> threading.Event | None:
    """What is set when nobody waits any more for what this thread does."""
    return getattr(_own, "stop", None)


class Workers(ThreadPoolExecutor):
    """Threads whose jobs may start programs."""

    def __init__(self, count: int):
        self.ends = threading.Event()
        super().__init__(count, initializer=self._adopt)

    def _adopt(self) -> None:
        _own.stop = self.ends

    def stop(self) -> None:
        """End what runs, drop what waits, and wait for the threads."""
        self.ends.set()
        self.shutdown(wait=True, cancel_futures=True)

    def __exit__(self, kind, error, trace) -> bool | None:
        if kind is not None:
            self.stop()
        return super().__exit__(kind, error, trace)

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Stopped where the block ends by an error; else they go on, and nobody waits for them."""
        self.shutdown(wait=False)
        try:
            yield
        except BaseException:
            self.stop()
            raise


def in_background(work: Callable[[], Any]) -> Any:
    """What `work`, a long call of a library, returns or raises; the calling thread can be interrupted meanwhile, and
    then leaves the call to itself: it cannot be ended, and its answer is dropped."""
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
