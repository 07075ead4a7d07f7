"""JAX's calls of LAPACK from compiled C, through the function addresses that SciPy offers to other compiled code.

In: a host call of a plan. Out: the constant of the driver that runtime/lapack.c works from, or None where Python makes
the call: SciPy is not installed, or the call is of another form than those below.

    lapack_call(HostCall("lapack_sgetrf_ffi", ...))  == "{HLOC_GETRF, 0, 16, 64, 64, 0, {0}, 3}"
    hand_over(library)                                  fills in the addresses, once the program is loaded
"""
from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloc.errors import RunError
from hloc.ir import Instruction, Shape
from hloc.kernels.plan import HostCall
from hloc.ops.custom_linalg import option

TARGET = re.compile(r"lapack_([sdcz])(potrf|getrf|geqrf|orgqr|ungqr|syevd|heevd|gesdd|trsm)_ffi")
COMPLEX_NAMES = {"ungqr": "orgqr", "heevd": "syevd"}
# In the order of runtime/lapack.h. The names of s and d, of c and z; the module of SciPy.
ROUTINES = {"potrf": ("potrf", "potrf"), "getrf": ("getrf", "getrf"), "geqrf": ("geqrf", "geqrf"),
            "orgqr": ("orgqr", "ungqr"), "syevd": ("syevd", "heevd"), "gesdd": ("gesdd", "gesdd"),
            "trsm": ("trsm", "trsm")}
# Elements and their real parts.
LETTERS = {"s": ("f32", "f32"), "d": ("f64", "f64"), "c": ("c64", "f32"), "z": ("c128", "f64")}
MOST = (1 << 31) - 1


class Form(NamedTuple):
    """What a routine takes and gives per matrix, as (element type, dimensions); the result that is LAPACK's info comes
    behind the others, or is left out. options: its letters."""

    operands: list[tuple]
    results: list[tuple]
    options: str = ""
    other: int = 0


def lapack_call(step: HostCall) -> str | None:
    """The initializer of a hloc_lapack_call."""
    match = TARGET.fullmatch(step.target)
    if match is None or not step.arguments or _addresses() is None:
        return None
    routine = COMPLEX_NAMES.get(match[2], match[2])
    given, made = ([shape for _, shape in side] for side in (step.arguments, step.results))
    if given[0].rank < 2:
        return None
    batch, (rows, columns) = given[0].dimensions[:-2], given[0].dimensions[-2:]
    form = _form(routine, *LETTERS[match[1]], step.instruction, given)
    if form is None or not _fits(given, form.operands, batch):
        return None
    with_info = _fits(made, [*form.results, ("s32", ())], batch)
    if not (with_info or _fits(made, form.results, batch)) or 0 in (rows, columns):
        return None
    if prod(batch) > MOST or max(rows, columns, form.other) > MOST:
        return None
    letters = ", ".join(f"'{letter}'" for letter in form.options) or "0"
    info = len(given) + len(form.results) if with_info else -1
    return (f"{{HLOC_{routine.upper()}, {'sdcz'.index(match[1])}, {prod(batch)}, {rows}, {columns}, {form.other}, "
            f"{{{letters}}}, {info}}}")


def _form(routine: str, element: str, real: str, call: Instruction, given: Sequence[Shape]) -> Form | None:
    rows, columns = given[0].dimensions[-2:]
    small, matrix = min(rows, columns), (element, (rows, columns))
    if routine in ("potrf", "syevd"):
        uplo = _letter(call, "uplo", "LU")
        if rows != columns or uplo is None:
            return None
        if routine == "potrf":
            return Form([matrix], [matrix], uplo)
        return Form([matrix], [matrix, (real, (rows,))], "V" + uplo) if _letter(call, "mode", "V") else None
    if routine == "getrf":
        return Form([matrix], [matrix, ("s32", (small,))])
    if routine == "geqrf":
        return Form([matrix], [matrix, (element, (small,))])
    if len(given) != 2 and routine in ("orgqr", "trsm") or given[-1].rank < 1:
        return None
    if routine == "orgqr":
        count = given[1].dimensions[-1]
        return Form([matrix, (element, (count,))], [matrix], "", count) if rows >= columns >= count else None
    if routine == "gesdd":
        mode = _letter(call, "mode", "ASN")
        left, right = (small, small) if mode == "S" else (rows, columns)
        results = [matrix, (real, (small,)), (element, (rows, left)), (element, (right, columns))]
        return Form([matrix], results, mode) if mode else None
    return _triangular_form(element, call, given)


def _triangular_form(element: str, call: Instruction, given: Sequence[Shape]) -> Form | None:
    letters = [_letter(call, "side", "LR"), _letter(call, "uplo", "LU"), _letter(call, "trans_x", "NTC"),
               _letter(call, "diag", "NU")]
    size, sides = given[0].dimensions[-1], given[1].dimensions[-2:]
    if None in letters or len(sides) != 2:
        return None
    other = sides[1] if letters[0] == "L" else sides[0]
    wanted = (element, (size, other) if letters[0] == "L" else (other, size))
    return Form([(element, (size, size)), wanted], [wanted], "".join(letters), other) if other else None


def _letter(call: Instruction, name: str, known: str) -> str | None:
    """An option as LAPACK's letter; the first of `known` where it is not written, None for any other."""
    code = option(call, name, ord(known[0]))
    return chr(code) if code in map(ord, known) else None


def _fits(shapes: Sequence[Shape], wanted: Sequence[tuple], batch: tuple[int, ...]) -> bool:
    return [(s.element_type, s.dimensions) for s in shapes] == [(t, (*batch, *d)) for t, d in wanted]


# -- SciPy -------------------------------------------------------------------------------------------------------------

@lru_cache(maxsize=1)
def _addresses() -> ctypes.Array | None:
    """Functions by routine and type; None without SciPy, or where its integers are not C's int."""
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
            signature = _capsule_name(capsule)
            if not signature.startswith(b"void (") or b" int *" not in signature:
                return None
            found.append(_capsule_pointer(capsule, signature))
    return (ctypes.c_void_p * len(found))(*found)


def _capsule_name(capsule) -> bytes:
    function = ctypes.pythonapi.PyCapsule_GetName
    function.restype, function.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    return function(capsule)


def _capsule_pointer(capsule, name: bytes) -> int:
    function = ctypes.pythonapi.PyCapsule_GetPointer
    function.restype, function.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return function(capsule, name)


def hand_over(library: ctypes.CDLL) -> None:
    """Fill in the addresses that a program calls. Raises RunError where SciPy is gone since it was compiled."""
    addresses = _addresses()
    if addresses is None:
        raise RunError("this program calls LAPACK through SciPy, which is not installed", hint="pip install scipy")
    (ctypes.c_void_p * len(addresses)).in_dll(library, "hloc_lapack_table")[:] = addresses
