"""The predicted time of a whole program on a GPU: the estimates of its launches, by the instruction that they compute.

In: a plan.Program and the GPU that it was compiled for. Out: one Predicted for each kernel instruction: how often it
runs, and the time of one run. A loop whose trip count is known only on the device counts once. A conditional counts as
its most expensive branch.
"""
from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from hloc.ir import Instruction
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import Branch, Launch, Program, Step, WhileLoop
from hloc.machine import Machine
from hloc.targets.cuda.costs.loop_choice import chosen_form
from hloc.targets.cuda.costs.loop_work import loop_work
from hloc.targets.cuda.costs.model import Estimate, estimate
from hloc.targets.cuda.costs.templates import template_work
from hloc.targets.cuda.costs.work import Work
from hloc.targets.cuda.early_start import Launched, edge_us, fetched, gains, neighbours
from hloc.targets.cuda.tiles.source import tile_source


class Predicted(NamedTuple):
    """us: of one run, over all its launches; bound: of the longest launch; uses: runs per run of the program; early:
    launches that start early (early_start.py)."""

    name: str
    instruction: Instruction | None
    us: float
    bound: str
    uses: int
    launches: int
    early: int


def works_of_kernel(kernel: Kernel | Tile, gpu: Machine, variant: str = "") -> list[Work]:
    """The Work of each launch, in execution order. variant: of a Tile, as named in tuning files, or the
    schedule of a loop kernel."""
    if isinstance(kernel, Tile):
        return template_work(kernel, tile_source(kernel, "kernel", gpu, variant).launches, gpu, variant)
    return [loop_work(chosen_form(kernel, gpu, variant), gpu)]


class Estimates:
    """The estimates of a program's launches. A Launch of the plan may start several kernels."""

    def __init__(self, program: Program, gpu: Machine):
        self.program, self.gpu = program, gpu
        self.works = cache(lambda kernel: works_of_kernel(program.kernels[kernel], gpu))
        self.fetches = {kernel: sum(sizes.values()) for kernel, sizes in fetched(program, gpu).items()}
        self.before: dict[int, int] = {}                # id() of a launch -> the kernel right before it on the stream
        for before, step in neighbours(program.steps):
            self.before[id(step)] = before.kernel

    def of(self, launch: Launch) -> list[tuple[Estimate, bool]]:
        """Of each kernel, and whether it starts early."""
        unread, found = unread_share(self.program, launch, self.gpu), []
        works, number = self.works(launch.kernel), self.before.get(id(launch))
        before = None if number is None else self.works(number)[-1]
        bytes_fetched = self.fetches.get(launch.kernel, 0) if len(works) == 1 else 0
        for work in works:
            us = 0.0
            if before and gains(before.blocks, self.gpu) and gains(work.blocks, self.gpu):
                us = min(0.0, edge_us(_launched(before), _launched(work), self.gpu, bytes_fetched))
            found.append((estimate(work, self.gpu, unread=unread, early=us), us < 0))
            before = work
        return found

    def gaining(self, launch: Launch) -> int:
        """How many kernels of a launch are small enough to start early."""
        return sum(gains(work.blocks, self.gpu) for work in self.works(launch.kernel))


def _launched(work: Work) -> Launched:
    return Launched(work.blocks, work.threads, work.shared)


def unread_share(program: Program, launch: Launch, gpu: Machine) -> float:
    """The share of a launch's argument bytes that are outside of the arena, mostly weights. If the program is larger
    than L2, the previous run has evicted them. 0 for smaller programs."""
    if program.peak <= gpu.l2_bytes or not launch.arguments:
        return 0.0
    outside = sum(r.size for r in launch.arguments if r.region in ("parameter", "constant"))
    return outside / max(1, sum(r.size for r in launch.arguments))


def predict(program: Program, gpu: Machine) -> list[Predicted]:
    """The prediction for each instruction that launches kernels, in the order of their first launches."""
    estimates = Estimates(program, gpu).of
    found: dict[object, list] = {}

    def total(steps: Iterable[Step], times: int, note: bool) -> float:
        """Microseconds of the steps; note: whether to record their launches."""
        us = 0.0
        for step in steps:
            if isinstance(step, Launch):
                own = estimates(step)
                us += sum(e.us for e, _ in own)
                if note:
                    key = step.instruction or step.kernel
                    found.setdefault(key, []).append((step, times))
            elif isinstance(step, WhileLoop):
                trips = 1 if step.trip_count is None else step.trip_count
                us += total(step.condition, times * (trips + 1), note) * (trips + 1)
                us += total(step.body, times * trips, note) * trips
            elif isinstance(step, Branch):
                dearest = max(step.branches, key=lambda b: total(b, times, False), default=())
                us += total(dearest, times, note)
        return us
    total(program.steps, 1, True)
    return [_predicted(program, launches, estimates) for launches in found.values()]


def _predicted(program: Program, launches: list[tuple[Launch, int]], estimates) -> Predicted:
    """The prediction for one instruction, from the launches of one run."""
    uses = min(times for _, times in launches)
    own = [e for step, times in launches for e in estimates(step) * max(1, times // max(1, uses))]
    first = launches[0][0]
    name = first.instruction.name if first.instruction else program.kernels[first.kernel].name
    longest = max((e for e, _ in own), key=lambda e: e.us)
    return Predicted(name, first.instruction, sum(e.us for e, _ in own), longest.bound, uses, len(own),
                     sum(early for _, early in own))
