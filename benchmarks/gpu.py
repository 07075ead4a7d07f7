"""hloc on a GPU, measured: one command, under eight minutes, a table that can be committed.

    python benchmarks/gpu.py [SECTION ...] [--output benchmarks/results/NAME] [--emulated]
    python benchmarks/gpu.py --not-measured --output benchmarks/results/gpu-not-measured      without a GPU

Each section (gpu_sections/) runs in a process of its own with its own time limit and prints its rows as it gets them:
what was measured before a limit, or before a crash, is kept. What is missing is told by name: "not measured: ...".
Writes NAME.json and NAME.md with date, device and driver, the numbers to reach first (gpu_sections/goals.py). Without a
GPU: one error, exit code 6.

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

# name -> (seconds, what it tells); together under eight minutes
SECTIONS: dict[str, tuple[int, str]] = {
    "prepare": (80, "whole programs compiled side by side"),
    "launches": (15, "cost of a launch, in a graph and without"),
    "bandwidth": (35, "memory-bound kernels as a fraction of a device copy"),
    "products": (50, "matrix products and attention against cuBLASLt and the peak"),
    "tuning": (29, "products and a convolution by measured choice against the cost model's"),
    "warpgroups": (40, "ways of sm_90a that no device has run yet, each in a process of its own"),
    "ops": (35, "kernels of the test data against the evaluator"),
    "models": (40, "models of testdata/models against their expected results"),
    "end_to_end": (50, "whole programs, and without fusion"),
    "xla": (55, "whole programs against XLA:GPU"),
    "sanitizer": (50, "compute-sanitizer on kernels of the test data"),
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


def section_apart(name: str, emulated: bool, limit: float) -> list[dict]:
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


def not_measured() -> tuple[dict, list[dict]]:
    """Facts and rows of a machine without a GPU: each section, and why it has no figure."""
    facts = {"device": "no device", "name": "none", "emulated": False, "driver": "nothing", "compiler": "nothing",
             "seconds": 0, "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M UTC}"}
    missing = "no GPU was here"
    return facts, [{"section": name, "what": about, "missing": missing} for name, (_, about) in SECTIONS.items()]


def cells(row: dict) -> list[str]:
    if "missing" in row:
        return [row["what"], "not measured", "", f"not measured: {row['missing']}"]
    compared = "; ".join(f"{value:.2f} of {name}" for name, value in row.get("compared", {}).items())
    value = row["value"] if isinstance(row["value"], str) else f"{row['value']:,.4g} {row.get('unit', '')}".strip()
    return [c.replace("|", "/").replace("\n", " ") for c in (row["what"], value, compared, row.get("note", ""))]


def write(output: Path, facts: dict, rows: list[dict]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    output.with_suffix(".md").write_text(table(facts, rows), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--output", type=Path, help="where to write .json and .md")
    parser.add_argument("--emulated", action="store_true", help="tiny sizes on the emulated driver")
    parser.add_argument("--not-measured", action="store_true", help="the table of a machine without a GPU")
    parser.add_argument("--target", choices=("sm_90",), help="compile for Hopper without wgmma and bulk copies")
    parser.add_argument("--one", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--compile", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--compile-xla", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    unknown = [n for n in asked.sections if n not in SECTIONS]
    if unknown:
        parser.error(f"no section {unknown[0]!r}; sections: {', '.join(SECTIONS)}")
    if asked.not_measured:
        if not asked.output:
            parser.error("--not-measured needs --output")
        write(asked.output, *not_measured())
        return 0
    if asked.target:
        os.environ["HLOC_GPU_TARGET"] = asked.target            # children ask it too
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
    start, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="hloc-gpu-") as folder:
        os.environ["HLOC_GPU_FOLDER"] = folder
        for name in asked.sections or SECTIONS:
            print(f"{name}: {SECTIONS[name][1]}", file=sys.stderr)
            patience = float(os.environ.get("HLOC_GPU_PATIENCE", "1"))
            rows += section_apart(name, asked.emulated, SECTIONS[name][0] * patience)
    facts |= {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
              "seconds": time.monotonic() - start}
    output = asked.output
    if output is None and not asked.emulated:
        output = HERE / "results" / f"gpu-{facts['name']}-{facts['date'][:10]}"
    if output:
        write(output, facts, rows)
    print(table(facts, rows))
    return 1 if any(r.get("wrong") for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
