"""Arrays in a GPU's memory: results that stay there, and arguments that are already there.

    y, = exe(x, device=True); z, = other(y)          y never leaves the GPU
    torch.from_dlpack(y); cupy.asarray(y); np.asarray(y)

A DeviceArray owns its memory: the next call of the program does not change it. A request for its memory waits until it
is computed. `Fixed` is an argument of many calls, which is sent once (hloc/binding.py).
"""
from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hloc.errors import RunError
from hloc.inputs import dlpack
from hloc.inputs.dlpack import DeviceView
from hloc.ir import Shape, numpy_dtype

if TYPE_CHECKING:
    from hloc.targets.cuda.execution.runtime import CudaBackend


class Fixed:
    """An argument that stays in the program's memory; array: an ndarray or a DeviceView."""

    __slots__ = ("array", "__weakref__")

    def __init__(self, array: np.ndarray | DeviceView):
        self.array = array


class DeviceArray:
    """A C-contiguous result in the memory of the first GPU. The memory is freed with the last reference to the array.

    It supports DLPack and __cuda_array_interface__; np.asarray copies it to the host.
    """

    def __init__(self, backend: CudaBackend, shape: Shape, source: int):
        """A copy of the data at `source`, made in order on the backend's stream. In the backend's context."""
        self.dtype: np.dtype[Any] = numpy_dtype(shape.element_type)
        self.shape: tuple[int, ...] = shape.dimensions
        self._maker: CudaBackend | None = backend               # until it is computed
        self._allocation, self._address = Allocation(backend.cuda, backend.context, shape.num_bytes), 0
        if shape.num_bytes:
            self._address = int(self._allocation.memory)
            backend.cuda.memcpy_dtod_async(self._address, source, shape.num_bytes, backend.stream)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def view(self) -> DeviceView:
        """Its memory; waits until it is computed."""
        if self._maker is not None:
            self._maker.wait()
            self._maker = None
        return DeviceView(self._address, self.dtype, self.shape, self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        view = self.view()
        return {"version": 3, "shape": self.shape, "typestr": self.dtype.str, "data": (view.address, False),
                "strides": None, "stream": None}

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, 0

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
                   copy: Any = None) -> object:
        """A capsule that keeps this array alive. Raises BufferError for another device, a copy, or a type that DLPack
        does not define."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__() or copy:
            raise BufferError("hloc hands out its own memory on the GPU, and no copy")
        return dlpack.capsule_of(self.view())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on the GPU becomes one of NumPy's by a copy")
        array = self._allocation.download(self.view())
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"<hloc array on the GPU: {self.dtype.name}{list(self.shape)}>"


# -- memory ------------------------------------------------------------------------------------------------------------

_living: weakref.WeakSet[Allocation] = weakref.WeakSet()


class Allocation:
    """Memory on the GPU, freed with the last reference, or when Python exits. Made in the context."""

    def __init__(self, cuda: Any, context: Any, size: int):
        self.cuda, self.context = cuda, context
        self.memory: Any = None
        if size:
            self.memory = cuda.mem_alloc(size)
            _register()
            _living.add(self)

    def download(self, view: DeviceView) -> np.ndarray:
        """A copy in the host's memory."""
        made = np.empty(view.shape, view.dtype)
        if made.nbytes:
            with self._inside():
                stream = self.cuda.Stream()
                self.cuda.memcpy_dtoh_async(made.reshape(-1).view(np.uint8), view.address, stream)
                stream.synchronize()
        return made

    def close(self) -> None:
        memory, self.memory = self.memory, None
        if memory is not None:
            with self._inside():
                memory.free()

    __del__ = close

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """A context manager for the GPU context. If a fault has destroyed that context, nothing in it is freed: the
        driver does that when the process exits."""
        self.context.push()
        try:
            yield
        except self.cuda.Error as error:
            raise RunError(f"the GPU reported: {error}") from None
        finally:
            self.context.pop()


@lru_cache(maxsize=1)
def _register() -> None:
    """Frees memory before the context is released: atexit runs functions in reverse order of registration, and this one
    is registered after that of the context (context.primary_context)."""
    atexit.register(_close_all)


def _close_all() -> None:
    for allocation in list(_living):
        allocation.close()
