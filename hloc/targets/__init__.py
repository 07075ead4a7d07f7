"""Targets by name: cpu, cuda, sm_90a, h100 ..., auto.

    find("auto").name    -> "cuda" on a machine with an NVIDIA GPU and PyCUDA, else "cpu"
"""
from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from hloc.errors import UsageError
from hloc.targets import presence

if TYPE_CHECKING:
    from hloc.targets.target import Target


def find(name: str, march: str = "native") -> Target:
    """The target called `name`; march: of a CPU, the C compiler's -march. Raises UsageError, with the nearest names,
    for an unknown one."""
    if not isinstance(name, str):
        raise UsageError(f"a target is a name, such as 'cpu' or 'h100', not {name!r}")
    if march != "native" and name not in ("cpu", "auto"):
        raise UsageError(f"--march is for the target cpu, not for {name}")
    if name == "cpu" or (name == "auto" and (march != "native" or not presence.driver_present())):
        from hloc.targets.cpu.target import cpu_target
        return cpu_target(march)
    from hloc.targets.cuda.gpus import GPUS, gpu_named
    if name == "auto":
        return _device_or_cpu()
    gpu = gpu_named(name)
    if name == "cuda" or gpu is not None:
        from hloc.targets.cuda.target import cuda_target
        return cuda_target(gpu)
    if name == "reference":
        raise UsageError("target reference evaluates HLO: it has no kernels, no generated code and no plan of memory",
                         hint="cpu, cuda and GPUs by name have them")
    known = ["auto", "cpu", "cuda", "reference", *GPUS, *sorted({g.arch for g in GPUS.values()})]
    near = ["cuda"] if name.lower() in ("gpu", "nvidia") else difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    raise UsageError(f"unknown target {name!r}",
                     hint=f"did you mean {', '.join(near)}?" if near else "targets: " + ", ".join(known))


def gpu_left_out(asked: str, taken: str) -> str:
    """Why "auto" is the CPU although there is an NVIDIA driver; "" if there is no reason to report."""
    if asked != "auto" or taken != "cpu" or not presence.driver_present():
        return ""
    from hloc.targets.cuda.presence import device_missing
    return device_missing()


def _device_or_cpu() -> Target:
    from hloc.targets.cuda.presence import device_present
    if device_present():
        from hloc.targets.cuda.target import cuda_target
        return cuda_target(None)
    from hloc.targets.cpu.target import cpu_target
    return cpu_target()
