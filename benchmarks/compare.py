"""Two versions of hloc on the same modules, in turn: what a change of the kernel layer costs or gains.

    python benchmarks/compare.py OLD NEW [WORD] [--modules kernels|models|FOLDER] [--seconds 0.1] [--json FILE]

OLD and NEW: folders of checkouts, or revisions of this one, which are checked out into a temporary folder. Each version
runs in a process of its own (with this Python and its packages, and a cache of its own); for each module both compile
it, then run in turn, four rounds of --seconds each, by one thread. Printed are the ratios NEW / OLD: the geometric mean
of each family and of all, of run times and of compile times, then every module beyond 1.3 or below 1 / 1.3 and those
whose results differ. Exit code 1 where the mean of all run times is above 1.05.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernel_modules import Module, modules
from kernels import Program, by_family, geometric_mean

HERE = Path(__file__).resolve().parent
ROUNDS = 4
FAR = 1.3                       # a ratio that is listed by itself
MOST = 1.05                     # the mean that is accepted


# -- one version, in a process of its own ------------------------------------------------------------------------------

def serve() -> None:
    """Reads a request a line, answers with a line: {"text": ...} compiles, {"seconds": s} runs what was compiled."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)                                               # what programs print is no answer
    program = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "text" in request:
                program = Program(request["text"])
                answer: dict = {"compile": program.compile_seconds, "sums": _fingerprint(program)}
            else:
                answer = {"us": statistics.median(program.seconds(request["seconds"])) * 1e6}
        except Exception as error:                              # noqa: BLE001  the other process shows it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


def _fingerprint(program: Program) -> list[float]:
    """Sums of the results, by which two versions are seen to compute the same."""
    import numpy as np
    with np.errstate(all="ignore"):
        return [float(np.abs(np.nan_to_num(np.asarray(r).astype(np.complex128))).sum())
                for r in program.exe(*program.arrays)]


class Version:
    """A process that runs one checkout."""

    def __init__(self, folder: Path, cache: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder), "HLOC_THREADS": "1", "HLOC_CACHE_DIR": str(cache)}
        command = [sys.executable, str(HERE / "compare.py"), "--serve"]
        self.process = subprocess.Popen(command, env=environment, cwd=cache, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request: object) -> dict:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended"}


@contextmanager
def checkout(name: str, folder: Path) -> Iterator[Path]:
    """The folder of a version: the one named, or a checkout of a revision for as long as it is needed."""
    if (Path(name) / "hloc").is_dir():
        yield Path(name).resolve()
        return
    git = ["git", "-C", str(HERE.parent), "worktree"]
    done = subprocess.run([*git, "add", "--detach", str(folder), name], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} is neither a checkout of hloc nor a revision: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], capture_output=True)


# -- both --------------------------------------------------------------------------------------------------------------

def compare(m: Module, old: Version, new: Version, seconds: float) -> dict:
    """The row of a module: medians of both, and ratios."""
    row: dict = {"family": m.family, "name": m.name}
    compiled = [v.ask(text=m.text) for v in (old, new)]
    runs: list[list[float]] = [[], []]
    for number in range(ROUNDS):
        for side in ((0, 1) if number % 2 else (1, 0)):
            answer = (old, new)[side].ask(seconds=seconds / ROUNDS)
            if errors := [a["error"] for a in (*compiled, answer) if "error" in a]:
                return row | {"error": errors[0]}
            runs[side].append(answer["us"])
    (a, b), (first, second) = map(statistics.median, runs), compiled
    return row | {"old_us": a, "new_us": b, "ratio": b / a, "compile_ratio": second["compile"] / first["compile"],
                  "same": all(abs(x - y) <= 2e-2 * max(abs(x), abs(y), 1e-6)
                              for x, y in zip(first["sums"], second["sums"]))}


def report(rows: list[dict]) -> float:
    """Print the tables; the mean of all ratios."""
    print(f"{'family':18} {'modules':>7} {'run':>6} {'worst':>6} {'compile':>8}     (NEW / OLD, geometric means)")
    compiles = by_family(rows, "compile_ratio")
    for family, ratios in by_family(rows, "ratio").items():
        print(f"{family:18} {len(ratios):7} {geometric_mean(ratios):6.3f} {max(ratios):6.2f} "
              f"{geometric_mean(compiles[family]):8.3f}")
    everything = [r for r in rows if "ratio" in r]
    mean = geometric_mean(r["ratio"] for r in everything)
    print(f"{'all':18} {len(everything):7} {mean:6.3f} {max((r['ratio'] for r in everything), default=0):6.2f} "
          f"{geometric_mean(r['compile_ratio'] for r in everything):8.3f}")
    for r in sorted(everything, key=lambda r: -r["ratio"]):
        if not 1 / FAR <= r["ratio"] <= FAR:
            print(f"{r['ratio']:6.2f}  {r['family']}: {r['name']}  {r['old_us']:.1f} -> {r['new_us']:.1f} us")
    for r in rows:
        if not r.get("same", True):
            print(f"results differ: {r['family']}: {r['name']}")
        if "error" in r:
            print(f"{r['family']}: {r['name']}: {r['error']}")
    return mean


def chosen_modules(which: str, word: str) -> list[Module]:
    if which == "kernels":
        return modules(word)
    folder = HERE.parent / "testdata" / "models" if which == "models" else Path(which)
    return [Module(which, str(p.relative_to(folder)), p.read_text(encoding="utf-8"))
            for p in sorted(folder.rglob("*.hlo")) if word in str(p)]


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a checkout's folder, or a revision")
    parser.add_argument("new", help="the same")
    parser.add_argument("word", nargs="?", default="", help="only modules whose family or name holds this")
    parser.add_argument("--modules", default="kernels", help="kernels (default), models, or a folder of .hlo files")
    parser.add_argument("--seconds", type=float, default=0.1, help="of runs, for each module and version (0.1)")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    found = chosen_modules(options.modules, options.word)
    if not found:
        parser.error("no such modules")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for name in ("old-cache", "new-cache"):
            (place / name).mkdir()
        with checkout(options.old, place / "old") as old_folder, checkout(options.new, place / "new") as new_folder:
            old, new = Version(old_folder, place / "old-cache"), Version(new_folder, place / "new-cache")
            rows: list[dict] = []
            with suppress(KeyboardInterrupt):                   # what is done is reported
                for number, m in enumerate(found):
                    print(f"\r{number + 1} of {len(found)} ", end="", file=sys.stderr, flush=True)
                    rows.append(compare(m, old, new, options.seconds))
            for version in (old, new):
                version.process.stdin.close()
                version.process.wait(timeout=30)
    print(file=sys.stderr)
    mean = report(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
    sys.exit(mean > MOST)


if __name__ == "__main__":
    main()
