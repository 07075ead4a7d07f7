"""The schedules of a program's loops: `hloc explain --schedule`.

    for one in schedules_of(module, find("cpu")): print(one.text(most=5))
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hloc.api import Options
from hloc.ir import Module
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.schedule.choice import Candidate, candidates
from hloc.kernels.schedule.file import schedule_text
from hloc.kernels.schedule.row_nest import RowNest
from hloc.machine import Machine
from hloc.targets.target import Target
from hloc.tools.kernel_passes import kernels_of


class LoopSchedules(NamedTuple):
    """name: of the loop, as files of schedules have it; iterations: None if only the run knows them, on a GPU the axes
    and their iterations; ranked: the schedules that apply, the
    cheapest first, which is chosen; unit: of their costs."""

    name: str
    iterations: int | str | None
    ranked: list[Candidate]
    is_over_rows: bool = False
    unit: str = "cycles"

    def text(self, most: int) -> str:
        """The lines of the loop in a file of schedules, with the cheapest `most` in comments."""
        about = self.iterations if isinstance(self.iterations, str) else \
            f"{'some' if self.iterations is None else self.iterations} iterations"
        return schedule_text(self.name, about, self.ranked, self.ranked[0].steps, most, self.unit)


def schedules_of(module: Module, target: Target, options: Options | None = None) -> list[LoopSchedules]:
    """All loops that have a schedule, in the order of their kernels; the module is optimized in place."""
    kernels = kernels_of(module, target, options)
    if target.name == "cuda":
        return _of_gpu(kernels, target.machine)
    from hloc.targets.cpu.program.sources import loop_names
    return [LoopSchedules(name, nest.iterations, candidates(nest, target.machine), isinstance(nest, RowNest))
            for name, nest in loop_names(kernels, target.machine).items()]


def _of_gpu(kernels: Sequence[Kernel | Tile], gpu: Machine) -> list[LoopSchedules]:
    """One of each loop kernel."""
    from hloc.targets.cuda.costs.loop_choice import candidates
    from hloc.targets.cuda.loops.forms import distributed
    from hloc.targets.cuda.loops.nest import grid_nest_of
    from hloc.targets.cuda.schedules import named
    return [LoopSchedules(name, str(grid_nest_of(distributed(kernel, gpu))), candidates(kernel, gpu),
                          unit="microseconds")
            for name, kernel in named(kernels).items()]
