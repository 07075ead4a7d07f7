"""The time of some 600 small modules (kernel_modules.py) on this CPU, by one thread.

    python benchmarks/kernels.py [WORD] [--xla] [--seconds 0.1] [--march CPU] [--output FILE.json]
    python benchmarks/kernels.py --list [WORD]

WORD: only modules whose family or name holds it. Each module is compiled and run again and again for --seconds; the
figure is the median of its runs in microseconds. --xla: XLA:CPU on the same core runs in turn with hloc; the ratio of
both holds on a machine that does other things, too. --march: as if this were another CPU, named as for the C compiler's
-march; with --xla, XLA_FLAGS=--xla_cpu_max_isa=AVX2 is the same as x86-64-v3. At the end the geometric mean of each
family is printed, and all figures go to FILE (default: benchmarks/results/kernels-DATE.json), with the CPU and the
compiler they are of.
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
from vs_xla import Xla, in_turn, machine, seconds_of

HERE = Path(__file__).resolve().parent
LEAST_RUNS, MOST_RUNS = 5, 2000


class Program:
    """A compiled module with inputs made for it."""

    def __init__(self, text: str, march: str = "native") -> None:
        import hloc
        from hloc.inputs.files import read_inputs
        start = time.perf_counter()
        self.exe = hloc.compile(text, target="cpu", options=hloc.Options(march=march))
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


def measure(chosen: list[Module], budget: float, xla: bool, march: str = "native") -> list[dict]:
    """A row for each module: microseconds of a run, of XLA's too if that runs in turn, seconds of its compilation, or
    why there are none."""
    rows = []
    for number, m in enumerate(chosen):
        print(f"\r{number + 1} of {len(chosen)} ", end="", file=sys.stderr, flush=True)
        row: dict = {"family": m.family, "name": m.name}
        try:
            program = Program(m.text, march)
            row["compile"] = program.compile_seconds
            row |= beside_xla(m.text, program, budget) if xla else {
                "us": statistics.median(program.seconds(budget)) * 1e6}
        except Exception as error:                              # noqa: BLE001  it is shown, and counts as missing
            row["error"] = f"{type(error).__name__}: {error}"
        rows.append(row)
    print(file=sys.stderr)
    return rows


def beside_xla(text: str, program: Program, budget: float) -> dict[str, float]:
    """The microseconds of both, which run in turn for 2 * budget."""
    import hloc
    other = Xla(hloc.load(text), program.arrays)
    other.run()
    found = in_turn({"us": lambda: seconds_of(program.exe, program.arrays), "xla": lambda: other.run(False)[0]},
                    2 * budget)
    return {name: found[name] * 1e6 for name in ("us", "xla")}


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
    rows = [row | {"ratio": row["us"] / row["xla"]} if "xla" in row else row for row in rows]
    lines = [f"{'family':18} {'modules':>7} {'geometric mean us':>18} {'compile s':>10} {'of XLA':>7}"]
    compiles, ratios = by_family(rows, "compile"), by_family(rows, "ratio")
    for family, values in by_family(rows, "us").items():
        lines.append(f"{family:18} {len(values):7} {geometric_mean(values):18.1f} {sum(compiles[family]):10.1f} "
                     f"{geometric_mean(ratios.get(family, ())):7.2f}")
    every = [ratio for found in ratios.values() for ratio in found]
    lines += [f"all beside XLA: {geometric_mean(every):.2f} of its time; {sum(r > 1 for r in every)} of {len(every)} "
              f"take longer"] if every else []
    lines += [f"{row['family']} {row['name']}: {row['error']}" for row in rows if "error" in row]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only modules whose family or name holds this")
    parser.add_argument("--seconds", type=float, default=0.1, help="of runs, for each module (default: 0.1)")
    parser.add_argument("--xla", action="store_true", help="time XLA:CPU in turn (needs hloc[jax])")
    parser.add_argument("--march", default="native", metavar="CPU", help="the CPU that is compiled for: x86-64-v3 ...")
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
    if options.xla:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})     # XLA has no other way to use one thread
    rows = measure(chosen, options.seconds, options.xla, options.march)
    today = datetime.date.today().isoformat()
    output = options.output or HERE / "results" / f"kernels-{today}.json"
    lines = ",\n".join(json.dumps({key: round(value, 4) if isinstance(value, float) else value
                                   for key, value in row.items()}) for row in rows)
    about = json.dumps(machine() | {"date": today})
    output.write_text(f'{{"machine": {about},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")
    print(table(rows))
    print(f"written to {output}")


if __name__ == "__main__":
    main()
