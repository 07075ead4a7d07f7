"""A running `hloc explore`, and questions to it: for tests of the server and of its page."""
from __future__ import annotations

import atexit
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ENDLESS = """HloModule endless
c { s = (s32[], f32[4]) parameter(0)  ROOT p = pred[] constant(true) }
b { s = (s32[], f32[4]) parameter(0)  i = s32[] get-tuple-element(s), index=0  x = f32[4] get-tuple-element(s), index=1
  y = f32[4] cosine(x)  ROOT t = (s32[], f32[4]) tuple(i, y) }
ENTRY e {
  x = f32[4] parameter(0)
  i = s32[] constant(0)
  t = (s32[], f32[4]) tuple(i, x)
  w = (s32[], f32[4]) while(t), condition=c, body=b
  ROOT r = f32[4] get-tuple-element(w), index=1
}
"""


class Explorer:
    """`hloc explore --no-browser` in a folder of its own."""

    def __init__(self, folder: Path, *arguments: str):
        for package in ("starlette", "uvicorn"):
            pytest.importorskip(package, reason=f"{package} is not installed: pip install 'hloc[explore]'")
        self.folder = folder
        for name in ("work", "tmp", "cache"):
            (folder / name).mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "HLOC_CACHE_DIR": str(folder / "cache"),
                       "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen([sys.executable, "-m", "hloc.cli.main", "explore", "--no-browser", *arguments],
                                        cwd=folder / "work", env=environment, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)                    # where a test fails before its end
        self.said = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/([\w-]+)/", self.said)
        assert found, self.said + self.process.stderr.read()
        self.address, self.port, self.token = found[0], int(found[1]), found[2]

    def request(self, method: str = "GET", path: str | None = None, body: bytes | None = None,
                timeout: float = 120, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body. path: below the token, or whole where it begins with /."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        path = path or ""
        sent = {"Content-Type": "application/json", **{key.replace("_", "-"): value for key, value in headers.items()}}
        connection.request(method, path if path.startswith("/") else f"/{self.token}/{path}", body, sent)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, data

    def ask(self, text: str, *panes: dict[str, Any]) -> list[dict[str, Any]]:
        """The events that answer a question."""
        question = {"text": text, "name": "m.hlo", "panes": [{"id": n, **pane} for n, pane in enumerate(panes)]}
        status, _, data = self.request("POST", "panes", json.dumps(question).encode())
        assert status == 200, data
        return [json.loads(line) for line in data.splitlines()]

    def content(self, text: str, **pane: str) -> dict[str, Any]:
        """What one pane shows."""
        return next(event["content"] for event in self.ask(text, pane) if event["event"] == "pane")

    def processes(self) -> list[int]:
        """Those that the server has started, and these in turn."""
        found, waiting = [], [self.process.pid]
        while waiting:
            for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
                below = list(map(int, path.read_text().split()))
                found += below
                waiting += below
        return found

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """The exit code, and what was said on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


def until(condition, seconds: float = 10) -> bool:
    """Whether something holds before the seconds are over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())
