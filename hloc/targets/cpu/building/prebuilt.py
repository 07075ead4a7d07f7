"""The library kernels of runtime/ as object files: compiled once per machine, when hloc is installed or when a program
first needs them; then from the cache.

    object_of(chain, compilation("gemm_f32.c"), runtime_digest(), folder)      one of them, in a folder
    build_all()         ->   (62, [])       their number, and the compiler's messages for refused ones
    how_many()          ->   (62, 62)      present, and in total

An installation from source (installation.py) compiles all into the package (PREBUILT), where they are as trusted as its
code: some 60, 1.7 MB, half a minute of one core. If it could not, or for another compiler, `hloc precompile` does. They
are valid for one CPU and compiler: keys are those of the cache. A lock per entry prevents two threads or processes from
compiling the same kernel twice. Only Python's standard library is imported: an installation has nothing else.
"""
from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import as_completed
from functools import lru_cache
from pathlib import Path

from hloc import cache, settings
from hloc.errors import BuildError
from hloc.files import writing
from hloc.machine import available_cores
from hloc.targets.cpu.building import toolchain
from hloc.targets.cpu.building.library_kernels import GENERIC, TOPK, compilation
from hloc.targets.cpu.building.toolchain import INCLUDE_FOLDERS, RUNTIME, Toolchain
from hloc.workers import Workers, stop_event

PREBUILT = RUNTIME.parent / "prebuilt"
LibraryKernel = tuple[str, tuple[str, ...]]             # file of runtime/, macros
Report = Callable[[str, int, int], None]


def object_of(chain: Toolchain, kernel: LibraryKernel, sources: str, into: Path) -> Path:
    """The object file of one library kernel: the installation's, or one in the folder `into`, where no other process
    removes it. sources: runtime_digest. Raises BuildError."""
    key = _key(chain, kernel, sources)
    found = prebuilt_object(key) or cache.take(key, ".o", into)
    if found:
        return found
    with cache.lock(key, stop_event()), cache.workspace() as folder:
        found = cache.take(key, ".o", into)                        # another thread or process was faster
        if found:
            return found
        built = _compiled(chain, kernel, folder / "library kernel.o")
        return built.replace(into / cache.put(key, ".o", built).name)


def prebuilt_object(key: str) -> Path | None:
    """The object that the installation compiled under `key`, or None; always None with HLOC_PRECOMPILED=0."""
    path = PREBUILT / f"{key}.o"
    return path if settings.choice("HLOC_PRECOMPILED", "1", "0") == "1" and path.exists() else None


def runtime_digest() -> str:
    """A hash over all runtime headers: part of the keys of cached builds."""
    files = sorted(entry.path for folder in INCLUDE_FOLDERS for entry in os.scandir(folder)
                   if entry.name.endswith((".c", ".h")))
    return _digest_of(tuple((path, facts.st_size, facts.st_mtime_ns) for path in files for facts in [os.stat(path)]))


@lru_cache(maxsize=1)
def _digest_of(files: tuple[tuple[str, int, int], ...]) -> str:
    return cache.digest(*(Path(path).read_bytes() for path, _, _ in files))


def _key(chain: Toolchain, kernel: LibraryKernel, sources: str) -> str:
    unit, macros = kernel
    return cache.digest("runtime", chain.identity(), sources, unit, *chain.library_kernel_flags(), *macros)


def _compiled(chain: Toolchain, kernel: LibraryKernel, target: Path) -> Path:
    unit, macros = kernel
    return chain.compile_object(RUNTIME / unit, target, (*chain.library_kernel_flags(), *macros))


# -- all of them -------------------------------------------------------------------------------------------------------

def all_library_kernels() -> list[LibraryKernel]:
    """Every file of runtime/, for all types."""
    files = [path.name for path in sorted(RUNTIME.glob("*.c")) if path.name not in ("generic.c", "topk.c")]
    return [compilation(unit) for unit in (*files, *(f"generic.c:{name}" for name in GENERIC),
                                           *(f"topk.c:{name}" for name in TOPK))]


def build_all(folder: Path = PREBUILT, report: Report = lambda *_: None) -> tuple[int, list[str]]:
    """Compile missing ones in `folder`, in parallel, and remove outdated ones.

    Raises BuildError without a compiler, OSError if the folder cannot be written.
    """
    chain, library_kernels = toolchain.find(), _by_key()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.o"):
        if old.stem not in library_kernels:
            old.unlink()
    refused: list[str] = []
    with cache.workspace() as workspace, Workers(available_cores()) as cores:
        jobs = [cores.submit(_build, chain, kernel, workspace / f"{key}.o", folder / f"{key}.o")
                for key, kernel in library_kernels.items()]
        for done, job in enumerate(as_completed(jobs), 1):
            if error := job.result():
                refused.append(error)
            report("library kernels", done, len(jobs))
    return len(jobs) - len(refused), refused


def how_many() -> tuple[int, int]:
    """The number of compiled ones for this CPU and compiler, and of all. Raises BuildError without a compiler."""
    keys = _by_key()
    return sum(prebuilt_object(key) is not None for key in keys), len(keys)


def _by_key() -> dict[str, LibraryKernel]:
    chain, sources = toolchain.find(), runtime_digest()
    return {_key(chain, kernel, sources): kernel for kernel in all_library_kernels()}


def _build(chain: Toolchain, kernel: LibraryKernel, own: Path, target: Path) -> str:
    """The compiler's message if it refused; empty if the object is at `target`. own: a place in a workspace."""
    if target.exists():
        return ""
    try:
        built = _compiled(chain, kernel, own)
    except BuildError as error:
        return f"{kernel[0]}: {error}"
    with open(built, "rb") as file, writing(target) as kept:
        shutil.copyfileobj(file, kept)
    return ""
