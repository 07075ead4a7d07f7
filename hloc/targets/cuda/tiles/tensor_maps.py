"""Tensor maps: array descriptors for the bulk copy engine of sm_90a, encoded by the driver when a program is loaded.

In: a TensorMap, which is part of a kernel's launch, and the address of the argument that it describes. Out: the 128
bytes that the copies of bulk.cuh use. Each copy reads a box of a four-dimensional array, in lines of 128 bytes.

    encode(TensorMap(0, 2, 0, (1024, 512, 1, 1), (2048, 1048576, 1048576), (64, 128, 1, 1)), address)
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from hloc.errors import RunError
from hloc.targets.cuda.execution import graphs

BYTES, PIECE, LINE = 128, 16, 128   # bytes of a map; alignment of addresses and strides; bytes of a box's line
RANK = 4
LARGEST_SIZE, LARGEST_STRIDE, LARGEST_BOX, LARGEST_STEP = 1 << 32, 1 << 40, 256, 8
TYPES = {1: 0, 2: 1, 4: 2}          # bytes of an element -> CU_TENSOR_MAP_DATA_TYPE_UINT8, _UINT16, _UINT32
NO_INTERLEAVE, SWIZZLE_128B, PROMOTION_256B, ZEROS_OUTSIDE = 0, 3, 3, 0


class TensorMap(NamedTuple):
    """argument: index in the launch; width: bytes of an element; offset: bytes from the argument's start to the array;
    sizes: in elements, of RANK dimensions, the contiguous one first; strides: in bytes, of the other dimensions; box:
    extent in elements in each dimension; steps: every so many elements, one is copied."""

    argument: int
    width: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = (1, 1, 1, 1)

    @staticmethod
    def of(argument: int, width: int, offset: int, dimensions: Sequence[tuple[int, int]], box: tuple[int, ...],
           steps: tuple[int, int, int, int] = (1, 1, 1, 1)) -> TensorMap:
        """dimensions: size and stride in elements, the contiguous one first; a broadcast dimension has stride 0. box:
        missing dimensions have extent 1."""
        sizes = tuple(size if stride else 1 for size, stride in dimensions)
        strides, whole = [], sizes[0] * width
        for size, (_, stride) in zip(sizes[1:], dimensions[1:]):
            strides.append(stride * width if size > 1 else -(-whole // PIECE) * PIECE)
            whole = max(whole, strides[-1] * size)
        whole_box = (*box, *(1,) * (RANK - len(box)))
        return TensorMap(argument, width, offset * width, sizes, tuple(strides), whole_box, steps)

    @property
    def reach(self) -> int:
        """Bytes of the argument from its start to the end of the array."""
        last = sum((size - 1) * stride for size, stride in zip(self.sizes[1:], self.strides))
        return self.offset + last + self.sizes[0] * self.width

    def fits(self, arguments: Sequence[int]) -> None:
        """Checks the map. arguments: bytes of each. Raises ValueError if the map exceeds the engine's limits or the
        argument's memory."""
        if not 0 <= self.argument < len(arguments) or self.width not in TYPES or self.offset < 0 \
                or not len(self.sizes) == len(self.strides) + 1 == len(self.box) == len(self.steps) == RANK \
                or not all(0 < n <= LARGEST_SIZE for n in self.sizes) \
                or not all(0 < n < LARGEST_STRIDE and n % PIECE == 0 for n in self.strides) \
                or not all(0 < n <= LARGEST_BOX for n in self.box) or self.box[0] * self.width != LINE \
                or self.steps[0] != 1 or not all(0 < n <= LARGEST_STEP for n in self.steps) \
                or self.offset % PIECE or self.reach > arguments[self.argument]:
            raise ValueError(f"bad tensor map {self!r}")

    def to_json(self) -> list:
        return list(self)

    @staticmethod
    def from_json(row: list) -> TensorMap:
        argument, width, offset, *lists = row
        sizes, strides, box, steps = (tuple(int(n) for n in numbers) for numbers in lists)
        return TensorMap(int(argument), int(width), int(offset), sizes, strides, box, steps)


def encode(map: TensorMap, address: int) -> bytes:
    """The map as encoded by the driver. address: of the argument. Raises RunError if the driver fails."""
    place = (ctypes.c_uint64 * (BYTES // 8 + 8))()              # room to align the map to 64 bytes
    at = -(-ctypes.addressof(place) // 64) * 64
    sizes, strides = (ctypes.c_uint64 * RANK)(*map.sizes), (ctypes.c_uint64 * (RANK - 1))(*map.strides)
    box, steps = (ctypes.c_uint32 * RANK)(*map.box), (ctypes.c_uint32 * RANK)(*map.steps)
    try:
        make = graphs.library().cuTensorMapEncodeTiled
    except AttributeError:
        raise RunError("the NVIDIA driver is too old: it lacks tensor maps, which a kernel of this program needs",
                       hint="update the driver, or compile for sm_90 (--target sm_90)") from None
    code = make(ctypes.c_void_p(at), ctypes.c_int(TYPES[map.width]), ctypes.c_uint32(RANK),
                ctypes.c_void_p(address + map.offset), sizes, strides, box, steps, ctypes.c_int(NO_INTERLEAVE),
                ctypes.c_int(SWIZZLE_128B), ctypes.c_int(PROMOTION_256B), ctypes.c_int(ZEROS_OUTSIDE))
    if code:
        raise RunError(f"the NVIDIA driver refuses a tensor map: cuTensorMapEncodeTiled failed: error {code}",
                       hint="programs for sm_90 (--target sm_90) need none")
    return ctypes.string_at(at, BYTES)
