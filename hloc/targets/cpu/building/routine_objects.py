"""The routines of runtime/ as object files: each compiled once per machine, then from the cache.

    ahead(module)                        starts those that a module will probably call, while the passes still run
    runtime_object(chain, unit, flags)   one of them

A lock per entry keeps two threads or processes from compiling the same routine twice. A compilation begins with this
file: it imports no more than it needs, so that compilers start early.
"""
from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from hloc import cache
from hloc.ir import Module
from hloc.machine import Machine, available_cores
from hloc.targets.cpu.building import toolchain
from hloc.targets.cpu.building.likely import likely_units
from hloc.targets.cpu.building.parts import compiled
from hloc.targets.cpu.building.toolchain import INCLUDE_FOLDERS, RUNTIME, Toolchain

CALL = "call.c"                   # what Python calls; a program for C alone has no use for it


def ahead(module: Module) -> None:
    """Start compiling the routines that a module will probably call. Errors show where they are used."""
    chain, sources = toolchain.find(), runtime_digest()
    threads = ThreadPoolExecutor(available_cores())
    units, parts = likely_units(module, Machine.host())
    for unit, flags in compiled((*units, CALL), parts):
        threads.submit(runtime_object, chain, unit, flags, sources)
    threads.shutdown(wait=False)


def runtime_object(chain: Toolchain, unit: str, more: tuple[str, ...], sources: str, into: Path | None = None) -> Path:
    """The object file of one routine; sources: runtime_digest. In the folder `into`, if given, where no other process
    removes it while this one needs it."""
    own = tuple(flag for flag in more if flag.startswith("-D") or not chain.is_clang)       # passes are named as gcc's
    flags = (*chain.routine_flags(lean="HLOC_THIN" in "".join(more)), *own)
    key = cache.digest("runtime", chain.identity(), sources, unit, *flags)

    def cached() -> Path | None:
        found = cache.find(key, ".o")
        return cache.hold(found, into / found.name) if found and into else found
    found = cached()
    if found:
        return found
    with cache.lock(key), cache.workspace() as folder:
        found = cached()                                          # another thread or process was faster
        if found:
            return found
        built = chain.compile_object(RUNTIME / unit, folder / "routine.o", flags)
        kept = cache.put(key, ".o", built)
        return built.replace(into / kept.name) if into else kept


def runtime_digest() -> str:
    """Hash over all runtime headers: a cached build must not outlive them."""
    files = sorted(entry.path for folder in INCLUDE_FOLDERS for entry in os.scandir(folder)
                   if entry.name.endswith((".c", ".h")))
    return _digest_of(tuple((path, facts.st_size, facts.st_mtime_ns) for path in files for facts in [os.stat(path)]))


@lru_cache(maxsize=1)
def _digest_of(files: tuple[tuple[str, int, int], ...]) -> str:
    return cache.digest(*(Path(path).read_bytes() for path, _, _ in files))
