"""compute-sanitizer on kernels of the test data: accesses outside of memory, and races in shared memory."""
from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

from gpu_sections import ops
from gpu_sections.programs import ROOT

TOOLS = ("memcheck", "racecheck")
SECONDS = 18                            # each
ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
FILES = ("cuda/teams", "cuda/sorts", "cuda/products", "kernels/reduce")


def rows(device) -> Iterator[dict]:
    program = shutil.which("compute-sanitizer")
    for name in SETS:
        for tool in TOOLS:
            if program is None or device.emulated:
                yield {"what": f"{tool} on {name}",
                       "missing": "the emulation has its own checks (tests/test_cuda_faults.py)" if device.emulated else
                       "compute-sanitizer is not on PATH"}
                continue
            command = [program, "--tool", tool, sys.executable, "-c", CHILD, str(ROOT), name]
            try:
                done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
            except subprocess.TimeoutExpired:
                yield {"what": f"{tool} on {name}", "missing": f"no answer in {SECONDS} s"}
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
