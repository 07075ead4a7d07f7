"""Runs a container on a GPU through PyCUDA, with one allocation and a separate stream; of a program with
collectives, with another stream for these (collectives.py).

In: a Container and arrays of the host or the device. Out: arrays of the host, or of the device (device_arrays.py).
Only this file imports PyCUDA and the driver. If something is missing (package, driver, device, memory, architecture),
it raises one RunError that names it.

    backend = CudaBackend(packed, {}); backend(arrays)            send, run, fetch
    backend.send(arrays); backend.run(); backend.wait()           the data stays on the device: for measurements

The first run waits after every kernel, so that a fault is reported with the kernel's name and its HLO. From the second
run on, consecutive steps that do not need the host are CUDA graphs (graphs.py), in which small kernels start early
(early_start.py). HLOC_CUDA_GRAPHS=off disables graphs; HLOC_CUDA_EARLY_START=off disables early starts;
HLOC_CUDA_WAIT=on waits after every kernel of every run. A run with a clock (step_clock.py) also has no graphs.
Loops whose number of rounds is not known, and branches, are decided by the host; with HLOC_CUDA_CONDITIONAL=on, where
the plan says so, by the device (recording.py).
"""
from __future__ import annotations

import atexit
import ctypes
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from hloc.errors import RunError
from hloc.inputs import dlpack
from hloc.inputs.dlpack import DeviceView
from hloc.ir import numpy_dtype
from hloc.kernels.plan import (
    Branch,
    Collective,
    Copy,
    Counter,
    DeviceNumber,
    HostCall,
    Launch,
    Ref,
    Step,
    WhileLoop,
    all_steps,
)
from hloc.machine import Machine
from hloc.targets.cuda.container import Container, Geometry, table_bytes
from hloc.targets.cuda.execution import graphs
from hloc.targets.cuda.execution.device_arrays import DeviceArray, Fixed
from hloc.targets.cuda.execution.host_memory import HostMemory
from hloc.targets.cuda.execution.recording import Recorder, depth_of, in_words
from hloc.targets.cuda.execution.step_clock import StepClock
from hloc.targets.cuda.gpus import device_named
from hloc.targets.cuda.libraries import cublaslt, cudnn
from hloc.targets.cuda.tiles import tensor_maps
from hloc.targets.host_calls import answered

if TYPE_CHECKING:
    from hloc.evaluate import Device
    from hloc.targets.cuda.execution.collectives import CudaCollectives

Argument = Union[np.ndarray, DeviceView, Fixed]
NON_BLOCKING = 1                    # CU_STREAM_NON_BLOCKING: does not wait for the default stream
ALIGNMENT = 256                     # of each array in device memory
STATIC_SHARED = 48 << 10            # bytes that a kernel may have without a request to the driver
MIB = 1 << 20
UNKNOWN_BUS = 12e9                  # bytes a second between host and device: PCIe 3
WITHOUT = "hloc run --target cpu runs HLO text without one"


def driver():
    """pycuda.driver, initialized. Raises RunError naming what is missing."""
    try:
        import pycuda.driver as cuda
    except ImportError as error:
        if "undefined symbol: cu" in str(error):
            raise RunError(f"the NVIDIA driver is too old for the PyCUDA that is installed: {error}",
                           hint="update the driver, or build PyCUDA with the toolkit of the driver's version") from None
        if "libcuda" in str(error):
            raise RunError(f"running on a GPU needs the NVIDIA driver (libcuda): {error}", hint=WITHOUT) from None
        raise RunError(f"running on a GPU needs PyCUDA: {error}", hint="pip install 'hloc[cuda]'; see hloc doctor"
                       ) from None
    try:
        cuda.init()
        count = cuda.Device.count()
    except cuda.Error as error:
        if "no CUDA-capable device" in str(error):
            raise no_device() from None
        raise RunError(f"the NVIDIA driver does not start: {error}",
                       hint="nvidia-smi shows the driver's state; PyCUDA may be newer than the driver") from None
    if count == 0:
        raise no_device()
    return cuda


def no_device() -> RunError:
    return RunError("no GPU on this machine", hint=WITHOUT)


def pinned_pool():
    """A pool of page-locked memory for results; memory is reused after the last reference to its array is gone."""
    from pycuda.tools import PageLockedMemoryPool
    return PageLockedMemoryPool()


@cache
def primary_context(cuda, gpu: int = 0):
    """A GPU's primary context, one for the process. cuBLAS and NCCL share it. Results in page-locked memory belong to
    it and may outlive their program. It is released when Python exits: PyCUDA's own destructor would call cuCtxDetach,
    which fails for primary contexts."""
    try:
        context = cuda.Device(gpu).retain_primary_context()
    except cuda.Error as error:
        raise RunError(f"the GPU cannot be used: {error}", hint="nvidia-smi shows its processes and compute mode"
                       ) from None
    atexit.register(context.detach)
    return context


@lru_cache(maxsize=1)
def device_machine() -> Machine:
    """Facts about the first GPU. Raises RunError if there is none."""
    cuda = driver()
    device = cuda.Device(0)
    major, minor = device.compute_capability()
    ask, of = device.get_attribute, cuda.device_attribute
    cores, shared = ask(of.MULTIPROCESSOR_COUNT), ask(of.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    known = device_named(device.name(), f"sm_{major}{minor}")
    if known is not None and (known.cores, known.shared_bytes) == (cores, shared):
        return replace(known, name=device.name())           # the same code as --target NAME makes on other machines
    bandwidth = ask(of.MEMORY_CLOCK_RATE) * 1e3 * 2 * ask(of.GLOBAL_MEMORY_BUS_WIDTH) / 8
    return Machine(device.name(), "gpu", cores, 16, known.l1_bytes if known else 128 << 10, ask(of.L2_CACHE_SIZE),
                   known.bandwidth if known else bandwidth or 1e12, 3e-6, shared,
                   known.arch if known else f"sm_{major}{minor}",
                   host_bandwidth=known.host_bandwidth if known else UNKNOWN_BUS)


class CudaBackend:
    """Owns the context, the modules, all memory and the graphs on the device; `close` releases them. device: which of
    several (hloc/evaluate), of a program with collectives."""

    def __init__(self, packed: Container, functions: dict[HostCall, Callable], clock: StepClock | None = None,
                 device: Device | None = None):
        self.clock, self.device = clock, device
        self.cuda = driver()
        self.gpu = self.cuda.Device(device.place_here % self.cuda.Device.count() if device is not None else 0)
        self.packed, self.host_functions = packed, functions
        self.runs, self.lost = 0, False
        self.graphs: dict[int, graphs.Graph] = {}
        self.parts: dict[int, list[graphs.Part]] = {}
        self.host: HostMemory | None = None
        self.memory: Any = None                             # PyCUDA's objects have no types
        self.functions: list[Any] = []
        self.modules: list[Any] = []                        # of each image
        self.stream: Any = None
        self.lock = threading.RLock()                       # one thread at a time: all runs use the same memory
        self.resident: dict[int, weakref.ref] = {}   # number of a parameter -> the argument that its memory still holds
        self.cublaslt: cublaslt.CublasLt | None = None
        self.cudnn: cudnn.Cudnn | None = None
        self.waits = os.environ.get("HLOC_CUDA_WAIT", "off") == "on"
        self.use_graphs = os.environ.get("HLOC_CUDA_GRAPHS", "on") != "off" and not self.waits and not clock
        early_start = os.environ.get("HLOC_CUDA_EARLY_START", "on") != "off" \
            and self.cuda.get_driver_version() >= graphs.EARLY_DRIVER
        self.this: Any = weakref.proxy(self)                # for parts of it: a cycle would keep all on the device
        self.recorder = Recorder(self.this, packed.kernels, early_start)
        self.collectives: CudaCollectives | None = None
        self.context = primary_context(self.cuda, device.place_here % self.cuda.Device.count() if device else 0)
        with _Inside(self):
            try:
                self._load()
            except BaseException:
                self._release()
                raise

    # -- loading -------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        cuda, packed = self.cuda, self.packed
        check_architecture(packed, self.gpu.name(), self.gpu.compute_capability())
        try:
            self.modules = [cuda.module_from_buffer(image) for image in packed.images]
        except cuda.Error as error:
            raise self._refused(error) from None
        self.functions = [self._library_call(k) if k.product else self._function(k) for k in packed.kernels]
        for function, kernel in zip(self.functions, packed.kernels):
            if kernel.shared > STATIC_SHARED:
                function.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared)
        mapped: dict[Launch, int] = {}                      # launch -> its index among those that need tensor maps
        for step in launches(packed.steps):
            kernel = packed.kernels[step.kernel]
            if kernel.maps:
                mapped.setdefault(step, len(mapped))
            if not kernel.product:
                self.functions[step.kernel].prepare("P" * (len(step.arguments) + bool(kernel.maps)))
        self.stream = cuda.Stream(NON_BLOCKING)
        self.pool = pinned_pool()
        self.flag = cuda.pagelocked_empty(8, np.uint8)
        self._allocate([tensor_maps.BYTES * len(packed.kernels[step.kernel].maps) for step in mapped])
        if any(isinstance(step, Collective) for step in all_steps(packed.steps)):
            self._load_collectives()
        for address, constant in zip(self.regions["constant"], packed.constants):
            self._send(address, constant)
        self.maps = {step: self.regions["tensor map"][number] for step, number in mapped.items()}
        for step, address in self.maps.items():
            self._send(address, self._encoded(step))
        self._load_nodes()
        self.stream.synchronize()

    def _load_collectives(self) -> None:
        from hloc.evaluate import Device
        from hloc.targets.cuda.execution.collectives import CudaCollectives
        table, this = next(iter(self.regions["table"]), 0), self.this
        self.collectives = CudaCollectives(self.cuda, self.device or Device(), self.packed.steps, self.stream, self.gpu,
                                           lambda ref: this.address(ref), table, self.host)

    def _load_nodes(self) -> None:
        """Prepares conditional nodes, if they are asked for. Warns if they cannot be made: then the host decides."""
        if self.use_graphs and os.environ.get("HLOC_CUDA_CONDITIONAL", "off") == "on" and \
                (why := self.recorder.load_nodes(self.cuda, self.packed.steps, self.host is not None)):
            warnings.warn(f"the host decides how loops of {self.packed.name} go on: {why}", RuntimeWarning, 2)

    def _function(self, kernel: Geometry):
        try:
            return self.modules[kernel.image].get_function(kernel.function)
        except self.cuda.Error as error:
            raise RunError(f"the program's image gives no kernel {kernel.function} ({error}); compile it again"
                           ) from None

    def _library_call(self, kernel: Geometry) -> Callable:
        product = kernel.product
        assert product is not None
        if isinstance(product, cublaslt.LtProduct):
            if self.cublaslt is None:
                self.cublaslt = cublaslt.CublasLt(cublaslt.library())
            return self.cublaslt.product(product)
        if self.cudnn is None:
            self.cudnn = cudnn.Cudnn(cudnn.library())
        return self.cudnn.convolution(product)

    def _refused(self, error) -> RunError:
        """Why the driver rejects the image."""
        has, needs = self.cuda.get_driver_version(), self.packed.cuda
        if needs and has // 1000 < needs // 1000:
            return RunError(f"the NVIDIA driver is too old: it supports CUDA {in_words(has)}, the program was compiled "
                            f"by CUDA {in_words(needs)} ({error})",
                            hint=f"update the driver, or compile with NVRTC {has // 1000}")
        return RunError(f"the driver refuses the program's image ({error}); compile it again")

    def _encoded(self, step: Launch) -> np.ndarray:
        """The tensor maps of a launch."""
        maps = [tensor_maps.encode(map, self.address(step.arguments[map.argument]))
                for map in self.packed.kernels[step.kernel].maps]
        return np.frombuffer(b"".join(maps), np.uint8)

    def _allocate(self, maps: list[int]) -> None:
        """One allocation: the arena, then parameters, results, constants, tensor maps (bytes of each launch's), and a
        table for what devices tell each other. And one of page-locked memory, for those of S(5) and their arena."""
        packed = self.packed
        sizes = {"arena": [packed.arena_size], "parameter": [v.shape.num_bytes for v in packed.parameters],
                 "result": [v.shape.num_bytes for v in packed.results],
                 "constant": [c.nbytes for c in packed.constants], "tensor map": maps,
                 "table": [size for size in (table_bytes(packed.steps),) if size]}
        far = {"parameter": [v.shape.on_host for v in packed.parameters], "host": [True],
               "result": [v.shape.on_host for v in packed.results]}
        if packed.host_arena_size or any(far["parameter"] + far["result"]):
            sizes["host"] = [packed.host_arena_size]
        places: dict[str, list[tuple[bool, int]]] = {}
        totals = [0, 0]                                     # on the device, on the host
        for region, own in sizes.items():
            places[region] = []
            for on_host, size in zip(far.get(region, [False] * len(own)), own):
                places[region].append((on_host, totals[on_host]))
                totals[on_host] += -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        total = totals[0]
        try:
            self.memory = self.cuda.mem_alloc(max(total, 1))
        except self.cuda.MemoryError:
            free, whole = self.cuda.mem_get_info()
            parts = ", ".join(f"{region}{'' if region == 'arena' else 's'} {_mib(sum(own))}"
                              for region, own in sizes.items() if sum(own))
            raise RunError(f"out of device memory: {packed.name} needs {_mib(total)} MiB ({parts}); {_mib(free)} of "
                           f"{_mib(whole)} MiB are free", hint="hloc memory shows what for; --memory-limit saves some"
                           ) from None
        self.host = HostMemory(self.cuda, totals[1]) if totals[1] else None
        base = int(self.memory), self.host.start if self.host else 0
        self.regions = {region: [base[on_host] + place for on_host, place in own] for region, own in places.items()}

    def close(self) -> None:
        """Releases everything on the device; the backend cannot be used afterwards."""
        if not self.lost:
            with _Inside(self):
                self._release()

    def _release(self) -> None:
        for graph in self.graphs.values():
            graph.close()
        for library in (self.cublaslt, self.cudnn):
            if library is not None:
                library.close()
        if self.memory is not None:
            self.memory.free()
        self.graphs, self.functions, self.modules, self.collectives, self.recorder.nodes = {}, [], [], None, None
        self.cublaslt = self.cudnn = self.memory = self.host = self.stream = None

    def check_lost(self) -> None:
        """After an error: checks whether it has destroyed the context. If so, nothing in the context is freed, since
        each attempt would print the same error again: the driver does that when the process exits."""
        try:
            self.cuda.Context.synchronize()
        except self.cuda.Error:
            if not self.lost:
                self.lost = True
                atexit.unregister(self.context.detach)
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))      # the destructor never runs

    # -- running -------------------------------------------------------------------------------------------------------

    def __call__(self, arrays: Sequence[Argument]) -> tuple[np.ndarray, ...]:
        with self.lock:
            self.send(arrays)
            self.run()
            return self.fetch()

    def on_device(self, arrays: Sequence[Argument]) -> tuple[DeviceArray, ...]:
        """Like a call, but the results stay on the device, and it does not wait for them."""
        with self.lock:
            self.send(arrays)
            if not all(_lasts(array) for array in arrays):
                self.wait()                                 # for the copies: after that, owners may reuse the memory
            self.run()
            with _Inside(self):
                places = zip(self.packed.results, self.regions["result"])
                return tuple(DeviceArray(self, value.shape, address) for value, address in places)

    def fixed(self, array: np.ndarray | DeviceView) -> Fixed:
        """An argument of many calls: it is copied only if the program's memory holds another one."""
        return Fixed(array)

    def device_view(self, given: object) -> DeviceView | None:
        """The memory of an argument that is on the device, after it is computed; None for any other argument."""
        if isinstance(given, DeviceArray):
            return given.view()
        view = dlpack.device_view(given, int(self.stream.handle))
        if view is not None and dlpack.producer_stream(given) is not None:
            with _Inside(self):
                self.cuda.Context.synchronize()
        return view

    def send(self, arrays: Sequence[Argument]) -> None:
        """Copies the parameters to the device, except those that are still there from an earlier call."""
        with _Inside(self):
            for number, (address, array) in enumerate(zip(self.regions["parameter"], arrays)):
                resident = self.resident.pop(number, None)
                if not isinstance(array, Fixed):
                    self._send(address, array)
                    continue
                if resident is None or resident() is not array.array:
                    self._send(address, array.array)
                self.resident[number] = weakref.ref(array.array)

    def run(self) -> None:
        """Runs the plan on the data on the device; waits for its end only in the first run."""
        with _Inside(self):
            if self.clock:
                self.clock.begin()
            self._steps(self.packed.steps)
            if self.clock:
                self.clock.end()
            self.runs += 1

    def wait(self) -> None:
        with _Inside(self):
            self._wait()

    def _wait(self) -> None:
        """For all that is on the stream."""
        if self.collectives is not None:
            self.collectives.wait(self.stream)
        self.stream.synchronize()

    def fetch(self) -> tuple[np.ndarray, ...]:
        """The results, in page-locked memory."""
        with _Inside(self):
            outputs = tuple(self._pinned(v.shape) for v in self.packed.results)
            for address, array in zip(self.regions["result"], outputs):
                self._fetch(array, address)
            self._wait()
            return outputs

    def _pinned(self, shape) -> np.ndarray:
        dtype = numpy_dtype(shape.element_type)
        if shape.num_bytes == 0:
            return np.empty(shape.dimensions, dtype)
        return self.pool.allocate((shape.num_bytes,), np.uint8).view(dtype).reshape(shape.dimensions)

    def _send(self, address: int, array: np.ndarray | DeviceView) -> None:
        """Copies to the device, or on it, as plain bytes: bf16 and similar types have no buffer protocol. What is for
        the host's memory is there afterwards."""
        if self.host is not None and address in self.host:
            self._send_to_host(address, array)
        elif array.nbytes and isinstance(array, DeviceView):
            self.cuda.memcpy_dtod_async(address, array.address, array.nbytes, self.stream)
        elif array.nbytes:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.cuda.memcpy_htod_async(address, data, self.stream)

    def _send_to_host(self, address: int, array: np.ndarray | DeviceView) -> None:
        assert self.host is not None
        there = self.host.view(address, array.nbytes)
        if array.nbytes and isinstance(array, DeviceView):
            self.cuda.memcpy_dtoh_async(there, array.address, self.stream)
        self.stream.synchronize()                           # an earlier run may still read what was there
        if isinstance(array, np.ndarray):
            there[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def _fetch(self, array: np.ndarray, address: int) -> None:
        """Copies from the device into a contiguous array; waits where the data is in the host's memory."""
        if self.host is not None and address in self.host:
            self.stream.synchronize()
            array.reshape(-1).view(np.uint8)[:] = self.host.view(address, array.nbytes)
        elif array.nbytes:
            self.cuda.memcpy_dtoh_async(array.reshape(-1).view(np.uint8), address, self.stream)

    def address(self, ref: Ref) -> int:
        """Where a piece of memory is; of a counter in a round that is recorded, its value."""
        ref = self.recorder.counters.get(ref, ref)
        return self.regions[ref.region][ref.index] + ref.offset

    def _steps(self, steps: Sequence[Step]) -> None:
        if self.runs == 0 or not self.use_graphs:
            for step in steps:
                self.put(step)
            return
        if id(steps) not in self.parts:
            self.parts[id(steps)] = graphs.parts(steps, self.recorder.nodes is not None)
        for part in self.parts[id(steps)]:
            if part.nodes is not None and part.nodes > 1:
                self._graph(part).launch()
            else:
                for step in part.steps:
                    self.put(step)

    def _graph(self, part: graphs.Part) -> graphs.Graph:
        if id(part) not in self.graphs:
            self.graphs[id(part)] = graphs.Graph(self.stream, partial(self.record, part.steps),
                                                   keep=depth_of(part.steps) > 0)
        return self.graphs[id(part)]

    def record(self, steps: Sequence[Step]) -> None:
        """Puts steps on the stream, for a graph (recording.py)."""
        self.recorder.record(steps)

    def put(self, step: Step) -> None:
        """Runs one step, or puts it on the stream."""
        run: dict[type, Callable[[Any], None]] = {
            Launch: self._launch, Copy: self._copy, WhileLoop: self._while, Branch: self._branch,
            HostCall: self._host_call, Collective: self._collective, DeviceNumber: self._device_number}
        run[type(step)](step)

    def _launch(self, step: Launch) -> None:
        geometry = self.packed.kernels[step.kernel]
        try:
            addresses = [self.address(ref) for ref in step.arguments]
            if geometry.maps:
                addresses.append(self.maps[step])
            with self._timed(step):
                if geometry.product:
                    self.functions[step.kernel](addresses, self.stream.handle)
                else:
                    self.functions[step.kernel].prepared_async_call(
                        geometry.grid, geometry.block, self.stream, *addresses, shared_size=geometry.shared)
            if self.runs == 0 or self.waits:
                self._wait()
        except self.cuda.Error as error:
            raise RunError(f"the GPU stopped in kernel {geometry.function}: {error}\n  it computes {geometry.about}"
                           ) from None

    def _copy(self, step: Copy) -> None:
        to, source = self.address(step.destination), self.address(step.source)
        with self._timed(step):
            if self.host is not None:
                self.host.copy(to, source, step.source.size, self.stream)
            else:
                self.cuda.memcpy_dtod_async(to, source, step.source.size, self.stream)

    def _collective(self, step: Collective) -> None:
        """The start of one, on the stream of communication, or its end, on that of kernels."""
        own = self.collectives
        assert own is not None                              # as _load sees to
        with self.clock.around(step, self.cuda, self.stream if step.is_done else own.stream) \
                if self.clock else nullcontext():
            (own.done if step.is_done else own.start)(step)
        if step.is_done and self.waits:
            self._wait()

    def _device_number(self, step: DeviceNumber) -> None:
        device = self.device.number if self.device is not None else 0
        number = device // step.divisor % step.modulus
        with self._timed(step):
            self.cuda.memset_d32_async(self.address(step.result), number, 1, self.stream)

    def _timed(self, step: Step) -> AbstractContextManager:
        return self.clock.around(step, self.cuda, self.stream) if self.clock else nullcontext()

    def _read(self, ref: Ref, dtype) -> int:
        value = self.flag[:np.dtype(dtype).itemsize]
        self._fetch(value, self.address(ref))
        self._wait()
        return int(value.view(dtype)[0])

    def _while(self, step: WhileLoop) -> None:
        """Runs a loop. A known trip count needs no flag; else the host reads one byte per iteration."""
        with self.clock.loop(step) if self.clock else nullcontext(lambda: None) as iteration:
            if step.trip_count is not None:
                for number in range(step.trip_count):
                    iteration()
                    for counter in step.counters:
                        self._count(counter, number)
                    self._steps(step.body)
                return
            self._steps(step.condition)
            while self._read(step.decided_at, np.uint8):
                iteration()
                self._steps(step.body)
                self._steps(step.condition)

    def _count(self, counter: Counter, number: int) -> None:
        value = counter.in_round(number)
        self.cuda.memcpy_dtod_async(self.address(counter.place), self.address(value), value.size, self.stream)

    def _branch(self, step: Branch) -> None:
        if step.selector_type == "pred":
            chosen = 0 if self._read(step.selector, np.uint8) else 1
        else:
            chosen = self._read(step.selector, np.int32)
        last = len(step.branches) - 1
        self._steps(step.branches[chosen if 0 <= chosen < last else last])

    def _host_call(self, step: HostCall) -> None:
        with self.clock.around_host(step) if self.clock else nullcontext():
            self._call_host(step)

    def _call_host(self, step: HostCall) -> None:
        inputs = []
        for ref, shape in step.arguments:
            array = np.empty(shape.dimensions, numpy_dtype(shape.element_type))
            self._fetch(array, self.address(ref))
            inputs.append(array)
        self._wait()
        for (ref, _), answer in zip(step.results, answered(step, self.host_functions[step], inputs)):
            self._send(self.address(ref), np.ascontiguousarray(answer))
        self.stream.synchronize()


def _lasts(array: Argument) -> bool:
    """Whether the memory of an argument does not change until everything on the stream has run."""
    return isinstance(array, Fixed) or isinstance(array, DeviceView) and isinstance(array.holder, DeviceArray)


class _Inside:
    """A context manager for the backend's GPU context; errors of the driver become RunErrors."""

    def __init__(self, backend: CudaBackend):
        self.backend = backend

    def __enter__(self) -> None:
        self.backend.context.push()

    def __exit__(self, kind, error, _) -> None:
        if error is not None:
            self.backend.check_lost()
        self.backend.context.pop()
        if isinstance(error, self.backend.cuda.MemoryError):
            raise RunError(f"out of memory on the GPU's side: {error}") from None
        if isinstance(error, self.backend.cuda.Error):
            raise RunError(f"the GPU reported: {error}", hint=graphs.ONE_BY_ONE) from None


def check_architecture(packed: Container, device: str, capability: tuple[int, int]) -> None:
    """A cubin runs on GPUs of its major and at least its minor version; one of sm_90a and similar on exactly these."""
    digits = packed.arch.removeprefix("sm_")
    number = digits.rstrip("af")
    if not number.isdigit():
        raise RunError(f"the program was compiled for {packed.arch!r}, which is not a GPU architecture")
    major, minor = divmod(int(number), 10)
    same = (major, minor) == tuple(capability)
    if not (same or (digits == number and major == capability[0] and minor <= capability[1])):
        arch = f"sm_{capability[0]}{capability[1]}"
        known = device_named(device, arch)
        raise RunError(f"this program was compiled for {packed.arch}; {device} is {arch}",
                       hint=f"hloc compile --target {known.arch if known else arch}")


def launches(steps: Sequence[Step]) -> list[Launch]:
    """All launches of a plan, also those in loops and branches."""
    return [step for step in all_steps(steps) if isinstance(step, Launch)]


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}" if size >= MIB else f"{size / MIB:.3f}"
