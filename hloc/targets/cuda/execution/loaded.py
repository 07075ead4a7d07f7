"""A container on a GPU: its modules and functions, one allocation, a stream, and copies to and from that memory.

In: a Container. Out: a Loaded, whose `regions` hold the addresses of parameters, results, constants and the arena.
Errors of the driver become RunErrors; too little memory is told with figures.

    loaded = Loaded(packed, gpu=0)
    with Inside(loaded): loaded.load(); loaded.copy_in(loaded.regions["parameter"][0], array)
"""
from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloc.errors import RunError
from hloc.inputs.dlpack import DeviceView
from hloc.ir import Shape, numpy_dtype
from hloc.kernels.plan import Launch, Ref, Step, all_steps
from hloc.targets.cuda.container import Container, Geometry, table_bytes
from hloc.targets.cuda.execution import context, graphs
from hloc.targets.cuda.execution.host_memory import HostMemory
from hloc.targets.cuda.execution.recording import in_words
from hloc.targets.cuda.libraries import cublaslt, cudnn
from hloc.targets.cuda.tiles import tensor_maps

NON_BLOCKING = 1                    # CU_STREAM_NON_BLOCKING: does not wait for the default stream
ALIGNMENT = 256                     # of each array in device memory
STATIC_SHARED = 48 << 10            # bytes that a kernel may have without a request to the driver
MIB = 1 << 20


class Loaded:
    """Owns the modules and all memory on the device. gpu: its number. lost: whether a fault destroyed the context."""

    def __init__(self, packed: Container, gpu: int):
        self.packed, self.lost = packed, False
        self.cuda = context.driver()
        place = gpu % self.cuda.Device.count()
        self.gpu = self.cuda.Device(place)
        self.memory: Any = None                             # PyCUDA's objects have no types
        self.host: HostMemory | None = None
        self.functions: list[Any] = []
        self.modules: list[Any] = []                        # of each image
        self.stream: Any = None
        self.cublaslt: cublaslt.CublasLt | None = None
        self.cudnn: cudnn.Cudnn | None = None
        self.context = context.primary_context(self.cuda, place)

    def load(self) -> None:
        """Modules, memory, constants and tensor maps."""
        cuda, packed = self.cuda, self.packed
        context.check_architecture(packed, self.gpu.name(), self.gpu.compute_capability())
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
        self.pool = context.pinned_pool()
        self._allocate([tensor_maps.BYTES * len(packed.kernels[step.kernel].maps) for step in mapped])
        for address, constant in zip(self.regions["constant"], packed.constants):
            self.copy_in(address, constant)
        self.maps = {step: self.regions["tensor map"][number] for step, number in mapped.items()}
        for step, address in self.maps.items():
            self.copy_in(address, self._encoded(step))

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

    def release(self) -> None:
        """Frees everything on the device."""
        for library in (self.cublaslt, self.cudnn):
            if library is not None:
                library.close()
        if self.memory is not None:
            self.memory.free()
        self.functions, self.modules = [], []
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

    # -- memory --------------------------------------------------------------------------------------------------------

    def address(self, ref: Ref) -> int:
        """Where a piece of memory is."""
        return self.regions[ref.region][ref.index] + ref.offset

    def pinned(self, shape: Shape) -> np.ndarray:
        dtype = numpy_dtype(shape.element_type)
        if shape.num_bytes == 0:
            return np.empty(shape.dimensions, dtype)
        return self.pool.allocate((shape.num_bytes,), np.uint8).view(dtype).reshape(shape.dimensions)

    def copy_in(self, address: int, array: np.ndarray | DeviceView) -> None:
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

    def copy_out(self, array: np.ndarray, address: int) -> None:
        """Copies from the device into a contiguous array; waits where the data is in the host's memory."""
        if self.host is not None and address in self.host:
            self.stream.synchronize()
            array.reshape(-1).view(np.uint8)[:] = self.host.view(address, array.nbytes)
        elif array.nbytes:
            self.cuda.memcpy_dtoh_async(array.reshape(-1).view(np.uint8), address, self.stream)


class Inside:
    """A context manager for a program's GPU context; errors of the driver become RunErrors."""

    def __init__(self, loaded: Loaded):
        self.loaded = loaded

    def __enter__(self) -> None:
        self.loaded.context.push()

    def __exit__(self, kind, error, _) -> None:
        if error is not None:
            self.loaded.check_lost()
        self.loaded.context.pop()
        if isinstance(error, self.loaded.cuda.MemoryError):
            raise RunError(f"out of memory on the GPU's side: {error}") from None
        if isinstance(error, self.loaded.cuda.Error):
            raise RunError(f"the GPU reported: {error}", hint=graphs.ONE_BY_ONE) from None


def launches(steps: Sequence[Step]) -> list[Launch]:
    """All launches of a plan, also those in loops and branches."""
    return [step for step in all_steps(steps) if isinstance(step, Launch)]


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}" if size >= MIB else f"{size / MIB:.3f}"
