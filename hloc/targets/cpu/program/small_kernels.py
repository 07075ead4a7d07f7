"""Small kernels, whose call is a large part of their time: the driver contains their code instead.

In: a plan.Program, and each kernel's function. Out: the names of those to inline.

    a loop of 30 steps over scalars, three kernels each   ->   loads, adds and stores; 90 calls less

A call looks up the address of each argument and writes it to the stack, where the kernel reads it: 7 ns, about the time
of a kernel over a few elements. The driver is compiled on one core, and inlined code takes the compiler longer there,
so there is a limit: the driver must not make the compilation longer. Kernels that run most often come first. A kernel
whose launches take less than a thousandth of the program's time is not inlined.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hloc.kernels.ir import Kernel
from hloc.kernels.plan import Branch, Launch, Program, Step, WhileLoop
from hloc.machine import Machine
from hloc.targets.c_function import CFunction
from hloc.targets.cpu.building.unit_costs import FUNCTION, kernel_cost
from hloc.targets.cpu.program.grain import seconds_of

LAUNCH_SECONDS = 7e-9
LONGEST = 0.2e-6                 # seconds of one run: the launch of a longer one is negligible
LEAST_SHARE = 0.001              # of the program's time
MOST_COST = 100                  # milliseconds of compilation, as if each were a function of its own
UNKNOWN_TRIPS = 8


def inlined_kernels(program: Program, names: Sequence[str], functions: Mapping[str, CFunction],
                    machine: Machine) -> frozenset[str]:
    """Names of functions to inline into the driver."""
    runs: dict[str, int] = {}
    places: dict[str, int] = {}
    total = 0.0
    for launch, times in launches(program.steps):
        kernel, name = program.kernels[launch.kernel], names[launch.kernel]
        seconds = seconds_of(kernel.cost, machine)
        total += times * (LAUNCH_SECONDS + seconds)
        if isinstance(kernel, Kernel) and seconds <= LONGEST:
            runs[name] = runs.get(name, 0) + times
            places[name] = places.get(name, 0) + 1
    chosen, spent = set(), 0.0
    for name in sorted(runs, key=runs.__getitem__, reverse=True):
        cost = places[name] * max(1.0, kernel_cost(functions[name]) - FUNCTION)
        if runs[name] * LAUNCH_SECONDS >= LEAST_SHARE * total and spent + cost <= MOST_COST:
            chosen.add(name)
            spent += cost
    return frozenset(chosen)


def launches(steps: Iterable[Step], times: int = 1) -> Iterator[tuple[Launch, int]]:
    """Every launch of a plan, with how often it runs. Loops nest as deep as HLO's, which the planner has walked too."""
    for step in steps:
        if isinstance(step, Launch):
            yield step, times
        elif isinstance(step, WhileLoop):
            trips = times * (step.trip_count if step.trip_count is not None else UNKNOWN_TRIPS)
            yield from launches((*step.condition, *step.body), trips)
        elif isinstance(step, Branch):
            for branch in step.branches:
                yield from launches(branch, times)
