"""compute-sanitizer on kernels of the test data: accesses outside of memory, and races in shared memory."""
from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

from gpu_sections import ops
from gpu_sections.programs import ROOT

TOOLS = ("memcheck", "racecheck")
SECONDS, LEAST = 28, 6                  # of all runs together; that every run is left with, whatever those before took
ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
FILES = ("cuda/teams", "cuda/sorts", "cuda/products", "kernels/reduce")


def found_program() -> str | None:
    """On PATH, else where toolkits keep it."""
    homes = [os.environ.get("CUDA_HOME") or "/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True)]
    places = [f"{home}/{folder}/compute-sanitizer" for home in homes for folder in ("bin", "compute-sanitizer")]
    return next((found for name in ("compute-sanitizer", *places) if (found := shutil.which(name))), None)


def rows(device) -> Iterator[dict]:
    program, end = found_program(), time.monotonic() + SECONDS
    runs = [(name, tool) for name in SETS for tool in TOOLS]
    for number, (name, tool) in enumerate(runs):
        if program is None or device.emulated:
            yield {"what": f"{tool} on {name}",
                   "missing": "the emulation has its own checks (tests/test_cuda_faults.py)" if device.emulated else
                   "compute-sanitizer is neither on PATH nor in a toolkit"}
            continue
        limit = max(LEAST, end - time.monotonic() - LEAST * (len(runs) - number - 1))
        # PyCUDA and the libraries ask for what a driver may not know: only what kernels do is counted.
        command = [program, "--tool", tool, "--report-api-errors", "no", sys.executable, "-c", CHILD, str(ROOT), name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit)
        except subprocess.TimeoutExpired:
            yield {"what": f"{tool} on {name}", "missing": f"no answer in {limit:.0f} s"}
            continue
        yield summary(f"{tool} on {name}", done.stdout + done.stderr, done.returncode)


def summary(what: str, said: str, code: int) -> dict:
    """What a tool counted."""
    found = ERRORS.search(said)
    if found is None or "all agree" not in said:
        lines = [line for line in said.splitlines() if line.strip()]
        return {"what": what, "missing": f"exit code {code}: {lines[-1][:200] if lines else 'no message'}"}
    count = int(found.group(1) or found.group(2))
    return {"what": what, "value": f"{count} errors", **({"wrong": True} if count else {})}


def files(device) -> list:
    return [c for name in FILES for c in ops.cases_of(ops.DATA / f"{name}.hlo", device.machine)]


def examples(device) -> list:
    return ops.example_cases(sorted((ops.DATA / "ops").glob("*.hlo")), device.machine)


SETS = {", ".join(FILES): files, "the op examples": examples}


CHILD = """
import sys
sys.path[:0] = [sys.argv[1] + "/benchmarks", sys.argv[1], sys.argv[1] + "/tests"]
from pathlib import Path
from gpu_sections import ops, sanitizer
from gpu_sections.device import Device
device = Device(False)
wrong = ops.failures(device, sanitizer.SETS[sys.argv[2]](device))
assert not wrong, wrong[0]
print("all agree")
"""
