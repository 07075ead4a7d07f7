"""CUDA graphs: consecutive steps of a plan are captured once and launched again with one call.

    graph = Graph(stream, lambda: launch everything on the stream);  graph.launch();  graph.close()

PyCUDA has no graphs: this file calls functions of the driver's library on PyCUDA's stream. During the capture of
a stream nothing on it runs, and waiting for it is an error.

    parts((Launch, Copy, WhileLoop without trip count, Launch, Launch))
      -> [Part((Launch, Copy), 2), Part((WhileLoop,), None), Part((Launch, Launch), 2)]
"""
from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hloc.errors import RunError
from hloc.ir.narrowing import all_known
from hloc.kernels.plan import Branch, Collective, Copy, DeviceNumber, HostCall, Launch, Step, WhileLoop, all_steps

THREAD_LOCAL = 1                    # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may still use the driver
ONE_BY_ONE = "HLOC_CUDA_WAIT=on runs the kernels one by one and names the one that fails"
FAULTS = (700, *range(702, 720))    # errors of the device: any later call reports them again
ASKING = frozenset(["ragged-all-to-all"])       # collectives in which the host reads what devices say
EARLY_DRIVER = 12030                # CUDA of the first driver whose graphs have such edges
EARLY_EDGE = bytes([1, 0, 1, 0, 0, 0, 0, 0])    # CUgraphEdgeData: from the programmatic port of a kernel, programmatic
REPLACES = 1                        # CU_STREAM_SET_CAPTURE_DEPENDENCIES
HINTS = {("cuStreamGetCaptureInfo_v3", "cuStreamUpdateCaptureDependencies_v2"):
         "HLOC_CUDA_EARLY_START=off has no kernel start early",
         ("cuGraphConditionalHandleCreate", "cuGraphAddNode_v2", "cuStreamBeginCaptureToGraph"):
         "HLOC_CUDA_CONDITIONAL=off lets the host decide how loops go on"}
OF_CONDITION = 3                    # nodes: the conditional one, and a kernel that sets its value before it and in it
MOST_NODES = 20_000                 # of one graph; a loop with more is replayed one iteration at a time


class Part(NamedTuple):
    """Consecutive steps. nodes: of the graph that they form, or None if the host must read a value in between."""

    steps: tuple[Step, ...]
    nodes: int | None


def nodes_of(step: Step, nested: bool = False) -> int | None:
    """The number of nodes of a step in a graph; None if only the host can decide the next operation. nested: whether
    the device decides where the plan lets it (conditional_nodes.py): not with collectives inside."""
    if isinstance(step, (Launch, Copy, DeviceNumber)):
        return 1
    if isinstance(step, Collective) and step.kind not in ASKING:
        return 0 if step.is_done else max(1, len(step.arguments), len(step.results))
    if isinstance(step, WhileLoop) and step.trip_count is not None:
        inside = [nodes_of(s, nested) for s in step.body]
        if all_known(inside) and step.trip_count * sum(inside) <= MOST_NODES:
            return step.trip_count * sum(inside)
    elif isinstance(step, (WhileLoop, Branch)) and step.by_device and nested \
            and not any(isinstance(s, Collective) for s in all_steps([step])):
        inside = [nodes_of(s, nested) for s in bodies_of(step)]
        if all_known(inside) and sum(inside) + OF_CONDITION <= MOST_NODES:
            return sum(inside) + OF_CONDITION
    return None


def bodies_of(step: WhileLoop | Branch) -> tuple[Step, ...]:
    """All steps inside of a loop or branch, those of a condition twice: before the loop and in it."""
    if isinstance(step, Branch):
        return tuple(s for branch in step.branches for s in branch)
    return (*step.condition, *step.body, *step.condition)


def parts(steps: Sequence[Step], nested: bool = False) -> list[Part]:
    """Splits a plan into runs of steps that are one graph each, and steps that cannot be in a graph. A collective
    starts and ends in the same graph, or in none."""
    found: list[Part] = []
    for own, nodes in units(steps, nested):
        last = found[-1] if found else None
        if nodes is not None and last is not None and last.nodes is not None and last.nodes + nodes <= MOST_NODES:
            found[-1] = Part((*last.steps, *own), last.nodes + nodes)
        else:
            found.append(Part(own, nodes))
    return found


def units(steps: Sequence[Step], nested: bool) -> Iterator[Part]:
    """Single steps; and from the start of a collective to where none is left that has not ended, all steps together, if
    they can be in one graph."""
    waiting: list[Step] = []
    started: set[tuple[int, str]] = set()
    for step in steps:
        waiting.append(step)
        if isinstance(step, Collective):
            (started.discard if step.is_done else started.add)((step.number, step.kind))
        if started:
            continue
        nodes = [nodes_of(s, nested) for s in waiting]
        if all_known(nodes) and (len(waiting) == 1 or sum(nodes) <= MOST_NODES):
            yield Part(tuple(waiting), sum(nodes))
        else:
            yield from (Part((s,), None if isinstance(s, Collective) else n) for s, n in zip(waiting, nodes))
        waiting = []


def forbids(steps: Sequence[Step], nested: bool = False) -> list[str]:
    """Why a plan is not one graph, in words: the steps that need the host, also those in counted loops."""
    found = []
    for step in steps:
        if nodes_of(step, nested) is not None:
            continue
        if isinstance(step, WhileLoop) and step.trip_count is not None:
            found += forbids(step.body, nested) or [
                f"a loop of {step.trip_count:,} rounds, too many for one graph"]
        else:
            found.append("a loop whose number of rounds is not known" if isinstance(step, WhileLoop) else
                         f"host call {step.target!r}" if isinstance(step, HostCall) else
                         f"a {step.kind}" if isinstance(step, Collective) else "a conditional")
    return found


def in_words(steps: Sequence[Step], nested: bool = False) -> str:
    """How a plan runs from its second run on, in words: one CUDA graph; 3 CUDA graphs, between which ..."""
    nodes, why = [part.nodes for part in parts(steps, nested)], dict.fromkeys(forbids(steps, nested))
    count = sum(n is not None and n > 1 for n in nodes)
    if not why:
        return "one CUDA graph" if nodes and count == len(nodes) == 1 else "no more than one kernel" \
            if len(nodes) < 2 else f"{count} CUDA graphs"
    graphs = {0: "no CUDA graph", 1: "one CUDA graph"}.get(count, f"{count} CUDA graphs")
    return f"{graphs} beside {', '.join(why)}"


def library():
    """The driver's library, already loaded by PyCUDA."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def captured(stream) -> tuple[int, list[int]]:
    """Of a stream that is captured: the graph, and the nodes that what comes next will depend on."""
    status, number, graph, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_size_t()
    nodes, edges = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
    check("cuStreamGetCaptureInfo_v3", library().cuStreamGetCaptureInfo_v3(
        ctypes.c_void_p(int(stream.handle)), ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph),
        ctypes.byref(nodes), ctypes.byref(edges), ctypes.byref(count)))
    return int(graph.value or 0), [int(nodes[n] or 0) for n in range(count.value)]


def let_start_early(stream) -> None:
    """While a stream is captured, right after a kernel: the next kernel may start before that one has ended, as it may
    behind a launch with CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, which PyCUDA cannot make."""
    _, nodes = captured(stream)
    if len(nodes) == 1:                             # else the stream has also waited for another one
        check("cuStreamUpdateCaptureDependencies_v2", library().cuStreamUpdateCaptureDependencies_v2(
            ctypes.c_void_p(int(stream.handle)), (ctypes.c_void_p * 1)(*nodes), EARLY_EDGE, ctypes.c_size_t(1),
            ctypes.c_uint(REPLACES)))


def check(name: str, code: int) -> None:
    """Raises RunError if a function of the driver has failed."""
    if code in FAULTS:
        raise RunError(f"the GPU reported: {name} failed: {_words(code)}", hint=ONE_BY_ONE)
    if code:
        hints = [hint for names, hint in HINTS.items() if name in names] or ["HLOC_CUDA_GRAPHS=off runs without graphs"]
        raise RunError(f"the NVIDIA driver refused a graph: {name} failed: {_words(code)}", hint=hints[0])


def _words(code: int) -> str:
    text = ctypes.c_char_p()
    unknown = library().cuGetErrorString(ctypes.c_int(code), ctypes.byref(text)) or text.value is None
    return f"error {code}" if unknown else f"{(text.value or b'').decode(errors='replace')} (error {code})"


def _destroy(driver, instance: ctypes.c_void_p, graph: ctypes.c_void_p | None) -> None:
    driver.cuGraphExecDestroy(instance)
    if graph is not None:
        driver.cuGraphDestroy(graph)


class Graph:
    """The operations that `record` puts on a stream (one with PyCUDA's `handle`), launched together. `close` frees its
    memory, and so does the object's finalizer. keep: the graph that was recorded, too, until then: handles of
    conditional nodes belong to it."""

    def __init__(self, stream, record: Callable[[], object], keep: bool = False):
        self.driver, self.stream = library(), ctypes.c_void_p(int(stream.handle))
        graph, self.instance = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuStreamBeginCapture_v2", self.stream, ctypes.c_int(THREAD_LOCAL))
        try:
            try:
                record()
            finally:
                self._do("cuStreamEndCapture", self.stream, ctypes.byref(graph))
            self._do("cuGraphInstantiateWithFlags", ctypes.byref(self.instance), graph, ctypes.c_ulonglong(0))
        finally:
            if graph.value and not (keep and self.instance.value):
                self._do("cuGraphDestroy", graph)
        self.close = weakref.finalize(self, _destroy, self.driver, self.instance, graph if keep else None)
        self.close.atexit = False               # at exit the context may be destroyed, and the graph with it

    def launch(self) -> None:
        """Launches the graph on the stream."""
        self._do("cuGraphLaunch", self.instance, self.stream)

    def _do(self, name: str, *arguments) -> None:
        check(name, getattr(self.driver, name)(*arguments))
