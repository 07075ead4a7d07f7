"""Asks the judge, and keeps its answers: XLA takes most of the time of a run, and says the same every time.

In: a judge's Worker and a folder. Out: replies of judge.py, each kept under a hash of the texts it is about.
"""
from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
from pathlib import Path

from hloc.tools.conformance.process import Worker

RECIPE = "2"                        # counts up when judge.py or hloc/inputs/sensible.py ask otherwise


class Oracle:
    """One judge and the folder of its answers."""

    def __init__(self, worker: Worker, folder: Path):
        self.worker, self.folder = worker, folder
        self.version = f"{RECIPE} {importlib.metadata.version('jaxlib')}"
        folder.mkdir(parents=True, exist_ok=True)

    def parse(self, request: dict, text: str) -> dict:
        """{"accepts": bool}; XLA's print is then work/theirs.hlo."""
        kept = self._path("parse", text)
        theirs, copy = Path(request["work"], "theirs.hlo"), kept.with_suffix(".hlo")
        if copy.is_file():
            shutil.copyfile(copy, theirs)
        reply = self._ask("parse", request, kept, fresh="..." in text)
        if theirs.is_file() and not copy.is_file():
            shutil.copyfile(theirs, copy)
        return reply

    def printed(self, request: dict, text: str, printed: str) -> dict:
        return self._ask("printed", request, self._path("printed", text, printed), fresh="..." in printed)

    def verify(self, request: dict, text: str) -> dict:
        return self._ask("verify", request, self._path("verify", text))

    def run(self, request: dict, runnable: str) -> tuple[dict, Path]:
        """The reply, and the file of inputs and results."""
        kept = self._path("run", runnable)
        data = kept.with_suffix(".npz")
        return self._ask("run", {**request, "data": str(data)}, kept), data

    def _path(self, step: str, *texts: str) -> Path:
        digest = hashlib.sha256("\0".join([self.version, step, *texts]).encode()).hexdigest()[:40]
        return self.folder / f"{digest}.json"

    def _ask(self, step: str, request: dict, kept: Path, fresh: bool = False) -> dict:
        if kept.is_file():
            return json.loads(kept.read_text(encoding="utf-8"))
        if fresh:
            self.worker.stop()      # XLA fills elided constants by counting on
        reply = self.worker.ask({**request, "steps": [step]}).get(step, {})
        draft = kept.with_suffix(".partial")
        draft.write_text(json.dumps(reply), encoding="utf-8")
        draft.replace(kept)
        return reply
