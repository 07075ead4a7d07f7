"""One module on a target and another way, on the same inputs: the differences.

    rows = check(module, arrays, target="cpu", against="xla")        all(r.agrees or r.is_unstable for r in rows)
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hloc.api import Options, compile
from hloc.executable import Executable
from hloc.inputs import check_arrays
from hloc.ir import Module
from hloc.tools.compare import Difference, compare, nudged, with_stability
from hloc.tools.stability import shaken_results

Report = Callable[..., None]


def check(module: Module, arrays: Sequence[np.ndarray], *, target: str | Executable = "auto",
          against: str = "reference", tolerance: float | None = None,
          custom_calls: Mapping[str, Callable] | None = None,
          report: Report = lambda *stage: None) -> list[Difference]:
    """One Difference per result: what `target` gives against what another way gives.

    target     a name, or the module compiled
    against    "reference" (the evaluator), "cpu", "cuda" or "xla"
    tolerance  largest error relative to the largest magnitude, of floating-point results; None: by type, and a result
               that moves about as far when rounding is moved is unstable, not different
    Raises HlocError where one of both does not compile or run.
    """
    calls = dict(custom_calls or {})
    exe = target if isinstance(target, Executable) else _compiled(module, target, calls, report)
    other = _runner(module, against, calls, report)
    arrays = check_arrays(exe.parameters, arrays)
    report(f"run on {against}")
    want = other(arrays)
    report(f"run on {exe.target}")
    rows = compare(exe.results, exe(*arrays), want, tolerance)
    if tolerance is None and not all(r.agrees for r in rows):
        report(f"run on {against} with rounding moved")
        moved = _shaken(module, arrays, calls) if against == "reference" else other(nudged(arrays))
        rows = with_stability(rows, exe.results, want, moved)
    return rows


def _shaken(module: Module, arrays: Sequence[np.ndarray], calls: dict) -> tuple[np.ndarray, ...]:
    """The evaluator's results with each operation off by one unit in the last place."""
    return shaken_results(module, arrays, {name: lambda _, *given, f=f: f(*given) for name, f in calls.items()})


def _compiled(module: Module, target: str, calls: dict, report: Report) -> Executable:
    return compile(module, target, options=Options(progress=report, custom_calls=calls))


def _runner(module: Module, against: str, calls: dict, report: Report) -> Callable:
    """A function from arrays to arrays for the other side."""
    if against == "xla":
        from hloc.tools.xla import xla_runner
        return xla_runner(module)
    exe = _compiled(module, against, calls, report)
    return lambda arrays: exe(*arrays)
