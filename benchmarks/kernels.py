"""The time of some 600 small modules (kernel_modules.py) on this CPU, by one thread.

    python benchmarks/kernels.py [WORD] [--seconds 0.1] [--output FILE.json]
    python benchmarks/kernels.py --list [WORD]

WORD: only modules whose family or name holds it. Each module is compiled and run again and again for --seconds; the
figure is the median of its runs in microseconds. At the end the geometric mean of each family is printed, and all
figures go to FILE (default: benchmarks/results/kernels-DATE.json), with the CPU and the compiler they are of.
To compare two versions of hloc use compare.py, which runs them in turn: figures of two runs of this script differ by
what else the machine does.
"""
from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from kernel_modules import Module, modules
from vs_xla import machine

HERE = Path(__file__).resolve().parent
LEAST_RUNS, MOST_RUNS = 5, 2000


class Program:
    """A compiled module with inputs made for it."""

    def __init__(self, text: str) -> None:
        import hloc
        from hloc.inputs.files import read_inputs
        start = time.perf_counter()
        self.exe = hloc.compile(text, target="cpu")
        self.compile_seconds = time.perf_counter() - start
        self.arrays = read_inputs(("random:0",), self.exe.parameters)
        self.exe(*self.arrays)

    def seconds(self, budget: float) -> list[float]:
        """The seconds of runs until `budget` is spent, LEAST_RUNS at least."""
        found: list[float] = []
        end = time.perf_counter() + budget
        while len(found) < LEAST_RUNS or (time.perf_counter() < end and len(found) < MOST_RUNS):
            start = time.perf_counter()
            self.exe(*self.arrays)
            found.append(time.perf_counter() - start)
        return found


def measure(chosen: list[Module], budget: float) -> list[dict]:
    """A row for each module: microseconds of a run, seconds of its compilation, or why there are none."""
    rows = []
    for number, m in enumerate(chosen):
        print(f"\r{number + 1} of {len(chosen)} ", end="", file=sys.stderr, flush=True)
        row: dict = {"family": m.family, "name": m.name}
        try:
            program = Program(m.text)
            row |= {"us": statistics.median(program.seconds(budget)) * 1e6, "compile": program.compile_seconds}
        except Exception as error:                              # noqa: BLE001  it is shown, and counts as missing
            row["error"] = f"{type(error).__name__}: {error}"
        rows.append(row)
    print(file=sys.stderr)
    return rows


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def by_family(rows: list[dict], key: str) -> dict[str, list[float]]:
    """The figures of each family, in order."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if key in row:
            found[row["family"]].append(row[key])
    return dict(found)


def table(rows: list[dict]) -> str:
    lines = [f"{'family':18} {'modules':>7} {'geometric mean us':>18} {'compile s':>10}"]
    compiles = by_family(rows, "compile")
    for family, values in by_family(rows, "us").items():
        lines.append(f"{family:18} {len(values):7} {geometric_mean(values):18.1f} {sum(compiles[family]):10.1f}")
    lines += [f"{row['family']} {row['name']}: {row['error']}" for row in rows if "error" in row]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only modules whose family or name holds this")
    parser.add_argument("--seconds", type=float, default=0.1, help="of runs, for each module (default: 0.1)")
    parser.add_argument("--output", type=Path, help="where the figures go")
    parser.add_argument("--list", action="store_true", help="print the modules and stop")
    options = parser.parse_args()
    chosen = modules(options.word)
    if not chosen:
        parser.error(f"no module's name holds {options.word!r}")
    if options.list:
        print("\n".join(f"{m.family}: {m.name}" for m in chosen))
        return
    os.environ["HLOC_THREADS"] = "1"
    rows = measure(chosen, options.seconds)
    output = options.output or HERE / "results" / f"kernels-{datetime.date.today().isoformat()}.json"
    lines = ",\n".join(json.dumps(row) for row in rows)
    output.write_text(f'{{"machine": {json.dumps(machine())},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")
    print(table(rows))
    print(f"written to {output}")


if __name__ == "__main__":
    main()
