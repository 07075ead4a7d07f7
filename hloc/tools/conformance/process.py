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
        self.process: subprocess.Popen | None = None
        self.errors = None
        self.received = b""
        self.limit = seconds

    def ask(self, request: dict, seconds: float | None = None) -> dict[str, dict]:
        """Reply per step of request["steps"], each in `seconds` (else the worker's own limit). A step that ended the
        worker has {"failure": kind, "detail": ...}; the steps behind it are asked of a new worker."""
        self.limit = seconds or self.seconds
        replies: dict[str, dict] = {}
        left = list(request["steps"])
        while left:
            done = {}
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
        self._start()
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        step = request["steps"][0]
        for line in self._lines():
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

    def _lines(self) -> Iterator[bytes | dict]:
        """Lines of the worker; a dict is its failure, and the last."""
        start = time.monotonic(), processor_seconds(self.process.pid)
        while True:
            line, found, rest = self.received.partition(b"\n")
            if found:
                self.received = rest
                yield line
                start = time.monotonic(), processor_seconds(self.process.pid)
                continue
            failure = self._wait(*start)
            if failure:
                self.stop()
                yield failure
                return

    def _wait(self, clock: float, processor: float) -> dict | None:
        """Read more, or say how the worker failed."""
        ready, _, _ = select.select([self.process.stdout], [], [], POLL_SECONDS)
        if ready:
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                code = self.process.wait()
                return {"failure": "crash", "detail": f"ended with {code}: {self._last_words()}"}
            self.received += data
        elif memory_of(self.process.pid) > self.memory_bytes:
            return {"failure": "memory", "detail": f"more than {self.memory_bytes >> 30} GiB"}
        elif (processor_seconds(self.process.pid) - processor > self.limit
              or time.monotonic() - clock > PATIENCE * self.limit):
            return {"failure": "hang", "detail": f"no answer in {self.limit:g} s"}
        return None

    def _start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.stop()
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([sys.executable, "-m", MODULE, self.role], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, env=self.environment)
        self.received = b""

    def _last_words(self) -> str:
        self.errors.seek(0)
        lines = [line for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if "Check failed" in line or line.startswith("F")]
        return printable_lines("\n".join(telling[-2:] or lines[-6:]))[-1500:]

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.errors.close()
            self.process = None


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
