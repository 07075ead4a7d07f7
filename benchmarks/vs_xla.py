"""hloc against XLA:CPU on the same HLO text and the same inputs, in one process per module, run by run in turn.

    python benchmarks/vs_xla.py [FOLDER or MODULE ...] [--seconds 6] [--minutes 11] [--resume] [--output PATH]

Without arguments: the models of testdata/models. For each module: the medians of XLA, of hloc and of hloc with
`--fusion off`, two at a time run in turn for --seconds in all; the seconds to parse, to compile cold (the library
kernels of hloc/targets/cpu/runtime lie in the cache, the module does not) and warm, and XLA's; the memory that the
first run takes beside parameters, as the process's resident size grows, for both, and what `hloc memory` said; the
least time that the machine allows and the most that fusion could gain (floor.py); whether the outputs agree, by the
tolerances of `hloc check`.

Every finished module is written to PATH.json at once. After --minutes no further module is begun; --resume goes on
where a file of the same name ends. At the end: PATH.png (where matplotlib is), and with --docs the tables of
docs/benchmarks.md. PATH is benchmarks/results/DATE unless given.

Needs XLA: pip install 'hloc[jax,bench]'. A module that one side cannot do is listed with the reason.
"""
from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import report
from floor import Floor

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent / "testdata" / "models"
FEWEST_ROUNDS, MOST_ROUNDS = 3, 200


# -- one module, in a process of its own -------------------------------------------------------------------------------

def measure(path: Path, seconds: float) -> dict:
    """All figures of one module; --fusion off is compiled first, so that the library kernels are there."""
    import hloc
    from hloc.tools.compare import compare
    unfused = hloc.Options(passes={"fusion": "off"})
    plain = hloc.compile(hloc.load(path, elided="sensible:0"), target="cpu", options=unfused)
    found: dict = {}
    module = timed(found, "parse", lambda: hloc.load(path, elided="sensible:0"))
    timed(found, "compile_cold", lambda: hloc.compile(module, target="cpu"))
    exe = timed(found, "compile_warm", lambda: hloc.compile(module, target="cpu"))
    found["instructions"] = sum(len(c.instructions) for c in module.computations)
    arrays = inputs_of(path, module, exe)
    xla = Xla(module, arrays)
    found |= {"compile_xla": xla.compile_seconds, "memory_told": exe.backend.program.arena_size + bytes_of(exe.results)}
    found["memory"], results = growth(lambda: exe(*arrays))
    found["memory_xla"], expected = growth(lambda: xla.run()[1])
    rows = compare(exe.results, results, expected, None)
    found["error"] = max((r.error for r in rows), default=0.0)
    found["agrees"] = all(r.agrees for r in rows)
    plain(*arrays)
    floor = Floor()
    found |= {"floor": floor.seconds(module, arrays), "most_fusion": floor.most_fusion(module, arrays)}
    found |= in_turn({"xla": lambda: xla.run(False)[0], "hloc": lambda: seconds_of(exe, arrays)}, seconds / 2)
    return found | in_turn({"fused": lambda: seconds_of(exe, arrays), "unfused": lambda: seconds_of(plain, arrays)},
                           seconds / 2)


def timed(found: dict, name: str, function: Callable):
    """What the function returns; its seconds go into `found`."""
    start = time.perf_counter()
    result = function()
    found[name] = time.perf_counter() - start
    return result


def in_turn(sides: dict[str, Callable[[], float]], seconds: float) -> dict[str, float]:
    """The median seconds of two sides; every other round in reverse. Each then follows the other in one round and
    itself in the next: who follows itself finds its data in the cache and its threads awake."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    start, done = time.perf_counter(), 0
    while done < FEWEST_ROUNDS or (done < MOST_ROUNDS and time.perf_counter() - start < seconds):
        for name in sides if done % 2 == 0 else reversed(sides):
            times[name].append(sides[name]())
        done += 1
    return {name: statistics.median(values) for name, values in times.items()} | {"rounds": done}


def seconds_of(exe, arrays) -> float:
    start = time.perf_counter()
    exe(*arrays)
    return time.perf_counter() - start


def growth(function: Callable) -> tuple[int | None, object]:
    """By how many bytes the resident size of this process rises, at most, while the function runs; and its result.

    None where Linux does not tell. Memory that the process had before and uses again does not count.
    """
    try:
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")               # the high-water mark starts anew
    except OSError:
        return None, function()
    result = function()
    return max(0, resident("VmHWM") - before), result


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def bytes_of(values) -> int:
    return sum(v.shape.num_bytes for v in values)


def inputs_of(path: Path, module, exe) -> list:
    """The model's own inputs where it is one of testdata/models and they are there, else sensible ones."""
    from hloc.inputs import check_arrays
    from hloc.inputs.sensible import sensible_arrays
    if path.parent.parent == MODELS:
        sys.path.insert(0, str(MODELS))
        import models
        model = models.find(path.parent.name)
        if models.is_ready(model):
            return check_arrays(exe.parameters, models.inputs(model))
    return sensible_arrays(module)


class Xla:
    """The module compiled by XLA:CPU, with its inputs on the device."""

    def __init__(self, module, arrays):
        from hloc.tools.xla import xla_runner
        self.program = xla_runner(module)
        self.compile_seconds = self.program.compile_seconds
        self.arguments = self.program.placed(arrays)

    def run(self, wanted: bool = True):
        """Seconds of one run, and the outputs where they are wanted."""
        import numpy as np
        start = time.perf_counter()
        answers = self.program.execute(self.arguments)
        seconds = time.perf_counter() - start
        return seconds, tuple(np.asarray(a) for a in answers) if wanted else None


# -- all modules -------------------------------------------------------------------------------------------------------

def modules_in(places: list[Path]) -> list[Path]:
    """HLO files among files and folders, each once. Ends the program where a place holds none."""
    found: dict[Path, None] = {}
    for place in places:
        paths = sorted(place.rglob("*.hlo")) if place.is_dir() else [place]
        if not paths or not paths[0].is_file():
            sys.exit(f"{place}: {'no .hlo file is in this folder' if place.is_dir() else 'no such file or folder'}")
        found |= {path.resolve(): None for path in paths}
    return list(found)


def name_of(path: Path) -> str:
    return path.parent.name if path.name == "model.hlo" else path.stem


def measure_in_process(path: Path, seconds: float, timeout: float, cache: str) -> dict:
    """`measure` in a child process; {"failed": reason} where it ends otherwise."""
    command = [sys.executable, __file__, "--one", str(path), "--seconds", str(seconds)]
    environment = {**os.environ, "HLOC_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {timeout:.0f} s"}
    line = next((x for x in done.stdout.splitlines() if x.startswith("{")), None)
    if line is None:
        return {"failed": reason_of(done.stderr).replace(f"{path.parent}/", "")}
    return json.loads(line)


def reason_of(stderr: str) -> str:
    """The line of a traceback that says what happened, without paths."""
    lines = [x for x in stderr.splitlines() if "rror" in x and not x.startswith(" ")]
    return (lines or ["no output"])[-1].split("Error: ", 1)[-1][:200].replace(str(Path.home()), "~")


def machine() -> dict:
    """What the figures depend on, without names of hosts or users."""
    import numpy as np
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), cpu)
    except OSError:
        pass
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    try:
        import jax
        versions["jax"] = jax.__version__
    except ImportError:
        pass
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 1),
            "compiler": compiler_version(), **versions}


def compiler_version() -> str:
    from hloc.targets.cpu.building import toolchain
    return toolchain.find().version


def measure_all(paths: list[Path], asked: argparse.Namespace, state: dict, save: Callable[[], None]) -> None:
    """Measure each path that `state` does not hold yet; save after each."""
    known = {row["module"] for row in state["modules"]}
    end = time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory() as cache:
        for number, path in enumerate(paths, 1):
            if name_of(path) in known:
                continue
            left = end - time.monotonic()
            if left <= 0:
                print(f"{len(paths) - number + 1} modules left: time is up (--minutes); --resume goes on", flush=True)
                return
            print(f"[{number}/{len(paths)}] {name_of(path)} ...", end="\r", file=sys.stderr, flush=True)
            found = measure_in_process(path, asked.seconds, max(60.0, left), cache)
            state["modules"].append({"module": name_of(path), **found})
            state["summary"] = report.summary(state["modules"])
            save()
            print(report.line(state["modules"][-1]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, metavar="FOLDER or MODULE")
    parser.add_argument("--seconds", type=float, default=6, help="of runs per module, all sides together")
    parser.add_argument("--minutes", type=float, default=11, help="after which no further module is begun")
    parser.add_argument("--resume", action="store_true", help="go on where the output file ends")
    parser.add_argument("--output", type=Path, help="path without ending; default: results/DATE")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md's tables and README.md's figures")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one, asked.seconds)))
        return
    modules = modules_in(asked.places or [MODELS])
    try:
        import jax  # noqa: F401
    except ImportError:
        sys.exit("XLA is not here: pip install 'hloc[jax,bench]'")
    date = datetime.date.today().isoformat()
    output = asked.output or HERE / "results" / date
    target = output.with_name(output.name + ".json")
    state = {"date": date, "machine": machine(), "summary": {}, "modules": []}
    if asked.resume and target.is_file():
        state = json.loads(target.read_text())
        state["modules"] = [row for row in state["modules"] if "failed" not in row]
    output.parent.mkdir(parents=True, exist_ok=True)
    print(report.HEADER)
    measure_all(modules, asked, state,
                lambda: target.write_text(json.dumps(state, indent=1) + "\n"))
    print(json.dumps(state["summary"], indent=1))
    report.plot(state, output.with_name(output.name + ".png"))
    if asked.docs:
        report.write_docs(state, HERE.parent / "docs" / "benchmarks.md", output)
        tables = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((HERE / "results").glob("2*.json"))]
        report.write_readme(tables, HERE.parent / "README.md")


if __name__ == "__main__":
    main()
