"""C sources -> a shared object: all compilations in one parallel batch, then one link.

In: Sources of a program. Out: a shared object, open, and its key; from the cache if it was built before.

    key, library = build(sources, options.report, options.units)

The library kernels of runtime/ (prebuilt.py) are compiled once per machine.
"""
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hloc import cache
from hloc.files import opened
from hloc.machine import available_cores
from hloc.targets import sealed
from hloc.targets.cpu.building import toolchain
from hloc.targets.cpu.building.library_kernels import compilation
from hloc.targets.cpu.building.prebuilt import object_of, runtime_digest
from hloc.targets.cpu.building.toolchain import Toolchain
from hloc.targets.cpu.building.unit_costs import UnitTime, timed
from hloc.targets.cpu.execution.executable import MARK, VERSION, manifest
from hloc.targets.cpu.program.export import entry_unit, exported_names, write_constants
from hloc.targets.cpu.program.sources import Sources, Unit
from hloc.workers import Workers

LONG_DRIVER = 40_000              # characters
CALL = "call.c"                   # called by Python
CPU_NEEDS = "cpu_needs.c"         # of saved programs
Report = Callable[[str, int, int], None]


def build(sources: Sources, report: Report, times: list[UnitTime]) -> tuple[str, BinaryIO]:
    """The shared object of a program, open, and its key: from the cache, else compiled. Raises BuildError. `times`
    receives the time of each unit."""
    chain = toolchain.find(sources.machine)
    units = sources.units(available_cores())
    key = cache.digest(chain.identity(), runtime_digest(), repr(sources.runtime_units()),
                       *(unit.text for unit in units))
    found = cache.opened(key, ".so")
    if found:
        return key, found
    with cache.workspace() as folder:
        output = folder / "program.so"
        _compile_and_link(chain, units, sources, output, report, times)
        cache.put(key, ".so", output)
        return key, opened(output)


def save(sources: Sources, file: BinaryIO, name: str, report: Report, times: list[UnitTime]) -> None:
    """Write a self-contained shared object, with constants and manifest. name: prefix of its functions."""
    program = sources.program
    facts = {**manifest(program, program.communicating), "functions": name, "march": sources.machine.march}
    with cache.workspace() as folder:
        constants, output = folder / "constants.bin", folder / "program.so"
        write_constants(program.constants, constants)
        entry, exports = folder / "entry.c", folder / "exports"
        entry.write_text(entry_unit(program, name, facts, constants), encoding="utf-8")
        exports.write_text("{ global: " + " ".join(f"{n};" for n in exported_names(name)) + " local: *; };\n")
        _compile_and_link(toolchain.find(sources.machine), sources.units(available_cores()), sources, output, report,
                          times, Standalone(entry, exports))
        with opened(output) as image:
            sealed.write(file, image, {MARK: VERSION, "manifest": facts})


class Standalone(NamedTuple):
    """entry: C text of the unit with the public functions; exports: the linker's list of these."""

    entry: Path
    exports: Path


def _compile_and_link(chain: Toolchain, units: list[Unit], sources: Sources, output: Path, report: Report,
                      times: list[UnitTime], alone: Standalone | None = None) -> None:
    """Compile the units of a program and the missing library kernels, the largest first. alone: not for this Python."""
    digest = runtime_digest()
    with cache.workspace() as folder, Workers(available_cores()) as cores, \
            Workers(16) as waiting:                    # another thread may be compiling a library kernel
        own = (*sources.runtime_units(), CALL, *((CPU_NEEDS,) if alone else ()))
        library_kernels = [waiting.submit(_library_kernel, chain, unit, digest, folder, times) for unit in own]
        jobs = [cores.submit(_unit_object, chain, unit, folder / f"unit{number}.c", times)
                for number, unit in enumerate(sorted(units, key=lambda unit: -len(unit.text)))]
        if alone:
            flags = (*toolchain.DRIVER_FLAGS, *chain.any_cpu())
            jobs.append(cores.submit(chain.compile_object, alone.entry, alone.entry.with_suffix(".o"), flags))
        _follow(jobs + library_kernels, report)
        report("link", 0, 0)                           # zig builds its C library first, once
        with timed(times, "link"):
            chain.link([job.result() for job in jobs + library_kernels], output,
                       alone.exports if alone else None)


def _follow(jobs: list[Future], report: Report) -> None:
    report("compile", 0, len(jobs))
    for done, job in enumerate(as_completed(jobs), 1):
        job.result()
        report("compile", done, len(jobs))


def _library_kernel(chain: Toolchain, unit: str, digest: str, folder: Path, times: list[UnitTime]) -> Path:
    kernel = compilation(unit)
    with timed(times, f"library kernel {kernel[0]}"):
        return object_of(chain, kernel, digest, folder)


def _unit_object(chain: Toolchain, unit: Unit, source: Path, times: list[UnitTime]) -> Path:
    source.write_text(unit.text, encoding="utf-8")
    driver_flags = toolchain.DRIVER_FLAGS if len(unit.text) < LONG_DRIVER else toolchain.LONG_DRIVER_FLAGS
    flags = chain.kernel_flags() if unit.holds_kernels else driver_flags
    with timed(times, source.name, unit.functions):
        return chain.compile_object(source, source.with_suffix(".o"), flags)
