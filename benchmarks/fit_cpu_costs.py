"""Fits the constants of the cost model of schedules (hloc/kernels/schedule/cpu_costs.json) to this CPU.

    python benchmarks/fit_cpu_costs.py measure FILE.jsonl [WORD] [--schedules 12]
    python benchmarks/fit_cpu_costs.py fit FILE.jsonl [--seconds 120]
    python benchmarks/fit_cpu_costs.py compile FOLDER

measure compiles the modules of kernel_modules.py that have one loop that reduces, or one over rows that are reduced,
with each of its cheapest schedules, runs them by one thread, and writes a line of JSON for each module. fit changes
constants at random, keeps what makes the chosen schedules faster, and prints the constants as JSON, and the modules
whose chosen schedule is slowest beside their best one. The figure is the geometric mean of (time of the chosen schedule
/ time of the best measured one). compile lets the C compiler compile each kernel of the modules below a folder by
itself, and prints the milliseconds that it takes for what cost.Code counts, by least squares of relative errors.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from kernel_modules import Module, modules
from kernels import LEAST_RUNS, geometric_mean

SPREAD = (0.1, 0.3, 0.6)        # of the factors by which constants change
SHOWN = 12
LEAST_MS = 5                    # of a kernel: below it times are noise
COMPILE = "compile_"            # names of constants of compilation, which the schedules' times do not show


class Measured(NamedTuple):
    """A module: of each schedule its text, its cost with given constants, and its microseconds."""

    name: str
    schedules: list[tuple[str, Callable[[dict[str, float]], float], float]]

    def regret(self, machine: dict[str, float]) -> tuple[float, str]:
        """Time of the chosen schedule / time of the best, and the chosen one."""
        text, _, us = min(self.schedules, key=lambda one: one[1](machine))
        return us / min(one[2] for one in self.schedules), text


def measure(m: Module, most: int) -> Iterator[dict]:
    """Microseconds of a module with each of the cheapest schedules of a loop, if it has one that reduces, or one over
    rows that are reduced."""
    import hloc
    from hloc.errors import Source
    from hloc.inputs.files import read_inputs
    from hloc.targets import find
    from hloc.tools.schedules import schedules_of
    loops = schedules_of(hloc.load(m.text), find("cpu"))
    over_rows, along = ([one for one in loops if one.is_over_rows == which] for which in (True, False))
    for loop in (own[0] for own in (over_rows, along) if len(own) == 1):
        times: dict[str, float] = {}
        for candidate in loop.ranked[:most]:
            schedule = Source(f"{loop.name} {candidate.text}")
            exe = hloc.compile(m.text, target="cpu", options=hloc.Options(schedule=schedule))
            arrays = read_inputs(("random:0",), exe.parameters)
            exe(*arrays)
            found: list[float] = []
            end = time.perf_counter() + 0.05
            while len(found) < LEAST_RUNS or time.perf_counter() < end:
                start = time.perf_counter()
                exe(*arrays)
                found.append(time.perf_counter() - start)
            times[candidate.text] = min(found) * 1e6
        yield {"name": m.name, "family": m.family, "loop": loop.name, "us": times}


def measured(row: dict) -> Measured:
    """The schedules of a measured module."""
    import hloc
    from hloc.kernels.schedule.cost import cost, row_cost
    from hloc.kernels.schedule.row_cost import costed
    from hloc.kernels.schedule.row_nest import RowNest
    from hloc.kernels.schedule.rules import scheduled
    from hloc.kernels.schedule.steps import read_steps
    from hloc.targets import find
    from hloc.targets.cpu.program.sources import loop_names
    from hloc.tools.kernel_passes import kernels_of
    text = next(m.text for m in modules() if (m.family, m.name) == (row["family"], row["name"]))
    target = find("cpu")
    nest = loop_names(kernels_of(hloc.load(text), target), target.machine)[row["loop"]]

    def cost_of(text: str) -> Callable[[dict[str, float]], float]:
        steps = read_steps(text)
        if isinstance(nest, RowNest):
            return partial(row_cost, costed(nest, steps, target.machine))
        return partial(cost, scheduled(nest, steps, count()))
    return Measured(row["name"], [(text, cost_of(text), us) for text, us in row["us"].items()])


def fit(rows: list[Measured], seconds: float) -> dict[str, float]:
    """Constants for which the chosen schedules are faster than with those of today."""
    from hloc.kernels.schedule.cost import constants

    def score(machine: dict[str, float]) -> float:
        return geometric_mean(row.regret(machine)[0] for row in rows)
    draw, best = random.Random(1), dict(constants("default"))
    names = sorted(name for name in best if not name.startswith(COMPILE))
    least, end = score(best), time.monotonic() + seconds
    while time.monotonic() < end:
        changed = dict(best)
        for name in draw.sample(names, draw.choice((1, 1, 2, 3))):
            changed[name] = float(f"{best[name] * math.exp(draw.gauss(0, draw.choice(SPREAD))):.3g}")
        if (found := score(changed)) <= least:
            least, best = found, changed
    print(f"{least:.4f} of the best schedules' time, over {len(rows)} modules", file=sys.stderr)
    for row in sorted(rows, key=lambda row: -row.regret(best)[0])[:SHOWN]:
        print(f"{row.regret(best)[0]:6.2f}  {row.name}: {row.regret(best)[1]}", file=sys.stderr)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "fit"])
    parser.add_argument("file", type=Path, help="of the times")
    parser.add_argument("word", nargs="?", default="", help="measure only modules whose family or name holds this")
    parser.add_argument("--schedules", type=int, default=12, help="of each module, at most (12)")
    parser.add_argument("--seconds", type=float, default=120, help="of the search (120)")
    options = parser.parse_args()
    os.environ["HLOC_THREADS"] = "1"
    if options.what == "measure":
        with options.file.open("w", encoding="utf-8") as file:
            for m in modules(options.word):
                for row in measure(m, options.schedules):
                    print(json.dumps(row), file=file, flush=True)
        return
    rows = [measured(json.loads(line)) for line in options.file.read_text(encoding="utf-8").splitlines()]
    print(json.dumps(fit(rows, options.seconds), indent=1))


if __name__ == "__main__":
    main()
