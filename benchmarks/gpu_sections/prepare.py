"""All whole programs, compiled side by side before anything is measured: each in a process of its own. XLA compiles
them meanwhile, one after the other: it tries its variants on the GPU, which nothing else uses by now."""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gpu_sections import kernels, models, once_wrong, ops
from gpu_sections.programs import ROOT, cases, container_path, helpers, source

SECONDS = 95                           # of one program
AHEAD_SECONDS = 900                    # of one on a machine without a GPU
XLA_SECONDS = 90                       # that XLA has from the section's start on
COMMAND = (sys.executable, str(ROOT / "benchmarks" / "gpu.py"))
KERNELS = "the kernels that compute-sanitizer runs"     # in the place of "on": those of section ops


def rows(device) -> Iterator[dict]:
    start = time.monotonic()
    ready, missing = with_source(device)
    yield from missing
    xla = None if device.emulated else XlaAhead()
    jobs = jobs_of(device, ready)
    told = compile_all(device, jobs, SECONDS)
    yield from told[0]
    yield {**told[1], "value": time.monotonic() - start}
    if xla is not None:
        yield xla.row(ready, start + XLA_SECONDS)


def ahead(device) -> Iterator[dict]:
    """What sections compile, on a machine without a GPU: also the sets of once_wrong, and the models."""
    ready, missing = with_source(device)
    yield from missing
    start = time.monotonic()
    more = [(what, "once_wrong") for what in once_wrong.sets(device)]
    more += [(model["name"], "model") for model in models.chosen(device) if helpers().is_ready(model)]
    jobs = sorted(jobs_of(device, ready) + more, key=lambda job: job[1] == "off")    # needed least
    told = compile_all(device, jobs, AHEAD_SECONDS)
    yield from told[0]
    yield {**told[1], "value": time.monotonic() - start}


def with_source(device) -> tuple[list, list[dict]]:
    """The programs whose text and weights are here, and rows that say what the others lack."""
    ready, missing = [], []
    for case in cases(device):
        try:
            source(case, device)
            ready.append(case)
        except (LookupError, subprocess.TimeoutExpired) as error:
            missing.append({"what": case.name, "missing": str(error)})
    return ready, missing


def jobs_of(device, ready: list) -> list[tuple[str, str]]:
    """What is compiled: names, and "on", "off" or KERNELS. What takes longest comes first. For the emulation no
    training step without fusion, which would take a core 20 seconds."""
    jobs = [(case.name, fusion) for case in ready for fusion in ("on", "off")
            if fusion == "on" or not (device.emulated and case.made)]
    return jobs if device.emulated else [*jobs, (KERNELS, "on"), *((what, KERNELS) for what in ops.groups(device))]


def compile_all(device, jobs: list[tuple[str, str]], limit: float) -> tuple[list[dict], dict]:
    """Rows that say what was not compiled, and one for all."""
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) - 1)) as pool:
        told = list(pool.map(lambda job: compiled(device, *job, limit), jobs))
    missing = [{"what": name if fusion not in ("on", "off") else f"{name}, fusion {fusion}", "missing": why}
               for (name, fusion), (_, why) in zip(jobs, told) if why]
    slowest = max(zip(told, jobs), default=((0.0, ""), ("", "")))
    return missing, {"what": f"{sum(not why for _, why in told)} programs compiled", "unit": "s",
                     "note": f"the slowest: {slowest[1][0]}, {slowest[0][0]:.0f} s"}


class XlaAhead:
    """The process in which XLA compiles. What it says goes into a file: a full pipe would stop it."""

    def __init__(self):
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.child = subprocess.Popen([*COMMAND, "--compile-xla"], stdout=subprocess.DEVNULL, stderr=self.log)

    def row(self, ready: list, end: float) -> dict:
        """What has been compiled when it is done, or at the time `end`; the rest is compiled where it is measured."""
        from gpu_sections.xla import path_of
        start = time.monotonic()
        try:
            self.child.wait(timeout=max(1.0, end - start))
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.seek(0)
        lines = [line.strip()[:200] for line in self.log if line.strip()] or ["not ready in time"]
        done = sum(path_of(case.name).exists() for case in ready)
        if not done:
            return {"what": "programs compiled by XLA:GPU", "missing": lines[-1]}
        return {"what": f"{done} of {len(ready)} programs compiled by XLA:GPU", "unit": "s more",
                "value": time.monotonic() - start, "note": lines[-1] if done < len(ready) else ""}


def compiled(device, name: str, fusion: str, limit: float) -> tuple[float, str]:
    """Seconds, and what went wrong."""
    command = [*COMMAND, "--compile", name, fusion]
    start = time.monotonic()
    try:
        done = subprocess.run([*command, *(["--emulated"] if device.emulated else [])], capture_output=True, text=True,
                              errors="replace", timeout=limit)
    except subprocess.TimeoutExpired:
        return limit, f"not compiled in {limit:.0f} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    why = (lines[-1][:200] if lines else f"exit code {done.returncode}") if done.returncode else ""
    return time.monotonic() - start, why


def compile_one(device, name: str, fusion: str) -> None:
    """What the child does: the program as a container, with predictions of its kernels; kernels, models, and sets of
    once_wrong, into the cache of compiled code."""
    from gpu_sections import sanitizer
    from gpu_sections.programs import find
    sys.path.insert(0, str(ROOT / "tests"))
    from hloc.targets.cuda import container
    from hloc.targets.cuda.sources import make_sources
    if fusion == "model":
        device.packed(helpers().model_path(helpers().find(name)))
        return
    if fusion == "once_wrong":
        once_wrong.compile_one(device, name)
        return
    if KERNELS in (name, fusion):
        from cuda_emulation.cases import program_of
        sets = [partial(cases, device) for cases in sanitizer.SETS.values()] if name == KERNELS else \
            [ops.groups(device)[name]]
        for cases in sets:
            device.built(program_of(cases()))                           # into the cache of compiled code
        return
    text, _ = source(find(name, device), device)
    planned = device.planned(text, fusion)
    sources = make_sources(planned, device.machine)
    if fusion == "on":
        kernels.write_predictions(device, name, planned, sources)
    packed = device.container_of(sources)
    with open(container_path(name, fusion), "w+b") as file:
        container.write(file, packed.images, packed, packed.kernels, packed.arch, packed.cuda)
