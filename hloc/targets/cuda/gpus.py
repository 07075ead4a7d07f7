"""GPUs by name: facts as data, so that a GPU build needs no GPU.

    GPUS["h100"].arch == "sm_90a"; gpu_named("sm_80") is the A100.

Figures: NVIDIA's data sheets and the CUDA C++ Programming Guide's table of compute capabilities. bandwidth is the
memory's in bytes per second, shared_bytes the most that one block may use.
"""
from __future__ import annotations

from hloc.machine import Machine

KIB, MIB = 1 << 10, 1 << 20


def _gpu(name: str, arch: str, sms: int, l2_mib: int, bandwidth: float, shared_kib: int, l1_kib: int) -> Machine:
    return Machine(name, "gpu", sms, 16, l1_kib * KIB, l2_mib * MIB, bandwidth, 3e-6, shared_kib * KIB, arch)


GPUS: dict[str, Machine] = {gpu.name: gpu for gpu in (
    _gpu("a100", "sm_80", 108, 40, 2.04e12, 163, 192),
    _gpu("a10", "sm_86", 72, 6, 0.60e12, 99, 128),
    _gpu("rtx3090", "sm_86", 82, 6, 0.94e12, 99, 128),
    _gpu("l4", "sm_89", 58, 48, 0.30e12, 99, 128),
    _gpu("l40s", "sm_89", 142, 96, 0.86e12, 99, 128),
    _gpu("rtx4090", "sm_89", 128, 72, 1.01e12, 99, 128),
    _gpu("h100", "sm_90a", 132, 50, 3.35e12, 227, 256),
    _gpu("h200", "sm_90a", 132, 50, 4.80e12, 227, 256),
    _gpu("b200", "sm_100a", 148, 126, 8.00e12, 227, 256),
    _gpu("rtx5090", "sm_120a", 170, 96, 1.79e12, 99, 128),
)}
DEFAULT = "h100"


def gpu_named(name: str) -> Machine | None:
    """A GPU by its name, or the first one of an architecture: sm_90 and sm_90a mean the same."""
    wanted = name.lower()
    if wanted in GPUS:
        return GPUS[wanted]
    return next((g for g in GPUS.values() if g.arch in (wanted, wanted + "a")), None)
