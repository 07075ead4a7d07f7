"""The numbers to reach on an H200, and what a run of gpu.py says about each: the table's first section.

    verdicts(rows)  ->  [["add f32", "at least 0.9 of the copy", "0.94", "reached"], ...]

A goal that no row speaks of is "not measured".
"""
from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from gpu_sections.bandwidth import MODULES

MISSING = "not measured"


class Goal(NamedTuple):
    """section, row: whose figures count: rows whose names start so; against: the name of a comparison, "" for the value
    itself; least: at least so much, else at most; of: "" where all rows must reach it, "best" where one must (variants
    of the same kernel, in section warpgroups too), "mean" for a geometric mean."""

    what: str
    section: str
    row: str
    against: str
    limit: float
    least: bool = True
    of: str = ""

    @property
    def words(self) -> str:
        mean = "a geometric mean of " if self.of == "mean" else ""
        of = f"of {self.against}" if self.against else "us"
        return f"{mean}{'at least' if self.least else 'at most'} {self.limit:g} {of}"


GOALS: tuple[Goal, ...] = (
    *(Goal(f"{name} {type}", "bandwidth", f"{name} {type}[", "the copy", limit)
      for type in ("f32", "bf16") for name, (limit, _) in MODULES.items()),
    Goal("bf16 product of 8192 cubed, hloc's own kernel", "products", "bf16 8192 x 8192 x 8192", "cuBLASLt", 0.85,
         of="best"),
    Goal("the same with bias and tanh, one kernel", "products", "bf16 8192 cubed with", "the time without fusion", 1,
         False),
    Goal("attention forward, heads of 128", "products", "attention bf16 64", "cuBLASLt's bf16 product of 8192 cubed",
         0.7, of="best"),
    Goal("a kernel of a step of 500, in a graph", "launches", "a step of", "", 1, False),
    Goal("whole programs, each", "xla", "", "XLA:GPU's time", 1.2, False),
    Goal("whole programs, together", "xla", "", "XLA:GPU's time", 1, False, "mean"),
    Goal("ResNet-50 training, f32, against no fusion", "end_to_end", "ResNet-50 training step, f32",
         "the time without fusion", round(1 / 1.58, 2), False),
    Goal("ResNet-50 training, bf16, against no fusion", "end_to_end", "ResNet-50 training step, bf16",
         "the time without fusion", round(1 / 3, 2), False),
)


def figures(goal: Goal, rows: Sequence[dict]) -> list[float]:
    """What counts for a goal, of rows that have it."""
    sections = (goal.section, "warpgroups") if goal.of == "best" else (goal.section,)
    own = [r for r in rows if r["section"] in sections and r["what"].startswith(goal.row)]
    return [r["compared"][goal.against] for r in own if goal.against in r.get("compared", {})] if goal.against else \
        [r["value"] for r in own if isinstance(r.get("value"), (int, float))]


def verdicts(rows: Sequence[dict]) -> list[list[str]]:
    """Cells of the table: what, to reach, measured, whether that is enough."""
    found = []
    for goal in GOALS:
        own = figures(goal, rows)
        if not own:
            found.append([goal.what, goal.words, MISSING, MISSING])
            continue
        joined = {"mean": statistics.geometric_mean, "best": max, "": min if goal.least else max}[goal.of](own)
        reached = joined >= goal.limit if goal.least else joined <= goal.limit
        found.append([goal.what, goal.words, f"{joined:.2f}", "reached" if reached else "not reached"])
    return found
