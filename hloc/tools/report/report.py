"""The content of a report: one run of the passes, a plan, the kernels' texts, and what other targets would take.

    told = make_report(module, find("cpu"), title="model.hlo", others=("a100", "h100"))
"""
from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hloc.api import Options, plan
from hloc.errors import HlocError
from hloc.ir import Instruction, Module
from hloc.ir.clone import clone_module
from hloc.kernels.memory import MemoryOverTime, memory_over_time
from hloc.kernels.plan import Program
from hloc.passes.context import PassContext
from hloc.passes.fusion.edges import Edge
from hloc.passes.pipelines import pipeline_for
from hloc.passes.runner import Timing, run_passes
from hloc.targets.target import Target
from hloc.tools.diff import Difference, diff
from hloc.tools.explain import Reason, reasons_of
from hloc.tools.report.collectives import Row, collective_rows
from hloc.tools.report.kernels import KernelReport, kernel_reports
from hloc.tools.report.times import Predicted, Roof, predicted, predicted_on, roof, total

MOST_COMPARED = 100_000         # instructions, over all passes: 20 s


class PassReport(NamedTuple):
    """A run of a pass that changed the module. found: what it changed; None where too much was compared before it."""

    name: str
    seconds: float
    instructions: int
    found: Difference | None


class OtherTarget(NamedTuple):
    """seconds: of a run, predicted; launches: of kernels in it; problem: why these are not known."""

    name: str
    seconds: float = 0.0
    launches: int = 0
    problem: str = ""


@dataclass
class Report:
    """problem: why the module has no plan, where it has none: then there are passes and edges, but no kernels.

    stages      seconds of parse, passes, lowering, printing, compiler: as far as these were done
    compiling   seconds of the C compiler for each kernel, by its name: estimated parts of its calls; with --measure
    measured    seconds of a run, the median; None where nothing was measured
    """

    title: str
    target: Target
    module: Module
    read: int
    passes: list[PassReport]
    timings: list[Timing]
    edges: list[Edge]
    collectives: list[Row]
    problem: str = ""
    program: Program | None = None
    kernels: list[KernelReport] = field(default_factory=list)
    times: list[Predicted] = field(default_factory=list)
    memory: MemoryOverTime | None = None
    others: list[OtherTarget] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    compiling: dict[str, float] = field(default_factory=dict)
    measured: float | None = None

    @property
    def seconds(self) -> float:
        """Predicted, of a run."""
        return total(self.times)

    @property
    def launches(self) -> int:
        return sum(t.runs for t in self.times)

    @property
    def moved(self) -> int:
        """Bytes that the kernels of a run read and write."""
        return self._sum("bytes")

    @property
    def flops(self) -> int:
        return self._sum("flops")

    def _sum(self, what: str) -> int:
        kernels = self.program.kernels if self.program else ()
        return sum(getattr(kernels[t.kernel].cost, what) * t.runs for t in self.times)

    @property
    def reasons(self) -> list[Reason]:
        return reasons_of(self.edges)

    @property
    def roof(self) -> Roof:
        return roof(self.target.machine)


def make_report(module: Module, target: Target, options: Options | None = None, *, title: str = "",
                others: Sequence[str] = ()) -> Report:
    """Optimize the module, in place, and tell what became of it. others: targets to predict a run for, too."""
    options = options or Options()
    original = clone_module(module) if others else module
    read = sum(len(c.instructions) for c in module.computations)
    edges: list[Edge] = []
    timings: list[Timing] = []
    passes = _optimized(module, target, options, edges, timings)
    told = Report(title or module.name, target, module, read, passes, timings,
                  sorted(edges, key=lambda e: -e.size), collective_rows(module), stages=options.stages)
    try:
        _planned(told, options)
    except HlocError as error:
        told.problem = f"{error.message} ({error.hint})" if error.hint else error.message
    for name in others if not told.problem else ():
        options.report(f"prediction for {name}")
        told.others.append(_on_other(original, name, told, options))
    return told


def _optimized(module: Module, target: Target, options: Options, edges: list[Edge],
               timings: list[Timing]) -> list[PassReport]:
    """Run the passes; what each run of one that changed the module made of it."""
    found: list[PassReport] = []
    state: Module | None = clone_module(module)
    compared, spent = 0, 0.0

    def watch(when: str, name: str) -> None:
        nonlocal state, compared, spent
        if when == "before" or not timings[-1].changed:
            return
        start = time.perf_counter()
        compared += timings[-1].instructions
        before, state = state, clone_module(module) if compared <= MOST_COMPARED else None
        difference = diff(before, state) if before is not None and state is not None else None
        found.append(PassReport(name, timings[-1].seconds, timings[-1].instructions, difference))
        spent += time.perf_counter() - start

    context = PassContext(target.machine, target.name, dict(options.passes), fusion_report=edges)
    with options.stage("passes"):
        run_passes(module, pipeline_for(target.name), context, verify=False, timings=timings, watch=watch,
                   progress=lambda name: options.report(f"pass {name}"))
    options.stages["passes"] -= spent
    return found


def _planned(told: Report, options: Options) -> None:
    target = told.target
    told.program = plan(told.module, target, options)
    told.times = predicted(told.program, target.machine)
    options.report("memory")
    told.memory = memory_over_time(told.module, target.machine, target.workspace)
    with options.stage("printing"):
        told.kernels = kernel_reports(told.program, target, told.times)


def _on_other(module: Module, name: str, told: Report, options: Options) -> OtherTarget:
    if name in (told.target.name, told.target.machine.name):
        return OtherTarget(name, told.seconds, told.launches)
    try:
        return OtherTarget(name, *predicted_on(module, name, Options(passes=options.passes)))
    except HlocError as error:
        return OtherTarget(name, problem=error.message)


def measured(told: Report, seconds: float, steps: Mapping[str, float], options: Options) -> Report:
    """The report with what a run took. steps: seconds of all runs of each instruction's kernels in a run; options: of
    the compilation whose program was run, for what the C compiler took."""
    shares = _shares(told.times)
    kernels = []
    for k in told.kernels:
        known = [steps[i.name] * shares[k.number, i] for i in k.instructions
                 if i.name in steps and (k.number, i) in shares]
        kernels.append(k._replace(measured=sum(known) if known else None))
    compiling: dict[str, float] = {}
    for unit in options.units:
        for kernel in unit.kernels:
            compiling[kernel.name] = compiling.get(kernel.name, 0.0) + kernel.seconds
    return replace(told, kernels=kernels, measured=seconds, compiling=compiling,
                   stages={**told.stages, **{k: v for k, v in options.stages.items() if k == "compiler"}})


def _shares(times: Iterable[Predicted]) -> dict[tuple[int, Instruction | None], float]:
    """Of what an instruction took, the part of each of its kernels, as predicted."""
    sums: dict[Any, float] = {}
    for t in times:
        sums[t.instruction] = sums.get(t.instruction, 0.0) + t.seconds * t.runs
    return {(t.kernel, t.instruction): t.seconds * t.runs / sums[t.instruction] if sums[t.instruction] else 0.0
            for t in times}
