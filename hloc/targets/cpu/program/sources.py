"""Program -> C translation units.

In: a plan.Program. Out: one driver unit and a few kernel units that take about as long to compile, and do so in
parallel (a small program is one unit). single_file.py makes one self-contained text of them.
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from hloc.errors import Source
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import Program
from hloc.kernels.schedule.file import Given, read_schedules, refuse_unknown
from hloc.kernels.schedule.nest import Nest
from hloc.kernels.schedule.row_nest import RowNest
from hloc.machine import Machine
from hloc.targets.c_function import CFunction, c_function, includes
from hloc.targets.cpu.building.library_kernels import runtime_units
from hloc.targets.cpu.building.unit_costs import driver_cost, kernel_cost
from hloc.targets.cpu.program.driver import Driver, DriverSource, inlined_text
from hloc.targets.cpu.program.interrupt_checks import with_interrupt_checks
from hloc.targets.cpu.program.small_kernels import inlined_kernels
from hloc.targets.cpu.tiles.source import tile_functions
from hloc.targets.cpu.vector_loops.call_printer import RowPrinter, headers_of
from hloc.targets.cpu.vector_loops.pipeline import run_kernel_passes, scheduled_nests
from hloc.targets.functions import definitions
from hloc.targets.header_selection import with_needed_sections
from hloc.targets.inlining import c_name
from hloc.targets.printer import comment, kernel_body, signature
from hloc.targets.vectors import vector_definitions

# Milliseconds of compilation (unit_costs.py). Starting gcc and reading the headers takes 45: nothing where a core would
# be idle.
UNIT_COST = 400
SPARE_CORE_COST = 120            # of a unit, while there is a core for each
LONG_DRIVER_COST = 60            # of a driver in a unit of its own, which needs less optimization than kernels
UNITS_PER_CORE = 2               # where there are many: they are equal only by and large
PROLOGUE = '#include "scalar.h"\n#include "pool.h"\n'


class Unit(NamedTuple):
    """A translation unit. functions: the kernels that it holds; holds_kernels: compile it as these are."""

    text: str
    holds_kernels: bool
    functions: tuple[CFunction, ...]


def _unit(kernels: Sequence[CFunction], driver: Sequence[str] = (), inlined: Sequence[CFunction] = ()) -> Unit:
    """Kernels, and at most one driver, with the kernels that it holds."""
    text = "\n".join([PROLOGUE, *(k.text for k in kernels), *driver])
    return Unit(with_needed_sections(text, calls_of((*kernels, *inlined))), True, (*kernels, *inlined))


def calls_of(functions: Iterable[CFunction]) -> set[str]:
    """The C functions that these call."""
    return {name for f in functions for name, _ in f.calls}


@dataclass(frozen=True)
class Sources:
    """inlined: the kernels that the driver holds; kernels: other functions, each once (kernels that differ in their
    extents only share one, so do epilogues); functions: of each kernel of the program, as its text stands in
    `readable`."""

    program: Program
    machine: Machine
    driver: DriverSource
    kernels: tuple[CFunction, ...]
    inlined: tuple[CFunction, ...]
    functions: tuple[CFunction, ...]

    def units(self, cores: int) -> list[Unit]:
        """What to compile: the driver, and kernels dealt out, largest first, to the least loaded unit. A short driver
        joins one: one start of the compiler less."""
        costs = {kernel.name: kernel_cost(kernel) for kernel in self.kernels}
        total, driver = int(sum(costs.values())), self.driver.text + OUT_OF_MEMORY + FOR_PYTHON
        least = UNIT_COST if cores == 1 else SPARE_CORE_COST
        if total + sum(map(kernel_cost, self.inlined)) + driver_cost(driver) <= least:
            return [_unit(self.kernels, [driver], self.inlined)]
        count = max(min(UNITS_PER_CORE * cores, total // (2 * UNIT_COST) + 1), min(cores, total // least + 1))
        count = max(1, min(count, len(self.kernels)))
        loads = [0.0] * count
        parts: list[list[CFunction]] = [[] for _ in range(count)]
        joins = driver_cost(driver) <= LONG_DRIVER_COST
        if joins:
            loads[0] += driver_cost(driver)
        for kernel in sorted(self.kernels, key=lambda k: costs[k.name], reverse=True):
            place = loads.index(min(loads))
            parts[place].append(kernel)
            loads[place] += costs[kernel.name]
        with_driver = [_unit(parts[0], [driver], self.inlined) if joins
                       else Unit(with_needed_sections(driver, calls_of(self.inlined)), bool(self.inlined),
                                 self.inlined)]
        return with_driver + [_unit(part) for part in parts[int(joins):] if part]

    def readable(self) -> str:
        """Kernels, then the driver, as they were generated; runtime headers stay includes."""
        return "\n".join([f"/* {self.program.name} */", PROLOGUE, *(k.text for k in self.kernels), self.driver.text])

    def runtime_units(self) -> tuple[str, ...]:
        """The files of runtime/ that the program calls into; each is compiled once per machine."""
        own = ["pool.c", *["lapack.c"] * bool(self.driver.lapack_calls), *["threads.c"] * self.program.meets]
        return tuple(dict.fromkeys([*own, *(unit for f in (*self.kernels, *self.inlined)
                                    for unit in runtime_units(name for name, _ in f.calls))]))


OUT_OF_MEMORY = "\n_Thread_local int hloc_out_of_memory;\n"
FOR_PYTHON = """
/* Start the thread pool; call once before the first hloc_execute. */
__attribute__((visibility("default"))) void hloc_use_threads(int threads) { hloc_pool_start(threads, 100); }

/* Programs in one process share their threads: what hloc_threads of the first gives is handed to the others before they
 * start; the first stays loaded. */
__attribute__((visibility("default"))) const void* hloc_threads(void) { return hloc_pool_used(); }
__attribute__((visibility("default"))) void hloc_share_threads(const void* threads) { hloc_pool_share(threads); }

/* In the child of a fork, before anything else runs there. */
__attribute__((visibility("default"))) void hloc_forget_threads(void) { hloc_after_fork(); }

/* Bytes that library kernels of this process asked for beside what plans had set aside for them. */
__attribute__((visibility("default"))) unsigned long hloc_unplanned(void) { return hloc_unplanned_bytes(); }
"""


def make_sources(program: Program, machine: Machine, *, timed: bool = False, iterations: int | None = None,
                 in_python: Collection[str] = (), inline: bool = False, prefix: str = "",
                 schedule: Source | None = None) -> Sources:
    """Print all kernels and the driver. timed: a driver that measures its steps; iterations: and traces them, with so
    many iterations of each loop; in_python: targets of custom calls that are the user's own functions; inline: the
    driver may hold small kernels; prefix: of the names of kernels of one file; schedule: a file of schedules. Raises
    ParseError if that is wrong."""
    names, functions = print_kernels([_in_one_file(k) if prefix else k for k in program.kernels], machine, prefix,
                                     read_schedules(schedule) if schedule else {})
    chosen = inlined_kernels(program, names, functions, machine) if inline and not timed else frozenset()
    inlined = {name: function for name, function in functions.items() if name in chosen}
    driver = Driver(program, names, machine, in_python, inlined, [] if timed else None, iterations).source()
    return Sources(program, machine, driver, tuple(f for name, f in functions.items() if name not in chosen),
                   tuple(inlined.values()), tuple(f.changed(inlined_text(f)) if f.name in chosen else f
                                                  for f in map(functions.__getitem__, names)))


def _in_one_file(kernel: Kernel | Tile) -> Kernel | Tile:
    """Attention of pairs of bf16 (attention_pairs.c) is the text of attention.c once more, which one file has once: its
    weights are kept in f32."""
    if not isinstance(kernel, Tile) or kernel.library_kernel != "attention":
        return kernel
    return kernel._replace(parameters=tuple((key, "f32" if key == "weights" else value)
                                            for key, value in kernel.parameters))


def print_kernels(kernels: Sequence[Kernel | Tile], machine: Machine,
                  prefix: str = "", schedules: Mapping[str, Given] = MappingProxyType({}),
                  ) -> tuple[tuple[str, ...], dict[str, CFunction]]:
    """The name of the C function of each kernel, and all functions by name, those that tiles call back too. schedules:
    of loops, by name."""
    names: list[str] = []
    functions: dict[str, CFunction] = {}
    printed: dict[tuple[str, ...], str] = {}                  # what is printed -> name
    if schedules:
        refuse_unknown(schedules, loop_names(kernels, machine, schedules))
    for number, kernel in enumerate(kernels):
        name = prefix + c_name(number, kernel.name)
        if isinstance(kernel, Tile):
            functions |= {function.name: function for function in tile_functions(kernel, name, machine)}
        else:
            own = _own(schedules, c_name(number, kernel.name))
            what, function = _printed(with_interrupt_checks(run_kernel_passes(kernel, machine, schedules=own)), name)
            name = printed.setdefault(what, name)
            functions.setdefault(name, function)
        names.append(name)
    return tuple(names), functions


def _own(schedules: Mapping[str, Given], kernel: str) -> dict[str, Given]:
    """The schedules of one kernel, by their numbers."""
    return {loop.rpartition(".")[2]: given for loop, given in schedules.items() if loop.rpartition(".")[0] == kernel}


def loop_names(kernels: Sequence[Kernel | Tile], machine: Machine,
               schedules: Mapping[str, Given] = MappingProxyType({})) -> dict[str, Nest | RowNest]:
    """The nests of all kernels, by the names that files of schedules give them."""
    named = [(c_name(number, kernel.name), kernel) for number, kernel in enumerate(kernels)]
    return {f"{name}.{n}": nest for name, kernel in named if isinstance(kernel, Kernel)
            for n, nest in scheduled_nests(kernel, machine, _own(schedules, name)).items()}


def _printed(kernel: Kernel, name: str) -> tuple[tuple[str, ...], CFunction]:
    """What is printed but for comment and name, and the function."""
    printer = RowPrinter()
    body = kernel_body(kernel, printer)
    vectors, called = vector_definitions(kernel.body, printer), definitions(kernel.body, printer)
    first, headers = (*comment(kernel.origin), signature(name)), headers_of(printer.calls)
    lines = [*includes(headers), *vectors, *called, *first, *body, ""]
    return (*vectors, *called, *body), c_function(name, lines, printer, headers=headers, origin=kernel.origin,
                                                  vectors=vectors)
