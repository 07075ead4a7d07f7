"""The tuning file: the fastest variant of each kernel, as measured on a device.

In: the kernels of a program, the GPU, a file. Out: a variant (a label of tiles.variants) for each kernel; "" if the
cost model chooses. If that GPU is present, kernels that are not in the file are first measured (measure.py) and added
to it.

    {"hloc_tuning": 2, "measured": {"NVIDIA H200, CUDA 13.0": {"3f2a...": {"kernel": "gemm bf16 4096x4096x1024",
       "variant": "128x256x64 3 stages", "microseconds": {"128x256x64 3 stages": 61.2, ...}, "refused": {}}}},
     "sha256": "..."}

The key of a kernel is a hash of its structure and of hloc's own templates: another version of hloc measures again. No
content of a file is executed: a label that hloc does not know is refused.
"""
from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, NoReturn

from hloc import cache, files
from hloc.errors import RunError
from hloc.kernels.ir import Kernel, Tile
from hloc.machine import Machine
from hloc.targets.cuda import presence
from hloc.targets.cuda.execution.measured import Measured, describe
from hloc.targets.cuda.gpus import device_named
from hloc.targets.cuda.tiles.source import variants

VERSION = 2
LARGEST_FILE = 64 << 20
TARGET = Path(__file__).parent.parent


class Tuning(NamedTuple):
    """measured: device -> key of a kernel -> Measured."""

    measured: dict[str, dict[str, Measured]]


def key_of(tile: Tile) -> str:
    """The key of a kernel, the same for kernels with the same code."""
    return cache.digest(repr(tile.structure()), templates_identity())


@lru_cache(maxsize=1)
def templates_identity() -> str:
    own = [*sorted(TARGET.rglob("*.cuh")), *sorted(TARGET.rglob("*.py"))]
    return cache.digest(*(f.read_bytes() for f in own))


def tunable(kernels: Sequence[Kernel | Tile], gpu: Machine) -> dict[str, Tile]:
    """Key -> kernel, for kernels with more than one way."""
    return {key_of(k): k for k in kernels if isinstance(k, Tile) and len(variants(k, gpu)) > 1}


def chosen_variants(kernels: Sequence[Kernel | Tile], gpu: Machine, path: Path, report=None) -> list[str]:
    """The variant of each kernel. report(stage, done, total) is called while kernels are measured.

    Raises RunError for a file that is damaged or not hloc's, for a file of other devices if this one is not present,
    and for a kernel that faults while it is measured.
    """
    wanted = tunable(kernels, gpu)
    here = _device_here(gpu) if presence.device_present() else None
    tuning = read(path) if path.exists() or here is None else Tuning({})
    if here is not None:
        own = tuning.measured.setdefault(here, {})
        missing = {key: tile for key, tile in wanted.items() if key not in own}
        if missing:
            files.check_target(path)
            from hloc.targets.cuda.execution.measure import measure
            for number, (key, tile) in enumerate(missing.items()):
                if report:
                    report("measure kernels", number, len(missing))
                own[key] = measure(tile, gpu)
                _add(path, here, key, own[key])
    else:
        own = _of_gpu(path, tuning, gpu)
        if wanted and not own.keys() & wanted.keys():
            raise RunError(f"{path} names none of this program's {len(wanted)} kernels that it could choose for",
                           hint="it was measured for another program, or by another version of hloc")
    found = {key: own[key].variant for key in wanted if key in own}
    for key, variant in found.items():
        if variant not in variants(wanted[key], gpu):
            raise RunError(f"{path}: the variant {variant!r} of {describe(wanted[key])} is unknown",
                           hint="remove the file, and it is measured again")
    return [found.get(key_of(k), "") if isinstance(k, Tile) else "" for k in kernels]


def _device_here(gpu: Machine) -> str | None:
    """The file's name of the device that is present, if it is the one to compile for; else None."""
    from hloc.targets.cuda.execution.context import device_machine, driver
    here = device_machine()
    if gpu not in (here, device_named(here.name, here.arch)):
        return None
    version = driver().get_driver_version()
    return f"{here.name}, CUDA {version // 1000}.{version % 1000 // 10}"


def _of_gpu(path: Path, tuning: Tuning, gpu: Machine) -> dict[str, Measured]:
    """The measurements on such a GPU, those with the latest driver."""
    fitting = [name for name in tuning.measured
               if (known := device_named(name.rpartition(", CUDA ")[0], "")) is not None and known.name == gpu.name]
    if not fitting:
        raise RunError(f"{path} was measured on {' and on '.join(sorted(tuning.measured)) or 'no device'}, not on "
                       f"{gpu.name}", hint="hloc run --tuning FILE on such a machine adds to the file")
    return tuning.measured[max(fitting, key=_version)]


def _version(name: str) -> list[int]:
    return [int(n) for n in name.rpartition(", CUDA ")[2].split(".") if n.isdecimal() and len(n) < 10]


# -- the file ----------------------------------------------------------------------------------------------------------

def read(path: Path) -> Tuning:
    """Reads a file. Raises RunError for one that does not exist, is damaged, or was not written by hloc."""
    try:
        data = json.loads(files.read(path, LARGEST_FILE), parse_constant=_refuse)
        if data["hloc_tuning"] != VERSION:
            raise RunError(f"{path} has tuning version {data['hloc_tuning']}, this hloc reads {VERSION}")
        if data["sha256"] != _seal(data["measured"]):
            raise RunError(f"{path} is damaged: its measurements do not match their hash",
                           hint="remove it, and kernels are measured again")
        return Tuning({str(device): {str(key): _measured(row) for key, row in rows.items()}
                       for device, rows in data["measured"].items()})
    except OSError as error:
        raise RunError(f"cannot read the tuning file {path}: {error.strerror}",
                       hint="hloc run --tuning FILE on a machine with a GPU writes one") from None
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise RunError(f"{path} is not a whole tuning file that hloc wrote ({type(error).__name__}: {error})",
                       hint="remove it, and kernels are measured again") from None


def _add(path: Path, device: str, key: str, row: Measured) -> None:
    """Adds one kernel, and keeps those that other processes have added since."""
    with cache.lock(cache.digest(str(path.resolve()))):
        tuning = read(path) if path.exists() else Tuning({})
        tuning.measured.setdefault(device, {})[key] = row
        write(path, tuning)


def write(path: Path, tuning: Tuning) -> None:
    """Writes the file atomically. Raises RunError if that is not possible."""
    rows = {device: {key: {"kernel": m.kernel, "variant": m.variant, "microseconds": m.microseconds,
                           "refused": m.refused}
                     for key, m in own.items()} for device, own in tuning.measured.items()}
    text = json.dumps({"hloc_tuning": VERSION, "measured": rows, "sha256": _seal(rows)}, indent=1) + "\n"
    files.write(path, text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no time")


def _seal(rows: dict) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def _measured(row: dict) -> Measured:
    times = {str(k): float(v) for k, v in row["microseconds"].items()}
    if not all(0 <= time < math.inf for time in times.values()):
        raise ValueError("a time that is none")
    return Measured(str(row["kernel"]), str(row["variant"]), times, {str(k): str(v) for k, v in row["refused"].items()})
