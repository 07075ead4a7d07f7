"""cuBLASLt through ctypes, to compare with: C = A B of row-major matrices on a PyCUDA stream.

    lt = CublasLt(); multiply = lt.product("bf16", m, n, k); multiply(a, b, c, workspace, stream)

Raises OSError where the library is not here, RuntimeError with cuBLAS's status where it refuses.
"""
from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path

WORKSPACE = 64 << 20
# element type -> (type of A and B, type of C, type of the sums and of alpha), as cudaDataType_t and cublasComputeType_t
TYPES = {"bf16": (14, 14, 68, 0), "f16": (2, 2, 68, 0), "f32": (0, 0, 68, 0), "s8": (3, 10, 72, 10)}
MAX_WORKSPACE_BYTES = 1             # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
TRANSA = 3                          # CUBLASLT_MATMUL_DESC_TRANSA


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
                ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


def library() -> ctypes.CDLL:
    """Of the wheel nvidia-cublas, of a toolkit, or of the system."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    for folder in folders:
        for path in sorted(folder.glob("*/lib/libcublasLt.so.*")):
            return ctypes.CDLL(str(path))
    for name in ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("libcublasLt is not here: pip install nvidia-cublas")


class CublasLt:
    def __init__(self):
        self.library = library()
        self.handle = ctypes.c_void_p()
        self._do("cublasLtCreate", ctypes.byref(self.handle))

    def _do(self, name: str, *arguments) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} gave status {status}")

    def product(self, type: str, m: int, n: int, k: int) -> Callable[..., None]:
        """A function of the addresses of A, B, C and a workspace, and of a stream's handle. Row-major C = A B is
        column-major C' = B' A'; products of bytes want their first operand transposed: B is given as [n, k]."""
        element, result, compute, scale = TYPES[type]
        description, preference = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cublasLtMatmulDescCreate", ctypes.byref(description), compute, scale)
        if type == "s8":
            transposed = ctypes.c_int(1)
            self._do("cublasLtMatmulDescSetAttribute", description, TRANSA, ctypes.byref(transposed),
                     ctypes.c_size_t(4))
        first = self._layout(element, k, n, k) if type == "s8" else self._layout(element, n, k, n)
        second, third = self._layout(element, k, m, k), self._layout(result, n, m, n)
        self._do("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        limit = ctypes.c_size_t(WORKSPACE)
        self._do("cublasLtMatmulPreferenceSetAttribute", preference, MAX_WORKSPACE_BYTES, ctypes.byref(limit),
                 ctypes.c_size_t(8))
        found, count = Heuristic(), ctypes.c_int()
        self._do("cublasLtMatmulAlgoGetHeuristic", self.handle, description, first, second, third, third, preference, 1,
                 ctypes.byref(found), ctypes.byref(count))
        if count.value == 0:
            raise RuntimeError(f"cuBLASLt has no algorithm for {type} {m} x {n} x {k}")
        one, zero = (ctypes.c_int(v) if type == "s8" else ctypes.c_float(v) for v in (1, 0))

        def multiply(a: int, b: int, c: int, workspace: int, stream: int) -> None:
            pointers = [ctypes.c_void_p(int(p)) for p in (b, a, c, c, workspace, stream)]
            self._do("cublasLtMatmul", self.handle, description, ctypes.byref(one), pointers[0], first, pointers[1],
                     second, ctypes.byref(zero), pointers[2], third, pointers[3], third, ctypes.byref(found),
                     pointers[4], ctypes.c_size_t(WORKSPACE), pointers[5])
        return multiply

    def _layout(self, type: int, rows: int, columns: int, leading: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        self._do("cublasLtMatrixLayoutCreate", ctypes.byref(layout), type, ctypes.c_uint64(rows),
                 ctypes.c_uint64(columns), ctypes.c_int64(leading))
        return layout
