"""Conditional nodes of graphs: their values, their bodies, and the driver's functions that make them."""
from __future__ import annotations

import ctypes
import itertools
import weakref

from cuda_emulation.memory import CONTEXT, DEVICE, Error
from cuda_emulation.streams import Capture, Stream


class Handle:
    """The value of a conditional node. default: in each launch, before a kernel sets it; None: it has none."""

    numbers = itertools.count(1 << 40)
    known: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()

    def __init__(self, graph: Capture, context: int, default: int | None):
        self.graph, self.context, self.default = graph, context, default
        self.number, self.node = next(Handle.numbers), None
        self.value, self.runs, self.is_set = default, False, False
        self.known[self.number] = self
        graph.root.handles.append(self)

    def now(self) -> int:
        if self.value is None:
            raise Error("a conditional node is reached before a kernel has set its value")
        return self.value


def set_conditional(number: int, value: int) -> None:
    """cudaGraphSetConditional."""
    handle = Handle.known.get(number)
    if handle is None or not handle.runs:
        raise Error("cudaGraphSetConditional for a handle of no graph that runs")
    handle.value, handle.is_set = value, True


class ConditionalNode:
    """A loop (kind 1) or a switch (2) in a graph, and its bodies."""

    launched = 0                        # bodies

    def __init__(self, handle: Handle, kind: int, bodies: list[Capture]):
        self.handle, self.kind, self.bodies = handle, kind, bodies
        self.array = (ctypes.c_void_p * len(bodies))(*(body.number for body in bodies))
        handle.node = self

    def __call__(self) -> None:
        if self.kind == 2:
            if self.handle.now() < len(self.bodies):
                self.run(self.handle.value)
            return
        while self.handle.now():
            self.handle.is_set = False
            self.run(0)
            if not self.handle.is_set:
                raise Error("a loop whose body does not set its condition: it never ends")

    def run(self, number: int) -> None:
        ConditionalNode.launched += 1
        self.bodies[number].run()


def _contains(graph: Capture, inner: Capture | None) -> bool:
    """Whether a graph is another one or has it as a body, at any depth."""
    while inner is not None and inner is not graph:
        inner = inner.parent
    return inner is graph


class ConditionalCalls:
    """The functions of libcuda that conditional_nodes.py of the runtime calls. They check what the driver's manual says."""

    def cuGraphConditionalHandleCreate(self, handle, graph, context, default, flags) -> int:           # noqa: N802
        capture = Capture.known.get(graph.value)
        if capture is None or capture.ended or context.value != CONTEXT or flags.value not in (0, 1):
            return 1
        made = Handle(capture, context.value, default.value if flags.value else None)
        handle._obj.value = made.number
        return 0

    def cuGraphAddNode_v2(self, node, graph, before, data, count, params) -> int:                      # noqa: N802
        capture, given = Capture.known.get(graph.value), params._obj
        handle = Handle.known.get(given.handle)
        sizes = {1: given.size == 1, 2: given.size > 0 and DEVICE.driver >= 12080}
        if DEVICE.driver < 12040 or given.type != 13:
            return 801
        if capture is None or capture.ended or data or any(given.reserved0) or any(given.rest) or given.reserved2 \
                or not sizes.get(given.kind, False) or given.context != CONTEXT:
            return 1
        places = [before[n] or 0 for n in range(count.value)]
        if handle is None or handle.node is not None or not _contains(handle.graph, capture) \
                or len(set(places)) != len(places) or not all(p < len(capture.items) for p in places):
            return 1
        made = ConditionalNode(handle, given.kind, [Capture(None, capture) for _ in range(given.size)])
        given.bodies = ctypes.cast(made.array, ctypes.POINTER(ctypes.c_void_p))
        node[0] = len(capture.items)
        capture.loose.add(len(capture.items))
        capture.items.append((capture.items[places[-1]][0] if places else capture.origin, made))
        return 0

    def cuStreamBeginCaptureToGraph(self, stream, graph, before, data, count, mode) -> int:            # noqa: N802
        own, capture = Stream.known[stream.value], Capture.known.get(graph.value)
        if own.capture is not None or capture is None or capture.origin is not None or count.value or mode.value != 1:
            return 1
        own.capture, capture.origin = capture, own
        return 0
