"""Who decides how a loop goes on whose number of rounds only the device knows, or which branch runs: the host, which
reads a number, or the device, by a conditional node of a CUDA graph (execution/conditional_nodes.py).

In: a plan, and how many kernels of each launch start early. Out: for each such loop or branch the predicted
microseconds of a round (or choice) beside its kernels, either way; the plan with by_device where the device is cheaper.

    rounds_of(program, early)   ->  [Round(loop, host_us=11.0, device_us=6.4, only_host="")]
    decided(program, early)     ->  the program; its loop says by_device

Kernels of a body that is part of a node start later, and none of them early; so the host is cheaper for a body of many
small kernels.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Union

from hloc.ir.narrowing import all_known
from hloc.kernels.plan import Branch, Collective, HostCall, Launch, Program, Step, WhileLoop, all_steps
from hloc.targets.cuda.early_start import GAIN_US
from hloc.targets.cuda.execution.graphs import MOST_NODES, bodies_of, nodes_of

# Measured on an H200 with loops of 1, 8 and 64 kernels and a counter: by the host 11.8, 19.9 and 63.4 us a round, by
# the device 7.1, 16.3 and 86.9 (`make gpu`, section new). A kernel in a node takes IN_NODE_US more than one in a graph.
HOST_US, NODE_US, IN_NODE_US = 11.0, 5.9, 0.17

Decided = Union[WhileLoop, Branch]
Early = Callable[[Launch], int]         # how many kernels of a launch start early


class Round(NamedTuple):
    """host_us, device_us: beside the kernels, with the loops and branches inside; only_host: why the device cannot
    decide; "" if it can."""

    step: Decided
    host_us: float
    device_us: float
    only_host: str

    @property
    def by_device(self) -> bool:
        return not self.only_host and self.device_us < self.host_us

    @property
    def in_words(self) -> str:
        name = self.step.instruction.name if self.step.instruction is not None else "one of a saved plan"
        what = "a choice" if isinstance(self.step, Branch) else "a round"
        start = f"{name}: beside its kernels {what} takes {self.host_us:,.1f} us if the host decides"
        if self.only_host:
            return f"{start}, as it must: {self.only_host}"
        return f"{start}, {self.device_us:,.1f} us as a conditional node of a graph; " \
            f"{'such a node' if self.by_device else 'the host decides'}"


def rounds_of(program: Program, early: Early) -> list[Round]:
    """The loops and branches that are in no other one, but in loops with a known number of rounds."""
    return [_round(step, program, early) for step in _undecided(program.steps)]


def decided(program: Program, early: Early) -> Program:
    """The program with by_device in loops and branches, and all inside of them, where that is cheaper."""
    if not any(True for _ in _undecided(program.steps)):
        return program
    return program._replace(steps=_decided(program.steps, program, early))


def _undecided(steps: Sequence[Step]) -> Iterator[Decided]:
    for step in steps:
        if isinstance(step, WhileLoop) and step.trip_count is not None:
            yield from _undecided(step.body)
        elif isinstance(step, (WhileLoop, Branch)):
            yield step


def _decided(steps: Sequence[Step], program: Program, early: Early) -> tuple[Step, ...]:
    found: list[Step] = []
    for step in steps:
        if isinstance(step, WhileLoop) and step.trip_count is not None:
            step = step._replace(body=_decided(step.body, program, early))
        elif isinstance(step, (WhileLoop, Branch)) and _round(step, program, early).by_device:
            step = _with_nodes(step)
        elif isinstance(step, WhileLoop):
            step = step._replace(body=_decided(step.body, program, early))
        elif isinstance(step, Branch):
            step = step._replace(branches=tuple(_decided(b, program, early) for b in step.branches))
        found.append(step)
    return tuple(found)


def _with_nodes(step: Step) -> Step:
    """The step, all undecided ones in it by the device."""
    if isinstance(step, WhileLoop):
        condition, body = (tuple(map(_with_nodes, part)) for part in (step.condition, step.body))
        return step._replace(condition=condition, body=body, by_device=step.trip_count is None)
    if isinstance(step, Branch):
        return step._replace(branches=tuple(tuple(map(_with_nodes, b)) for b in step.branches), by_device=True)
    return step


def _round(step: Decided, program: Program, early: Early) -> Round:
    inside = step.branches if isinstance(step, Branch) else (step.condition + step.body,)
    choices, lost = 1, 0.0
    for body in inside:
        count, own = _counted(body, early)
        choices, lost = max(choices, count + 1), max(lost, own)
    return Round(step, HOST_US * choices, NODE_US * choices + lost, _obstacle(step, program))


def _counted(steps: Sequence[Step], early: Early) -> tuple[int, float]:
    """Loops and branches that are decided, and microseconds that kernels take more in a node; those of loops whose
    number of rounds is not known once, of a branch those of all its cases."""
    choices, lost = 0, 0.0
    for step in steps:
        if isinstance(step, Launch):
            lost += IN_NODE_US + GAIN_US * early(step)
        elif isinstance(step, (WhileLoop, Branch)):
            trips = step.trip_count if isinstance(step, WhileLoop) else None
            body = bodies_of(step) if isinstance(step, Branch) else (*step.condition, *step.body)
            count, own = _counted(body, early)
            choices += (count + (trips is None)) * (1 if trips is None else trips)
            lost += own * (1 if trips is None else trips)
    return choices, lost


def _obstacle(step: Decided, program: Program) -> str:
    """What of a body cannot be in a graph, or not inside of a node."""
    if program.on_host:
        return "the program has arrays in the host's memory"
    for inner in all_steps([step]):
        if isinstance(inner, HostCall):
            return f"its body has host call {inner.target!r}"
        if isinstance(inner, Collective):
            return f"its body has a {inner.kind}"
    nodes = [nodes_of(inner, True) for inner in bodies_of(_as_decided(step))]
    return "" if all_known(nodes) and sum(nodes) <= MOST_NODES else "its body has too many kernels for one graph"


def _as_decided(step: Decided) -> Decided:
    made = _with_nodes(step)
    assert isinstance(made, (WhileLoop, Branch))
    return made
