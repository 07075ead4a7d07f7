"""Steps of a plan, recorded for a CUDA graph.

    recorder = Recorder(backend, kernels, early_start=True)
    why = recorder.load_nodes(cuda, steps, on_host=False)   "" if the device decides how loops go on
    Graph(stream, lambda: recorder.record(steps))

Counted loops are unrolled, and their kernels read counters where the plan has the values. Loops and branches that the
plan lets the device decide are conditional nodes (conditional_nodes.py). Small kernels start early (early_start.py),
but for those of a node's body.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from hloc.ir.narrowing import known
from hloc.kernels.plan import Branch, Ref, Step, WhileLoop
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.early_start import starts_early
from hloc.targets.cuda.execution import conditional_nodes, graphs


class Runner(Protocol):
    """What puts single steps on its stream."""

    stream: Any

    def put(self, step: Step) -> None: ...

    def address(self, ref: Ref) -> int: ...


class Recorder:
    """nodes: None if the host decides how loops go on, and which branch runs."""

    def __init__(self, runner: Runner, kernels: Sequence[Geometry], early_start: bool):
        self.runner, self.kernels, self.early_start = runner, kernels, early_start
        self.nodes: conditional_nodes.Nodes | None = None
        self.counters: dict[Ref, Ref] = {}                  # of the rounds that are recorded -> their values

    def load_nodes(self, cuda, steps: Sequence[Step], on_host: bool) -> str:
        """Prepares the conditional nodes of a plan, if it has some. on_host: whether it has arrays in the host's
        memory. Returns why they cannot be made, else ""."""
        version, depth = cuda.get_driver_version(), depth_of(steps)
        if depth and version < conditional_nodes.FIRST_DRIVER:
            return f"the driver is for CUDA {in_words(version)}, conditional nodes need one for " \
                   f"{in_words(conditional_nodes.FIRST_DRIVER)}"
        if depth and any(kernel.product for kernel in self.kernels):
            return "the program calls cuBLASLt or cuDNN"
        if depth and on_host:
            return "the program has arrays in the host's memory"
        try:
            self.nodes = conditional_nodes.Nodes(cuda, depth) if depth else None
        except cuda.Error as error:
            return f"the driver refuses the kernels that set a condition ({error})"
        return ""

    def record(self, steps: Sequence[Step], before: Step | None = None) -> Step | None:
        """Puts steps on the runner's stream. before: the step right before these. Returns the last one; None behind a
        conditional node."""
        for step in steps:
            if isinstance(step, WhileLoop) and step.trip_count is not None:
                before = self._counted(step, before)
            elif isinstance(step, (WhileLoop, Branch)):
                self._decided(step, before)
                before = None
            else:
                may = self.early_start and (self.nodes is None or not self.nodes.open)
                if may and starts_early(self.kernels, before, step):
                    graphs.let_start_early(self.runner.stream)
                self.runner.put(step)
                before = step
        return before

    def _counted(self, loop: WhileLoop, before: Step | None) -> Step | None:
        try:
            for number in range(loop.trip_count or 0):
                self.counters.update((c.place, c.in_round(number)) for c in loop.counters)
                before = self.record(loop.body, before)
        finally:
            for counter in loop.counters:
                self.counters.pop(counter.place, None)
        return before

    def _decided(self, step: WhileLoop | Branch, before: Step | None) -> None:
        """A conditional node."""
        assert step.by_device and self.nodes is not None    # as graphs.nodes_of sees to
        if isinstance(step, WhileLoop):
            self.record(step.condition, before)
            self._loop(self.nodes, step)
        else:
            self._branch(self.nodes, step)

    def _loop(self, nodes: conditional_nodes.Nodes, loop: WhileLoop) -> None:
        runner = self.runner
        handle, flag = nodes.handle(runner.stream), runner.address(known(loop.flag))
        nodes.set_loop(runner.stream, handle, flag)
        (body,) = nodes.add(runner.stream, handle, conditional_nodes.WHILE, 1)
        with self._inside(nodes, body):
            self.record((*loop.body, *loop.condition))
            nodes.set_loop(runner.stream, handle, flag)

    def _branch(self, nodes: conditional_nodes.Nodes, branch: Branch) -> None:
        stream, count = self.runner.stream, len(branch.branches)
        handle = nodes.handle(stream)
        nodes.set_branch(stream, handle, self.runner.address(branch.selector), branch.selector_type == "pred", count)
        for body, steps in zip(nodes.add(stream, handle, conditional_nodes.SWITCH, count), branch.branches):
            with self._inside(nodes, body):
                self.record(steps)

    @contextmanager
    def _inside(self, nodes: conditional_nodes.Nodes, body: int) -> Iterator[None]:
        """While it is open, steps are recorded for a body."""
        around = self.runner.stream
        with nodes.inside(body) as stream:
            self.runner.stream = stream
            try:
                yield
            finally:
                self.runner.stream = around


def depth_of(steps: Sequence[Step]) -> int:
    """How many loops and branches that the device decides are inside of each other."""
    depths = [0]
    for step in steps:
        if isinstance(step, (WhileLoop, Branch)):
            depths.append(depth_of(graphs.bodies_of(step)) + step.by_device)
    return max(depths)


def in_words(version: int) -> str:
    """12.4 for the driver's 12040."""
    return f"{version // 1000}.{version % 1000 // 10}"
