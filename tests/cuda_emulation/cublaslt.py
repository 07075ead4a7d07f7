"""A stand-in for libcublasLt: the functions that hloc/targets/cuda/libraries/cublaslt.py calls, in NumPy, on the emulated memory.

What the real library refuses or misreads without a word is an AssertionError here: matrices that reach beyond their
allocation, a leading dimension smaller than the rows, a bias without its pointer, a workspace smaller than announced.

    monkeypatch.setattr(cublaslt, "library", FakeCublasLt)
"""
from __future__ import annotations

import ctypes
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from cuda_emulation.driver import Error, Stream, _piece

DTYPES = {0: np.float32, 1: np.float64, 2: np.float16, 3: np.int8, 10: np.int32, 14: ml_dtypes.bfloat16}
SUMS = {68: np.float32, 70: np.float64, 72: np.int32}
WORKSPACE_USED = 1 << 20
ATTRIBUTE_BYTES = {"description": {3: 4, 4: 4, 7: 4, 8: 8, 26: 4}, "layout": {5: 4, 6: 8},
                   "preference": {1: 8, 5: 4, 6: 4, 7: 4, 8: 4}}


def relu(x):
    return np.maximum(x, 0)


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


class FakeCublasLt:
    """Handles are numbers; `calls` notes what each product was. refuses: element types without an algorithm."""

    refuses: tuple[int, ...] = ()
    alive: set[int] = set()

    def __init__(self):
        self.objects: dict[int, SimpleNamespace] = {}
        self.calls: list[SimpleNamespace] = []

    def _new(self, place, **facts) -> int:
        place._obj.value = len(self.objects) + 1
        self.objects[len(self.objects) + 1] = SimpleNamespace(attributes={}, **facts)
        return 0

    def _set(self, kind: str, thing, attribute: int, value, size) -> int:
        assert size.value == ctypes.sizeof(value._obj) == ATTRIBUTE_BYTES[kind][attribute], (kind, attribute)
        self.objects[thing.value].attributes[attribute] = value._obj.value
        return 0

    def cublasLtCreate(self, handle) -> int:                                        # noqa: N802 - the library's names
        handle._obj.value = 7
        self.alive.add(id(self))
        return 0

    def cublasLtDestroy(self, handle) -> int:                                       # noqa: N802
        self.alive.remove(id(self))
        return 0

    def cublasLtMatmulDescCreate(self, place, compute, scale) -> int:               # noqa: N802
        assert scale == {68: 0, 70: 1, 72: 10}[compute]
        return self._new(place, compute=compute)

    def cublasLtMatmulDescSetAttribute(self, thing, attribute, value, size) -> int:  # noqa: N802
        return self._set("description", thing, attribute, value, size)

    def cublasLtMatrixLayoutCreate(self, place, type, rows, columns, leading) -> int:  # noqa: N802
        assert leading.value >= rows.value > 0 and columns.value > 0
        return self._new(place, dtype=DTYPES[type], type=type, rows=rows.value, columns=columns.value, leading=leading.value)

    def cublasLtMatrixLayoutSetAttribute(self, thing, attribute, value, size) -> int:  # noqa: N802
        return self._set("layout", thing, attribute, value, size)

    def cublasLtMatmulPreferenceCreate(self, place) -> int:                         # noqa: N802
        return self._new(place)

    def cublasLtMatmulPreferenceSetAttribute(self, thing, attribute, value, size) -> int:  # noqa: N802
        return self._set("preference", thing, attribute, value, size)

    def cublasLtMatmulPreferenceDestroy(self, thing) -> int:                        # noqa: N802
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, handle, description, a, b, c, d, preference, wanted, found, count) -> int:  # noqa: N802
        assert handle.value == 7 and wanted == 1 and ctypes.sizeof(found._obj) == 96
        settings = self.objects[preference.value].attributes
        assert settings[1] >= WORKSPACE_USED and all(settings[n] >= 1 for n in (5, 6, 7, 8))
        if self.objects[a.value].type in self.refuses:
            return 15                                                               # CUBLAS_STATUS_NOT_SUPPORTED
        found._obj.workspace, count._obj.value = WORKSPACE_USED, 1
        return 0

    def cublasLtMatmul(self, handle, description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,  # noqa: N802
                       algorithm, workspace, size, stream) -> int:
        what = self.objects[description.value]
        layouts = [self.objects[x.value] for x in (a_layout, b_layout, d_layout)]
        assert alpha._obj.value == 1 and beta._obj.value == 0 and c.value == d.value and algorithm._obj.workspace <= size.value
        _piece(workspace.value, size.value)
        attributes = dict(what.attributes)                                          # the bias' address may change later
        self.calls.append(SimpleNamespace(attributes=attributes, layouts=layouts))
        Stream.known[stream.value].do(lambda: self._multiply(what.compute, attributes, layouts, (a.value, b.value, d.value)))
        return 0

    def _multiply(self, compute: int, attributes: dict, layouts: list, places: tuple) -> None:
        sums = SUMS[compute]
        a, b, d = (view(layout, place) for layout, place in zip(layouts, places))
        a, b = (np.swapaxes(x, 1, 2) if attributes[n] else x for x, n in ((a, 3), (b, 4)))
        wide = np.float64 if sums != np.int32 else np.int32
        value = np.matmul(a.astype(wide), b.astype(wide)).astype(sums)
        epilogue = attributes[7]
        if epilogue & 4:
            value = value + flat(attributes[8], d.shape[1], DTYPES[attributes[26]]).astype(sums)[None, :, None]
        value = {1: lambda x: x, 2: relu, 4: lambda x: x, 6: relu, 32: gelu, 36: gelu}[epilogue](value)
        d[...] = value.astype(d.dtype)
        memory, offset = _piece(places[2], 1)
        memory.written[offset:] = 1


def flat(place: int, count: int, dtype) -> np.ndarray:
    """Elements in device memory; an Error where they are not all of one allocation."""
    dtype = np.dtype(dtype)
    if place % dtype.itemsize:
        raise Error("cuBLASLt was given a misaligned pointer")
    memory, offset = _piece(place, count * dtype.itemsize)
    return memory.bytes[memory.start + offset:][:count * dtype.itemsize].view(dtype)


def view(layout: SimpleNamespace, place: int) -> np.ndarray:
    """[batch, rows, columns] of a column-major matrix in device memory."""
    count, apart = layout.attributes[5], layout.attributes[6]
    elements = flat(place, (count - 1) * apart + (layout.columns - 1) * layout.leading + layout.rows, layout.dtype)
    size = elements.itemsize
    return np.lib.stride_tricks.as_strided(elements, (count, layout.rows, layout.columns),
                                           (apart * size, size, layout.leading * size))
