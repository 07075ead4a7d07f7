"""The emulated device and its memory: as 0xff (NaN) at first, between guards; copies beyond its end are refused."""
from __future__ import annotations

import weakref
from types import SimpleNamespace

import numpy as np

GUARD, GUARD_BYTE = 4096, 0xA5
BY_KERNELS = 2                      # a byte that kernels write, or copies within a graph: checks.cpp
DEVICE = SimpleNamespace(name="the emulation", capability=(9, 0), memory=1 << 30, driver=13000, count=1)
CONTEXT = 0xC0                      # the address of the only context


class Error(Exception):
    """Any failure that PyCUDA would report."""


class MemoryError(Error):            # noqa: A001 - PyCUDA's name
    """Out of device memory."""


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
