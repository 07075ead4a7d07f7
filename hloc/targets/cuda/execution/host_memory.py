"""The arrays of a program that are in the host's memory, S(5): one block of page-locked memory.

The device reaches it by the same addresses (unified addressing), slowly: kernels may read and write it, copies go at
the speed of the bus.

    host = HostMemory(cuda, 4096);  host.copy(address_on_device, host.start, 4096, stream)
"""
from __future__ import annotations

from typing import Any

import numpy as np


class HostMemory:
    """Bytes from the address `start` on. cuda: PyCUDA's driver module."""

    def __init__(self, cuda: Any, size: int):
        self.cuda = cuda
        self.bytes: np.ndarray = cuda.pagelocked_empty(max(size, 1), np.uint8)
        self.start = self.bytes.ctypes.data

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.start + self.bytes.size

    def view(self, address: int, size: int) -> np.ndarray:
        """The bytes of an array."""
        return self.bytes[address - self.start:][:size]

    def copy(self, destination: int, source: int, size: int, stream: Any) -> None:
        """Copy between this memory and the device's, or within one of them, in the order of the stream."""
        if destination in self and source not in self:
            self.cuda.memcpy_dtoh_async(self.view(destination, size), source, stream)
        elif source in self and destination not in self:
            self.cuda.memcpy_htod_async(destination, self.view(source, size), stream)
        else:
            self.cuda.memcpy_dtod_async(destination, source, size, stream)
