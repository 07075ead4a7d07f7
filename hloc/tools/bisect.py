"""The pass, or the kernels, that make a module's results wrong.

In: a verified module, a target, inputs. Out: a Culprit. Passes are deterministic, so the pipeline can run up to any
step: a binary search picks steps, and the evaluator runs the module after them. If no pass changes the results, each
kernel of the optimized entry runs on the target with operands that the evaluator computed, then the whole program.

    blame = bisect(module, find("cpu"), arrays)       blame.culprit == "pass reshape_mover", blame.before, blame.after
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hloc.analysis.aliasing import FORWARDING
from hloc.analysis.effects import has_side_effect
from hloc.api import Options, plan, reference_executable
from hloc.bounded import filled, with_sizes
from hloc.evaluate.simulate import evaluate_devices, run_concurrently, simulated_devices
from hloc.inputs import entry_parameters, entry_results
from hloc.ir import Computation, Instruction, Module, Shape, leaves
from hloc.ir.clone import clone_module
from hloc.ops.values import flatten
from hloc.passes.context import PassContext
from hloc.passes.copy_insertion import copy_insertion
from hloc.passes.pipelines import pipeline_for
from hloc.passes.runner import run_passes
from hloc.targets.target import Target
from hloc.tools.compare import Difference, compare, with_stability
from hloc.tools.entry_values import entry_values
from hloc.tools.stability import perturbed_results

NO_KERNELS = FORWARDING | {"parameter", "constant", "after-all", "copy-start", "copy-done"}

Report = Callable[[str], None]


class Kernel(NamedTuple):
    """A kernel whose results differ from the evaluator's on the same operands."""

    instruction: Instruction
    rows: tuple[Difference, ...]


class Culprit(NamedTuple):
    """culprit   "pass NAME"; "kernels"; "plan" if each kernel is right, but not the whole program; "" for none
    step      which run of a pass it is, of `steps` (from 1);  rows: the results that differ after it
    before, after   the module around that pass
    kernels   those that differ, if no pass does;  ran_kernels: whether they ran
    """

    culprit: str
    step: int
    steps: int
    rows: tuple[Difference, ...] = ()
    before: Module | None = None
    after: Module | None = None
    kernels: tuple[Kernel, ...] = ()
    ran_kernels: bool = False


def bisect(module: Module, target: Target, arrays: Sequence[np.ndarray], *, options: dict | None = None,
           tolerance: float | None = None, runs_kernels: bool = True, report: Report = lambda stage: None) -> Culprit:
    """Find the first pass that changes the results, else the kernels whose results differ.

    options        of passes (hloc/passes/context.py);  tolerance  as in hloc.tools.compare
    runs_kernels   whether the target can run here;  report  called with each stage
    """
    return _found(_Search(module, target, arrays, options or {}, tolerance, report), runs_kernels)


def bisect_on_devices(module: Module, target: Target, arrays: Sequence[Sequence[np.ndarray]], *,
                      options: dict | None = None, tolerance: float | None = None,
                      report: Report = lambda stage: None) -> Culprit:
    """The same for a program of several devices, whose header has their number; arrays: those of each device."""
    return _found(_SearchOnDevices(module, target, arrays, options or {}, tolerance, report), True)


def _found(search: _Search, runs_kernels: bool) -> Culprit:
    _, steps = search.after(None)
    if rows := search.wrong(steps):
        return search.first_wrong(steps, rows)
    if not runs_kernels:
        return Culprit("", steps, steps)
    optimized, _ = search.after(steps)
    kernels = search.wrong_kernels(optimized)
    rows = () if kernels else search.differing(search.compiled(optimized))
    culprit = "kernels" if kernels else "plan" if rows else ""
    return Culprit(culprit, steps, steps, rows, kernels=kernels, ran_kernels=True)


class _Enough(Exception):
    """Raised to stop the pipeline after a number of runs of passes."""


class _Search:
    def __init__(self, module: Module, target: Target, arrays: Sequence[np.ndarray], options: dict,
                 tolerance: float | None, report: Report):
        self.module, self.target, self.arrays = module, target, arrays
        self.options, self.tolerance, self.report = options, tolerance, report
        self.signature = entry_parameters(module), entry_results(module)
        report("evaluator")
        self.want = self.evaluated(module)
        self.moved: tuple[np.ndarray, ...] | None = None       # results with changed rounding; computed when needed
        self.names: list[str] = []

    def after(self, steps: int | None) -> tuple[Module, int]:
        """The module after `steps` runs of passes (None: all), and their number."""
        own = clone_module(self.module)
        names: list[str] = []

        def count(name: str) -> None:
            if len(names) == steps:
                raise _Enough
            names.append(name)

        context = PassContext(machine=self.target.machine, target=self.target.name, options=self.options)
        try:
            run_passes(own, pipeline_for(self.target.name), context, verify=False, progress=count)
        except _Enough:
            pass
        self.names = max(self.names, names, key=len)
        return own, len(names)

    def evaluated(self, module: Module) -> tuple[np.ndarray, ...]:
        exe = reference_executable(module, Options())
        return (with_sizes(exe, *self.signature) if self.takes_sizes(module) else exe)(*self.arrays)

    def takes_sizes(self, module: Module) -> bool:
        """Whether dynamic sizes have become parameters (hloc/passes/dynamic_padder)."""
        return [p.shape for p in entry_parameters(module)] != [p.shape for p in self.signature[0]]

    def given(self, module: Module) -> Sequence[np.ndarray]:
        """The arrays that the entry of the module after some passes takes."""
        if not self.takes_sizes(module):
            return self.arrays
        return [part for p, array in zip(self.signature[0], self.arrays) for part in filled(p.shape, array)]

    def compiled(self, optimized: Module) -> tuple[np.ndarray, ...]:
        """The results on the target."""
        self.report("the whole program")
        exe = self.target.executable(plan(clone_module(optimized), self.target), optimized, Options())
        return with_sizes(exe, *self.signature)(*self.arrays)

    def perturbed(self) -> tuple[np.ndarray, ...]:
        """The evaluator's results with changed rounding."""
        return perturbed_results(self.module, self.arrays)

    def wrong_kernels(self, optimized: Module) -> tuple[Kernel, ...]:
        """The kernels of an optimized module that give wrong results."""
        return wrong_kernels(optimized, self.target, self.given(optimized), self.tolerance, self.report)

    def wrong(self, steps: int) -> tuple[Difference, ...]:
        """The results that differ after `steps` runs of passes."""
        self.report(f"pass {steps} of {len(self.names)}")
        return self.differing(self.evaluated(self.after(steps)[0]))

    def differing(self, results: Sequence[np.ndarray]) -> tuple[Difference, ...]:
        """The results whose error is larger than different rounding explains."""
        rows = compare(self.signature[1], results, self.want, self.tolerance)
        if self.tolerance is None and not all(r.agrees for r in rows):
            if self.moved is None:
                self.moved = self.perturbed()
            rows = with_stability(rows, self.signature[1], self.want, self.moved)
        return tuple(r for r in rows if not (r.agrees or r.is_unstable))

    def first_wrong(self, steps: int, rows: tuple[Difference, ...]) -> Culprit:
        """Binary search between the unchanged module, which is right, and the one after `steps` runs, which is
        wrong."""
        right, wrong = 0, steps
        while wrong - right > 1:
            middle = (right + wrong) // 2
            found = self.wrong(middle)
            if found:
                wrong, rows = middle, found
            else:
                right = middle
        return Culprit(f"pass {self.names[wrong - 1]}", wrong, steps, rows, self.after(right)[0], self.after(wrong)[0])


class _SearchOnDevices(_Search):
    """arrays: those of each device; results: all of device 0, then of 1 ..."""

    def __init__(self, module: Module, target: Target, arrays: Sequence[Sequence[np.ndarray]], options: dict,
                 tolerance: float | None, report: Report):
        self.given_to = arrays
        super().__init__(module, target, (), options, tolerance, report)
        own = self.signature[1]
        self.signature = self.signature[0], [r._replace(name=f"device {d}: {r.name}")
                                             for d in range(len(arrays)) for r in own]

    def evaluated(self, module: Module) -> tuple[np.ndarray, ...]:
        return tuple(result for own in evaluate_devices(module, self.given_to) for result in own)

    def concurrently(self, module: Module, function: Callable[..., Any]) -> list[Any]:
        """function(module, arrays, device=) of each device, at the same time."""
        devices = simulated_devices(module, len(self.given_to))
        return run_concurrently(devices, [partial(function, module, own, device=device)
                                          for own, device in zip(self.given_to, devices)])

    def perturbed(self) -> tuple[np.ndarray, ...]:
        return tuple(result for own in self.concurrently(self.module, perturbed_results) for result in own)

    def compiled(self, optimized: Module) -> tuple[np.ndarray, ...]:
        self.report("the whole program")
        exe = self.target.executable(plan(clone_module(optimized), self.target), optimized, Options())
        on_device = exe.on_device
        assert on_device is not None, "of a CPU"
        return tuple(result for own in self.concurrently(
            optimized, lambda _, arrays, device: on_device(device)(*arrays)) for result in own)

    def wrong_kernels(self, optimized: Module) -> tuple[Kernel, ...]:
        values = self.concurrently(optimized, entry_values)
        found = [differing_kernels(optimized, self.target, own, self.tolerance, self.report) for own in values]
        return tuple(Kernel(k.instruction, tuple(r._replace(name=f"device {d}: {r.name}") for r in k.rows))
                     for d, kernels in enumerate(found) for k in kernels)


# -- kernels -----------------------------------------------------------------------------------------------------------

def wrong_kernels(optimized: Module, target: Target, arrays: Sequence[np.ndarray], tolerance: float | None = None,
                  report: Report = lambda stage: None) -> tuple[Kernel, ...]:
    """The kernels of an optimized entry whose results differ, with operands that the evaluator computed."""
    return differing_kernels(optimized, target, entry_values(optimized, arrays), tolerance, report)


def differing_kernels(optimized: Module, target: Target, values: Mapping[Instruction, Any],
                      tolerance: float | None = None, report: Report = lambda stage: None) -> tuple[Kernel, ...]:
    """The same with the evaluator's values."""
    report("kernels one by one")
    module, kernels, operands = separate_kernels(optimized)
    if not kernels:
        return ()
    exe = target.executable(plan(module, target), module, Options())
    given = [part for o in operands for part in flatten(values[o])]
    results, want = entry_results(module), [part for k in kernels for part in flatten(values[k])]
    rows = iter(compare(results, exe(*given), want, tolerance))
    found = [Kernel(k, tuple(r for _, r in zip(leaves(k.shape), rows) if not r.agrees)) for k in kernels]
    return tuple(k for k in found if k.rows)


def separate_kernels(optimized: Module) -> tuple[Module, list[Instruction], list[Instruction]]:
    """A module in which every kernel of the entry reads parameters and is a result, the kernels in the order of the
    results, and the instructions whose values the parameters are."""
    kernels = [i for i in optimized.entry.instructions if is_kernel(i)]
    operands: dict[Instruction, Instruction] = {}
    for operand in (o for k in kernels for o in k.operands if o.opcode != "constant"):
        if operand not in operands:
            operands[operand] = Instruction(f"operand.{len(operands)}", "parameter", operand.shape,
                                            parameter_number=len(operands))
    constants = {o: o.copy() for k in kernels for o in k.operands if o.opcode == "constant"}
    sources = {**operands, **constants}
    apart = [k.copy(operands=[sources[o] for o in k.operands], control_predecessors=()) for k in kernels]
    root = Instruction("kernels", "tuple", Shape.tuple(tuple(k.shape for k in kernels)), apart)
    entry = Computation("separate_kernels", [*operands.values(), *constants.values(), *apart, root], root)
    others = [c for c in optimized.computations if c is not optimized.entry]
    module = Module("separate_kernels", [*others, entry], entry, tables=optimized.tables, source=optimized.source)
    module.is_scheduled = True
    copy_insertion(module, PassContext())
    return module, kernels, list(operands)


def is_kernel(instruction: Instruction) -> bool:
    """Whether an instruction can run alone: it computes arrays from arrays."""
    shapes = (instruction.shape, *(o.shape for o in instruction.operands))
    return instruction.opcode not in NO_KERNELS and not has_side_effect(instruction) \
        and not any("token[]" in s.to_string(False) for s in shapes)
