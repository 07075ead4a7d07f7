"""What hloc does with a module; runs in a worker.

In: requests {"text": path, "name", "work": folder, "data": path of arrays}. Out: per step {"outcome": ...}:
    ok            it worked; with "rows" where results were compared
    rejected      an HlocError at a place of the text       unlocated   an HlocError without a place
    unsupported   an UnsupportedError                       memory      not enough of it
    traceback     any other exception
"""
from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hloc import api
from hloc.errors import HlocError, RunError, UnsupportedError
from hloc.evaluate import evaluate
from hloc.inputs import Parameter
from hloc.ir import Module, leaves
from hloc.text import parse_module
from hloc.tools.compare import compare
from hloc.tools.conformance.arrays import load_arrays
from hloc.tools.xla_text import text_for_xla
from hloc.verify import verify

GPU = "sm_80"
_read: dict[str, Module] = {}          # the module of the last text: its steps come one after the other


def step(function: Callable[[dict], dict]) -> Callable[[dict], dict]:
    """The function with its exceptions turned into outcomes."""
    def guarded(request: dict) -> dict:
        try:
            return {"outcome": "ok", **function(request)}
        except MemoryError:
            return {"outcome": "memory", "detail": "MemoryError"}
        except UnsupportedError as error:
            return {"outcome": "unsupported", "detail": error.message[:2000], "place": str(error)[:3000]}
        except HlocError as error:
            outcome = "rejected" if error.span else "unlocated"
            return {"outcome": outcome, "detail": error.message[:2000], "place": str(error)[:3000]}
        except RecursionError:
            return {"outcome": "traceback", "detail": "RecursionError"}
        except Exception as error:
            frames = traceback.format_exc().splitlines()
            return {"outcome": "traceback", "detail": f"{type(error).__name__}: {error}"[:600],
                    "place": "\n".join(frames[-14:])}
    return guarded


def module_of(request: dict) -> Module:
    name = request["name"]
    if name not in _read:
        _read.clear()
        _read[name] = parse_module(Path(request["text"]).read_text(encoding="utf-8"), name)
    return _read[name]


def read(request: dict) -> dict:
    return {"instructions": sum(len(c.instructions) for c in module_of(request).computations)}


def print_again(request: dict) -> dict:
    """Print, read, print: equal? The print stays as a file for the judge."""
    printed = str(module_of(request))
    Path(request["work"], "printed.hlo").write_text(printed, encoding="utf-8")
    again = str(parse_module(printed, "printed"))
    if again == printed:
        return {"same": True}
    pair = next(((a, b) for a, b in zip(printed.splitlines(), again.splitlines()) if a != b), ("", "length"))
    return {"same": False, "detail": f"{pair[0][:300]}\n{pair[1][:300]}"}


def runnable_text(request: dict) -> dict:
    """The module in a form that XLA's way to its CPU takes; without it there is nothing to compare runs with."""
    text = text_for_xla(module_of(request))
    Path(request["work"], "runnable.hlo").write_text(text, encoding="utf-8")
    return {}


def check(request: dict) -> dict:
    verify(module_of(request))
    return {}


def on_reference(request: dict) -> dict:
    module = module_of(request)
    return _compared(module, request, lambda arrays: evaluate(module, arrays))


def on_cpu(request: dict) -> dict:
    module = module_of(request)
    exe = api.compile(module, "cpu")
    return _compared(module, request, lambda arrays: exe(*arrays))


def cuda_source(request: dict) -> dict:
    """CUDA C that a compiler for GPUs takes; whether it makes fast code of it is not the question."""
    from hloc.targets.cuda.compiler import compile_cuda
    text = api.compile(module_of(request), GPU, run=False).text(".cu")
    return {"bytes": len(compile_cuda(text, GPU, "cubin", quick=True))}


def build_cpu(request: dict) -> dict:
    """C that compiles, for modules without results to compare with; whether it fits into memory is not the question."""
    exe = api.compile(module_of(request), "cpu", run=False)
    try:
        _ = exe.backend
    except RunError as error:
        if "GiB" not in error.message:
            raise
    return {}


def _compared(module: Module, request: dict, run: Callable) -> dict:
    """A row per result: how far it is from XLA's, and from what a nudge of the inputs does to XLA's."""
    data = load_arrays(Path(request["data"]))
    results = [Parameter(f"result.{i}", s) for i, s in enumerate(leaves(module.entry.root.shape))]
    got = [np.asarray(a) for a in run(data.inputs)]
    if len(got) != len(data.outputs):
        return {"rows": [], "agrees": False, "detail": f"{len(got)} results, XLA has {len(data.outputs)}"}
    rows = [r._replace(moved=m) for r, m in zip(compare(results, got, data.outputs), data.moved)]
    bad = [r for r in rows if not r.agrees and not r.is_unstable]
    shown = [{"result": r.name, "type": r.element_type, "shape": list(r.shape), "error": r.error, "moved": r.moved,
              "where": list(r.where), "got": str(r.got), "want": str(r.want), "note": r.note} for r in bad[:8]]
    detail = "".join(f"{r.name} {r.element_type}[{','.join(map(str, r.shape))}]{list(r.where)}: {r.got}, XLA has "
                     f"{r.want}; error {r.error:.2g} {r.note}" for r in bad[:1])
    return {"agrees": not bad, "unstable": sum(r.is_unstable for r in rows), "rows": shown, "detail": detail,
            "error": max((r.error for r in rows if r.agrees), default=0.0)}


STEPS = {name: step(function) for name, function in {
    "parse": read, "print": print_again, "runnable": runnable_text, "verify": check, "reference": on_reference,
    "cpu": on_cpu, "cpu builds": build_cpu, "cuda": cuda_source}.items()}
