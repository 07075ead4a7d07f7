"""GPUs by name: facts as data (gpus.json), so that a GPU build needs no GPU.

    GPUS["h100"].arch == "sm_90a"; gpu_named("sm_80") is the A100; FACTS["h100"]["bf16_tflops"] == 989
"""
from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from hloc.machine import Machine

KIB, MIB = 1 << 10, 1 << 20
BUS_SHARE = 0.8                     # of its data rate that copies to and from the host reach
PLAIN_HOPPER = "sm_90"
_DATA = json.loads((Path(__file__).parent / "gpus.json").read_text(encoding="utf-8"))


def _gpu(name: str, arch: str, sms: int, l2_mib: int, gb_s: float, host_gb_s: float, shared_kib: int, l1_kib: int,
         **_: Any) -> Machine:
    return Machine(name, "gpu", sms, 16, l1_kib * KIB, l2_mib * MIB, gb_s * 1e9, 3e-6, shared_kib * KIB, arch,
                   host_bandwidth=BUS_SHARE * host_gb_s * 1e9)


FACTS: dict[str, dict[str, Any]] = {row["name"]: row for row in _DATA["gpus"]}
GPUS: dict[str, Machine] = {name: _gpu(**row) for name, row in FACTS.items()}
COSTS: dict[str, dict[str, Any]] = _DATA["costs"]
DEFAULT: str = _DATA["default"]


def gpu_named(name: str) -> Machine | None:
    """A GPU by its name, or the first one of an architecture: sm_100 and sm_100a are the same; sm_90 is Hopper without
    the instructions of sm_90a (wgmma, bulk copies)."""
    wanted = name.lower()
    if wanted in GPUS:
        return GPUS[wanted]
    if wanted == PLAIN_HOPPER:
        hopper = gpu_named(PLAIN_HOPPER + "a")
        assert hopper is not None
        return dataclasses.replace(hopper, arch=PLAIN_HOPPER)
    return next((g for g in GPUS.values() if g.arch in (wanted, wanted + "a")), None)


def device_named(name: str, arch: str) -> Machine | None:
    """The GPU with a driver's name, such as "NVIDIA H100 80GB HBM3", else the first one of its architecture."""
    words = re.findall(r"[a-z]+\d+[a-z]*|\d{4}|rtx", name.lower())
    for candidate in ("".join(words[:2]), *words):
        if candidate in GPUS:
            return GPUS[candidate]
    return gpu_named(arch + "a") or gpu_named(arch)


def facts_of(gpu: Machine) -> dict[str, Any]:
    """The data sheet's figures of a GPU, also of one with its driver's name; those of the default if it is unknown."""
    known = None if gpu.name in FACTS else device_named(gpu.name, gpu.arch.rstrip("af")) or GPUS[DEFAULT]
    return FACTS[known.name if known else gpu.name]
