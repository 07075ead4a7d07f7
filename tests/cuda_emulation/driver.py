"""A stand-in for pycuda.driver that runs hloc's CUDA C on the CPU: what hloc/targets/cuda/execution uses, no more.

In: an "image" that is a shared object, made by `build` from CUDA C with g++ and emulation.h. Out: the same numbers as a
GPU's. Memory starts as 0xff (NaN), is bounded by guard bytes, and copies beyond its end are refused. A checked image
also finds what compute-sanitizer finds: see checks.h. `install` puts it in the place of PyCUDA and of the graphs' part
of the driver's library.

    image = build(sources, checked=True)                          # bytes, in place of a cubin
    install(monkeypatch); CudaBackend(container._replace(images=(image,)), {})(arrays)
"""
from __future__ import annotations

import ctypes
import struct
import tempfile
import threading

from cuda_emulation.conditional_nodes import ConditionalCalls, ConditionalNode, set_conditional
from cuda_emulation.images import build, build_text, images_of, text_of  # noqa: F401 - what tests build and install
from cuda_emulation.memory import (  # noqa: F401 - names of pycuda.driver
    BY_KERNELS,
    CONTEXT,
    DEVICE,
    GUARD,
    Allocation,
    Error,
    MemoryError,
    PinnedPool,
    _bytes_at,
    _piece,
    mem_alloc,
    mem_get_info,
    memcpy_dtod_async,
    memcpy_dtoh_async,
    memcpy_htod_async,
    memset_d8_async,
    memset_d32_async,
    pagelocked_empty,
)
from cuda_emulation.setters import PtxModule
from cuda_emulation.streams import Capture, Event, KernelStart, Stream, event_flags  # noqa: F401 - likewise

MOST_SHARED = 227 << 10
WORDS = {1: "a barrier that some threads never reach", 2: "bad launch"}


def install(monkeypatch) -> None:
    """Let the runtime use this module instead of PyCUDA."""
    from hloc.targets.cuda.execution import context, graphs
    monkeypatch.setattr(context, "driver", lambda: __import__(__name__, fromlist=["driver"]))
    monkeypatch.setattr(context, "pinned_pool", PinnedPool)
    monkeypatch.setattr(graphs, "library", GraphLibrary)


class GraphLibrary(ConditionalCalls):
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
