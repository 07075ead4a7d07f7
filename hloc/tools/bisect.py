"""Where a module's results go wrong: in which pass, or in which kernels.

In: a verified module, a target, inputs. Out: a Blame. Passes are deterministic, so the pipeline can be run up to any of
its steps: the evaluator judges the module after each step that a binary search asks for. Where all passes keep the
results, each kernel of the optimized entry is run on the target with the evaluator's own values as operands, then the
whole program.

    blame = bisect(module, find("cpu"), arrays)       blame.culprit == "pass reshape_mover", blame.before, blame.after
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hloc.analysis.aliasing import FORWARDING
from hloc.analysis.effects import has_side_effect
from hloc.api import Options, plan, reference_executable
from hloc.bounded import filled, with_sizes
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
from hloc.tools.stability import shaken_results

NO_KERNELS = FORWARDING | {"parameter", "constant", "after-all", "copy-start", "copy-done"}

Report = Callable[[str], None]


class Kernel(NamedTuple):
    """A kernel whose results differ from the evaluator's on the same operands."""

    instruction: Instruction
    rows: tuple[Difference, ...]


class Blame(NamedTuple):
    """culprit   "pass NAME"; "kernels"; "plan" where each kernel is right, but not the program of them; "" for nothing
    step      which run of a pass it is, of `steps` (from 1);  rows: the results that differ after it
    before, after   the module around that pass
    kernels   those that differ, where no pass does;  ran_kernels: whether they were tried
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
           tolerance: float | None = None, runs_kernels: bool = True, report: Report = lambda stage: None) -> Blame:
    """Find the first pass that changes the results, else the kernels that compute something else.

    options        of passes (hloc/passes/context.py);  tolerance  as in hloc.tools.compare
    runs_kernels   whether the target can run here;  report  is told each stage
    """
    search = _Search(module, target, arrays, options or {}, tolerance, report)
    _, steps = search.after(None)
    if rows := search.wrong(steps):
        return search.first_wrong(steps, rows)
    if not runs_kernels:
        return Blame("", steps, steps)
    optimized, _ = search.after(steps)
    kernels = wrong_kernels(optimized, target, search.given(optimized), tolerance, report)
    rows = () if kernels else search.differing(search.compiled(optimized))
    culprit = "kernels" if kernels else "plan" if rows else ""
    return Blame(culprit, steps, steps, rows, kernels=kernels, ran_kernels=True)


class _Enough(Exception):
    """The pipeline has come as far as was asked."""


class _Search:
    def __init__(self, module: Module, target: Target, arrays: Sequence[np.ndarray], options: dict,
                 tolerance: float | None, report: Report):
        self.module, self.target, self.arrays = module, target, arrays
        self.options, self.tolerance, self.report = options, tolerance, report
        self.signature = entry_parameters(module), entry_results(module)
        report("evaluator")
        self.want = self.evaluated(module)
        self.moved: tuple[np.ndarray, ...] | None = None       # results with every rounding moved; asked when needed
        self.names: list[str] = []

    def after(self, steps: int | None) -> tuple[Module, int]:
        """The module after so many runs of passes (None: all), and how many those were."""
        own, names = clone_module(self.module), []

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

    def wrong(self, steps: int) -> tuple[Difference, ...]:
        """The results that differ after so many runs of passes."""
        self.report(f"pass {steps} of {len(self.names)}")
        return self.differing(self.evaluated(self.after(steps)[0]))

    def differing(self, results: Sequence[np.ndarray]) -> tuple[Difference, ...]:
        """Those that are further off than rounding elsewhere explains."""
        rows = compare(self.signature[1], results, self.want, self.tolerance)
        if self.tolerance is None and not all(r.agrees for r in rows):
            if self.moved is None:
                self.moved = shaken_results(self.module, self.arrays)
            rows = with_stability(rows, self.signature[1], self.want, self.moved)
        return tuple(r for r in rows if not (r.agrees or r.is_unstable))

    def first_wrong(self, steps: int, rows: tuple[Difference, ...]) -> Blame:
        """Halve between the unchanged module, which is right, and the one after `steps` runs, which is not."""
        right, wrong = 0, steps
        while wrong - right > 1:
            middle = (right + wrong) // 2
            found = self.wrong(middle)
            if found:
                wrong, rows = middle, found
            else:
                right = middle
        return Blame(f"pass {self.names[wrong - 1]}", wrong, steps, rows, self.after(right)[0], self.after(wrong)[0])


# -- kernels -----------------------------------------------------------------------------------------------------------

def wrong_kernels(optimized: Module, target: Target, arrays: Sequence[np.ndarray], tolerance: float | None = None,
                  report: Report = lambda stage: None) -> tuple[Kernel, ...]:
    """The kernels of an optimized entry whose results differ, each given the evaluator's operands."""
    report("kernels one by one")
    values = entry_values(optimized, arrays)
    module, kernels, operands = kernels_apart(optimized)
    if not kernels:
        return ()
    exe = target.executable(plan(module, target), module, Options())
    given = [part for o in operands for part in flatten(values[o])]
    results, want = entry_results(module), [part for k in kernels for part in flatten(values[k])]
    rows = iter(compare(results, exe(*given), want, tolerance))
    found = [Kernel(k, tuple(r for _, r in zip(leaves(k.shape), rows) if not r.agrees)) for k in kernels]
    return tuple(k for k in found if k.rows)


def kernels_apart(optimized: Module) -> tuple[Module, list[Instruction], list[Instruction]]:
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
    entry = Computation("kernels_apart", [*operands.values(), *constants.values(), *apart, root], root)
    others = [c for c in optimized.computations if c is not optimized.entry]
    module = Module("kernels_apart", [*others, entry], entry, tables=optimized.tables, source=optimized.source)
    module.is_scheduled = True
    copy_insertion(module, PassContext())
    return module, kernels, list(operands)


def is_kernel(instruction: Instruction) -> bool:
    """True for what computes arrays from arrays, on its own."""
    shapes = (instruction.shape, *(o.shape for o in instruction.operands))
    return instruction.opcode not in NO_KERNELS and not has_side_effect(instruction) \
        and not any("token[]" in s.to_string(False) for s in shapes)
