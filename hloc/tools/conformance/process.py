"""A worker process that may crash, hang or eat memory without harm to who asked.

In: a role ("hloc" or "xla"), limits. Out: for each request a reply, or a Failure that says how the worker ended.

The worker reads one JSON request per line; for each step it writes {"begin": step}, then {"step": ..., ...}, and at the
end {"done": true}. Standard output is moved aside in the worker: what a library prints cannot disturb the replies.

The time limit holds for each step, in seconds of the worker's own processor time, or PATIENCE times as many on the
clock: a busy machine is not a hang, and waiting for ever is one.
"""
from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from hloc.errors import printable_lines

POLL_SECONDS = 0.2
PATIENCE = 6
MODULE = "hloc.tools.conformance.worker"


class Worker:
    """One process of a role, started when first asked and again after each failure."""

    def __init__(self, role: str, seconds: float, memory_bytes: int, environment: dict[str, str] | None = None):
        self.role, self.seconds, self.memory_bytes = role, seconds, memory_bytes
        self.environment = {**os.environ, **(environment or {})}
        self.running: Running | None = None
        self.received = b""
        self.limit = seconds

    def ask(self, request: dict, seconds: float | None = None) -> dict[str, dict]:
        """Reply per step of request["steps"], each in `seconds` (else the worker's own limit). A step that ended the
        worker has {"failure": kind, "detail": ...}; the steps behind it are asked of a new worker."""
        self.limit = seconds or self.seconds
        replies: dict[str, dict] = {}
        left = list(request["steps"])
        while left:
            done: dict[str, dict] = {}
            failed = self._ask_once({**request, "steps": left}, done)
            replies.update(done)
            left = [s for s in left if s not in replies]
            if failed is None:
                break
            step, failure = failed
            replies[step] = failure
            left = [s for s in left if s != step]
        return replies

    def _ask_once(self, request: dict, done: dict[str, dict]) -> tuple[str, dict] | None:
        running = self._started()
        with contextlib.suppress(OSError):
            running.requests.write(json.dumps(request).encode() + b"\n")
            running.requests.flush()
        step = request["steps"][0]
        for line in self._lines(running):
            if isinstance(line, dict):
                return step, line
            reply = json.loads(line)
            if "done" in reply:
                return None
            if "begin" in reply:
                step = reply["begin"]
            else:
                done[reply.pop("step")] = reply
        return None

    def _lines(self, running: Running) -> Iterator[bytes | dict]:
        """Lines of the worker; a dict is its failure, and the last."""
        start = time.monotonic(), processor_seconds(running.process.pid)
        while True:
            line, found, rest = self.received.partition(b"\n")
            if found:
                self.received = rest
                yield line
                start = time.monotonic(), processor_seconds(running.process.pid)
                continue
            failure = self._wait(running, *start)
            if failure:
                self.stop()
                yield failure
                return

    def _wait(self, running: Running, clock: float, processor: float) -> dict | None:
        """Read more, or say how the worker failed."""
        ready, _, _ = select.select([running.replies], [], [], POLL_SECONDS)
        if ready:
            data = os.read(running.replies.fileno(), 1 << 20)
            if not data:
                code = running.process.wait()
                return {"failure": "crash", "detail": f"ended with {code}: {running.last_words()}"}
            self.received += data
        elif memory_of(running.process.pid) > self.memory_bytes:
            return {"failure": "memory", "detail": f"more than {self.memory_bytes >> 30} GiB"}
        elif (processor_seconds(running.process.pid) - processor > self.limit
              or time.monotonic() - clock > PATIENCE * self.limit):
            return {"failure": "hang", "detail": f"no answer in {self.limit:g} s"}
        return None

    def _started(self) -> Running:
        if self.running is not None and self.running.process.poll() is None:
            return self.running
        self.stop()
        self.running = Running([sys.executable, "-m", MODULE, self.role], self.environment)
        self.received = b""
        return self.running

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.running is not None:
            self.running.stop()
            self.running = None


class Running:
    """A child process with pipes for requests and replies, and a file of its errors."""

    def __init__(self, command: list[str], environment: dict[str, str]):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        env=environment)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.requests, self.replies = self.process.stdin, self.process.stdout

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = [line for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if "Check failed" in line or line.startswith("F")]
        return printable_lines("\n".join(telling[-2:] or lines[-6:]))[-1500:]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.requests, self.replies, self.errors):
            file.close()


def memory_of(pid: int) -> int:
    """Resident bytes of a process; 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def processor_seconds(pid: int) -> float:
    """What a process has computed so far, without its children; 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def serve(steps: dict[str, Callable[[dict], dict]]) -> None:
    """The worker's side: answer requests until the input ends."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def send(reply: dict) -> None:
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()

    for line in sys.stdin.buffer:
        request = json.loads(line)
        for step in request["steps"]:
            send({"begin": step})
            start = time.monotonic()
            reply = steps[step](request)
            send({"step": step, "seconds": round(time.monotonic() - start, 3), **reply})
        send({"done": True})
