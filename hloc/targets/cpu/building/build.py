"""C sources -> a shared object: everything that must be compiled, in one parallel batch, then one link.

In: Sources of a program. Out: the path of a shared object, from the cache where it was built before.

    library = build(sources, options.report)

The routines of runtime/ are compiled once per machine. `ahead` starts them while the passes still run; a lock per entry
keeps two threads or processes from compiling the same routine twice.
"""
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from hloc import cache
from hloc.ir import Module
from hloc.machine import Machine, available_cores
from hloc.targets.cpu.building import toolchain
from hloc.targets.cpu.building.likely import likely_units
from hloc.targets.cpu.building.parts import compiled
from hloc.targets.cpu.building.toolchain import Toolchain
from hloc.targets.cpu.program.export import export_unit, write_constants
from hloc.targets.cpu.program.sources import RUNTIME, Sources, runtime_digest

LONG_DRIVER = 40_000              # characters
CALL = "call.c"                   # what Python calls; a program for C alone has no use for it
Report = Callable[[str, int, int], None]


def build(sources: Sources, report: Report) -> Path:
    """The shared object of a program: from the cache, else compiled. Raises BuildError."""
    chain = toolchain.find()
    units = sources.units(available_cores())
    parts = compiled((*sources.runtime_units(), CALL), sources.parts())
    key = cache.digest(chain.identity(), runtime_digest(), repr(parts), *(text for text, _ in units))
    found = cache.find(key, ".so")
    if found:
        return found
    with cache.workspace() as folder:
        output = folder / "program.so"
        _compile_and_link(chain, units, sources, output, report, for_python=True)
        return cache.put(key, ".so", output)


def save(sources: Sources, path: Path, report: Report) -> None:
    """Write a shared object that stands alone: the constants and the manifest are inside."""
    with cache.workspace() as folder:
        constants = folder / "constants.bin"
        write_constants(sources.program.constants, constants)
        units = sources.units(available_cores(), export_unit(sources.program, constants))
        _compile_and_link(toolchain.find(), units, sources, path, report)


def _compile_and_link(chain: Toolchain, units: list[tuple[str, bool]], sources: Sources, output: Path,
                      report: Report, *, for_python: bool = False) -> None:
    """The units of a program and the missing routines at once; the largest first."""
    with cache.workspace() as folder, ThreadPoolExecutor(available_cores()) as cores, \
            ThreadPoolExecutor(16) as waiting:                    # a routine may be in the making elsewhere
        routines = [waiting.submit(runtime_object, chain, unit, flags, folder)
                    for unit, flags in compiled((*sources.runtime_units(), CALL), sources.parts())]
        jobs = [cores.submit(_unit_object, chain, text, folder / f"unit{number}.c", is_kernels)
                for number, (text, is_kernels) in enumerate(sorted(units, key=lambda unit: -len(unit[0])))]
        _follow(jobs + routines, report)
        chain.link([job.result() for job in jobs + routines], output, for_python=for_python)


def _follow(jobs: list[Future], report: Report) -> None:
    for done, job in enumerate(as_completed(jobs), 1):
        job.result()
        report("compile", done, len(jobs))


def _unit_object(chain: Toolchain, text: str, source: Path, is_kernels: bool) -> Path:
    source.write_text(text, encoding="utf-8")
    driver_flags = toolchain.DRIVER_FLAGS if len(text) < LONG_DRIVER else toolchain.LONG_DRIVER_FLAGS
    flags = chain.kernel_flags() if is_kernels else driver_flags
    return chain.compile_object(source, source.with_suffix(".o"), flags)


def runtime_object(chain: Toolchain, unit: str, more: tuple[str, ...] = (), into: Path | None = None) -> Path:
    """The object file of one routine: compiled once per machine, then from the cache. In the folder `into`, if given,
    where no other process removes it while this one needs it."""
    flags = (*chain.routine_flags(lean="HLOC_THIN" in "".join(more)), *more)
    key = cache.digest("runtime", chain.identity(), runtime_digest(), unit, *flags)

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


def ahead(module: Module) -> None:
    """Start compiling the routines that a module will probably call. Errors show where they are used."""
    chain = toolchain.find()
    threads = ThreadPoolExecutor(available_cores())
    units, parts = likely_units(module, Machine.host())
    for unit, flags in compiled((*units, CALL), parts):
        threads.submit(runtime_object, chain, unit, flags)
    threads.shutdown(wait=False)
