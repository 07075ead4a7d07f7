"""What the launches of a program are predicted to take, on a CPU or a GPU.

    predicted(program, machine)     one Predicted for each kernel and instruction that launches it

GPUs have the fitted cost model (hloc/targets/cuda/costs). Of a CPU little is known but its cores, the width of its
vectors and a nominal bandwidth: figures are right to one digit, and say which kernels matter.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hloc.analysis.cost import seconds_of_launch, seconds_of_operations, seconds_of_traffic
from hloc.api import Options
from hloc.ir import Instruction, Module
from hloc.kernels.ir import Cost
from hloc.kernels.plan import Branch, Copy, Launch, Program, Step, WhileLoop, all_steps
from hloc.machine import Machine

UNKNOWN_TRIPS = 1                    # of a loop whose trips are not known


class Predicted(NamedTuple):
    """Seconds of one run of a kernel for an instruction; bound: what it waits for; runs: in a run of the program."""

    kernel: int
    instruction: Instruction | None
    seconds: float
    bound: str
    runs: int


class Roof(NamedTuple):
    """The most that a machine does in a second. tensor: flops of its tensor cores; 0: it has none."""

    flops: float
    bytes: float
    tensor: float = 0.0


def predicted(program: Program, machine: Machine) -> list[Predicted]:
    """Of every launch, in the order of the program."""
    seconds = launch_seconds(program, machine)
    counted: dict[tuple[int, Instruction | None], list] = {}

    def count(steps: Iterable[Step], runs: int) -> float:
        """Seconds of steps; of a choice the dearest branch counts, and the others run 0 times."""
        spent = 0.0
        for step in steps:
            if isinstance(step, Launch):
                row = counted.setdefault((step.kernel, step.instruction), [seconds(step), 0])
                row[1] += runs
                spent += row[0][0] * runs
            elif isinstance(step, WhileLoop):
                trips = UNKNOWN_TRIPS if step.trip_count is None else step.trip_count
                spent += count(step.condition, runs * (trips + 1)) + count(step.body, runs * trips)
            elif isinstance(step, Branch):
                dearest = max(step.branches, key=alone, default=())
                spent += count(dearest, runs)
        return spent

    def alone(steps: tuple[Step, ...]) -> float:
        """Seconds of a branch, which does not count for that."""
        before = {key: row[1] for key, row in counted.items()}
        spent = count(steps, 1)
        for key, row in counted.items():
            row[1] = before.get(key, 0)
        return spent
    count(program.steps, 1)
    return [Predicted(kernel, instruction, spent, bound, runs)
            for (kernel, instruction), ((spent, bound), runs) in counted.items()]


def launch_seconds(program: Program, machine: Machine) -> Callable[[Launch], tuple[float, str]]:
    """A function from a launch of the program to its seconds, and what bounds them."""
    if machine.kind == "gpu":
        return _gpu_seconds(program, machine)
    return lambda launch: cpu_seconds(program.kernels[launch.kernel].cost, machine)


def seconds_by_instruction(program: Program, machine: Machine) -> dict[Instruction, float]:
    """Of one run of each instruction that kernels or copies compute."""
    seconds = launch_seconds(program, machine)
    found: dict[Instruction, float] = {}
    for step in all_steps(program.steps):
        if isinstance(step, Launch) and step.instruction is not None:
            found[step.instruction] = found.get(step.instruction, 0.0) + seconds(step)[0]
        elif isinstance(step, Copy) and step.instruction is not None:
            size = step.source.size
            spent = seconds_of_traffic(2 * size, machine) + seconds_of_launch(size, machine)
            found[step.instruction] = found.get(step.instruction, 0.0) + spent
    return found


def cpu_seconds(cost: Cost, machine: Machine) -> tuple[float, str]:
    """Seconds on a CPU, and what bounds them."""
    parts = {"memory": seconds_of_traffic(cost.bytes, machine),
             "arithmetic": seconds_of_operations(cost.flops, machine),
             "launch": seconds_of_launch(cost.bytes, machine)}
    bound = max(parts, key=parts.__getitem__)
    return max(parts["memory"], parts["arithmetic"]) + parts["launch"], bound


def _gpu_seconds(program: Program, gpu: Machine) -> Callable[[Launch], tuple[float, str]]:
    from hloc.targets.cuda.costs.program import Estimates
    estimates = Estimates(program, gpu)

    def seconds(launch: Launch) -> tuple[float, str]:
        own = [estimated for estimated, _ in estimates.of(launch)]
        return sum(e.us for e in own) * 1e-6, max(own, key=lambda e: e.us).bound
    return seconds


def total(times: Sequence[Predicted]) -> float:
    """Seconds of a run of the program."""
    return sum(t.seconds * t.runs for t in times)


def roof(machine: Machine) -> Roof:
    """Of a GPU by its data sheet, of a CPU as the cost model has it."""
    if machine.kind == "gpu":
        from hloc.targets.cuda.gpus import facts_of
        facts = facts_of(machine)
        return Roof(2 * facts["f32_lanes"] * machine.cores * facts["mhz"] * 1e6, machine.bandwidth,
                    facts["bf16_tflops"] * 1e12)
    from hloc.analysis.cost import operations_per_second
    return Roof(2 * operations_per_second(machine), machine.bandwidth)


def predicted_on(module: Module, target: str, options: Options) -> tuple[float, int]:
    """Seconds and launches of a run of a parsed module, which stays as it is, on another target. Raises HlocError where
    it cannot be planned for it."""
    from hloc.api import optimized_plan
    from hloc.ir.clone import clone_module
    from hloc.targets import find
    chosen = find(target)
    times = predicted(optimized_plan(clone_module(module), chosen, options)[1], chosen.machine)
    return total(times), sum(t.runs for t in times)
