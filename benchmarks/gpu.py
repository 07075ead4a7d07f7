"""hloc on a GPU, measured: one command, some five minutes, a table that can be committed.

    python benchmarks/gpu.py [SECTION ...] [--output benchmarks/results/NAME] [--emulated]

Each section (gpu_sections/) runs in a process of its own with its own time limit and prints its rows as it gets them:
what was measured before a limit, or before a crash, is kept. What is missing is told by name: "not measured: ...".
After each section it writes NAME.json and NAME.md with date, device and driver, the numbers to reach first
(gpu_sections/goals.py). Without a GPU: one error, exit code 6.

--ahead GPU compiles what sections prepare, once_wrong, ops and sanitizer need into the cache of compiled code
(HLOC_CACHE_DIR), on a machine without a GPU: for one that has few CPU cores, or little time. NVRTC must have the same
version there.

--emulated runs the same sections on tiny sizes against the emulated driver of tests/cuda_emulation: it shows that this
script works, its times mean nothing, and it writes only where --output says.
"""
from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

# name -> (seconds, what it tells): what is least known first, in case that the device is taken away
SECTIONS: dict[str, tuple[int, str]] = {
    "once_wrong": (30, "what was once wrong on a device, and its relatives, against the evaluator"),
    "new": (30, "kernels that no device has run when they were written, against the evaluator"),
    "prepare": (100, "whole programs compiled side by side"),
    "ops": (12, "kernels of the test data against the evaluator"),
    "sanitizer": (32, "compute-sanitizer on kernels of the test data"),
    "models": (32, "models of testdata/models against their expected results"),
    "kernels": (28, "kernels of the large programs, each by itself: measured beside predicted, and XLA's"),
    "xla": (52, "whole programs against XLA:GPU"),
    "end_to_end": (22, "whole programs, and without fusion"),
    "warpgroups": (26, "wgmma and bulk copies of sm_90a, each in a process of its own"),
    "tuning": (20, "products and a convolution by measured choice against the cost model's"),
    "products": (20, "matrix products and attention against cuBLASLt and the peak"),
    "bandwidth": (12, "memory-bound kernels as a fraction of a device copy"),
    "launches": (4, "cost of a launch, in a graph and without"),
}


def run_section(name: str, emulated: bool) -> int:
    """Print the rows of one section, one JSON object a line."""
    from gpu_sections.device import Device

    from hloc.errors import HlocError
    try:
        device = Device(emulated)
        for row in importlib.import_module(f"gpu_sections.{name}").rows(device):
            print(json.dumps({"section": name, **row}), flush=True)
    except HlocError as error:
        print(json.dumps({"section": name, "what": name, "missing": error.message}), flush=True)
    return 0


def section_in_process(name: str, emulated: bool, limit: float) -> list[dict]:
    """The rows of one section, run in a child process, which ends with all that it has started; a last row tells if it
    was cut off."""
    command = [sys.executable, str(HERE / "gpu.py"), "--one", name, *(["--emulated"] if emulated else [])]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                             start_new_session=True)
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(child.stderr.read()))
    reader.start()
    start, rows = time.monotonic(), []          # before the timer: what it ends has taken the limit or longer
    timer = threading.Timer(limit, end_all, (child,))
    timer.start()
    for line in child.stdout:
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):         # cut off in the middle of a row
                rows.append(json.loads(line))
    code = child.wait()
    timer.cancel()
    end_all(child)
    reader.join()
    if time.monotonic() - start >= limit:
        why = f"time limit of {limit:.0f} s"
    else:
        why = f"exit code {code}: {last_line(said[0])}" if code else ""
    if why:
        rows.append({"section": name, "what": f"the rest of {name}", "missing": why})
    return rows


def end_all(child: subprocess.Popen) -> None:
    """A process that leads a session, and all processes in it: compilers that go on would slow the next section."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


# -- the table ---------------------------------------------------------------------------------------------------------

def table(facts: dict, rows: list[dict]) -> str:
    """Markdown: facts, then one table per section."""
    lines = [f"# hloc on {facts['device']}", "",
             f"{facts['date']}, driver for CUDA {facts['driver']}, compiled with CUDA {facts['compiler']}, "
             f"{facts['seconds']:.0f} s in all.", ""]
    if facts["emulated"]:
        lines += ["**Emulated: these times mean nothing.**", ""]
    else:
        lines += goals(rows)
    for name, (_, about) in SECTIONS.items():
        own = [r for r in rows if r["section"] == name]
        if own:
            lines += [f"## {name}: {about}", "", "| what | value | compared | note |", "|---|---|---|---|",
                      *("| " + " | ".join(cells(r)) + " |" for r in own), ""]
    return "\n".join(lines)


def goals(rows: list[dict]) -> list[str]:
    """The numbers to reach, as a table."""
    from gpu_sections.goals import verdicts
    return ["## Numbers to reach on an H200", "", "| what | to reach | measured | |", "|---|---|---|---|",
            *("| " + " | ".join(row) + " |" for row in verdicts(rows)), ""]


def cells(row: dict) -> list[str]:
    if "missing" in row:
        return [row["what"], "not measured", "", f"not measured: {row['missing']}"]
    compared = "; ".join(f"{value:.2f} of {name}" for name, value in row.get("compared", {}).items())
    value = row["value"] if isinstance(row["value"], str) else f"{row['value']:,.4g} {row.get('unit', '')}".strip()
    return [c.replace("|", "/").replace("\n", " ") for c in (row["what"], value, compared, row.get("note", ""))]


def write(output: Path, facts: dict, rows: list[dict]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    head, lines = json.dumps(facts, indent=1).removesuffix("\n}"), ",\n  ".join(map(json.dumps, rows))
    output.with_suffix(".json").write_text(f'{head},\n "rows": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    output.with_suffix(".md").write_text(table(facts, rows), encoding="utf-8")


def measured(sections: list[str], facts: dict, output: Path | None) -> list[dict]:
    """The rows of these sections; written with the facts after each of them: what has been measured is kept, whatever
    ends the run."""
    start, rows = time.monotonic(), []
    facts |= {"seconds": 0.0, "section_seconds": {}}
    patience = float(os.environ.get("HLOC_GPU_PATIENCE", "1"))
    with tempfile.TemporaryDirectory(prefix="hloc-gpu-") as folder:
        os.environ["HLOC_GPU_FOLDER"] = folder
        for name in sections:
            print(f"{name}: {SECTIONS[name][1]}", file=sys.stderr)
            began = time.monotonic()
            rows += section_in_process(name, facts["emulated"], SECTIONS[name][0] * patience)
            facts["section_seconds"][name] = round(time.monotonic() - began, 1)
            facts["seconds"] = time.monotonic() - start
            if output:
                write(output, facts, rows)
    return rows


def fill_cache(gpu: str) -> int:
    """Fill the cache of compiled code. Exit code."""
    from gpu_sections.device import AHEAD, Device
    from gpu_sections.prepare import ahead

    from hloc.targets.cuda.gpus import GPUS
    if gpu not in GPUS:
        print(f"error: no GPU {gpu!r}; known: {', '.join(GPUS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="hloc-gpu-") as folder:
        os.environ["HLOC_GPU_FOLDER"], os.environ[AHEAD] = folder, gpu
        told = list(ahead(Device(False)))
    for row in told:
        print(" | ".join(c for c in cells(row) if c))
    return 1 if any("missing" in row for row in told) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--output", type=Path, help="where to write .json and .md")
    parser.add_argument("--emulated", action="store_true", help="tiny sizes on the emulated driver")
    parser.add_argument("--target", choices=("sm_90",), help="compile for Hopper without wgmma and bulk copies")
    parser.add_argument("--ahead", metavar="GPU", help="only compile for h200, a100 ...: needs no GPU")
    parser.add_argument("--one", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--compile", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--compile-xla", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    unknown = [n for n in asked.sections if n not in SECTIONS]
    if unknown:
        parser.error(f"no section {unknown[0]!r}; sections: {', '.join(SECTIONS)}")
    if asked.target:
        os.environ["HLOC_GPU_TARGET"] = asked.target            # children ask it too
    if asked.ahead:
        return fill_cache(asked.ahead)
    if asked.one:
        return run_section(asked.one, asked.emulated)
    from gpu_sections.device import Device
    if asked.compile_xla:
        from gpu_sections.xla import compile_ahead
        return compile_ahead(Device(asked.emulated))
    if asked.compile:
        from gpu_sections.prepare import compile_one

        from hloc.errors import HlocError
        try:
            compile_one(Device(asked.emulated), *asked.compile)
        except HlocError as error:
            print(error.message.splitlines()[0], file=sys.stderr)
            return error.code
        return 0

    from hloc.errors import HlocError
    try:
        facts = Device(asked.emulated).facts()
    except HlocError as error:
        print(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.code
    now = datetime.datetime.now(datetime.timezone.utc)
    facts["date"] = f"{now:%Y-%m-%d %H:%M UTC}"
    output = asked.output
    if output is None and not asked.emulated:
        output = HERE / "results" / f"gpu-{facts['name']}-{now:%Y-%m-%d}"
    rows = measured(asked.sections or list(SECTIONS), facts, output)
    print(table(facts, rows))
    return 1 if any(r.get("wrong") for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
