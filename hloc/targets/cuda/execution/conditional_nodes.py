"""Loops and branches inside a CUDA graph, decided on the device: conditional nodes.

    nodes = Nodes(cuda, depth=1)
    handle = nodes.handle(stream)                           while `stream` is captured:
    nodes.set_loop(stream, handle, flag)                    a kernel: the pred at the address `flag` is the value
    (body,) = nodes.add(stream, handle, WHILE, 1)           the node, behind that kernel
    with nodes.inside(body) as own:                         what is put on the stream `own` is the loop's body
        ...; nodes.set_loop(own, handle, flag)              its last kernel sets the value for the next round

A kernel sets the value by cudaGraphSetConditional. That function is no part of a library: ptxas leaves it undefined in
a cubin, as it does vprintf, and the driver defines it when it loads the module. Drivers before CUDA 12.3 do not know
it, and refuse a module that calls it: so the kernels that set values are a module of their own, in PTX, which the
driver compiles. A loop may be inside of another: its value is set anew before each time that its node is reached, so
the default, zero, is never used.

Documented (cuda.h, Programming Guide): bodies hold kernels, copies, memsets and conditional nodes, all of one context;
a graph with such nodes is instantiated once at a time. Not documented: whether kernels of a body may start early
(programmatic edges); they do not.
"""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hloc.targets.cuda.execution import graphs

FIRST_DRIVER = 12080                # CUDA of the first driver with switches; loops came with 12.4
CONDITIONAL = 13                    # CU_GRAPH_NODE_TYPE_CONDITIONAL
WHILE, SWITCH = 1, 2                # CU_GRAPH_COND_TYPE_WHILE, CU_GRAPH_COND_TYPE_SWITCH
ASSIGN_DEFAULT, DEFAULT = 1, 0      # CU_GRAPH_COND_ASSIGN_DEFAULT: the value when a graph is launched
NON_BLOCKING = 1                    # CU_STREAM_NON_BLOCKING
ONE = (1, 1, 1)


def _setter(name: str, flag: str, more: str, computed: str) -> str:
    """PTX of a kernel that sets the value of a node from what it finds at `flag`. computed: leaves the value in %r1."""
    return f"""
.visible .entry {name} (.param .u64 handle, .param .u64 {flag}{more})
{{
  .reg .pred %p;
  .reg .b32 %r<3>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd0, [handle];
  ld.param.u64 %rd1, [{flag}];
{computed}
  {{
  .param .b64 first;
  .param .b32 second;
  st.param.b64 [first], %rd0;
  st.param.b32 [second], %r1;
  call.uni cudaGraphSetConditional, (first, second);
  }}
  ret;
}}
"""


def _setter_by_pred(name: str, if_true: int) -> str:
    return _setter(name, "flag", "", f"""\
  ld.global.u8 %r0, [%rd1];
  setp.ne.u32 %p, %r0, 0;
  selp.u32 %r1, {if_true}, {1 - if_true}, %p;""")


# A loop goes on while its pred is true. A branch of a pred: 0 if it is true, else 1; of a number: itself, or the last
# branch's if there is none of that number.
SETTERS = """.version 7.0
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
""" + _setter_by_pred("set_loop", 1) + _setter_by_pred("set_branch_of_pred", 0) + _setter(
    "set_branch", "number", ", .param .u32 last", """\
  ld.global.u32 %r0, [%rd1];
  ld.param.u32 %r2, [last];
  min.u32 %r1, %r0, %r2;""")


class NodeParams(ctypes.Structure):
    """CUgraphNodeParams of a conditional node. bodies: written by the driver."""

    _fields_ = [("type", ctypes.c_int), ("reserved0", ctypes.c_int * 3), ("handle", ctypes.c_uint64),
                ("kind", ctypes.c_int), ("size", ctypes.c_uint), ("bodies", ctypes.POINTER(ctypes.c_void_p)),
                ("context", ctypes.c_void_p), ("rest", ctypes.c_longlong * 25), ("reserved2", ctypes.c_longlong)]


class Nodes:
    """Makes conditional nodes in the current context. depth: of bodies inside of each other; each has a stream, on
    which nothing runs. Raises the driver's errors."""

    def __init__(self, cuda, depth: int):
        self.driver = graphs.library()
        self.streams = [cuda.Stream(NON_BLOCKING) for _ in range(depth)]
        self.open = 0                                       # bodies that are being captured
        module = cuda.module_from_buffer(SETTERS.encode() + b"\0")
        self._setters: dict[str, Any] = {}
        for name, types in (("set_loop", "QP"), ("set_branch_of_pred", "QP"), ("set_branch", "QPI")):
            self._setters[name] = module.get_function(name)
            self._setters[name].prepare(types)

    def handle(self, stream) -> int:
        """A value for one node of the graph that a stream is captured into, or of a body inside of it."""
        graph, _ = graphs.captured(stream)
        handle = ctypes.c_uint64()
        self._do("cuGraphConditionalHandleCreate", ctypes.byref(handle), ctypes.c_void_p(graph), self._context(),
                 ctypes.c_uint(DEFAULT), ctypes.c_uint(ASSIGN_DEFAULT))
        return handle.value

    def set_loop(self, stream, handle: int, flag: int) -> None:
        """A kernel that sets a handle by the pred at an address."""
        self._setters["set_loop"].prepared_async_call(ONE, ONE, stream, handle, flag)

    def set_branch(self, stream, handle: int, selector: int, is_pred: bool, branches: int) -> None:
        """A kernel that sets a handle to the number of a branch; selector: the address of a pred or of an s32."""
        name, more = ("set_branch_of_pred", ()) if is_pred else ("set_branch", (branches - 1,))
        self._setters[name].prepared_async_call(ONE, ONE, stream, handle, selector, *more)

    def add(self, stream, handle: int, kind: int, size: int) -> list[int]:
        """Adds a node behind all that is on the stream. Its bodies, which are empty graphs."""
        graph, before = graphs.captured(stream)
        params = NodeParams(type=CONDITIONAL, handle=handle, kind=kind, size=size, context=self._context().value)
        node = (ctypes.c_void_p * 1)()
        self._do("cuGraphAddNode_v2", node, ctypes.c_void_p(graph), (ctypes.c_void_p * max(1, len(before)))(*before),
                 None, ctypes.c_size_t(len(before)), ctypes.byref(params))
        self._do("cuStreamUpdateCaptureDependencies_v2", ctypes.c_void_p(int(stream.handle)), node, None,
                 ctypes.c_size_t(1), ctypes.c_uint(graphs.REPLACES))
        return [int(params.bodies[n] or 0) for n in range(size)]

    @contextmanager
    def inside(self, body: int) -> Iterator[Any]:
        """While it is open, the stream that it gives is captured into a body."""
        stream, end = self.streams[self.open], ctypes.c_void_p()
        own = ctypes.c_void_p(int(stream.handle))
        self._do("cuStreamBeginCaptureToGraph", own, ctypes.c_void_p(body), None, None, ctypes.c_size_t(0),
                 ctypes.c_int(graphs.THREAD_LOCAL))
        self.open += 1
        try:
            yield stream
        finally:
            self.open -= 1
            self._do("cuStreamEndCapture", own, ctypes.byref(end))

    def _context(self) -> ctypes.c_void_p:
        context = ctypes.c_void_p()
        self._do("cuCtxGetCurrent", ctypes.byref(context))
        return context

    def _do(self, name: str, *arguments) -> None:
        graphs.check(name, getattr(self.driver, name)(*arguments))
