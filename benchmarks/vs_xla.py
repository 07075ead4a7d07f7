"""hloc against XLA:CPU on the same HLO text and the same inputs, in one process per module, run by run in turn.

    python benchmarks/vs_xla.py [FOLDER or MODULE ...] [--runs 15] [--timeout 900] [--output benchmarks/results/NAME]

Without arguments: the models of testdata/models. For each module: the medians of both, and of hloc without fusion; the
seconds to parse, to compile cold (empty cache) and warm (a second process's view: the cache is full), and XLA's; the
bytes that a run allocates beside its parameters, told before the run, and XLA's; whether the outputs agree, by the
tolerances of `hloc check`. Writes NAME.json and, where matplotlib is (the `bench` extra), NAME.png.

Needs XLA: pip install 'hloc[jax,bench]'. A module that one side cannot do is listed with the reason.
"""
from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent / "testdata" / "models"
LONGEST_SECONDS = 60            # spent on one module's runs once there are five


# -- one module, in a process of its own -------------------------------------------------------------------------------

def measure(path: Path, runs: int) -> dict:
    """All figures of one module."""
    import hloc
    from hloc.tools.compare import compare
    found: dict = {}
    start = time.perf_counter()
    module = hloc.load(path)
    found["parse"] = time.perf_counter() - start
    start = time.perf_counter()
    exe = hloc.compile(path, target="cpu")
    found["compile_cold"] = time.perf_counter() - start
    start = time.perf_counter()
    exe = hloc.compile(path, target="cpu")
    found["compile_warm"] = time.perf_counter() - start
    found["instructions"] = sum(len(c.instructions) for c in module.computations)
    arrays = inputs_of(path, exe)
    xla = Xla(module, arrays)
    found |= {"compile_xla": xla.compile_seconds, "memory": bytes_beside_parameters(module),
              "memory_xla": xla.bytes_beside_parameters()}
    rows = compare(exe.results, exe(*arrays), xla.run()[1], None)
    found["error"] = max((r.error for r in rows), default=0.0)
    found["agrees"] = all(r.agrees for r in rows)
    found |= in_turn({"xla": lambda: xla.run()[0], "hloc": lambda: seconds_of(exe, arrays)}, runs)
    plain = unfused(path)
    if plain is not None:
        plain(*arrays)
        found |= in_turn({"fused": lambda: seconds_of(exe, arrays), "unfused": lambda: seconds_of(plain, arrays)}, runs)
    return found


def in_turn(sides: dict[str, Callable[[], float]], runs: int) -> dict[str, float]:
    """The median seconds of each side; every other round in reverse, since who comes second finds warm caches."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    start, done = time.perf_counter(), 0
    while done < runs and (done < 5 or time.perf_counter() - start < LONGEST_SECONDS):
        for name in sides if done % 2 == 0 else reversed(sides):
            times[name].append(sides[name]())
        done += 1
    return {name: statistics.median(values) for name, values in times.items()}


def seconds_of(exe, arrays) -> float:
    start = time.perf_counter()
    exe(*arrays)
    return time.perf_counter() - start


def inputs_of(path: Path, exe) -> list:
    """The model's own inputs where it is one of testdata/models and they are there, else random ones."""
    from hloc.inputs import check_arrays, random_arrays
    if path.parent.parent == MODELS:
        sys.path.insert(0, str(MODELS))
        import models
        model = models.find(path.parent.name)
        if models.is_ready(model):
            return check_arrays(exe.parameters, models.inputs(model))
    return random_arrays(exe.parameters, 0)


def unfused(path: Path):
    """The executable without the fusion pass; None where not everything can be lowered alone."""
    import hloc
    from hloc.api import Options, plan
    from hloc.passes.context import PassContext
    from hloc.passes.pipelines import pipeline_for
    from hloc.passes.runner import run_passes
    from hloc.targets import find
    target, module = find("cpu"), hloc.load(path)
    passes = [p for p in pipeline_for("cpu") if getattr(p, "__name__", "") != "fusion"]
    try:
        run_passes(module, passes, PassContext(machine=target.machine, target="cpu"), verify=False)
        exe = target.executable(plan(module, target), module, Options())
        _ = exe.backend
    except hloc.HlocError:
        return None
    return exe


def bytes_beside_parameters(module) -> int:
    """What a run of hloc allocates: results and arena, as `hloc memory` says."""
    from hloc.api import optimize
    from hloc.ir.clone import clone_module
    from hloc.kernels.memory import memory_use
    from hloc.targets import find
    target = find("cpu")
    use = memory_use(optimize(clone_module(module), target), target.machine)
    return use.arena + use.results


class Xla:
    """The module compiled by XLA:CPU, with its inputs on the device."""

    def __init__(self, module, arrays):
        import jax
        from jaxlib import _hlo, _jax

        from hloc.tools.xla_text import text_for_xla
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        device = jax.devices("cpu")[0]
        proto = _hlo.hlo_module_from_text(text_for_xla(module)).as_serialized_hlo_module_proto()
        stablehlo = _jax.mlir.hlo_to_stablehlo(proto)
        start = time.perf_counter()
        self.compiled = device.client.compile_and_load(stablehlo, _jax.DeviceList((device,)), _jax.CompileOptions())
        self.compile_seconds = time.perf_counter() - start
        self.arguments = [jax.device_put(a, device) for a in arrays]

    def run(self):
        """Seconds of one run, and the outputs."""
        import numpy as np
        start = time.perf_counter()
        answers = self.compiled.execute_sharded(self.arguments).disassemble_into_single_device_arrays()
        for answer in answers:
            answer[0].block_until_ready()
        seconds = time.perf_counter() - start
        return seconds, tuple(np.array(a[0]) for a in answers)

    def bytes_beside_parameters(self) -> int | None:
        stats = self.compiled.get_compiled_memory_stats()
        return stats.temp_size_in_bytes + stats.output_size_in_bytes


# -- all modules -------------------------------------------------------------------------------------------------------

def modules_in(places: list[Path]) -> list[Path]:
    """HLO files among files and folders, each once."""
    found: dict[Path, None] = {}
    for place in places:
        for path in sorted(place.rglob("*.hlo")) if place.is_dir() else [place]:
            found[path.resolve()] = None
    return list(found)


def name_of(path: Path) -> str:
    return path.parent.name if path.name == "model.hlo" else path.stem


def measure_apart(path: Path, runs: int, timeout: int) -> dict:
    """`measure` in a child process with an empty cache; {"failed": reason} where it ends otherwise."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--one", str(path), "--runs", str(runs)]
        environment = {**os.environ, "HLOC_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(sys.path)}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
        except subprocess.TimeoutExpired:
            return {"failed": f"no answer in {timeout} s"}
    line = next((x for x in done.stdout.splitlines() if x.startswith("{")), None)
    if line is None:
        return {"failed": reason_of(done.stderr)}
    return json.loads(line)


def reason_of(stderr: str) -> str:
    """The line of a traceback that says what happened, without paths."""
    lines = [x for x in stderr.splitlines() if "rror" in x and not x.startswith(" ")]
    return (lines or ["no output"])[-1].split(": ", 1)[-1][:160].replace(str(Path.home()), "~")


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
    from hloc.targets.cpu import toolchain
    return toolchain.find().version


def mean(rows: list[dict], key) -> float:
    """Geometric mean of a ratio."""
    return math.exp(statistics.fmean(math.log(max(key(r), 1e-9)) for r in rows)) if rows else math.nan


def summary(rows: list[dict]) -> dict:
    done = [r for r in rows if "hloc" in r]
    both = [r for r in done if "unfused" in r]
    return {
        "modules": len(done), "failed": len(rows) - len(done), "disagree": sum(not r["agrees"] for r in done),
        "run": mean(done, lambda r: r["hloc"] / r["xla"]), "slower": sum(r["hloc"] > r["xla"] for r in done),
        "compile_cold": mean(done, lambda r: r["compile_cold"] / r["compile_xla"]),
        "compile_warm_seconds": statistics.median(r["compile_warm"] for r in done) if done else math.nan,
        "fusion": mean(both, lambda r: r["unfused"] / r["fused"])}


def show(row: dict) -> str:
    if "hloc" not in row:
        return f"{row['module'][-44:]:44} {row['failed']}"
    fusion = f"{row['unfused'] / row['fused']:6.2f}" if "unfused" in row else "     -"
    ratio = row["hloc"] / row["xla"]
    return (f"{row['module'][-44:]:44} {1e3 * row['hloc']:9.3f} {1e3 * row['xla']:9.3f} {ratio:6.2f} "
            f"{fusion} {row['parse']:6.2f} {row['compile_cold']:6.2f} {row['compile_warm']:5.2f} "
            f"{row['compile_xla']:6.2f} {row['memory'] / 2**20:8.1f} {row['memory_xla'] / 2**20:8.1f} "
            f"{row['error']:8.1e}{'' if row['agrees'] else ' DIFFERS'}")


HEADER = (f"{'module':44} {'hloc ms':>9} {'XLA ms':>9} {'ratio':>6} {'fused':>6} {'parse':>6} {'cold':>6} {'warm':>5} "
          f"{'XLA s':>6} {'MiB':>8} {'XLA':>8} {'error':>8}")


def plot(rows: list[dict], facts: dict, path: Path) -> None:
    """Bars of hloc's time over XLA's, fastest first."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not here (pip install 'hloc[bench]')", file=sys.stderr)
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    rows = sorted((r for r in rows if "hloc" in r), key=lambda r: r["hloc"] / r["xla"])
    ratios = [r["hloc"] / r["xla"] for r in rows]
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.24 * len(rows)))
    axes.barh([r["module"][-44:] for r in rows], ratios, color=["#2a7f62" if x <= 1 else "#c0504d" for x in ratios])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.invert_yaxis()
    axes.set_xlabel("run time of hloc / run time of XLA:CPU (left of 1: hloc is faster)")
    axes.set_title(f"{facts['cpu']}, {facts['cores']} cores, jax {facts.get('jax', '')}", fontsize=9)
    axes.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, metavar="FOLDER or MODULE")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--timeout", type=int, default=900, help="seconds per module")
    parser.add_argument("--output", type=Path, help="path without ending; default: results/DATE")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one, asked.runs)))
        return
    try:
        import jax  # noqa: F401
    except ImportError:
        sys.exit("XLA is not here: pip install 'hloc[jax,bench]'")
    date = datetime.date.today().isoformat()
    output = asked.output or HERE / "results" / date
    facts, rows = machine(), []
    print(HEADER)
    for path in modules_in(asked.places or [MODELS]):
        rows.append({"module": name_of(path), **measure_apart(path, asked.runs, asked.timeout)})
        print(show(rows[-1]), flush=True)
    totals = summary(rows)
    print(json.dumps(totals))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(
        json.dumps({"date": date, "machine": facts, "summary": totals, "modules": rows}, indent=1) + "\n")
    plot(rows, facts, output.with_suffix(".png"))


if __name__ == "__main__":
    main()
