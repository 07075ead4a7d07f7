"""A folder of modules through hloc and XLA, several at a time.

In: Options. Out: a Record per module, as each is finished.
"""
from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hloc.tools.conformance import verdicts
from hloc.tools.conformance.cases import Case
from hloc.tools.conformance.oracle import Oracle
from hloc.tools.conformance.process import Worker
from hloc.tools.conformance.verdicts import Verdict

JUDGE_SECONDS = 120
SLOW = frozenset(["cuda"])
# NumPy's threads wait by computing, which the limits would count; memory that is given back to the system after each
# operation, and zeroed for the next one, takes as long as the operation.
OWN_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


@dataclass(frozen=True)
class Options:
    """seconds: of each step of each module; slow_seconds: of compiling CUDA C, which takes longer for some; answers:
    folder in which XLA's answers are kept; checks: those wanted."""

    workers: int = 2
    seconds: float = 20.0
    slow_seconds: float = 40.0
    memory_bytes: int = 8 << 30
    answers: Path | None = None
    checks: frozenset[str] = frozenset(verdicts.CHECKS)
    with_xla: bool = True


class Record(NamedTuple):
    name: str
    verdicts: dict[str, Verdict]
    facts: dict


def examine_all(cases: list[Case], options: Options) -> Iterator[Record]:
    """Records in the order in which they are ready."""
    waiting: queue.SimpleQueue[Case | None] = queue.SimpleQueue()
    finished: queue.SimpleQueue[Record | BaseException] = queue.SimpleQueue()
    for case in [*cases, *[None] * options.workers]:
        waiting.put(case)
    with tempfile.TemporaryDirectory(prefix="hloc-conformance") as work:
        answers = options.answers or Path(work, "answers")
        threads = [threading.Thread(target=_serve, args=(waiting, finished, options, answers, Path(work, str(n))))
                   for n in range(options.workers)]
        for thread in threads:
            thread.start()
        for _ in cases:
            record = finished.get()
            if isinstance(record, BaseException):
                raise record
            yield record
        for thread in threads:
            thread.join()


def _serve(waiting: queue.SimpleQueue[Case | None], finished: queue.SimpleQueue[Record | BaseException],
           options: Options, answers: Path, work: Path) -> None:
    """One thread: a worker of each role, one module after the other."""
    subject = Worker("hloc", options.seconds, options.memory_bytes, OWN_ENVIRONMENT)
    judge = None
    try:
        work.mkdir()
        if options.with_xla:
            from hloc.tools.conformance.judge import ENVIRONMENT
            judge = Worker("xla", JUDGE_SECONDS, options.memory_bytes, ENVIRONMENT)
        oracle = Oracle(judge, answers) if judge else None
        while (case := waiting.get()) is not None:
            finished.put(Examination(case, subject, oracle, options, work).record())
    except BaseException as error:
        finished.put(error)
    finally:
        subject.stop()
        if judge:
            judge.stop()


class Examination:
    """One module: what is asked of whom, in which order."""

    def __init__(self, case: Case, subject: Worker, oracle: Oracle | None, options: Options, work: Path):
        self.case, self.subject, self.oracle, self.options, self.work = case, subject, oracle, options, work
        for old in work.iterdir():
            old.unlink()
        text = work / "original.hlo"
        text.write_text(case.text, encoding="utf-8")
        self.request = {"text": str(text), "name": case.name, "work": str(work)}
        self.verdicts: dict[str, Verdict] = {}
        self.facts: dict = {}

    def record(self) -> Record:
        ours = self.ask("parse")
        theirs = self.their_parse()
        self.verdicts["parse"] = verdicts.on_parse(ours, theirs)
        if ours.get("outcome") == "ok":
            self.facts["instructions"] = ours["instructions"]
            self.round_trip(theirs)
            if self.verify():
                self.run()
        wanted = {k: v for k, v in self.verdicts.items() if k in self.options.checks}
        return Record(self.case.name, wanted, self.facts)

    def ask(self, step: str, **more: Any) -> dict:
        limit = self.options.slow_seconds if step in SLOW else self.options.seconds
        return self.subject.ask({**self.request, **more, "steps": [step]}, limit).get(step, {"failure": "crash"})

    def wants(self, *checks: str) -> bool:
        return any(c in self.options.checks for c in checks)

    def their_parse(self) -> dict | None:
        known = self.case.known.get("xla_parser")
        if self.oracle and (known is None or self.wants("round trip")):
            return self.oracle.parse(self.request, self.case.text)
        return {"accepts": known == "accepts", "error": self.case.known.get("xla_error")} if known else None

    def round_trip(self, theirs: dict | None) -> None:
        if not self.wants("round trip"):
            return
        ours, compared = self.ask("print"), None
        printed = self.work / "printed.hlo"
        if self.oracle and theirs and theirs.get("accepts") and printed.is_file():
            compared = self.oracle.printed(self.request, self.case.text, printed.read_text(encoding="utf-8"))
        self.verdicts["round trip"] = verdicts.on_round_trip(ours, compared)

    def verify(self) -> bool:
        """Whether both accept the module, as far as they are asked."""
        theirs, error = self.case.known.get("xla_verifier"), "by the index"
        if self.oracle and theirs is None:
            reply = self.oracle.verify(self.request, self.case.text)
            theirs, error = reply.get("verdict"), reply.get("error", "")
        ours = self.ask("verify")
        self.verdicts["verify"] = verdicts.on_verify(ours, theirs, error)
        return ours.get("outcome") == "ok" and theirs != "invalid"

    def run(self) -> None:
        """Both ways to run where XLA runs the module; else native code is built and left."""
        if not self.wants("reference", "cpu", "cuda"):
            return
        reply, data = self.their_run()
        if reply.get("runs"):
            self.facts["xla runs"] = True
            for check in ("reference", "cpu"):
                if self.wants(check):
                    self.verdicts[check] = verdicts.on_run(self.ask(check, data=str(data)), reply["repeats"])
        else:
            self.facts["xla runs"] = reply.get("error", reply.get("detail", "not asked"))[:300]
            if self.wants("cpu"):
                built = verdicts.on_build(self.ask("cpu builds"))
                self.facts["cpu builds"] = built.kind
                self.verdicts["cpu"] = built if built.kind != "agrees" else Verdict("no judge", "", built.seconds)
        if self.wants("cuda") and self.verdicts.get("cpu", Verdict("agrees")).kind not in ("unsupported", "error"):
            self.verdicts["cuda"] = verdicts.on_build(self.ask("cuda"))

    def their_run(self) -> tuple[dict, Path | None]:
        if not self.oracle:
            return {"error": "no XLA"}, None
        made = self.ask("runnable")
        if made.get("outcome") != "ok":
            return {"error": f"no form of it for XLA: {made.get('detail', '')}"}, None
        return self.oracle.run(self.request, (self.work / "runnable.hlo").read_text(encoding="utf-8"))
