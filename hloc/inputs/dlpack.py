"""Arrays of other libraries without copies: PyTorch, JAX, CuPy and others, by DLPack and __cuda_array_interface__.

In: any object. Out: an ndarray over the same memory, or a DeviceView of memory on a GPU; for hloc's own arrays, a
DLPack capsule. DLPack has types that Python's buffer protocol and NumPy lack (bf16, f8). A capsule that hloc reads is
kept, unconsumed, as long as the memory is used: its destructor then frees the memory.

    host_array(torch.ones(3, dtype=torch.bfloat16)) -> ndarray of ml_dtypes.bfloat16
    device_view(torch.ones(3, device="cuda"), stream) -> DeviceView(address, dtype('float32'), (3,), holder)

Source: dlpack/include/dlpack/dlpack.h (DLManagedTensor); numba's documentation of the CUDA array interface, version 3.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from hloc.errors import RunError
from hloc.ir import ELEMENT_TYPES, element_type_of, numpy_dtype, row_major

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13         # DLDeviceType
HOST_MEMORY, DEVICE_MEMORY = (CPU, CUDA_HOST), (CUDA, CUDA_MANAGED)
DEVICE_NAMES = {2: "cuda", 13: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 14: "oneapi"}
NAME = b"dltensor"
MOST_RANK = 64                                           # NumPy's
# DLDataTypeCode and bits -> hloc's element type.
KINDS = {0: "s{}", 1: "u{}", 2: "f{}", 4: "bf{}"}
TYPES = {(5, 64): "c64", (5, 128): "c128", (6, 8): "pred", (7, 8): "f8e3m4", (8, 8): "f8e4m3", (9, 8): "f8e4m3b11fnuz",
         (10, 8): "f8e4m3fn", (11, 8): "f8e4m3fnuz", (12, 8): "f8e5m2", (13, 8): "f8e5m2fnuz", (14, 8): "f8e8m0fnu"}


@dataclass(frozen=True, eq=False)
class DeviceView:
    """A C-contiguous array in a GPU's memory. holder: keeps the memory."""

    address: int
    dtype: np.dtype
    shape: tuple[int, ...]
    holder: object

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("rank", ctypes.c_int32), ("dtype", _DataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64))


class _Managed(ctypes.Structure):
    """DLManagedTensor."""


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


# -- reading -----------------------------------------------------------------------------------------------------------

def host_array(given: Any) -> np.ndarray:
    """Any array as an ndarray, over the same memory if that is the host's. Raises RunError, with the reason and without
    a place, if it is no array, or is on a GPU and does not copy itself."""
    try:
        array = np.asarray(given)
        if array.dtype != object:
            return array
        reason = None
    except Exception as error:                       # exceptions vary by library
        reason = _first_line(error)
    if not hasattr(given, "__dlpack__"):
        if reason is None:
            return array
        raise RunError(f"{_kind(given)} cannot be read as an array: {reason}")
    device, number = _device_of(given)
    if device not in HOST_MEMORY:
        raise RunError(f"it lies on {DEVICE_NAMES.get(device, 'another device')}:{number}, and this program runs on "
                       "the host", hint="copy it to the host first, in PyTorch by .cpu()")
    tensor, capsule = _exported(given)
    return _over(tensor, capsule)


def form_of(given: Any) -> tuple[np.dtype, tuple[int, ...]]:
    """The type and the sizes of an array on any device. Raises RunError as host_array does."""
    tensor, _capsule = _exported(given)
    return _dtype(tensor.dtype), _sizes(tensor)


def device_view(given: Any, stream: int) -> DeviceView | None:
    """A view of an array on the GPU, or None for other arrays. Later work on `stream` waits for the array's producer.
    Raises RunError if its memory cannot be read directly."""
    interface = _cuda_interface(given)
    if interface is None and (not hasattr(given, "__dlpack_device__") or _device_of(given)[0] not in DEVICE_MEMORY):
        return None
    if interface is not None:
        return _by_interface(given, interface)
    if (number := _device_of(given)[1]) != 0:
        raise RunError(f"it lies on cuda:{number}, and programs run on cuda:0")
    tensor, capsule = _exported(given, stream=stream)
    if _strides(tensor) not in (None, row_major(_sizes(tensor))):
        raise _not_contiguous()
    return DeviceView((tensor.data or 0) + tensor.byte_offset, _dtype(tensor.dtype), _sizes(tensor), capsule)


def _cuda_interface(given: Any) -> dict[str, Any] | None:
    """The __cuda_array_interface__, or None. PyTorch raises for types that it cannot express; then DLPack is used."""
    try:
        return getattr(given, "__cuda_array_interface__", None)
    except Exception:
        return None


def _by_interface(given: Any, interface: dict[str, Any]) -> DeviceView:
    dtype, sizes = np.dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is not None and tuple(strides) != tuple(s * dtype.itemsize for s in row_major(sizes)):
        raise _not_contiguous()
    return DeviceView(int(interface["data"][0] or 0), dtype, sizes, given)


def producer_stream(given: Any) -> int | None:
    """The stream of an array's producer by __cuda_array_interface__; None if the array is ready."""
    interface = _cuda_interface(given)
    return interface.get("stream") if interface is not None else None


def _not_contiguous() -> RunError:
    return RunError("its elements are not contiguous", hint="make it contiguous first: .contiguous()")


def _device_of(given: Any) -> tuple[int, int]:
    try:
        device, number = given.__dlpack_device__()
        return int(device), int(number)
    except Exception as error:
        raise RunError(f"{_kind(given)} does not say where it lies: {_first_line(error)}") from None


def _exported(given: Any, **arguments: Any) -> tuple[_Tensor, object]:
    """The checked DLManagedTensor of a capsule, and the capsule."""
    try:
        capsule = given.__dlpack__(**arguments)
    except Exception as error:
        raise RunError(f"{_kind(given)} cannot be shared: {_first_line(error)}") from None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        tensor = _Managed.from_address(pointer(capsule, NAME)).tensor
    except (ValueError, TypeError) as error:
        raise RunError(f"{_kind(given)} gives no DLPack capsule: {_first_line(error)}") from None
    if not 0 <= tensor.rank <= MOST_RANK or min(_sizes(tensor), default=0) < 0:
        raise RunError(f"{_kind(given)} gives a DLPack tensor of impossible sizes")
    return tensor, capsule


def _over(tensor: _Tensor, capsule: object) -> np.ndarray:
    """An ndarray over the tensor's memory, read-only: its owner may not allow writing."""
    dtype, sizes = _dtype(tensor.dtype), _sizes(tensor)
    if 0 in sizes:
        return np.empty(sizes, dtype)
    steps = [s * dtype.itemsize for s in _strides(tensor) or row_major(sizes)]
    reach = [(n - 1) * step for n, step in zip(sizes, steps)]
    first, last = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    memory: Any = (ctypes.c_uint8 * (last - first + dtype.itemsize)).from_address(
        tensor.data + tensor.byte_offset + first)
    memory.holder = capsule
    array: np.ndarray = np.ndarray(sizes, dtype, memory, -first, steps)
    array.flags.writeable = False
    return array


def _dtype(told: _DataType) -> np.dtype:
    name = TYPES.get((told.code, told.bits)) or KINDS.get(told.code, "").format(told.bits)
    if told.lanes != 1 or name not in ELEMENT_TYPES or ELEMENT_TYPES[name].bits < 8:
        raise RunError(f"its element type (DLPack code {told.code}, {told.bits} bits, {told.lanes} lanes) is none that "
                       "hloc reads")
    return numpy_dtype(name)


def _sizes(tensor: _Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape[d] for d in range(tensor.rank))


def _strides(tensor: _Tensor) -> tuple[int, ...] | None:
    """Strides in elements; None if the tensor is C-contiguous. Strides of dimensions with one element are ignored."""
    if not tensor.strides:
        return None
    usual = row_major(_sizes(tensor))
    return tuple(usual[d] if tensor.shape[d] <= 1 else tensor.strides[d] for d in range(tensor.rank))


def _kind(given: object) -> str:
    return f"an object of type {type(given).__name__}"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return (text.splitlines() or [type(error).__name__])[0][:300]


# -- exporting ---------------------------------------------------------------------------------------------------------

_handed_out: dict[int, tuple[Any, ...]] = {}                       # address of a DLManagedTensor -> its objects


@_DELETER
def _give_back(managed: Any) -> None:
    _handed_out.pop(ctypes.addressof(managed.contents), None)


@_DESTRUCTOR
def _end_of_capsule(capsule: int) -> None:
    """The destructor of an unconsumed capsule: consumers rename a capsule, and call the deleter themselves."""
    valid, pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    valid.argtypes = pointer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    pointer.restype = ctypes.c_void_p
    if valid(capsule, NAME):
        _handed_out.pop(pointer(capsule, NAME), None)


def capsule_of(view: DeviceView) -> object:
    """A DLPack capsule of an array on the first GPU; it keeps `view.holder`. Raises BufferError for types that DLPack
    lacks."""
    name = element_type_of(view.dtype)
    code, bits = next((key for key, known in TYPES.items() if known == name), (None, 0))
    if code is None:
        letters, digits = name.rstrip("0123456789"), name[len(name.rstrip("0123456789")):]
        code = next((key for key, form in KINDS.items() if form == letters + "{}"), None)
        bits = int(digits or 0)
    if code is None or bits < 8:
        raise BufferError(f"DLPack has no name for {name}")
    sizes = (ctypes.c_int64 * max(1, len(view.shape)))(*view.shape)
    managed = _Managed(_Tensor(view.address, CUDA, 0, len(view.shape), _DataType(code, bits, 1), sizes, None, 0), None,
                       _give_back)
    address = ctypes.addressof(managed)
    _handed_out[address] = (managed, sizes, view.holder)
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(address, NAME, ctypes.cast(_end_of_capsule, ctypes.c_void_p))
