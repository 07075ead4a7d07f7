"""The process that does the work: it imports the compiler once, and answers each question in a copy of itself.

    python -m hloc.explore.worker FD

Over the socket FD come sockets, one for each question; a forked child answers there and ends. The question is one line
of JSON (`answers` has its keys), each answer is one. A child may take so much memory, and no longer lives than this
process, which ends when the server closes FD.
"""
from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hloc.errors import HlocError

READY = b"ready\n"
MOST_QUESTION = 256 << 20
PR_SET_PDEATHSIG = 1
WARMED = (("diff", "cpu"), ("c", "cpu"), ("loops", "cpu"), ("graph", "cpu"), ("cuda", "h100"),
          ("decisions", "h100"))
PARTS = ("analysis", "evaluate", "inputs", "ir", "kernels", "ops", "passes", "pages", "targets", "text", "tools",
         "verify")

def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)             # the server ends this process
    warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)            # children leave nothing behind
    control.sendall(READY)
    while True:
        told, given, _, _ = socket.recv_fds(control, 1, 1)
        if not told:
            return
        parent = os.getpid()
        if os.fork() == 0:
            control.close()
            child(socket.socket(fileno=given[0]), parent)
        os.close(given[0])


def warm_up() -> None:
    """Import what compiling may need, and compile the examples: what is lazily made then exists. Its memory is shared
    with the children, and the garbage collector leaves it alone."""
    import hloc
    for part in PARTS:
        for found in pkgutil.walk_packages([str(Path(hloc.__file__).parent / part)], f"hloc.{part}."):
            with suppress(ImportError, OSError):             # adapters of packages that are not installed
                importlib.import_module(found.name)
    from hloc.explore.menu import examples
    quick = [{"kind": kind, "target": target} for kind, target in WARMED]
    for _, text in examples().values():
        list(answers({"text": text, "name": "warm", "panes": quick}))
    gc.collect()
    gc.freeze()


def child(connection: socket.socket, parent: int) -> None:
    """Answer one question, and end."""
    from hloc.interrupts import ending_cleanly
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return
        connection.sendall(f"{os.getpid()}\n".encode())
        with connection.makefile("rb") as reader, ending_cleanly():
            question = json.loads(reader.readline(MOST_QUESTION))
            limit_memory(int(question["memory"]))
            for answer in answers(question):
                connection.sendall(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
    except (BrokenPipeError, ConnectionResetError):          # nobody listens any more
        pass
    finally:
        os._exit(0)


def limit_memory(size: int) -> None:
    """So many bytes of addresses beside those that are in use; programs that are started have the same limit."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + size
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def answers(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What is known of a text: its problems, the passes of each target, then one answer for each pane.

    question: text, name (for messages), panes: a list of {id, kind, target, state ...} (hloc/explore/views)
    """
    from hloc.explore.content import failure
    from hloc.explore.work import Work
    start = time.perf_counter()
    try:
        work = Work.of(question["text"], question["name"])
    except (MemoryError, RecursionError) as error:
        told = failure(error)
        yield {"event": "checked", "problems": [_nowhere(told["text"])], "read": False}
        return
    count = sum(1 for _ in work.module.instructions()) if work.parsed is not None else 0
    yield {"event": "checked", "problems": work.problems, "instructions": count, "read": work.parsed is not None,
           "seconds": round(time.perf_counter() - start, 3)}
    if work.parsed is None:
        return
    yield from _panes(work, question["panes"])
    yield {"event": "done"}


def _panes(work: Any, panes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The passes of each target, once, and the content of each pane, the quick kinds first."""
    from hloc.explore.content import failure, message
    from hloc.explore.views import KINDS, settings, view
    order = list(KINDS)
    wanted: dict[str, set[str]] = {}
    chosen: list[tuple[Any, dict[str, str]]] = []
    for pane in panes:
        try:
            chosen.append((pane.get("id"), settings(pane)))
        except HlocError as error:
            yield {"event": "pane", "pane": pane.get("id"), "content": failure(error), "seconds": 0}
    for _, one in chosen:
        if "state" in one:
            wanted.setdefault(one["target"], set()).add(one["state"])
    for number, one in sorted(chosen, key=lambda c: order.index(c[1]["kind"])):
        start = time.perf_counter()
        try:
            states = wanted.pop(one["target"], None) if "state" in one else None
            if states is not None:
                changes = work.on(one["target"], states).changes
                yield {"event": "passes", "target": one["target"],
                       "passes": [[change.state, change.instructions] for change in changes]}
            content = view(work, one)
        except Exception as error:
            content = failure(error)
        if work.module.faults and content["is"] == "message":
            content = message(content["text"], content["hint"] or "the module breaks rules of HLO: see the editor")
        yield {"event": "pane", "pane": number, "content": content, "seconds": round(time.perf_counter() - start, 3)}


def _nowhere(text: str) -> dict[str, Any]:
    return {"severity": "error", "message": text, "hint": "", "line": 0, "column": 0, "length": 0}


if __name__ == "__main__":
    main()
