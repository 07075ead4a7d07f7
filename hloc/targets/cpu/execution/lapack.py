"""LAPACK's functions by the addresses that SciPy exports for compiled code.

    function_number("lapack_sgetrf_ffi")       4: the second routine, of the first type
    work_sizes(8, arguments)                   what LAPACK's workspace query says
    bind_functions(library)                    fills in the addresses, once the program is loaded
"""
from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

from hloc.errors import RunError

# The names of s and d, of c and z. Those of JAX's calls are the same.
ROUTINES = {"potrf": ("potrf", "potrf"), "getrf": ("getrf", "getrf"), "geqrf": ("geqrf", "geqrf"),
            "orgqr": ("orgqr", "ungqr"), "syevd": ("syevd", "heevd"), "gesdd": ("gesdd", "gesdd"),
            "trsm": ("trsm", "trsm"), "gtsv": ("gtsv", "gtsv"), "gehrd": ("gehrd", "gehrd"),
            "sytrd": ("sytrd", "hetrd"), "gees": ("gees", "gees"), "gesvd": ("gesvd", "gesvd"),
            "geev": ("geev", "geev")}
# Elements and their real parts.
LETTERS = {"s": ("f32", "f32"), "d": ("f64", "f64"), "c": ("c64", "f32"), "z": ("c128", "f64")}
INTEGER, SCRATCH = "s32", -1
CAPSULE_NAME = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
CAPSULE_POINTER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


class Place(NamedTuple):
    """hloc_lapack_place of runtime/lapack.h."""

    array: int
    bytes: int


class Work(NamedTuple):
    """A work array; without a number of elements LAPACK is asked for it."""

    type: str
    elements: int = 0


class Length(NamedTuple):
    """The argument that says how long a work array is."""

    of: Work


Argument = Place | Work | Length | str | int | float


def function_number(target: str) -> int | None:
    """Of a custom call, in the table of functions; None: it is no function of LAPACK, or there is none."""
    name = target.removeprefix("lapack_").removesuffix("_ffi")
    if target != f"lapack_{name}_ffi" or name[:1] not in LETTERS or _addresses() is None:
        return None
    letter = "sdcz".index(name[0])
    return next((number * 4 + letter for number, names in enumerate(ROUTINES.values()) if name[1:] in names), None)


@lru_cache(maxsize=256)
def work_sizes(function: int, arguments: tuple[Argument, ...]) -> dict[Work, int]:
    """Elements of the work arrays among the arguments, by a workspace query."""
    works = {a: a.elements for a in arguments if isinstance(a, Work)}
    if any(isinstance(a, Length) for a in arguments):
        addresses = _addresses()
        assert addresses is not None                # as function_number has checked
        given = [_query_argument(a) for a in arguments]
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(given))(addresses[function])
        call(*map(ctypes.addressof, given))
        numbers: dict[str, Any] = {"f32": ctypes.c_float, "c64": ctypes.c_float, INTEGER: ctypes.c_int}
        works |= {a: max(1, int(numbers.get(a.type, ctypes.c_double).from_buffer(array).value))
                  for a, array in zip(arguments, given) if isinstance(a, Work) and not a.elements}
    return works


def _query_argument(a: Argument) -> Any:
    if isinstance(a, str):
        return ctypes.c_char(a.encode())
    return ctypes.c_int(-1 if isinstance(a, Length) else a) if isinstance(a, (int, Length)) else (ctypes.c_double * 8)()


# -- SciPy -------------------------------------------------------------------------------------------------------------

@lru_cache(maxsize=1)
def _addresses() -> ctypes.Array | None:
    """Functions by routine and type; None without SciPy, or if its integers are not C's int."""
    try:
        from scipy.linalg import cython_blas, cython_lapack
    except ImportError:
        return None
    found = []
    for names in ROUTINES.values():
        for letter in "sdcz":
            module = cython_blas if "trsm" in names else cython_lapack
            capsule = module.__pyx_capi__.get(letter + names[letter in "cz"])
            if capsule is None:
                return None
            signature = CAPSULE_NAME(capsule)
            if not signature.startswith(b"void (") or b" int *" not in signature:
                return None
            found.append(CAPSULE_POINTER(capsule, signature))
    return (ctypes.c_void_p * len(found))(*found)


def bind_functions(library: Any) -> None:
    """Fill in the addresses that a program calls. Raises RunError if SciPy was removed since it was compiled."""
    addresses = _addresses()
    if addresses is None:
        raise RunError("this program calls LAPACK through SciPy, which is not installed", hint="pip install scipy")
    table = (ctypes.c_void_p * len(addresses)).in_dll(library, "hloc_lapack_table")
    for place, address in enumerate(addresses):
        table[place] = address
