"""The schedules of a program's loops: `hloc explain --schedule`.

    for one in schedules_of(module, find("cpu")): print(one.text(most=5))
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.api import Options
from hloc.ir import Module
from hloc.kernels.schedule.choice import Candidate, candidates
from hloc.kernels.schedule.file import schedule_text
from hloc.kernels.schedule.row_choice import row_candidates
from hloc.kernels.schedule.row_nest import RowNest
from hloc.targets.target import Target
from hloc.tools.kernel_passes import kernels_of


class LoopSchedules(NamedTuple):
    """name: of the loop, as files of schedules have it; iterations: None if only the run knows them; ranked: all
    schedules that apply, the cheapest first, which is chosen."""

    name: str
    iterations: int | None
    ranked: list[Candidate]
    is_over_rows: bool = False

    def text(self, most: int) -> str:
        """The lines of the loop in a file of schedules, with the cheapest `most` in comments."""
        return schedule_text(self.name, self.iterations, self.ranked, self.ranked[0].steps, most)


def schedules_of(module: Module, target: Target, options: Options | None = None) -> list[LoopSchedules]:
    """All loops that have a schedule, in the order of their kernels; the module is optimized in place."""
    from hloc.targets.cpu.program.sources import loop_names
    kernels = kernels_of(module, target, options)
    return [LoopSchedules(name, nest.iterations, row_candidates(nest, target.machine), True)
            if isinstance(nest, RowNest) else LoopSchedules(name, nest.axes[0].extent, candidates(nest, target.machine))
            for name, nest in loop_names(kernels, target.machine).items()]
