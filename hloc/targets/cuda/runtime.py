"""Running a container on a GPU through PyCUDA: one module, one arena, an own stream.

In: a Container and host arrays. Out: host arrays. PyCUDA and the driver are imported here and nowhere else; what is
missing (package, driver, device, memory, architecture) is one RunError that says so.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from hloc.errors import RunError
from hloc.ir import numpy_dtype
from hloc.kernels.plan import Branch, Copy, HostCall, Launch, Ref, Step, WhileLoop
from hloc.machine import Machine
from hloc.targets.cuda.container import Container
from hloc.targets.cuda.gpus import gpu_named
from hloc.targets.host_calls import answered


def driver():
    """pycuda.driver, initialized. Raises RunError naming what is missing."""
    try:
        import pycuda.driver as cuda
    except ImportError as error:
        missing = "the NVIDIA driver (libcuda)" if "libcuda" in str(error) else "PyCUDA"
        raise RunError(f"running on a GPU needs {missing}: {error}", hint="pip install 'hloc[cuda]'; see hloc doctor"
                       ) from None
    try:
        cuda.init()
    except cuda.Error as error:
        raise RunError(f"the NVIDIA driver does not start: {error}") from None
    if cuda.Device.count() == 0:
        raise RunError("no GPU on this machine; hloc run --target cpu runs without one")
    return cuda


@lru_cache(maxsize=1)
def device_machine() -> Machine | None:
    """Facts about the first GPU. Raises RunError where there is none."""
    cuda = driver()
    device = cuda.Device(0)
    major, minor = device.compute_capability()
    known = gpu_named(f"sm_{major}{minor}")
    facts = device.get_attributes()
    get = cuda.device_attribute
    return Machine(device.name(), "gpu", facts[get.MULTIPROCESSOR_COUNT], 16, 128 << 10, facts[get.L2_CACHE_SIZE],
                   facts[get.MEMORY_CLOCK_RATE] * 1e3 * 2 * facts[get.GLOBAL_MEMORY_BUS_WIDTH] / 8, 3e-6,
                   facts[get.MAX_SHARED_MEMORY_PER_BLOCK], known.arch if known else f"sm_{major}{minor}")


class CudaBackend:
    """Holds the context, the module, the arena and the constants on the device, in this order of release."""

    def __init__(self, packed: Container, functions: dict[HostCall, Callable]):
        self.cuda = driver()
        self.packed, self.functions = packed, functions
        self.context = self.cuda.Device(0).retain_primary_context()
        self.context.push()
        try:
            self._load()
        finally:
            self.context.pop()

    def _load(self) -> None:
        cuda, packed = self.cuda, self.packed
        try:
            self.module = cuda.module_from_buffer(packed.image)
        except cuda.Error as error:
            name = cuda.Device(0).name()
            raise RunError(f"this program was compiled for {packed.arch}, which {name} does not run ({error})"
                           ) from None
        self.functions = [self.module.get_function(k.function) for k in packed.kernels]
        for function, kernel in zip(self.functions, packed.kernels):
            if kernel.shared > 48 << 10:
                function.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared)
        self.stream = cuda.Stream()
        self.regions = {
            "arena": [self._allocate(packed.arena_size, "the arena")],
            "parameter": [self._allocate(v.shape.num_bytes, v.name) for v in packed.parameters],
            "result": [self._allocate(v.shape.num_bytes, v.name) for v in packed.results],
            "constant": [self._allocate(c.nbytes, "a constant") for c in packed.constants],
        }
        for memory, constant in zip(self.regions["constant"], packed.constants):
            self._send(int(memory), constant)
        self.stream.synchronize()

    def _allocate(self, size: int, what: str):
        try:
            return self.cuda.mem_alloc(max(size, 1))
        except self.cuda.MemoryError:
            free, total = self.cuda.mem_get_info()
            raise RunError(f"out of device memory: {what} needs {size / 2**20:.1f} MiB, "
                           f"{free / 2**20:.1f} of {total / 2**20:.1f} MiB are free") from None

    def __call__(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        self.context.push()
        try:
            for memory, array in zip(self.regions["parameter"], arrays):
                self._send(int(memory), array)
            self._steps(self.packed.steps)
            outputs = tuple(np.empty(v.shape.dimensions, numpy_dtype(v.shape.element_type))
                            for v in self.packed.results)
            for memory, array in zip(self.regions["result"], outputs):
                self._fetch(array, int(memory))
            self.stream.synchronize()
            return outputs
        except self.cuda.Error as error:
            raise RunError(f"the GPU reported: {error}") from None
        finally:
            self.context.pop()

    def _send(self, address: int, array: np.ndarray) -> None:
        """Copy to the device, as plain bytes: bf16 and its like have no buffer protocol."""
        if array.nbytes:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.cuda.memcpy_htod_async(address, data, self.stream)

    def _fetch(self, array: np.ndarray, address: int) -> None:
        """Copy from the device into a contiguous array."""
        if array.nbytes:
            self.cuda.memcpy_dtoh_async(array.reshape(-1).view(np.uint8), address, self.stream)

    def _address(self, ref: Ref) -> int:
        return int(self.regions[ref.region][ref.index]) + ref.offset

    def _steps(self, steps: Sequence[Step]) -> None:
        run = {Launch: self._launch, Copy: self._copy, WhileLoop: self._while, Branch: self._branch,
               HostCall: self._host_call}
        for step in steps:
            run[type(step)](step)

    def _launch(self, step: Launch) -> None:
        geometry = self.packed.kernels[step.kernel]
        addresses = [np.uintp(self._address(r)) for r in step.arguments]
        self.functions[step.kernel](*addresses, grid=geometry.grid, block=geometry.block, shared=geometry.shared,
                                    stream=self.stream)

    def _copy(self, step: Copy) -> None:
        self.cuda.memcpy_dtod_async(self._address(step.destination), self._address(step.source), step.source.size,
                                    self.stream)

    def _read(self, ref: Ref, dtype) -> int:
        value = np.empty(1, dtype)
        self._fetch(value, self._address(ref))
        self.stream.synchronize()
        return int(value[0])

    def _while(self, step: WhileLoop) -> None:
        """A known number of trips needs no flag; else one byte is read per iteration."""
        if step.trip_count is not None:
            for _ in range(step.trip_count):
                self._steps(step.body)
            return
        self._steps(step.condition)
        while self._read(step.flag, np.uint8):
            self._steps(step.body)
            self._steps(step.condition)

    def _branch(self, step: Branch) -> None:
        if step.selector_type == "pred":
            chosen = 0 if self._read(step.selector, np.uint8) else 1
        else:
            chosen = self._read(step.selector, np.int32)
        last = len(step.branches) - 1
        self._steps(step.branches[chosen if 0 <= chosen < last else last])

    def _host_call(self, step: HostCall) -> None:
        inputs = []
        for ref, shape in step.arguments:
            array = np.empty(shape.dimensions, numpy_dtype(shape.element_type))
            self._fetch(array, self._address(ref))
            inputs.append(array)
        self.stream.synchronize()
        for (ref, _), answer in zip(step.results, answered(step, self.functions[step], inputs)):
            self._send(self._address(ref), np.ascontiguousarray(answer))
        self.stream.synchronize()
