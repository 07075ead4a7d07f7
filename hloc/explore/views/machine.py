"""Panes of what compilers make: PTX by NVRTC or nvcc, machine code as a disassembler shows it."""
from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloc import cache, processes
from hloc.errors import BuildError
from hloc.explore.content import NO_LINES, Content, Lines, code
from hloc.explore.views.code import cpu_sources
from hloc.explore.work import Optimized, Work
from hloc.machine import available_cores
from hloc.workers import Workers

if TYPE_CHECKING:
    from hloc.targets.cuda.sources import CudaSources

SECONDS = 60                       # of a disassembler
_SYMBOL = re.compile(r"^[0-9a-f]+ <([\w.$]+)>:$")
_PTX_ENTRY = re.compile(r"^(?:\.visible )?\.entry (\w+)\(")
_SASS_FUNCTION = re.compile(r"^\s*\.section\s+\.text\.(\w+)|^\s*Function : (\w+)|^\.text\.(\w+):")


def ptx(work: Work, chosen: Mapping[str, str]) -> Content:
    from hloc.targets.cuda import compiler
    done, names, sources = _cuda(work, chosen)
    text = compiler.compile_cuda(sources.single_file(), done.target.machine.arch, "ptx").decode()
    lines = [line.rstrip() for line in text.split("\n")]
    return code("ptx", _by_symbol(done, names, lines, _PTX_ENTRY), note=done.target.machine.arch)


def machine_code(work: Work, chosen: Mapping[str, str]) -> Content:
    return _cpu_code(work.on("cpu")) if chosen["target"] == "cpu" else _gpu_code(work, chosen)


def _cuda(work: Work, chosen: Mapping[str, str]) -> tuple[Optimized, dict[str, frozenset[int]], CudaSources]:
    """A program's kernels by the names of their functions, each with its lines, and its CUDA C."""
    from hloc.targets.cuda.sources import make_sources
    done = work.on(chosen["target"])
    sources = make_sources(done.program, done.target.machine)
    names = {g.function: done.kernel_lines(kernel) for g, (kernel, _) in zip(sources.geometry, sources.origins)}
    return done, names, sources


def _by_symbol(done: Optimized, names: Mapping[str, Lines], lines: list[str],
               symbol: re.Pattern[str]) -> Iterator[tuple[str, Lines]]:
    """Lines from a symbol on are its function's. Compilers make parts of functions: k0_add.cold, k0_add.part.0."""
    linked = NO_LINES
    for line in lines:
        if found := symbol.match(line):
            name = next(filter(None, found.groups()))
            linked = names.get(name) or names.get(name.partition(".")[0], NO_LINES)
        yield line, linked


# -- CPU ---------------------------------------------------------------------------------------------------------------

def _cpu_code(done: Optimized) -> Content:
    """The kernels' own functions; library kernels are compiled once for all programs, and are not shown."""
    from hloc.targets.cpu.building import toolchain
    if shutil.which("objdump") is None:
        raise BuildError("objdump, which disassembles, is not installed", hint="apt install binutils")
    sources = cpu_sources(done, inline=False)
    names: dict[str, Lines] = {}
    for number, function in enumerate(sources.functions):
        names[function.name] = names.get(function.name, NO_LINES) | done.kernel_lines(number)
    chain = toolchain.find(done.target.machine)
    with cache.workspace() as folder, Workers(available_cores()) as cores:
        units = [u for u in sources.units(available_cores()) if u.holds_kernels]
        objects = list(cores.map(partial(_object, chain, folder), range(len(units)), units))
        text = "\n".join(_printed(["objdump", "-d", "--no-show-raw-insn", "-w", str(path)]) for path in objects)
    lines = [line for line in text.split("\n") if not line.startswith(("/", "Disassembly"))]
    return code("assembly", _by_symbol(done, names, lines, _SYMBOL), note=chain.version)


def _object(chain: Any, folder: Path, number: int, unit: Any) -> Path:
    source = folder / f"unit{number}.c"
    source.write_text(unit.text, encoding="utf-8")
    return chain.compile_object(source, source.with_suffix(".o"), chain.kernel_flags())


def _printed(command: list[str]) -> str:
    """What a disassembler prints. Raises BuildError with its own words."""
    try:
        found = processes.run(command, SECONDS)
    except (OSError, processes.NotFinished) as error:
        raise BuildError(f"{command[0]}: {error}") from None
    if found.code:
        raise BuildError(f"{command[0]} failed: {found.errors.strip()[:500]}")
    return found.output


# -- GPU ---------------------------------------------------------------------------------------------------------------

def _gpu_code(work: Work, chosen: Mapping[str, str]) -> Content:
    from hloc.targets.cuda.kernel_images import images_of
    tool = next(filter(shutil.which, ("nvdisasm", "cuobjdump")), None)
    if tool is None:
        raise BuildError("neither nvdisasm nor cuobjdump, which disassemble cubins, is installed",
                         hint="both come with the CUDA toolkit")
    done, names, sources = _cuda(work, chosen)
    images = images_of(sources, done.target.machine.arch)
    with cache.workspace() as folder, Workers(available_cores()) as cores:
        paths = [folder / f"{name}.cubin" for name in sources.units()]
        for path, image in zip(paths, images):
            path.write_bytes(image)
        option = "-c" if tool == "nvdisasm" else "-sass"
        text = "\n".join(cores.map(lambda path: _printed([tool, option, str(path)]), paths))
    return code("assembly", _by_symbol(done, names, text.split("\n"), _SASS_FUNCTION),
                note=f"{tool}; {done.target.machine.arch}")
