"""Which schedule a nest has: of those that its rules propose (rules.py) the one of least predicted cost.

    candidates(nest, machine)       (Candidate(steps, cycles), ...), the cheapest first
    chosen(nest, machine)           the steps of the first of them
"""
from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from hloc.kernels.schedule.cost import constants, cost, row_cost
from hloc.kernels.schedule.nest import Nest
from hloc.kernels.schedule.row_cost import costed
from hloc.kernels.schedule.row_nest import RowNest
from hloc.kernels.schedule.rules import rules, scheduled
from hloc.kernels.schedule.steps import Refused, Step, steps_text
from hloc.machine import Machine

TYPICAL = 1000                  # iterations of a loop, where only the run knows them
MOST_KEPT = 1024                # nests of a process whose candidates are kept


class Candidate(NamedTuple):
    """A schedule, and the predicted cycles of one run of the loop, or of a row."""

    steps: tuple[Step, ...]
    cycles: float

    @property
    def text(self) -> str:
        return steps_text(self.steps)


_KEPT: OrderedDict[tuple, list[Candidate]] = OrderedDict()


def candidates(nest: Nest | RowNest, machine: Machine) -> list[Candidate]:
    """All schedules that apply and may be the cheapest, the cheapest first."""
    key = nest.key, machine
    if key not in _KEPT:
        found = list[Candidate]()
        for steps in rules(nest, machine):
            with suppress(Refused):
                found.append(Candidate(steps, cycles(nest, steps, machine)))
        _KEPT[key] = sorted(found, key=lambda one: one.cycles)
        if len(_KEPT) > MOST_KEPT:
            _KEPT.popitem(last=False)
    return _KEPT[key]


def chosen(nest: Nest | RowNest, machine: Machine) -> tuple[Step, ...]:
    """The steps of the schedule of a nest; an only one is not costed."""
    only, *others = rules(nest, machine)
    return candidates(nest, machine)[0].steps if others else only


def cycles(nest: Nest | RowNest, steps: tuple[Step, ...], machine: Machine) -> float:
    """The predicted cycles of a schedule. Raises Refused."""
    known = constants(machine.arch)
    if isinstance(nest, RowNest):
        return row_cost(costed(nest, steps, machine), known) / (nest.iterations * nest.times)
    if nest.iterations is None:
        nest = nest._replace(loop=nest.loop._replace(extent=nest.most or TYPICAL))
    return cost(scheduled(nest, steps, count()), known)
