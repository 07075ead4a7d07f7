"""Every kernel of the large programs by itself: its time beside what the cost model predicts, and XLA's kernels.

Each distinct kernel is launched several times in a CUDA graph, its data warm, none before the last one has ended. The
JSON file has all of them, in "kernels": launch, grid, block, shared memory, uses in a run, microseconds, predicted
microseconds, instruction. The table has the programs, and of each the kernels that take most of its run. XLA's
kernels are those that JAX's profiler sees in one run, in "xla_kernels": name, uses, microseconds together.
"""
from __future__ import annotations

import gzip
import json
import math
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_sections import xla
from gpu_sections.programs import Case, cases, container_path, source
from hloc import api
from hloc.errors import HlocError
from hloc.kernels.plan import Branch, Launch, Program, Step, WhileLoop
from hloc.targets.cuda.costs.steps import timed_steps
from hloc.targets.cuda.execution.loaded import launches
from hloc.targets.cuda.execution.runtime import CudaBackend
from hloc.targets.cuda.sources import CudaSources

PROGRAMS = ("ResNet-50 training step, bf16, 128 images of 224x224",
            "ResNet-50 training step, f32, 128 images of 224x224", "gpt2_generate", "gpt2_prefill", "transformer_train",
            "resnet50", "unet_block", "lstm")
LAUNCHES, GRAPH_SECONDS = 20, 1e-3      # of one kernel in a graph: at most so many, and about so long
SHOWN = 6                               # kernels of a program in the table


# -- predictions, made where a program is compiled ---------------------------------------------------------------------

def write_predictions(device, name: str, planned: Program, sources: CudaSources) -> None:
    """Beside the program's container: of each launch its function, predicted microseconds, and instruction."""
    found: dict[str, list] = {}
    for step, told in zip(*timed_steps(planned, sources, device.machine)):
        if isinstance(step, Launch):
            us = None if told.predicted is None else round(told.predicted * 1e6, 2)
            found.setdefault(told.kernel, [us, f"{told.instruction.name} = {told.instruction.opcode}"])
    path = predictions_path(name)
    assert path is not None                                  # `prepare` has a folder
    path.write_text(json.dumps(found))


def predictions_path(name: str) -> Path | None:
    made = container_path(name, "kernels")
    return made.with_suffix(".json") if made else None


# -- measuring ---------------------------------------------------------------------------------------------------------

def rows(device) -> Iterator[dict]:
    for case in cases(device):
        if case.name in PROGRAMS or device.emulated and case.text:
            try:
                yield from measured(device, case, *source(case, device))
            except (HlocError, LookupError, subprocess.TimeoutExpired) as error:
                yield {"what": case.name, "missing": (str(error).strip() or type(error).__name__).splitlines()[0]}


def measured(device, case: Case, text, arrays) -> Iterator[dict]:
    told = predictions_path(case.name)
    predicted = json.loads(told.read_text()) if told and told.exists() else {}
    backend = device.program(text, arrays, "on", case.name)
    run = device.seconds(backend, 0.05) * 1e6
    backend.recorder.early_start, backend.graphs = False, {}         # what is captured from here on
    without = device.seconds(backend, 0.05) * 1e6
    found = [[*row, *predicted.get(row[0], [None, ""])] for row in kernel_times(device, backend)]
    backend.close()
    together = sum(uses * us for *_, uses, us, _, _ in found)
    known = [(us, guess) for *_, us, guess, _ in found if guess]
    error = math.exp(sum(abs(math.log(us / guess)) for us, guess in known) / len(known)) if known else 0
    total = sum(uses * guess for *_, uses, _, guess, _ in found if guess)
    yield {"what": case.name, "value": run, "unit": "us", "kernels": found,
           "compared": {"the time without early starts": run / without,
                        **({"the prediction": run / total} if total else {})},
           "note": f"{len(found)} kernels, alone together {together:,.0f} us; predicted {total:,.0f} us, "
                   f"geometric error of a kernel {error:.2f}", **xla_kernels(device, case, text, arrays)}
    for function, *_, uses, us, guess, about in sorted(found, key=lambda row: -row[4] * row[5])[:SHOWN]:
        yield {"what": f"{case.name[:24]}: {function}", "value": us, "unit": "us",
               "compared": {"the prediction": us / guess} if guess else {}, "note": f"{uses} times; {about}"}


def kernel_times(device, backend: CudaBackend) -> list[list[Any]]:
    """Function, grid, block, shared memory, uses in a run, and microseconds in a graph of each distinct kernel."""
    uses = Counter[int]()
    count_uses(backend.packed.steps, 1, uses)
    first = {}
    for step in launches(backend.packed.steps):
        first.setdefault(step.kernel, step)
    found = []
    for number, step in first.items():
        start = backend.packed.kernels[number]
        us = seconds_of(device, backend, step) * 1e6
        found.append([start.function, list(start.grid), list(start.block), start.shared, uses[number], round(us, 2)])
    return found


def count_uses(steps: Sequence[Step], times: int, uses: Counter[int]) -> None:
    """Launches of each kernel in a run. A loop whose trip count only the device knows counts once, a conditional as
    its first branch."""
    for step in steps:
        if isinstance(step, Launch):
            uses[step.kernel] += times
        elif isinstance(step, WhileLoop):
            count_uses(step.condition, times, uses)
            count_uses(step.body, times * (1 if step.trip_count is None else step.trip_count), uses)
        elif isinstance(step, Branch):
            count_uses(step.branches[0], times, uses)


def seconds_of(device, backend: CudaBackend, step: Launch) -> float:
    """Of one launch among equal ones in a graph."""
    once = device.median(lambda: backend.record((step,)), backend.stream, backend.context, 0.0, 1)
    count = max(1, min(LAUNCHES, int(GRAPH_SECONDS / once)))
    return device.in_graph(backend, lambda: backend.record((step,) * count), 0.0, 3) / count


# -- XLA ---------------------------------------------------------------------------------------------------------------

def xla_kernels(device, case: Case, text, arrays) -> dict[str, Any]:
    """What JAX's profiler tells of a run of XLA's program, where `prepare` has compiled it; else nothing."""
    made = xla.path_of(case.name)
    if made is None or not made.exists() or arrays is None or xla.xla_missing(device):
        return {}
    try:
        return {"xla_kernels": profiled(xla.Xla(case.name, api.load(text), arrays))}
    except Exception as error:                              # of any kind: JAX's inner interfaces change
        return {"xla_missing": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def profiled(program: xla.Xla) -> list[list[Any]]:
    """Kernel, uses, and microseconds together, of one run; the longest first."""
    import jax
    program.run()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            program.run()
        (trace,) = Path(folder).rglob("*.trace.json.gz")
        with gzip.open(trace, "rt") as file:
            events = json.load(file)["traceEvents"]
    devices = {e["pid"] for e in events if e.get("name") == "process_name" and "GPU" in e["args"]["name"]}
    streams = {(e["pid"], e["tid"]) for e in events if e.get("name") == "thread_name" and e["pid"] in devices
               and "Stream" in e["args"]["name"]}
    total, uses = Counter[str](), Counter[str]()
    for event in events:
        if event.get("ph") == "X" and (event["pid"], event["tid"]) in streams:
            total[event["name"]] += event["dur"]
            uses[event["name"]] += 1
    return [[name[:120], uses[name], round(us, 2)] for name, us in total.most_common()]
