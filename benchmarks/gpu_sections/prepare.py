"""All whole programs, compiled side by side before anything is measured: each in a process of its own."""
from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from gpu_sections.programs import ROOT, cases, container_path, source

SECONDS = 80                           # of one program
KERNELS = "the kernels that compute-sanitizer runs"


def rows(device) -> Iterator[dict]:
    ready, start = [], time.monotonic()
    for case in cases(device):
        try:
            source(case, device)
            ready.append(case)
        except (LookupError, subprocess.TimeoutExpired) as error:
            yield {"what": case.name, "missing": str(error)}
    jobs = [(case.name, fusion) for case in ready for fusion in ("on", "off")]
    jobs += [] if device.emulated else [(KERNELS, "on")]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
        told = list(pool.map(lambda job: compiled(device, *job), jobs))
    for (name, fusion), (_, why) in zip(jobs, told):
        if why:
            yield {"what": f"{name}, fusion {fusion}", "missing": why}
    slowest = max(zip(told, jobs), default=((0.0, ""), ("", "")))
    yield {"what": f"{sum(not why for _, why in told)} programs compiled", "unit": "s",
           "value": time.monotonic() - start, "note": f"the slowest: {slowest[1][0]}, {slowest[0][0]:.0f} s"}


def compiled(device, name: str, fusion: str) -> tuple[float, str]:
    """Seconds, and what went wrong."""
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--compile", name, fusion]
    start = time.monotonic()
    try:
        done = subprocess.run([*command, *(["--emulated"] if device.emulated else [])], capture_output=True, text=True,
                              errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return SECONDS, f"not compiled in {SECONDS} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    why = (lines[-1][:200] if lines else f"exit code {done.returncode}") if done.returncode else ""
    return time.monotonic() - start, why


def compile_one(device, name: str, fusion: str) -> None:
    """What the child does: the program as a container."""
    from gpu_sections import sanitizer
    from gpu_sections.programs import find
    from hloc.targets.cuda import container
    if name == KERNELS:
        sys.path.insert(0, str(ROOT / "tests"))
        from cuda_emulation.cases import program_of
        for cases in sanitizer.SETS.values():
            device.built(program_of(cases(device)))                     # into the cache of compiled code
        return
    text, _ = source(find(name, device), device)
    packed = device.packed(text, fusion)
    container.write(container_path(name, fusion), packed.image, packed, packed.kernels, packed.arch, packed.cuda)
