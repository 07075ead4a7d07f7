"""The library kernels of runtime/ as object files: compiled once per machine, when hloc is installed or when a program
first needs them; then from the cache.

    runtime_object(chain, unit, flags, runtime_digest())     one of them

Objects of an installation (prebuilt.py) are in the package, as trusted as its code. They are valid for one CPU and
compiler: keys are those of the cache. A lock per entry prevents two threads or processes from compiling the same kernel
twice. A compilation begins with this file: it imports little, so that compilers start early, and only Python's standard
library, because an installation has nothing else.
"""
from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from hloc import cache, settings
from hloc.targets.cpu.building.toolchain import INCLUDE_FOLDERS, RUNTIME, Toolchain
from hloc.workers import stop_event

CALL = "call.c"                   # called by Python
CPU_NEEDS = "cpu_needs.c"         # of saved programs
PREBUILT = RUNTIME.parent / "prebuilt"


def runtime_object(chain: Toolchain, unit: str, more: tuple[str, ...], sources: str, into: Path | None = None) -> Path:
    """The object file of one library kernel; sources: runtime_digest. In the folder `into`, if given, where no other
    process removes it."""
    key, flags = identity_of(chain, unit, more, sources)
    installed = prebuilt_object(key)
    if installed:
        return installed

    def cached() -> Path | None:
        return cache.take(key, ".o", into) if into else cache.find(key, ".o")
    found = cached()
    if found:
        return found
    with cache.lock(key, stop_event()), cache.workspace() as folder:
        found = cached()                                          # another thread or process was faster
        if found:
            return found
        built = chain.compile_object(RUNTIME / unit, folder / "library kernel.o", flags)
        kept = cache.put(key, ".o", built)
        return built.replace(into / kept.name) if into else kept


def identity_of(chain: Toolchain, unit: str, more: tuple[str, ...], sources: str) -> tuple[str, tuple[str, ...]]:
    """The key of a kernel's object, and its compiler flags; more: macros."""
    flags = (*chain.library_kernel_flags(), *more)
    return cache.digest("runtime", chain.identity(), sources, unit, *flags), flags


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
