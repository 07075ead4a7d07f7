"""All library kernels of runtime/, compiled before any program needs them.

In: this machine's compiler and CPU. Out: object files in the package (PREBUILT), under the keys of library_objects.py:
some 60, 1.7 MB, half a minute of one core. An installation from source makes them (installation.py); if it could
not, or for another compiler, `hloc precompile` does.

    build_all()         ->   (62, [])       their number, and the compiler's messages for refused ones
    how_many()          ->   (62, 62)      present, and in total
"""
from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from pathlib import Path

from hloc import cache
from hloc.errors import BuildError
from hloc.files import writing
from hloc.machine import available_cores
from hloc.targets.cpu.building import toolchain
from hloc.targets.cpu.building.library_kernels import GENERIC, TOPK, compilation
from hloc.targets.cpu.building.library_objects import PREBUILT, identity_of, prebuilt_object, runtime_digest
from hloc.targets.cpu.building.toolchain import RUNTIME, Toolchain
from hloc.workers import Workers

LibraryKernel = tuple[str, tuple[str, ...]]             # file of runtime/, flags
Report = Callable[[str, int, int], None]


def all_library_kernels() -> list[LibraryKernel]:
    """Every file of runtime/, for all types."""
    files = [path.name for path in sorted(RUNTIME.glob("*.c")) if path.name not in ("generic.c", "topk.c")]
    return [compilation(unit) for unit in (*files, *(f"generic.c:{name}" for name in GENERIC),
                                           *(f"topk.c:{name}" for name in TOPK))]


def build_all(folder: Path = PREBUILT, report: Report = lambda *_: None) -> tuple[int, list[str]]:
    """Compile missing ones in `folder`, in parallel, and remove outdated ones.

    Raises BuildError without a compiler, OSError if the folder cannot be written.
    """
    chain, library_kernels = toolchain.find(), dict(_keys())
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.o"):
        if old.stem not in library_kernels:
            old.unlink()
    refused: list[str] = []
    with cache.workspace() as workspace, Workers(available_cores()) as cores:
        jobs = [cores.submit(_build, chain, key, kernel, workspace, folder)
                for key, kernel in library_kernels.items()]
        for done, job in enumerate(as_completed(jobs), 1):
            if error := job.result():
                refused.append(error)
            report("library kernels", done, len(jobs))
    return len(jobs) - len(refused), refused


def how_many() -> tuple[int, int]:
    """The number of compiled ones for this CPU and compiler, and of all. Raises BuildError without a compiler."""
    keys = [key for key, _ in _keys()]
    return sum(prebuilt_object(key) is not None for key in keys), len(keys)


def _keys() -> Iterator[tuple[str, LibraryKernel]]:
    chain, sources = toolchain.find(), runtime_digest()
    for unit, more in all_library_kernels():
        key, flags = identity_of(chain, unit, more, sources)
        yield key, (unit, flags)


def _build(chain: Toolchain, key: str, library_kernel: LibraryKernel, workspace: Path, folder: Path) -> str:
    """The compiler's message if it refused; empty if the object is in `folder`."""
    unit, flags = library_kernel
    target = folder / f"{key}.o"
    if target.exists():
        return ""
    try:
        built = chain.compile_object(RUNTIME / unit, workspace / f"{key}.o", flags)
    except BuildError as error:
        return f"{unit}: {error}"
    with open(built, "rb") as file, writing(target) as kept:
        shutil.copyfileobj(file, kept)
    return ""
