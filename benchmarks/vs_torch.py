"""hloc beside PyTorch on the CPU: a ViT, a decoder's prefill, a ConvNeXt, ResNet-50, and single layers of them.

    python benchmarks/vs_torch.py [--programs NAME ...] [--threads N] [--rounds N] [--output FILE.json]
    python benchmarks/vs_torch.py --list
    python benchmarks/vs_torch.py --programs vit resnet50 --threads 1
    python benchmarks/vs_torch.py --programs layers --rounds 50

Each program (networks/programs.py) is written once; JAX exports it to HLO for hloc, PyTorch runs it with the same
weights. Five sides run in turn in one process, forwards in one round and backwards in the next:

    hloc      weights are arguments of each call            eager      PyTorch without a compiler
    bound     exe.bind(weights): packed once                inductor   torch.compile
                                                            frozen     torch.compile with freezing: packed once

Every side's result is compared with PyTorch's in f64; a wrong one ends the script with exit code 1 after the table.
Figures are milliseconds of CPU time (all threads of the process), the median of all rounds; ratios are medians of the
ratios within each round, of CPU time and of wall time. On a busy machine CPU time is the steadier one, and only
--threads 1 says anything: OpenMP's threads spin while they wait for one that another process holds up.

Needs PyTorch (a CPU build will do), JAX, and a C++ compiler for torch.compile: pip install 'hloc[jax,torch]'.
"""
from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from networks.programs import LAYERS, NETWORKS, PROGRAMS, Program
from vs_xla import machine, reason_of

HERE = Path(__file__).resolve().parent
SIDES = ("hloc", "bound", "eager", "inductor", "frozen")
RATIOS = (("hloc", "inductor"), ("bound", "inductor"), ("bound", "frozen"), ("hloc", "eager"))
# Largest error relative to the largest magnitude of the result in f64: four layers in bf16 lose 0.02 in all libraries.
TOLERANCES = {"f32": 1e-4, "bf16": 5e-2}
SHORTEST = 0.03                  # seconds of one side in one round: a short program is called several times
PAUSE = 0.005                    # seconds before a side, in which the threads of the other library fall asleep
TIMEOUT = 900                    # seconds of one program; torch.compile takes most of them


# -- one program, in a process of its own ------------------------------------------------------------------------------

def measure(name: str, threads: int, rounds: int) -> dict:
    """All figures of one program. Environment variables of threads are set before."""
    import torch
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    program = PROGRAMS[name]
    calls, wanted = sides_of(program)
    found: dict = {"compile": {}, "error": {}}
    for side, start in calls.items():
        began = time.perf_counter()
        call = start()
        result = call()
        found["compile"][side] = time.perf_counter() - began
        found["error"][side] = error_of(np.asarray(result, np.float64), wanted)
        calls[side] = call
    found["wrong"] = [side for side in SIDES if not found["error"][side] <= TOLERANCES[program.dtype]]
    return found | summary(timed(calls, rounds))


def sides_of(program: Program) -> tuple[dict[str, Callable], np.ndarray]:
    """For each side a function that compiles it and returns its call; and the right result."""
    import torch
    from networks import operations

    import hloc
    weights = operations.weights_of(program)
    x = np.random.default_rng(1).standard_normal(program.input).astype(np.float32)
    arrays = {key: np.asarray(value, operations.JAX_TYPES[program.dtype]) for key, value in weights.items()}
    array = aligned(np.asarray(x, operations.JAX_TYPES[program.dtype]))
    tensor = torch.from_numpy(x).to(operations.TORCH_TYPES[program.dtype])
    wanted = operations.torch_module(program, weights, "f64")(torch.from_numpy(x).double()).numpy()

    def of_hloc(bound: bool) -> Callable:
        compiled = hloc.compile(operations.jax_function(program), arrays, array, target="cpu")
        if not bound:
            return lambda: compiled(arrays, array)
        fixed = compiled.bind(arrays)
        return lambda: fixed(array)

    def of_torch(compiler: Callable) -> Callable:
        module = compiler(operations.torch_module(program, weights))
        return lambda: module(tensor) if program.dtype == "f32" else module(tensor).float()

    return {"hloc": lambda: of_hloc(False), "bound": lambda: of_hloc(True), "eager": lambda: of_torch(lambda m: m),
            "inductor": lambda: of_torch(lambda m: torch.compile(m, fullgraph=True)),
            "frozen": lambda: of_torch(lambda m: torch.compile(m, fullgraph=True, options={"freezing": True}))}, wanted


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a cache line, as PyTorch's tensors do."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start:start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def error_of(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest error, relative to the largest magnitude; infinite for another shape, NaN for a NaN."""
    return float(np.abs(got - wanted).max() / np.abs(wanted).max()) if got.shape == wanted.shape else math.inf


def timed(calls: dict[str, Callable], rounds: int) -> list[dict[str, tuple[float, float]]]:
    """For each round and side the seconds of one call: of all threads' CPU time, and of wall time."""
    took = {side: seconds_of(call, 1)[1] for side, call in calls.items()}
    found = []
    for number in range(rounds):
        row = {}
        for side in calls if number % 2 == 0 else reversed(calls):
            time.sleep(PAUSE)
            row[side] = seconds_of(calls[side], math.ceil(SHORTEST / took[side]))
        found.append(row)
    return found


def seconds_of(call: Callable, times: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(times):
        call()
    return (time.process_time() - cpu) / times, (time.perf_counter() - wall) / times


def summary(rounds: list[dict[str, tuple[float, float]]]) -> dict:
    """Medians: milliseconds of each side, and the ratios within rounds."""
    found: dict = {}
    for clock, place in (("cpu", 0), ("wall", 1)):
        found[clock] = {side: statistics.median(row[side][place] for row in rounds) * 1e3 for side in rounds[0]}
        found[f"{clock}_ratio"] = {
            f"{one}/{other}": statistics.median(row[one][place] / row[other][place] for row in rounds)
            for one, other in RATIOS}
    return found


# -- all programs ------------------------------------------------------------------------------------------------------

def measure_in_process(name: str, threads: int, rounds: int) -> dict:
    """`measure` in a child process; {"failed": reason} if it ends otherwise."""
    command = [sys.executable, __file__, "--one", name, "--threads", str(threads), "--rounds", str(rounds)]
    environment = {**os.environ, "HLOC_THREADS": str(threads), "OMP_NUM_THREADS": str(threads),
                   "PYTHONPATH": os.pathsep.join([str(HERE.parent), *filter(None, sys.path)])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {TIMEOUT} s"}
    line = next((x for x in done.stdout.splitlines() if x.startswith("{")), None)
    return json.loads(line) if line else {"failed": reason_of(done.stderr)}


def table(rows: dict[str, dict]) -> str:
    """Markdown: milliseconds of CPU time, ratios of CPU time (wall time)."""
    titles = ["program", *(f"{side} ms" for side in SIDES), *(f"{one} / {other}" for one, other in RATIOS[:3])]
    lines = ["| " + " | ".join(titles) + " |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    for name, row in rows.items():
        if "failed" in row:
            continue
        cells = [f"{row['cpu'][side]:.2f}" for side in SIDES]
        cells += [f"{row['cpu_ratio'][f'{a}/{b}']:.2f} ({row['wall_ratio'][f'{a}/{b}']:.2f})" for a, b in RATIOS[:3]]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *means(rows)])


def means(rows: dict[str, dict]) -> list[str]:
    """Geometric means of the ratios of CPU time."""
    found = []
    for kind, names in (("networks", NETWORKS), ("layers", LAYERS)):
        done = [row for name, row in rows.items() if name in names and "failed" not in row]
        if done:
            parts = [f"{a} / {b} {geometric_mean(r['cpu_ratio'][f'{a}/{b}'] for r in done):.2f}" for a, b in RATIOS]
            found.append(f"Geometric means over {len(done)} {kind}, CPU time: {', '.join(parts)}.")
    return found


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(v) for v in values))


def problems(rows: dict[str, dict]) -> list[str]:
    """What is wrong, or failed."""
    return [f"{name}: {row['failed']}" for name, row in rows.items() if "failed" in row] + \
           [f"{name}: {side} is wrong: its error is {row['error'][side]:.1e} of the largest magnitude"
            for name, row in rows.items() for side in row.get("wrong", ())]


def missing() -> str:
    """What this needs and is not installed."""
    absent = [name for name in ("hloc", "torch", "jax") if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed: pip install 'hloc[jax,torch]'"
    compiler = os.environ.get("CXX", "g++").split()[0]
    return "" if shutil.which(compiler) else f"torch.compile needs a C++ compiler: {compiler} is not installed"


def chosen(names: list[str]) -> list[str]:
    """Names of programs; "networks" and "layers" stand for all of them. Ends the script for an unknown one."""
    groups = {"networks": list(NETWORKS), "layers": list(LAYERS)}
    found = [name for word in names or list(groups) for name in groups.get(word, [word])]
    unknown = [name for name in found if name not in PROGRAMS]
    if unknown:
        sys.exit(f"no program is called {unknown[0]}; there are networks, layers, {', '.join(PROGRAMS)}")
    return list(dict.fromkeys(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME", help="these alone (see --list)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: as many as cores")
    parser.add_argument("--rounds", type=int, default=15, help="each side runs in each of them (default: 15)")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/torch-DATE.json")
    parser.add_argument("--list", action="store_true", help="print the programs and stop")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(f"{name:14} {program.text}" for name, program in PROGRAMS.items()))
        return
    if asked.threads < 1 or asked.rounds < 1:
        parser.error("--threads and --rounds are at least 1")
    names = chosen(asked.programs)
    if missing():
        sys.exit(missing())
    if asked.one:
        print(json.dumps(measure(asked.one, asked.threads, asked.rounds)))
        return
    import torch
    date = datetime.date.today().isoformat()
    state = {"date": date, "machine": machine() | {"torch": torch.__version__}, "threads": asked.threads,
             "rounds": asked.rounds, "programs": {}}
    output = asked.output or HERE / "results" / f"torch-{date}.json"
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name} ...", file=sys.stderr, flush=True)
        state["programs"][name] = measure_in_process(name, asked.threads, asked.rounds)
        output.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    print(table(state["programs"]))
    print(f"written to {output}")
    if found := problems(state["programs"]):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
