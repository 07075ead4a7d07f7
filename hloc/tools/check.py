"""One module on a target and on another implementation, with the same inputs: the differences.

    rows = check(module, arrays, target="cpu", against="xla")        all(r.agrees or r.is_unstable for r in rows)
    rows = check_devices(module, each, devices, target="cpu")
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hloc.api import Options, compile, compile_for_devices
from hloc.errors import HlocError, RunError
from hloc.evaluate import evaluate
from hloc.evaluate.simulate import SimulatedDevice, evaluate_devices, run_concurrently
from hloc.executable import Executable
from hloc.inputs import Named, entry_results, host_arrays
from hloc.ir import Module, numpy_dtype
from hloc.passes.precision import product_precision
from hloc.tools.causes import causes_of
from hloc.tools.compare import Difference, compare, nudged, with_stability
from hloc.tools.stability import perturbed_results

Report = Callable[..., None]
SHAKES = 3                      # runs with changed rounding: one may change too little by chance


def check(module: Module, arrays: Sequence[np.ndarray], *, target: str | Executable = "auto",
          against: str = "reference", expected: Sequence[np.ndarray] | None = None, tolerance: float | None = None,
          custom_calls: Mapping[str, Callable] | None = None, passes: Mapping[str, Any] | None = None,
          report: Report = lambda *stage: None) -> list[Difference]:
    """One Difference per result of `target` and another implementation.

    target     a name, or the module compiled
    against    "reference" (the evaluator), "cpu", "cuda" or "xla"
    expected   results to compare with, instead of another implementation
    tolerance  largest error relative to the largest magnitude, of floating-point results; None: by type, and by what a
               GPU rounds (hloc/passes/precision.py)
    passes     options of passes that the module is, or was, compiled with
    A result that changes by about as much with different rounding is unstable, not different, whatever the tolerance.
    Known causes are named (causes.py). Raises HlocError if one of both does not compile or run.
    """
    calls = dict(custom_calls or {})
    exe = target if isinstance(target, Executable) else _compiled(module, target, calls, report, passes)
    other = _runner(module, against, calls, report, passes) if expected is None else None
    expect = check_expected(entry_results(module), expected) if expected is not None else []
    on_gpu = "cuda" in (target, against) or exe.target.startswith("sm_")
    products = product_precision(module, passes or {}) if on_gpu else ""
    arrays = host_arrays(exe.parameters, arrays)
    report(f"run on {against}")
    want = other(arrays) if other else expect
    report(f"run on {exe.target}")
    got = exe(*arrays)
    rows = compare(exe.results, got, want, tolerance, products)
    if all(r.agrees for r in rows):
        return rows
    report("run with changed rounding")
    if other and against != "reference":
        rows = with_stability(rows, exe.results, want, other(nudged(arrays)))
    for plain, moved in _perturbed(module, arrays, calls):
        rows = with_stability(rows, exe.results, plain, moved)
    report("look for the cause")
    names = exe.target, against if expected is None else "what is expected"
    causes = causes_of(module, arrays, rows, exe.results, got, want, _for_evaluator(calls), names)
    return [row._replace(causes=own) for row, own in zip(rows, causes)]


def check_devices(module: Module, arrays: Sequence[Sequence[np.ndarray]], devices: Sequence[SimulatedDevice], *,
                  target: str, changed: Module | None = None, options: Options | None = None,
                  tolerance: float | None = None) -> list[Difference]:
    """One Difference per device and result, `target` against the evaluator. arrays: each device's inputs; devices: new
    ones of one simulation; changed: the module that the target compiles, if not the module itself."""
    options = options or Options()
    executables = compile_for_devices(changed or module, devices, target, options=options)
    options.report(f"run on {target}")
    got = run_concurrently(devices, [partial(exe, *own) for exe, own in zip(executables, arrays)])
    options.report("run on reference")
    want = _on_devices(module, arrays, options)
    results = executables[0].results
    rows = [compare(results, *both, tolerance) for both in zip(got, want)]
    if not all(r.agrees for own in rows for r in own):
        options.report("run with changed rounding")
        moved = _on_devices(module, [nudged(own) for own in arrays], options)
        rows = [with_stability(own, results, *both) for own, both in zip(rows, zip(want, moved))]
    return [row._replace(name=f"device {number}: {row.name}") for number, own in enumerate(rows) for row in own]


def _on_devices(module: Module, arrays: Sequence[Sequence[np.ndarray]], options: Options) -> list[tuple]:
    return evaluate_devices(module, arrays, custom_calls=_for_evaluator(options.custom_calls))


def check_expected(results: Sequence[Named], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results from a file. Raises RunError for another number, type or shape."""
    if len(arrays) != len(results):
        raise RunError(f"the module gives {len(results)} results, but {len(arrays)} are expected")
    return [_as_result(result, array) for result, array in zip(results, arrays)]


def _as_result(result: Named, array: np.ndarray) -> np.ndarray:
    dtype = numpy_dtype(result.shape.element_type)
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        array = array.view(dtype)                      # .npy files keep bf16 and f8 as raw bytes
    if array.dtype != dtype or (array.shape != result.shape.dimensions and not result.shape.is_dynamic):
        raise RunError(f"{result.name} is {result.shape.to_string(False)}, but "
                       f"{array.dtype}[{','.join(map(str, array.shape))}] is expected")
    return array


def _for_evaluator(calls: dict) -> dict:
    return {name: lambda _, *given, f=f: f(*given) for name, f in calls.items()}


def _perturbed(module: Module, arrays: Sequence[np.ndarray], calls: dict) -> list[tuple]:
    """The evaluator's results, plain and with each operation changed by one unit in the last place. None if it cannot
    run the module: then the other side runs with changed inputs."""
    try:
        plain, own = evaluate(module, arrays, custom_calls=_for_evaluator(calls)), _for_evaluator(calls)
        return [(plain, perturbed_results(module, arrays, own, seed)) for seed in range(SHAKES)]
    except HlocError:
        return []


def _compiled(module: Module, target: str, calls: dict, report: Report,
              passes: Mapping[str, Any] | None) -> Executable:
    return compile(module, target, options=Options(progress=report, custom_calls=calls, passes=dict(passes or {})))


def _runner(module: Module, against: str, calls: dict, report: Report,
            passes: Mapping[str, Any] | None) -> Callable:
    """The other side as a function from arrays to arrays."""
    if against == "xla":
        from hloc.tools.xla import xla_runner
        return xla_runner(module)
    exe = _compiled(module, against, calls, report, passes)
    return lambda arrays: exe(*arrays)
