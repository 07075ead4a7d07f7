"""What is to be left behind when a signal ends hloc: nothing.

    with ending_cleanly():            SIGTERM and SIGHUP unwind the work: compilers end, temporary files go
        ...                           then the process ends by that signal, as it would have done

Ctrl-C needs none of this: Python makes a KeyboardInterrupt of it. Python's signals are the main thread's; in others,
and where a program has its own answer to these signals, nothing changes.
"""
from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class TerminatedError(BaseException):
    """A signal that ends the process, on its way."""

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
            signal.signal(each, signal.SIG_IGN)               # once: nothing may cut the unwinding short
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
