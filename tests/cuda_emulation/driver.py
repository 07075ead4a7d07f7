"""A stand-in for pycuda.driver that runs hloc's CUDA C on the CPU: what hloc/targets/cuda/execution/runtime.py uses, no more.

In: an "image" that is a shared object, made by `build` from CUDA C with g++ and emulation.h. Out: the same numbers as a
GPU's. Memory starts as 0xff (NaN), is bounded by guard bytes, and copies beyond its end are refused. A checked image
also finds what compute-sanitizer finds: see checks.h. `install` puts it in the place of PyCUDA and of the graphs' part
of the driver's library.

    image = build(sources, checked=True)                          # bytes, in place of a cubin
    install(monkeypatch); CudaBackend(container._replace(images=(image,)), {})(arrays)
"""
from __future__ import annotations

import collections
import ctypes
import hashlib
import itertools
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from cuda_emulation.setters import PtxModule

HERE = Path(__file__).parent
HLOC = HERE.parent.parent / "hloc" / "targets"
# As it is when a run of tests begins: what single tests set for hloc's own cache would have each build all anew.
IMAGES = Path(os.environ.get("HLOC_CACHE_DIR", tempfile.gettempdir())) / "hloc-emulation"
GUARD, GUARD_BYTE = 4096, 0xA5
BY_KERNELS = 2                      # a byte that kernels write, or copies within a graph: checks.cpp
FLAGS = ("-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-fvisibility=hidden",
         "-fno-exceptions", "-fno-asynchronous-unwind-tables")
# Each image is built once and runs small shapes: g++ leaves out what costs it more than kernels gain. (clang++ without
# optimizations compiles in a third of the time, and what it makes runs twice to four times as long: no gain in all.)
QUICK = ("-fno-tree-pta", "-fno-tree-loop-optimize")
CHECKS = ("-DEMULATION_CHECKED", "-fsanitize=thread,alignment", "-fno-threadsafe-statics",
          "--param=tsan-instrument-func-entry-exit=0")
WRAPPED = ("-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset")        # copies of structures: checks.cpp
DEVICE = SimpleNamespace(name="the emulation", capability=(9, 0), memory=1 << 30, driver=13000, count=1)
MOST_SHARED = 227 << 10
CONTEXT = 0xC0                          # the address of the only context
LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\((\d+)(?:, \d+)?\)\s+(\w+)\(")
WORDS = {1: "a barrier that some threads never reach", 2: "bad launch"}


class Error(Exception):
    """Any failure that PyCUDA would report."""


class MemoryError(Error):            # noqa: A001 - PyCUDA's name
    """Out of device memory."""


def install(monkeypatch) -> None:
    """Let the runtime use this module instead of PyCUDA."""
    from hloc.targets.cuda.execution import graphs, runtime
    monkeypatch.setattr(runtime, "driver", lambda: __import__(__name__, fromlist=["driver"]))
    monkeypatch.setattr(runtime, "pinned_pool", PinnedPool)
    monkeypatch.setattr(graphs, "library", GraphLibrary)


# -- images ------------------------------------------------------------------------------------------------------------

def build(sources, checked: bool = False) -> bytes:
    """CudaSources -> a shared object with a launcher per kernel; cached by content."""
    return build_text(f"{sources.readable()}\n{_launchers(sources)}", checked)


def images_of(sources, arch: str = "", report: Callable | None = None) -> tuple[bytes, ...]:
    """What kernel_images.images_of does, for the emulation: one image has all kernels."""
    return (build(sources),) * len(sources.units())


def text_of(sources) -> str:
    """CudaSources -> CUDA C for build_text, hloc's headers included: tests plant faults in it."""
    return sources.single_file() + _launchers(sources)


def _launchers(sources) -> str:
    return "".join(f"HLOC_LAUNCHER({g.function})\n" for g in sources.geometry if not g.product)


def build_text(text: str, checked: bool = False) -> bytes:
    """CUDA C that ends with HLOC_LAUNCHER(kernel) lines -> a shared object."""
    bounds = "".join(f'extern "C" __attribute__((visibility("default"))) int bounds_{name} = {most};\n'
                     for most, name in LAUNCH_BOUNDS.findall(text))
    text = f'#include "emulation.h"\n{text}\n{bounds}'
    files = sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp"), *HLOC.glob("c/*.h"), *HLOC.glob("cuda/device/*.cuh")])
    headers = hashlib.sha256(b"".join(p.read_bytes() for p in files) + bytes([checked]))
    IMAGES.mkdir(parents=True, exist_ok=True)
    output = IMAGES / (hashlib.sha256(text.encode() + headers.digest()).hexdigest() + ".so")
    if not output.exists():
        _compile(text, output, _common(IMAGES / f"common-{headers.hexdigest()}", checked), checked)
    return output.read_bytes()


def _common(folder: Path, checked: bool) -> Path:
    """The folder with what all images share, made where it is missing: emulation.h as the compiler has read it, and the
    machine that runs kernels, with the checker."""
    if not folder.exists():
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        command = ("g++", *FLAGS, *(CHECKS if checked else ()))
        _run(*command, *QUICK, "-x", "c++-header", str(HERE / "emulation.h"), "-o", str(made / "emulation.h.gch"))
        for name in ("machine", "engines"):
            _run(*command, "-c", str(HERE / f"{name}.cpp"), "-o", str(made / f"{name}.o"))
        if checked:
            _run("g++", *FLAGS, "-O2", "-c", str(HERE / "checks.cpp"), "-o", str(made / "checks.o"))
        try:
            made.rename(folder)
        except OSError:                     # another process was first
            shutil.rmtree(made)
    return folder


def _compile(text: str, output: Path, common: Path, checked: bool) -> None:
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        unit, product = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        unit.write_text(text)
        paths = (common, HERE, HLOC / "c", HLOC / "cuda" / "device")
        _run("g++", *FLAGS, *QUICK, *(CHECKS if checked else ()), *(f"-I{p}" for p in paths), "-c", str(unit), "-o", f"{unit}.o")
        _run("g++", "-shared", *(WRAPPED if checked else ()), f"{unit}.o", *map(str, common.glob("*.o")), "-o", str(product))
        os.replace(product, output)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise AssertionError(f"g++ refuses the CUDA C\n{done.stderr[:6000]}")


# -- memory ------------------------------------------------------------------------------------------------------------

class Allocation:
    """A piece of memory between guards; int() gives its address. written: which of its bytes have a value."""

    living: weakref.WeakValueDictionary[int, Allocation] = weakref.WeakValueDictionary()

    def __init__(self, size: int):
        self.size, self.on_host = size, False
        self.bytes = np.full(size + 2 * GUARD + 256, 0xFF, np.uint8)
        self.written = np.zeros(size, np.uint8)
        start = -(self.bytes.ctypes.data + GUARD) % 256 + GUARD
        self.bytes[:start] = self.bytes[start + size:] = GUARD_BYTE
        self.start = start
        self.living[int(self)] = self

    def __int__(self) -> int:
        return self.bytes.ctypes.data + self.start

    def check(self) -> None:
        outside = (self.bytes[:self.start], self.bytes[self.start + self.size:])
        if any((part != GUARD_BYTE).any() for part in outside):
            raise Error(f"a kernel wrote outside of its {self.size} bytes")

    def free(self) -> None:
        self.living.pop(int(self), None)


def mem_alloc(size: int) -> Allocation:
    if size > mem_get_info()[0]:
        raise MemoryError("cuMemAlloc failed: out of memory")
    return Allocation(size)


def mem_get_info() -> tuple[int, int]:
    return DEVICE.memory - sum(a.size for a in Allocation.living.values() if not a.on_host), DEVICE.memory


def _piece(address: int, size: int) -> tuple[Allocation, int]:
    for memory in list(Allocation.living.values()):
        offset = int(address) - int(memory)
        if 0 <= offset and offset + size <= memory.size:
            return memory, offset
    raise Error(f"a copy of {size} bytes outside of any allocation")


def _bytes_at(address: int, size: int) -> np.ndarray:
    memory, offset = _piece(address, size)
    return memory.bytes[memory.start + offset:][:size]


def memcpy_htod_async(target, array: np.ndarray, stream) -> None:
    data = np.frombuffer(memoryview(array).cast("B"), np.uint8)                 # what has no buffer protocol is refused
    if not _is_page_locked(data):                                               # it is read when the call returns
        data = data.copy()
    memory, offset = _piece(int(target), data.size)
    stream.do(lambda: (_bytes_at(int(target), data.size).__setitem__(slice(None), data),
                       memory.written[offset:offset + data.size].fill(1)))


def _is_page_locked(data: np.ndarray) -> bool:
    return any(a.on_host and int(a) <= data.ctypes.data < int(a) + a.size for a in list(Allocation.living.values()))


def memcpy_dtoh_async(array: np.ndarray, source, stream) -> None:
    view = np.frombuffer(memoryview(array).cast("B"), np.uint8)
    stream.do(lambda: view.__setitem__(slice(None), _bytes_at(int(source), view.size)))


def memcpy_dtod_async(target, source, size: int, stream) -> None:
    (to, there), (from_, here) = _piece(target, size), _piece(source, size)
    in_graph = stream.capture is not None

    def copy() -> None:
        written = from_.written[here:here + size].copy()
        to.written[there:there + size] = np.minimum(written, 1) * BY_KERNELS if in_graph else written
        _bytes_at(target, size)[:] = _bytes_at(source, size).copy()
    stream.do(copy)


def memset_d8_async(target, value: int, count: int, stream) -> None:
    memory, offset = _piece(int(target), count)
    stream.do(lambda: (_bytes_at(int(target), count).fill(value), memory.written[offset:offset + count].fill(1)))


def memset_d32_async(target, value: int, count: int, stream) -> None:
    data = np.full(count, value, np.uint32)
    assert int(target) % 4 == 0
    memcpy_htod_async(target, data, stream)


def pagelocked_empty(size: int, dtype) -> np.ndarray:
    """Memory of the host that kernels reach: bounded as the device's is."""
    memory = Allocation(size * np.dtype(dtype).itemsize)
    memory.on_host = True
    memory.written.fill(1)
    array = memory.bytes[memory.start:][:memory.size].view(dtype)
    weakref.finalize(array, lambda: memory)                 # lives as long as the array
    return array


class PinnedPool:
    def allocate(self, shape, dtype) -> np.ndarray:
        return np.empty(shape, dtype)


# -- streams, events, graphs -------------------------------------------------------------------------------------------

class Queue:
    """Work in order. It is done at once; a late queue does it when it must: when somebody waits for it."""

    def __init__(self, late: bool = False):
        self.late = late
        self.items: collections.deque = collections.deque()

    def put(self, work) -> None:
        self.items.append(work)
        if not self.late:
            self.run()

    def run(self, until=None) -> None:
        """All work, or that up to and including `until`."""
        while self.items:
            work = self.items.popleft()
            work()
            if work is until:
                return


class Mark:
    """The place of an event in a queue."""

    def __init__(self, queue: Queue):
        self.queue, self.when = queue, None

    def __call__(self) -> None:
        self.when = time.perf_counter()

    def wait(self) -> None:
        if self.when is None:
            self.queue.run(until=self)
        assert self.when is not None


class Stream(Queue):
    """A queue, or, while it is captured, a branch of a graph. Which streams of a thread are late, tests say by
    `late_ones`, from the number of a stream in its thread: what a wait or an event does not order then has the worst
    order, so that what is missing shows in the results."""

    known: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
    late_ones: frozenset[int] = frozenset()
    in_thread = threading.local()

    def __init__(self, flags: int = 0):
        number = getattr(self.in_thread, "count", 0)
        self.in_thread.count = number + 1
        super().__init__(number in self.late_ones)
        self.handle, self.thread = id(self), threading.get_ident()
        self.capture: Capture | None = None
        self.early = False                                  # what is captured next is a kernel that starts early
        self.known[self.handle] = self

    def do(self, work) -> None:
        if self.early:
            raise Error("only a kernel can start early")
        if self.capture is not None:
            self.capture.items.append((self, work))
        else:
            self.put(work)

    def do_kernel(self, work) -> None:
        """work: takes whether it starts early, as it does if the graph says so."""
        early, self.early = self.early, False
        self.do(KernelStart(work, early))

    def wait_for_event(self, event: Event) -> None:
        mark = event.mark
        if isinstance(mark, CapturedMark):
            if mark.capture.ended or self.capture not in (None, mark.capture):
                raise Error("cuStreamWaitEvent failed: the event was recorded in a capture that has ended, or in another")
            self.capture = mark.capture
            self.capture.items.append((self, mark.wait))
        elif self.capture is not None:
            raise Error("cuStreamWaitEvent failed: dependency created on uncaptured work in another stream")
        elif mark is not None:
            self.put(mark.wait)

    def is_done(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        if self.capture is not None:
            raise Error("cuStreamSynchronize failed: operation not permitted when stream is capturing")
        self.run()
        for memory in list(Allocation.living.values()):
            memory.check()


class KernelStart(NamedTuple):
    """A kernel in a queue or a graph."""

    run: Callable[[bool], None]
    early: bool

    def __call__(self) -> None:
        self.run(self.early)


class event_flags:                   # noqa: N801 - PyCUDA's name
    DISABLE_TIMING = 2


class Event:
    def __init__(self, flags: int = 0):
        self.mark: Mark | CapturedMark | None = None

    def record(self, stream: Stream) -> None:
        if stream.capture is not None:
            self.mark = CapturedMark(stream.capture, stream)
            stream.capture.items.append((stream, self.mark))
        else:
            self.mark = Mark(stream)
            stream.put(self.mark)

    def query(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        self.mark.wait()

    def time_since(self, earlier: Event) -> float:
        return (self.mark.when - earlier.mark.when) * 1e3


class CapturedMark:
    """The place of an event in a graph."""

    def __init__(self, capture: Capture, stream: Stream):
        self.capture, self.stream = capture, stream

    def wait(self) -> None:
        raise AssertionError("only a graph that runs waits")

    __call__ = wait


class Capture:
    """A graph: what each of its streams does, in the order of the calls. It runs with queues in the place of streams,
    which are late where the streams are."""

    numbers = itertools.count(1)

    def __init__(self, origin: Stream | None, parent: Capture | None = None):
        self.origin, self.ended, self.parent = origin, False, parent
        self.items: list[tuple[Stream, object]] = []
        self.number, self.instances = next(Capture.numbers), 0
        self.root: Capture = parent.root if parent is not None else self
        self.handles: list[Handle] = []                     # of a root: of all nodes
        self.loose: set[int] = set()                        # nodes that were added, and that nothing comes behind yet
        self.known[self.number] = self

    known: weakref.WeakValueDictionary[int, Capture] = weakref.WeakValueDictionary()

    def launch(self) -> None:
        """A run of the whole graph."""
        for handle in self.handles:
            handle.value, handle.runs = handle.default, True
        try:
            self.run()
        finally:
            for handle in self.handles:
                handle.runs = False

    def joined(self) -> bool:
        """Whether the origin has waited for the last work of all other streams."""
        last: dict[Stream, int] = {}
        waited: dict[Stream, int] = {}
        for number, (stream, work) in enumerate(self.items):
            mark = getattr(work, "__self__", None)
            if isinstance(mark, CapturedMark) and stream is self.origin:
                place = next(n for n, (_, other) in enumerate(self.items) if other is mark)
                waited[mark.stream] = max(waited.get(mark.stream, -1), place)
            elif not isinstance(work, CapturedMark):
                last[stream] = number
        return all(waited.get(s, -1) > n for s, n in last.items() if s is not self.origin)

    def run(self) -> None:
        queues = {stream: Queue(stream.late) for stream, _ in self.items}
        marks: dict[CapturedMark, Mark] = {}
        for stream, work in self.items:
            if isinstance(work, CapturedMark):
                marks[work] = work = Mark(queues[stream])
            elif isinstance(mark := getattr(work, "__self__", None), CapturedMark):
                work = marks[mark].wait
            queues[stream].put(work)
        for queue in queues.values():
            queue.run()


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


class GraphLibrary:
    """The functions of libcuda that hloc/targets/cuda/execution/graphs.py, conditional_nodes.py and tensor_maps.py
    call."""

    graphs: dict[int, Capture] = {}
    launched = early = 0                # graphs, and kernels in them that start early

    def cuStreamBeginCapture_v2(self, stream, mode) -> int:     # noqa: N802 - the driver's names
        own = Stream.known[stream.value]
        own.capture = Capture(own)
        return 0

    def cuStreamGetCaptureInfo_v3(self, stream, status, number, graph, nodes, edges, count) -> int:     # noqa: N802
        capture = Stream.known[stream.value].capture
        own = [n for n, (on, _) in enumerate(capture.items) if on.handle == stream.value]
        status._obj.value, graph._obj.value, count._obj.value = 1, capture.number, len(own[-1:])
        self.nodes = (ctypes.c_void_p * 1)(*own[-1:])
        ctypes.memmove(ctypes.addressof(nodes._obj), ctypes.byref(ctypes.c_void_p(ctypes.addressof(self.nodes))), 8)
        return 0

    def cuStreamUpdateCaptureDependencies_v2(self, stream, nodes, edges, count, flags) -> int:         # noqa: N802
        own = Stream.known[stream.value]
        assert (count.value, flags.value) == (1, 1)
        place = nodes[0] or 0
        if isinstance(own.capture.items[place][1], ConditionalNode):
            own.capture.loose.discard(place)
            return 1 if edges else 0
        assert bytes(edges) == bytes([1, 0, 1, 0, 0, 0, 0, 0])
        if not isinstance(own.capture.items[place][1], KernelStart):                # only kernels have such a port
            return 1
        own.early = True
        GraphLibrary.early += 1
        return 0

    def cuCtxGetCurrent(self, context) -> int:                  # noqa: N802
        context._obj.value = CONTEXT if Context.depth else 0
        return 0

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

    def cuStreamEndCapture(self, stream, graph) -> int:         # noqa: N802
        capture = Stream.known[stream.value].capture
        capture.ended = True
        for own in {own for own, _ in capture.items} | {capture.origin}:
            own.capture = None
        if not capture.joined() or capture.loose:
            return 904
        graph._obj.value = capture.number
        if capture.parent is None:
            self.graphs[capture.number] = capture
        return 0

    def cuGraphInstantiateWithFlags(self, instance, graph, flags) -> int:       # noqa: N802
        capture = self.graphs[graph.value]
        if any(h.node is None for h in capture.handles) or capture.handles and capture.instances:
            return 1
        capture.instances += 1
        instance._obj.value = graph.value
        return 0

    def cuGetErrorString(self, code, text) -> int:              # noqa: N802
        words = {1: b"invalid argument", 801: b"operation not supported",
                 904: b"the capture has work that its origin does not wait for"}
        text._obj.value = words.get(code.value)
        return 0 if code.value in words else 1

    def cuGraphDestroy(self, graph) -> int:                     # noqa: N802
        return 0

    def cuGraphExecDestroy(self, instance) -> int:              # noqa: N802
        return 0 if self.graphs.pop(instance.value, None) is not None else 1

    def cuTensorMapEncodeTiled(self, map, type, rank, address, sizes, strides, box, steps, *modes) -> int:  # noqa: N802
        width, modes = 1 << type.value, [m.value for m in modes]
        known = width in (1, 2, 4) and rank.value == 4 and modes == [0, 3, 3, 0] and steps[0] == 1
        if not known or map.value % 64 or address.value % 16 or any(n % 16 or not 0 < n < 1 << 40 for n in strides) \
                or not all(0 < n <= 1 << 32 for n in sizes) or not all(0 < n <= 256 for n in box) or box[0] * width > 128 \
                or not all(0 < n <= 8 for n in steps):
            return 1
        data = struct.pack("<8sQII4Q3Q4I4I16x", b"tnsormap", address.value, width, modes[1], *sizes, *strides, *box, *steps)
        ctypes.memmove(map.value, data, len(data))
        return 0

    def cuGraphLaunch(self, instance, stream) -> int:           # noqa: N802
        GraphLibrary.launched += 1
        Stream.known[stream.value].do(self.graphs[instance.value].launch)
        return 0


# -- devices, modules, functions ---------------------------------------------------------------------------------------

class Context:
    depth, lock = 0, threading.Lock()

    def push(self) -> None:
        with Context.lock:
            Context.depth += 1

    def pop(self) -> None:
        with Context.lock:
            Context.depth -= 1

    def detach(self) -> None:
        pass

    @staticmethod
    def synchronize() -> None:
        for stream in list(Stream.known.values()):
            if stream.thread == threading.get_ident():
                stream.run()


class device_attribute:              # noqa: N801 - PyCUDA's name
    MULTIPROCESSOR_COUNT, L2_CACHE_SIZE, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 16, 38, 97
    MEMORY_CLOCK_RATE, GLOBAL_MEMORY_BUS_WIDTH = 36, 37


class Device:
    def __init__(self, number: int):
        assert 0 <= number < DEVICE.count
        self.number = number

    @staticmethod
    def count() -> int:
        return DEVICE.count

    def pci_bus_id(self) -> str:
        return f"0000:{self.number:02x}:00.0"

    def retain_primary_context(self) -> Context:
        return Context()

    def name(self) -> str:
        return DEVICE.name

    def compute_capability(self) -> tuple[int, int]:
        return DEVICE.capability

    def get_attribute(self, attribute: int) -> int:
        return {16: 132, 38: 50 << 20, 97: MOST_SHARED, 36: 2619000, 37: 5120}[attribute]


def get_driver_version() -> int:
    return DEVICE.driver


class function_attribute:            # noqa: N801 - PyCUDA's name
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class Module:
    """A loaded image. `backwards`: the last thread of each block starts first."""

    def __init__(self, image: bytes):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(image)
            file.flush()
            try:
                self.library = ctypes.CDLL(file.name)
            except OSError as error:
                raise Error(f"cuModuleLoadDataEx failed: device kernel image is invalid: {error}") from None

    def get_function(self, name: str) -> Function:
        return Function(name, self.library)

    def set_backwards(self, backwards: bool) -> None:
        ctypes.c_int.in_dll(self.library, "emulation_backwards").value = int(backwards)


class Piece(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t), ("guard", ctypes.c_size_t),
                ("written", ctypes.c_void_p)]


class Span(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class Function:
    """A kernel. sizes: bytes behind each argument, for checked images; where they are not told, whole allocations."""

    def __init__(self, name: str, library):
        self.name, self.library, self.launch = name, library, getattr(library, f"launch_{name}")
        self.checked = hasattr(library, "emulation_fault")
        self.takes = ctypes.c_int.in_dll(library, f"arguments_{name}").value
        self.most_threads = ctypes.c_int.in_dll(library, f"bounds_{name}").value \
            if hasattr(library, f"bounds_{name}") else 1024
        self.sizes: tuple[int, ...] = ()
        self.count: int | None = None
        self.most_shared = 48 << 10

    def prepare(self, types: str) -> None:
        assert set(types) <= {"P"}
        self.count = len(types)

    def set_attribute(self, attribute: int, value: int) -> None:
        if value > MOST_SHARED:
            raise Error("cuFuncSetAttribute failed: invalid argument")
        self.most_shared = value

    def prepared_async_call(self, grid, block, stream, *addresses, shared_size: int = 0) -> None:
        if self.count != len(addresses):
            raise Error(f"{self.name} was prepared for {self.count} arguments, not {len(addresses)}")
        if self.count != self.takes:                        # the driver's words
            raise Error(f"cuLaunchKernel failed: too many resources requested for launch: {self.name} takes "
                        f"{self.takes} arguments, not {self.count}")
        if shared_size > self.most_shared:
            raise Error(f"cuLaunchKernel failed: invalid argument: {shared_size} bytes of shared memory, "
                        f"{self.most_shared} allowed")
        threads = block[0] * block[1] * block[2]
        if threads > self.most_threads:
            raise Error(f"{self.name}: too many resources requested for launch: {threads} threads in a block, its "
                        f"__launch_bounds__ are {self.most_threads}")
        stream.do_kernel(lambda early: self._run(grid, block, [int(a) for a in addresses], shared_size, early))

    def _run(self, grid, block, addresses: list[int], shared: int, early: bool) -> None:
        pointers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        if self.checked:
            kept = self._tell(addresses, early)
        code = self.launch(pointers, (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), ctypes.c_uint(shared))
        if self.checked:
            del kept
            fault = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(self.library, "emulation_fault"))).decode()
            if fault:
                raise Error(f"{self.name}: {fault}")
        if code:
            raise Error(f"{self.name}: {WORDS[code]}")

    def _tell(self, addresses: list[int], early: bool) -> tuple:
        """Tell the checker which memory there is, and which of it this launch may touch. What is given back must live
        until the launch has ended: memory that was freed before may become the emulation's own."""
        living = list(Allocation.living.values())
        pieces = (Piece * max(1, len(living)))(*[
            Piece(int(a), a.size, GUARD, a.written.ctypes.data) for a in living])
        spans = (Span * max(1, len(self.sizes)))(*[Span(a, n) for a, n in zip(addresses, self.sizes)])
        for name, value in (("emulation_pieces", pieces), ("emulation_spans", spans)):
            ctypes.c_void_p.in_dll(self.library, name).value = ctypes.addressof(value)
        ctypes.c_int.in_dll(self.library, "emulation_piece_count").value = len(living)
        ctypes.c_int.in_dll(self.library, "emulation_span_count").value = len(self.sizes)
        ctypes.c_int.in_dll(self.library, "emulation_early").value = int(early)
        ctypes.c_char.in_dll(self.library, "emulation_fault").value = b"\0"
        return living, pieces, spans


def module_from_buffer(image: bytes) -> Module | PtxModule:
    if not image.startswith(b".version"):
        return Module(image)
    if DEVICE.driver < 12030:
        raise Error("cuModuleLoadDataEx failed: a PTX JIT compilation failed")
    return PtxModule(image.decode(), _number_at, set_conditional)


def _number_at(address: int, size: int) -> int:
    """A number that a kernel in PTX reads. Only checked images note what kernels write."""
    memory, offset = _piece(address, size)
    noted = (memory.written == BY_KERNELS).any()
    if address % size or noted and not memory.written[offset:offset + size].all():
        raise Error("a condition that nothing has written is read")
    return int.from_bytes(_bytes_at(address, size).tobytes(), "little")


def _contains(graph: Capture, inner: Capture | None) -> bool:
    """Whether a graph is another one or has it as a body, at any depth."""
    while inner is not None and inner is not graph:
        inner = inner.parent
    return inner is graph
