"""Clean-up when a signal ends hloc: no process and no temporary file remains.

    with ending_cleanly():            SIGTERM and SIGHUP unwind the work: compilers end, temporary files are deleted
        ...                           then the process ends by that signal, as it would have done

Ctrl-C needs none of this: Python raises KeyboardInterrupt. Python handles signals only on the main thread; on other
threads, and if the program has its own handlers for these signals, nothing changes.
"""
from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class TerminatedError(BaseException):
    """Raised to unwind the work when a signal ends the process."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Work that is unwound before SIGTERM or SIGHUP ends the process."""
    ours = threading.current_thread() is threading.main_thread()
    taken = [n for n in ENDING if ours and signal.getsignal(n) == signal.SIG_DFL]

    def unwind(number: int, frame: object) -> None:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)               # nothing may interrupt the unwinding
        raise TerminatedError(number)
    try:
        for number in taken:
            signal.signal(number, unwind)
        yield
    except TerminatedError as ended:
        signal.signal(ended.number, signal.SIG_DFL)
        os.kill(os.getpid(), ended.number)
        raise                                                 # the signal is blocked
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
