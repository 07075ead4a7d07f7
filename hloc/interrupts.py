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
import time
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
UNWINDING_SECONDS = 5.0            # that the unwinding may take before another signal interrupts it


class TerminatedError(BaseException):
    """Raised to unwind the work when a signal ends the process."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Work that is unwound before SIGTERM or SIGHUP ends the process. Python drops what is raised while it calls a
    finalizer; a signal after UNWINDING_SECONDS then raises again."""
    ours = threading.current_thread() is threading.main_thread()
    taken = [n for n in ENDING if ours and signal.getsignal(n) == signal.SIG_DFL]

    began = float("-inf")

    def unwind(number: int, frame: object) -> None:
        nonlocal began
        if time.monotonic() - began > UNWINDING_SECONDS:
            began = time.monotonic()
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
