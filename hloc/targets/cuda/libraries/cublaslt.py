"""cuBLASLt, NVIDIA's library of matrix products, through ctypes: nine functions and one struct.

Not through nvmath-python: its bindings need more packages for the same nine calls. The library itself comes with JAX,
PyTorch or a toolkit; `pip install 'hloc[cublas]'` installs it on other machines.

    call = CublasLt(library()).product(LtProduct(...)); call(addresses, stream_handle)

Matrices are column-major, as in the library: D[rows, columns] = finish(A B), A rows x depth, B depth x columns. The
library is loaded when a program that calls it starts. Raises RunError: no library, a status that is not 0.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hloc.errors import RunError
from hloc.ir import ELEMENT_TYPES
from hloc.targets.cuda.libraries import finding

WORKSPACE = 32 << 20                # bytes, NVIDIA's advice for Hopper
ALIGNMENT = 16                      # the least alignment of every array, in bytes
NAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")
# element type -> cudaDataType_t; type of the sums -> (cublasComputeType_t, type of alpha and beta)
DATA = {"f32": 0, "f64": 1, "f16": 2, "s8": 3, "s32": 10, "bf16": 14}
COMPUTE = {"f32": (68, 0), "f64": (70, 1), "s32": (72, 10)}
SCALARS: dict[str, Any] = {"f32": ctypes.c_float, "f64": ctypes.c_double, "s32": ctypes.c_int32}        # alpha and beta
SUMS = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64", "s8": "s32"}           # of products of an element type
EPILOGUES = {"": 1, "relu": 2, "bias": 4, "relu_bias": 6, "gelu": 32, "gelu_bias": 36}
# cublasLtMatmulDescAttributes_t
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, BIAS_DATA_TYPE = 3, 4, 7, 8, 26
BATCH_COUNT, BATCH_STRIDE = 5, 6    # cublasLtMatrixLayoutAttribute_t
# cublasLtMatmulPreferenceAttributes_t: bytes of workspace, alignment of A, B, C, D
MOST_WORKSPACE, ALIGNMENTS = 1, (5, 6, 7, 8)


class Matrix(NamedTuple):
    """A column-major matrix in memory: the argument of the kernel, the offset in it in elements, rows, columns, and the
    strides in elements between columns and between matrices of a batch; transposed: its transpose is the operand."""

    argument: int
    offset: int
    rows: int
    columns: int
    leading: int
    batch: int
    transposed: bool = False


class LtProduct(NamedTuple):
    """element: type of A and B; result: type of D; sums: f32, f64 or s32; bias: the argument with one value per row of
    D, or -1; epilogue: a key of EPILOGUES."""

    element: str
    result: str
    sums: str
    batches: int
    a: Matrix
    b: Matrix
    d: Matrix
    epilogue: str = ""
    bias: int = -1
    bias_type: str = ""

    def to_json(self) -> list:
        return [*self[:4], *(list(m) for m in (self.a, self.b, self.d)), *self[7:]]

    @staticmethod
    def from_json(row: list) -> LtProduct:
        """Raises ValueError or TypeError if the row is not an LtProduct."""
        element, result, sums, batches, *matrices, epilogue, bias, bias_type = row

        def matrix(given: list) -> Matrix:
            argument, offset, rows, columns, leading, batch = map(int, given[:6])
            return Matrix(argument, offset, rows, columns, leading, batch, bool(given[6]))
        a, b, d = map(matrix, matrices)
        product = LtProduct(str(element), str(result), str(sums), int(batches), a, b, d, str(epilogue), int(bias),
                            str(bias_type))
        known = {element, result} <= DATA.keys() and sums in COMPUTE and epilogue in EPILOGUES \
            and ("bias" in epilogue) == (bias >= 0) and (bias < 0 or bias_type in DATA)
        if not known or min(min(m[:6]) for m in (a, b, d)) < 0 or batches < 1:
            raise ValueError(f"not a matmul of cuBLASLt: {row!r}")
        return product

    def fits(self, arguments: Sequence[int]) -> None:
        """arguments: bytes of each, the workspace last. Raises ValueError if they are too small."""
        used = [(m.argument, m.offset + (self.batches - 1) * m.batch + (m.columns - 1) * m.leading + m.rows, type)
                for m, type in ((self.a, self.element), (self.b, self.element), (self.d, self.result))]
        if self.bias >= 0:
            used.append((self.bias, self.d.rows, self.bias_type))
        if arguments[-1] < WORKSPACE or any(n >= len(arguments) - 1 or count * ELEMENT_TYPES[t].bytes > arguments[n]
                                            for n, count, t in used):
            raise ValueError("a matmul of cuBLASLt larger than its arguments")


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
                ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


def library():
    """The library of the wheel nvidia-cublas, of a toolkit, or of the system. Raises RunError."""
    return finding.load("cuBLASLt", "libcublasLt", NAMES, "cublas")


def version() -> str:
    """Of that library. Raises RunError."""
    asked = library().cublasLtGetVersion
    asked.restype = ctypes.c_size_t
    return finding.version_text(asked())


class CublasLt:
    """The library's handle in the current context."""

    def __init__(self, loaded):
        self.library, self.handle = loaded, ctypes.c_void_p()
        self._do("cublasLtCreate", ctypes.byref(self.handle))

    def _do(self, name: str, *arguments) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RunError(f"cuBLASLt refuses: {name} gave status {status}")

    def close(self) -> None:
        self._do("cublasLtDestroy", self.handle)

    def product(self, product: LtProduct) -> Callable[[Sequence[int], int], None]:
        """A function of the kernel's arguments (addresses; the last one is a workspace) and a stream's handle."""
        description = self._description(product)
        layouts = [self._layout(m, t, product.batches) for m, t in (
            (product.a, product.element), (product.b, product.element), (product.d, product.result))]
        chosen = self._algorithm(product, description, layouts)
        one, zero = SCALARS[product.sums](1), SCALARS[product.sums](0)
        sizes = [ELEMENT_TYPES[t].bytes for t in (product.element, product.element, product.result)]

        def call(addresses: Sequence[int], stream: int) -> None:
            if product.bias >= 0:
                self._set(description, BIAS_POINTER, ctypes.c_void_p(addresses[product.bias]))
            a, b, d = (ctypes.c_void_p(addresses[m.argument] + m.offset * size)
                       for m, size in zip((product.a, product.b, product.d), sizes))
            self._do("cublasLtMatmul", self.handle, description, ctypes.byref(one), a, layouts[0], b, layouts[1],
                     ctypes.byref(zero), d, layouts[2], d, layouts[2], ctypes.byref(chosen),
                     ctypes.c_void_p(addresses[-1]), ctypes.c_size_t(WORKSPACE), ctypes.c_void_p(stream))
        return call

    def _description(self, product: LtProduct) -> ctypes.c_void_p:
        description = ctypes.c_void_p()
        self._do("cublasLtMatmulDescCreate", ctypes.byref(description), *COMPUTE[product.sums])
        self._set(description, TRANSA, ctypes.c_int(product.a.transposed))
        self._set(description, TRANSB, ctypes.c_int(product.b.transposed))
        self._set(description, EPILOGUE, ctypes.c_int(EPILOGUES[product.epilogue]))
        if product.bias >= 0:
            self._set(description, BIAS_DATA_TYPE, ctypes.c_int(DATA[product.bias_type]))
        return description

    def _set(self, description: ctypes.c_void_p, attribute: int, value) -> None:
        self._do("cublasLtMatmulDescSetAttribute", description, attribute, ctypes.byref(value),
                 ctypes.c_size_t(ctypes.sizeof(value)))

    def _layout(self, matrix: Matrix, type: str, batches: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        self._do("cublasLtMatrixLayoutCreate", ctypes.byref(layout), DATA[type], ctypes.c_uint64(matrix.rows),
                 ctypes.c_uint64(matrix.columns), ctypes.c_int64(matrix.leading))
        for attribute, value in ((BATCH_COUNT, ctypes.c_int32(batches)), (BATCH_STRIDE, ctypes.c_int64(matrix.batch))):
            self._do("cublasLtMatrixLayoutSetAttribute", layout, attribute, ctypes.byref(value),
                     ctypes.c_size_t(ctypes.sizeof(value)))
        return layout

    def _algorithm(self, product: LtProduct, description, layouts: list) -> Heuristic:
        """The first algorithm that the library's heuristic returns."""
        preference, found, count = ctypes.c_void_p(), Heuristic(), ctypes.c_int()
        self._do("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        settings: list[tuple[int, Any]] = [(MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE))]
        settings += [(attribute, ctypes.c_uint32(ALIGNMENT)) for attribute in ALIGNMENTS]
        for attribute, value in settings:
            self._do("cublasLtMatmulPreferenceSetAttribute", preference, attribute, ctypes.byref(value),
                     ctypes.c_size_t(ctypes.sizeof(value)))
        a, b, d = layouts
        status = self.library.cublasLtMatmulAlgoGetHeuristic(
            self.handle, description, a, b, d, d, preference, 1, ctypes.byref(found), ctypes.byref(count))
        self._do("cublasLtMatmulPreferenceDestroy", preference)
        if status or count.value == 0:
            raise RunError(f"cuBLASLt has no algorithm for {product.element} {product.d.rows}x{product.d.columns}"
                           f" (status {status})")
        return found
