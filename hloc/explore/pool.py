"""The server's side of the worker: one process for each question, which is ended with its time or with its reader.

    pool = Pool(Limits(seconds=30, memory=2 << 30))
    async for line in pool.ask({"text": ..., "panes": [...]}):     lines of JSON, as worker.answers makes them
    pool.close()

The worker itself is started by the first question, and again where it was killed.
"""
from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hloc.explore.worker import READY

START_SECONDS = 120
LOOK_SECONDS = 0.02
GRACE_SECONDS = 2                  # for a child to end its compilers and remove its files
AT_ONCE = 2                        # questions that are answered
LONGEST_ANSWER = 256 << 20
UNEXPECTED = "the process that computes this ended unexpectedly"


class Limits(NamedTuple):
    """Of one question: seconds, and bytes of memory."""

    seconds: float
    memory: int


class Child(NamedTuple):
    """A process that answers. handle: a file that stands for it, so that no other is meant by its number."""

    pid: int
    handle: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def end(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, number)

    def is_over(self) -> bool:
        return bool(select.select([self.handle], [], [], 0)[0])


class Pool:
    """Starts the worker, and copies of it."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self._worker: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._starting = asyncio.Lock()
        self._places = asyncio.Semaphore(AT_ONCE)

    async def ask(self, question: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """The answers to one question; where they do not come, an answer that says why. Closing the iterator ends the
        process that answers."""
        async with self._places:
            try:
                child = await self._child()
            except OSError as error:
                yield ended(f"the process that compiles could not be started: {error}")
                return
            deadline = time.monotonic() + self.limits.seconds
            line, is_last = b"", False
            try:
                child.writer.write(json.dumps(question | {"memory": self.limits.memory}).encode() + b"\n")
                while line := await asyncio.wait_for(child.reader.readline(), max(0.0, deadline - time.monotonic())):
                    yield line
                    is_last = _is_last(line)
                if not is_last:
                    yield ended(UNEXPECTED + ": it may have needed too much memory")
            except asyncio.TimeoutError:
                yield ended(f"this takes longer than {self.limits.seconds:g} s and was ended")
            except (OSError, ValueError):                    # a line of more than LONGEST_ANSWER bytes
                yield ended(UNEXPECTED)
            finally:
                child.writer.close()
                await asyncio.shield(_ended(child))

    async def _child(self) -> Child:
        """A new child, which waits for its question. Raises OSError where there is none, for the second time: the
        worker may have been killed since it was last seen."""
        for _ in range(2):
            await self.start()
            own, given = socket.socketpair()
            with given, suppress(OSError):
                if self._control is not None:
                    socket.send_fds(self._control, [b"q"], [given.fileno()])
            reader, writer = await asyncio.open_connection(sock=own, limit=LONGEST_ANSWER)
            try:
                said = await reader.readline()
                if said.strip().isdigit():
                    return Child(int(said), os.pidfd_open(int(said)), reader, writer)
            except BaseException:
                writer.close()
                raise
            writer.close()
            self.close()
        raise OSError("it ends at once")

    async def start(self) -> None:
        """The worker, ready to answer. Raises OSError where it ends or takes longer than START_SECONDS."""
        async with self._starting:
            if self._worker is not None and self._worker.poll() is None:
                return
            self.close()
            self._control, given = socket.socketpair()
            with given:
                self._worker = subprocess.Popen(
                    [sys.executable, "-m", "hloc.explore.worker", str(given.fileno())], pass_fds=[given.fileno()],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    start_new_session=True)
            self._control.setblocking(False)
            loop = asyncio.get_running_loop()
            try:
                said = await asyncio.wait_for(loop.sock_recv(self._control, len(READY)), START_SECONDS)
            except asyncio.TimeoutError:
                said = b""
            if said != READY:
                self.close()
                raise OSError(f"python -m hloc.explore.worker did not start in {START_SECONDS} s")
            self._control.setblocking(True)

    def close(self) -> None:
        """End the worker, and with it its children."""
        if self._control is not None:
            self._control.close()
        if self._worker is not None:
            with suppress(subprocess.TimeoutExpired):
                self._worker.wait(GRACE_SECONDS)
            if self._worker.poll() is None:
                self._worker.kill()
                self._worker.wait()
        self._worker = self._control = None


def ended(why: str) -> bytes:
    """An answer where there is no other."""
    return json.dumps({"event": "ended", "message": why}).encode() + b"\n"


def _is_last(line: bytes) -> bool:
    """Whether nothing need follow: all is done, or the text could not be read."""
    if line.startswith(b'{"event":"checked"'):
        return not json.loads(line)["read"]
    return line.startswith(b'{"event":"done"')


async def _ended(child: Child) -> None:
    """End a child with all that it started; first by a signal that lets it remove its files."""
    below = _descendants(child.pid)
    child.end(signal.SIGTERM)
    for _ in range(round(GRACE_SECONDS / LOOK_SECONDS)):
        if child.is_over():
            break
        await asyncio.sleep(LOOK_SECONDS)
    child.end(signal.SIGKILL)
    os.close(child.handle)
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Processes that a process started, and these started; each time with those that it has now."""
    found, waiting = [], [pid]
    while waiting:
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with suppress(OSError):
                below = list(map(int, path.read_text(encoding="ascii").split()))
                found += below
                waiting += below
    return found
