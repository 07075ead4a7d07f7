"""Where the seconds of a compilation go, stage by stage, beside XLA:CPU's compile time.

    python benchmarks/compile_time.py [FOLDER or MODULE ...] [--cores 0,1] [--output FILE.json]

Without arguments: the models of testdata/models, and a decoder of 12 and of 48 layers, written out (`--layers`). Each
module is compiled in fresh processes:

    bare    neither the installation nor the cache holds anything: hloc's own library kernels are compiled, too
    cold    the cache is empty; the library kernels are there, as installed; stages: passes, lowering, printing, C
    compiler warm    the module lies in the cache

Seconds are from a parsed module to one that can be called. Ratios are against XLA, in the same round: other load on the
machine hits both. Needs XLA: pip install 'hloc[jax]'; without it the ratios are missing. Both run from bytecode, as
what pip installs does; a checkout whose Python writes none takes a quarter of a second more to read hloc's files.
"""
from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vs_xla import MODELS, modules_in, name_of

from hloc.targets.cpu.building.prebuilt import build_all

HERE = Path(__file__).resolve().parent
STAGES = ("parse", "passes", "lowering", "printing", "compiler")
COLUMNS = ("bare", "cold", *STAGES, "warm", "xla")


# -- one compilation, in a process of its own --------------------------------------------------------------------------

def compile_once(path: Path) -> dict[str, float]:
    """Seconds of one compilation with the cache as it is, and of its stages."""
    import hloc
    from hloc.api import Options
    options = Options()
    start = time.perf_counter()
    module = hloc.load(path)
    loaded = time.perf_counter()
    count = len(list(module.instructions()))                      # before the passes change the module
    parsed = time.perf_counter()
    hloc.compile(module, "cpu", options=options, consume=True)
    end = time.perf_counter()
    found = {"parse": loaded - start, "compile": end - parsed, "instructions": count}
    for stage, seconds in options.stages.items():
        found[stage] = found.get(stage, 0) + seconds
    return found


def compile_with_xla(path: Path) -> dict[str, float]:
    """Seconds of XLA, once it has compiled something else."""
    from vs_xla import Xla

    import hloc
    Xla(hloc.load("HloModule m\nENTRY e { p = f32[2] parameter(0) ROOT n = f32[2] negate(p) }"), [])
    return {"xla": Xla(hloc.load(path), []).compile_seconds}


def apart(mode: str, path: Path, cache: str, timeout: int, **more: str) -> dict[str, float]:
    """One of the two above in a child process, with `more` in its environment; empty where it fails."""
    command = [sys.executable, __file__, mode, str(path)]
    environment = {**os.environ, "HLOC_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(sys.path), **more}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        return {}
    return next((json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")), {})


# -- all of them -------------------------------------------------------------------------------------------------------

def measure(path: Path, rounds: int, timeout: int) -> dict[str, float]:
    """The least seconds of each kind over the rounds."""
    best: dict[str, float] = {}

    def keep(found: dict[str, float]) -> None:
        for name, seconds in found.items():
            best[name] = min(seconds, best.get(name, math.inf))

    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            keep({"bare": apart("--compile", path, cache, timeout, HLOC_PRECOMPILED="0").get("compile", math.inf)})
        with tempfile.TemporaryDirectory() as cache:
            cold = apart("--compile", path, cache, timeout)
            keep({**cold, "cold": cold.get("compile", math.inf)})
            keep({"warm": apart("--compile", path, cache, timeout).get("compile", math.inf)})
        keep(apart("--xla", path, "", timeout))
    return best


def run_from_bytecode(folder: str, first: Path, timeout: int) -> None:
    """Let the child processes find bytecode of hloc, jax and what these import, as installed packages have it."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
    import hloc
    compileall.compile_dir(Path(hloc.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as cache:
        apart("--compile", first, cache, timeout)
        apart("--xla", first, cache, timeout)


def decoder(layers: int, width: int = 64, length: int = 16) -> str:
    """A decoder of `layers` layers written out, each with its own weights: HLO text as a framework would unroll it."""
    lines, weights = [], []
    x = f"f32[{length},{width}]"
    dot = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    square, inner = f"f32[{length},{length}]", f"f32[{length},{4 * width}]"
    names = {"query": width, "key": width, "value": width, "output": width, "up": 4 * width, "down": width}
    previous = "x"
    for n in range(layers):
        for name, columns in names.items():
            rows = 4 * width if name == "down" else width
            weights.append(f"{name}.{n} = f32[{rows},{columns}] parameter({len(weights) + 1})")
        lines += [
            f"q.{n} = {x} dot({previous}, query.{n}), {dot}", f"k.{n} = {x} dot({previous}, key.{n}), {dot}",
            f"v.{n} = {x} dot({previous}, value.{n}), {dot}",
            f"s.{n} = {square} dot(q.{n}, k.{n}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}",
            f"m.{n} = f32[{length}] reduce(s.{n}, lowest), dimensions={{1}}, to_apply=larger",
            f"mb.{n} = {square} broadcast(m.{n}), dimensions={{0}}", f"d.{n} = {square} subtract(s.{n}, mb.{n})",
            f"e.{n} = {square} exponential(d.{n})",
            f"z.{n} = f32[{length}] reduce(e.{n}, zero), dimensions={{1}}, to_apply=sum",
            f"zb.{n} = {square} broadcast(z.{n}), dimensions={{0}}", f"p.{n} = {square} divide(e.{n}, zb.{n})",
            f"a.{n} = {x} dot(p.{n}, v.{n}), {dot}", f"o.{n} = {x} dot(a.{n}, output.{n}), {dot}",
            f"r.{n} = {x} add(o.{n}, {previous})",
            f"u.{n} = {inner} dot(r.{n}, up.{n}), {dot}", f"t.{n} = {inner} tanh(u.{n})",
            f"w.{n} = {x} dot(t.{n}, down.{n}), {dot}", f"y.{n} = {x} add(w.{n}, r.{n})"]
        previous = f"y.{n}"
    lines[-1] = "ROOT " + lines[-1]
    scalar = "a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[]"
    return "\n".join([
        f"HloModule decoder_{layers}", f"sum {{ {scalar} add(a, b) }}", f"larger {{ {scalar} maximum(a, b) }}",
        "ENTRY decoder {", f"x = {x} parameter(0)", *weights, "zero = f32[] constant(0)",
        "lowest = f32[] constant(-inf)", *lines, "}", ""])


def mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def report(name: str, row: dict[str, float]) -> str:
    """One line: seconds, then the ratios of bare and cold to XLA."""
    seconds = " ".join(f"{row.get(c, math.nan):8.3f}" for c in COLUMNS)
    ratios = " ".join(f"{row.get(c, math.nan) / row.get('xla', math.nan):6.2f}" for c in ("bare", "cold"))
    return f"{name[-32:]:32} {row.get('instructions', 0):6} {seconds} {ratios}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, metavar="FOLDER or MODULE")
    parser.add_argument("--cores", help="run on these cores only: 0,1")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=300, help="seconds per compilation")
    parser.add_argument("--layers", default="12,48", help="decoders to compile where no module is named")
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    parser.add_argument("--compile", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--xla", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.compile or asked.xla:
        print(json.dumps(compile_once(asked.compile) if asked.compile else compile_with_xla(asked.xla)))
        return
    if asked.cores:
        os.sched_setaffinity(0, map(int, asked.cores.split(",")))
    rows = {}
    print(f"{'module':32} {'instr':>6} " + " ".join(f"{c:>8}" for c in COLUMNS) + "   bare   cold (over XLA)")
    with tempfile.TemporaryDirectory() as folder:
        places = modules_in(asked.places or [MODELS])
        for layers in [] if asked.places else asked.layers.split(","):
            places.append(Path(folder) / f"decoder_{layers}.hlo")
            places[-1].write_text(decoder(int(layers)))
        run_from_bytecode(str(Path(folder) / "bytecode"), places[0], asked.timeout)
        build_all()
        for path in places:
            rows[name_of(path)] = row = measure(path, asked.rounds, asked.timeout)
            print(report(name_of(path), row), flush=True)
    both = [r for r in rows.values() if "xla" in r and math.isfinite(r["cold"])]
    print("geometric mean over XLA: " + ", ".join(f"{c} {mean([r[c] / r['xla'] for r in both]):.2f}"
                                                  for c in ("bare", "cold", "warm")))
    if asked.output:
        asked.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
