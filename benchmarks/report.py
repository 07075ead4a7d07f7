"""Reports of benchmarks/vs_xla.py: lines, a summary, a plot, the tables of docs/benchmarks.md, README.md's sentence.

In: the rows that it measured (seconds, bytes). Ratios are hloc over XLA: below 1, hloc is the better one.
"""
from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

START, END = "<!-- results: written by benchmarks/vs_xla.py --docs -->", "<!-- end of results -->"
HEADER = (f"{'module':40} {'hloc ms':>9} {'XLA ms':>9} {'ratio':>6} {'fusion':>6} {'parse':>6} {'cold':>6} {'warm':>5} "
          f"{'XLA s':>6} {'MiB':>8} {'XLA':>8} {'error':>8}")


# Below this many seconds of XLA's time, what XLA spends on each call decides, not the generated code.
FULL_SIZE = 1e-3


def ratio(row: dict) -> float:
    return row["hloc"] / row["xla"]


def is_full_size(row: dict) -> bool:
    return row["xla"] > FULL_SIZE


def gain(row: dict) -> float:
    """How many times slower the module is without fusion."""
    return row["unfused"] / row["fused"]


def bound(row: dict) -> str:
    """The most that fusion could gain; "-" where that is not known."""
    return f"{row['most_fusion']:.2f}x" if row.get("most_fusion") else "-"


def mean(values: Iterable[float]) -> float | None:
    """Geometric mean; None of nothing."""
    logs = [math.log(max(v, 1e-9)) for v in values]
    return math.exp(statistics.fmean(logs)) if logs else None


def summary(rows: list[dict]) -> dict:
    """Geometric means over the modules that ran, and how many did not, or not well."""
    done = [r for r in rows if "hloc" in r]
    bounded = [r for r in done if r.get("most_fusion")]
    both = [r for r in done if r["memory"] and r["memory_xla"]]
    return {
        "modules": len(done), "failed": len(rows) - len(done), "disagree": sum(not r["agrees"] for r in done),
        "run": mean(map(ratio, done)), "full_size": sum(map(is_full_size, done)),
        "run_full_size": mean(map(ratio, filter(is_full_size, done))),
        "run_small": mean(ratio(r) for r in done if not is_full_size(r)),
        "slower_than_xla": sum(ratio(r) > 1 for r in done),
        "fusion": mean(map(gain, done)), "bounded": len(bounded), "fusion_bounded": mean(map(gain, bounded)),
        "most_fusion": mean(r["most_fusion"] for r in bounded), "slower_fused": sum(gain(r) < 0.95 for r in done),
        "compile_cold": mean(r["compile_cold"] / r["compile_xla"] for r in done),
        "compile_warm_seconds": statistics.median(r["compile_warm"] for r in done) if done else None,
        "memory": mean(r["memory"] / r["memory_xla"] for r in both),
        "more_memory_than_xla": sum(r["memory"] > r["memory_xla"] for r in both)}


def mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.1f}"


def line(row: dict) -> str:
    """One module on the terminal."""
    if "hloc" not in row:
        return f"{row['module'][-40:]:40} {row['failed']}"
    return (f"{row['module'][-40:]:40} {1e3 * row['hloc']:9.3f} {1e3 * row['xla']:9.3f} {ratio(row):6.2f} "
            f"{gain(row):6.2f} {row['parse']:6.2f} {row['compile_cold']:6.2f} {row['compile_warm']:5.2f} "
            f"{row['compile_xla']:6.2f} {mebibytes(row['memory']):>8} {mebibytes(row['memory_xla']):>8} "
            f"{row['error']:8.1e}{'' if row['agrees'] else ' DIFFERS'}")


def plot(state: dict, path: Path) -> None:
    """Bars of hloc's time over XLA's, the fastest first, with and without fusion."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not here (pip install 'hloc[bench]')", file=sys.stderr)
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    facts, rows = state["machine"], sorted((r for r in state["modules"] if "hloc" in r), key=ratio)
    names = [r["module"][-44:] for r in rows]
    figure, axes = plt.subplots(figsize=(8, 1.6 + 0.24 * len(rows)))
    axes.barh(names, [ratio(r) for r in rows], color=["#2a7f62" if ratio(r) <= 1 else "#c0504d" for r in rows],
              label="hloc")
    axes.plot([ratio(r) * gain(r) for r in rows], names, "o", color="#444444", markersize=3.5,
              label="hloc --fusion off")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.invert_yaxis()
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.9 / (0.24 * len(rows) + 0.5)), ncol=2)
    axes.set_xlabel("run time / run time of XLA:CPU (left of 1: faster)")
    axes.set_title(f"{facts['cpu']}, {facts['cores']} cores, jax {facts.get('jax', '')}, {state['date']}", fontsize=9)
    axes.tick_params(labelsize=7)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def table(titles: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first to the right."""
    lines = ["| " + " | ".join(titles) + " |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def markdown(state: dict, image: str, data: str) -> str:
    """The part of docs/benchmarks.md that holds figures."""
    facts, told = state["machine"], state["summary"]
    done = sorted((r for r in state["modules"] if "hloc" in r), key=ratio)
    columns: list[tuple[str, Callable[[dict], str]]] = [
        ("model", lambda r: r["module"]),
        ("hloc ms", lambda r: f"{1e3 * r['hloc']:.3f}"), ("XLA ms", lambda r: f"{1e3 * r['xla']:.3f}"),
        ("ratio", lambda r: f"{ratio(r):.2f}"), ("floor ms", lambda r: f"{1e3 * r['floor']:.3f}"),
        ("fusion", lambda r: f"{gain(r):.2f}x"), ("at most", bound),
        ("parse s", lambda r: f"{r['parse']:.2f}"), ("compile s", lambda r: f"{r['compile_cold']:.2f}"),
        ("cached s", lambda r: f"{r['compile_warm']:.2f}"), ("XLA s", lambda r: f"{r['compile_xla']:.2f}"),
        ("MiB", lambda r: mebibytes(r["memory"])), ("XLA MiB", lambda r: mebibytes(r["memory_xla"]))]
    rows = [[show(r) for _, show in columns] for r in done]
    most = ""
    if told.get("most_fusion"):
        most = (f" ({told['fusion_bounded']:.2f} over the {told['bounded']} that spend their time in library kernels, "
                f"where {told['most_fusion']:.2f} is the most)")
    missing = [f"- {r['module']}: {r['failed']}" for r in state["modules"] if "failed" in r]
    return "\n".join([
        f"{state['date']}, {facts['cpu']}, {facts['cores']} cores (load {facts['load']} at the start), "
        f"{facts['compiler']}, jax {facts.get('jax', '-')}. [All figures]({data}).", "",
        f"![hloc against XLA:CPU]({image})", "",
        f"Geometric means: run time {speeds(told)}; {told['slower_than_xla']} of {told['modules']} models slower than "
        f"XLA; {told['fusion']:.2f} times slower without fusion{most}; "
        f"compile time {told['compile_cold']:.2f} of XLA's, from the cache {told['compile_warm_seconds']:.2f} s "
        "(median).", "",
        table([title for title, _ in columns], rows), *(["", *missing] if missing else [])])


def write_docs(state: dict, page: Path, output: Path) -> None:
    """Put the figures between the two marks of the page."""
    here = Path(os.path.relpath(output, page.parent))
    write_between(START, END, markdown(state, f"{here}.png", f"{here}.json"), page)


def write_between(start: str, end: str, middle: str, page: Path) -> None:
    """Replace what stands between two marks of a page; exits with a message where the page does not have them."""
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"{page} has no place for the results: {start} ... {end}")
    page.write_text(f"{before}{start}\n{middle}\n{end}{after}", encoding="utf-8")


def speeds(told: dict) -> str:
    """Run time over XLA's: of full-size models and of small ones, each where there are any."""
    count, small = told["full_size"], told["modules"] - told["full_size"]
    parts = [f"{told['run_full_size']:.2f} of XLA's over the {count} models that take XLA more than a millisecond"
             if count else "", f"{told['run_small']:.2f} over {small} smaller ones" if small else ""]
    return ", ".join(filter(None, parts))


NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
README_START, README_END = "<!-- speed: written by benchmarks/vs_xla.py --docs -->", "<!-- end of speed -->"


def sentence(states: list[dict]) -> str:
    """README.md's speed figures.

    In: what benchmarks/results/*.json hold, the newest last. The headline is the newest table's geometric mean over
    full-size models; the range is that of all tables. Small models are given apart: XLA's cost of a call decides there.
    """
    tables = [[r for r in state["modules"] if "hloc" in r] for state in states]
    newest, cores = tables[-1], states[-1]["machine"]["cores"]
    full, small = list(filter(is_full_size, newest)), [r for r in newest if not is_full_size(r)]
    means = [m for m in (mean(map(ratio, filter(is_full_size, rows))) for rows in tables) if m is not None]
    ratios = list(map(ratio, full))
    lines = [f"On the CPU, full-size models run in {mean(ratios):.2f} of XLA's time: the geometric mean over the "
             f"{len(full)}",
             f"[models](docs/benchmarks.md) that take XLA more than a millisecond, each between {min(ratios):.2f} and "
             f"{max(ratios):.2f} ({NUMBERS[cores] if cores < len(NUMBERS) else cores} cores;",
             f"{min(means):.2f} to {max(means):.2f} in the {len(means)} tables measured so far)."]
    if small:
        lines += [f"The {len(small)} smaller ones take {mean(map(ratio, small)):.2f} of XLA's time: there the cost of "
                  "one call of XLA decides."]
    return "\n".join(lines)


def write_readme(states: list[dict], page: Path) -> None:
    """Put the figures between the two marks of README.md."""
    write_between(README_START, README_END, sentence(states), page)
