"""Child processes: with limits of time and output, and killed together with their own children.

    done = run(["cc", "--version"], seconds=30);  done.code, done.output, done.errors

Output is decoded as UTF-8, with escapes for other bytes (`\\xff`), so that any output is text.
"""
from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

MOST_OUTPUT = 16 << 20                # bytes
PIECE = 1 << 16
LOOK_SECONDS = 0.2                    # interval at which a running program is checked


class Finished(NamedTuple):
    """code: the exit code, negative for a signal."""

    code: int
    output: str
    errors: str


class NotFinished(Exception):
    """A program that was killed before it finished; the text says why, as in 'cc did not finish in 30 s'."""


def run(command: Sequence[str], seconds: float, *, environment: Mapping[str, str] | None = None,
        stop: threading.Event | None = None) -> Finished:
    """Run a program without input. Raises OSError where it cannot start, NotFinished if it takes longer than
    `seconds`, prints more than MOST_OUTPUT, or `stop` is set; it and its children are then killed."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment, start_new_session=True) as process:
        try:
            output, errors = _collect(process, command[0], time.monotonic() + seconds, seconds, stop)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return Finished(process.returncode, output, errors)


def _collect(process: subprocess.Popen, name: str, deadline: float, seconds: float,
             stop: threading.Event | None) -> tuple[str, str]:
    """The output of a program until it ends; later output of background processes is not waited for."""
    assert process.stdout is not None and process.stderr is not None
    out, errors = bytearray(), bytearray()
    texts: dict[Any, bytearray] = {process.stdout: out, process.stderr: errors}
    with selectors.DefaultSelector() as waiting:
        for pipe in texts:
            waiting.register(pipe, selectors.EVENT_READ)
        ended = False
        while waiting.get_map():
            ready = waiting.select(0 if ended else LOOK_SECONDS)
            for key, _ in ready:
                piece = os.read(key.fd, PIECE)
                texts[key.fileobj] += piece
                if not piece:
                    waiting.unregister(key.fileobj)
            if ended and not ready:
                break
            ended = process.poll() is not None
            _check(name, sum(map(len, texts.values())), deadline, seconds, stop)
    while process.poll() is None:                           # it closed its output and continues
        _check(name, 0, deadline, seconds, stop)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_SECONDS)
    return out.decode(errors="backslashreplace"), errors.decode(errors="backslashreplace")


def _check(name: str, printed: int, deadline: float, seconds: float, stop: threading.Event | None) -> None:
    if printed > MOST_OUTPUT:
        raise NotFinished(f"{name} printed more than {MOST_OUTPUT >> 20} MiB")
    if time.monotonic() > deadline:
        raise NotFinished(f"{name} did not finish in {seconds:g} s")
    if stop is not None and stop.is_set():
        raise NotFinished(f"{name} was ended: its result is not needed any more")
