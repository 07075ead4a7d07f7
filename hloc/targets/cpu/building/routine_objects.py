"""The routines of runtime/ as object files: compiled once per machine, when hloc is installed, or when a program needs
them first; then from the cache.

    runtime_object(chain, unit, flags, runtime_digest())     one of them

What an installation compiled (prebuilt.py) lies in the package, as trusted as its code. It serves the CPU and the
compiler that it was made for: keys are those of the cache. A lock per entry keeps two threads or processes from
compiling the same routine twice. A compilation begins with this file: it imports no more than it needs, so that
compilers start early, and nothing beside Python's own library, which is all that an installation has.
"""
from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from hloc import cache
from hloc.targets.cpu.building.toolchain import INCLUDE_FOLDERS, RUNTIME, Toolchain
from hloc.workers import stop_event

CALL = "call.c"                   # what Python calls
CPU_NEEDS = "cpu_needs.c"         # of saved programs
PREBUILT = RUNTIME.parent / "prebuilt"


def runtime_object(chain: Toolchain, unit: str, more: tuple[str, ...], sources: str, into: Path | None = None) -> Path:
    """The object file of one routine; sources: runtime_digest. In the folder `into`, if given, where no other process
    removes it while this one needs it."""
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
        built = chain.compile_object(RUNTIME / unit, folder / "routine.o", flags)
        kept = cache.put(key, ".o", built)
        return built.replace(into / kept.name) if into else kept


def identity_of(chain: Toolchain, unit: str, more: tuple[str, ...], sources: str) -> tuple[str, tuple[str, ...]]:
    """The key of a routine's object, and the flags it compiles with."""
    own = tuple(flag for flag in more if flag.startswith("-D") or not chain.is_clang)       # passes are named as gcc's
    flags = (*chain.routine_flags(lean="HLOC_THIN" in "".join(more)), *own)
    return cache.digest("runtime", chain.identity(), sources, unit, *flags), flags


def prebuilt_object(key: str) -> Path | None:
    """What the installation compiled under `key`, if it did; HLOC_ROUTINES=0: nothing, as if it had not."""
    path = PREBUILT / f"{key}.o"
    return path if os.environ.get("HLOC_ROUTINES") != "0" and path.exists() else None


def runtime_digest() -> str:
    """Hash over all runtime headers: a cached build must not outlive them."""
    files = sorted(entry.path for folder in INCLUDE_FOLDERS for entry in os.scandir(folder)
                   if entry.name.endswith((".c", ".h")))
    return _digest_of(tuple((path, facts.st_size, facts.st_mtime_ns) for path in files for facts in [os.stat(path)]))


@lru_cache(maxsize=1)
def _digest_of(files: tuple[tuple[str, int, int], ...]) -> str:
    return cache.digest(*(Path(path).read_bytes() for path, _, _ in files))
