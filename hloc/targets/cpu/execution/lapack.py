"""JAX's calls of LAPACK from compiled C, through the function addresses that SciPy exports for compiled code.

In: a host call of a plan. Out: the constant of the driver that runtime/lapack.c reads, or None if Python makes the
call: SciPy is not installed, or the call has another form than those below.

    lapack_call(HostCall("lapack_sgetrf_ffi", ...))  == "{HLOC_GETRF, 0, 16, 64, 64, 0, {0}, 3}"
    bind_functions(library)                                  fills in the addresses, once the program is loaded
"""
from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from hloc.errors import RunError
from hloc.ir import Instruction, Shape
from hloc.ir.narrowing import all_known
from hloc.kernels.plan import HostCall
from hloc.machine import Machine
from hloc.ops.vendors.linear_algebra import option
from hloc.targets.cpu.plans.slots import NOTHING, Scratch, aligned, busy_threads

TARGET = re.compile(r"lapack_([sdcz])"
                    r"(potrf|getrf|geqrf|orgqr|ungqr|syevd|heevd|gesdd|gesvd|geev|trsm|gtsv|gehrd|sytrd|hetrd|gees)_ffi")
COMPLEX_NAMES = {"ungqr": "orgqr", "heevd": "syevd", "hetrd": "sytrd"}
# In the order of runtime/lapack.h. The names of s and d, of c and z; the module of SciPy.
ROUTINES = {"potrf": ("potrf", "potrf"), "getrf": ("getrf", "getrf"), "geqrf": ("geqrf", "geqrf"),
            "orgqr": ("orgqr", "ungqr"), "syevd": ("syevd", "heevd"), "gesdd": ("gesdd", "gesdd"),
            "trsm": ("trsm", "trsm"), "gtsv": ("gtsv", "gtsv"), "gehrd": ("gehrd", "gehrd"),
            "sytrd": ("sytrd", "hetrd"), "gees": ("gees", "gees"), "gesvd": ("gesvd", "gesvd"),
            "geev": ("geev", "geev")}
# Elements and their real parts.
LETTERS = {"s": ("f32", "f32"), "d": ("f64", "f64"), "c": ("c64", "f32"), "z": ("c128", "f64")}
WHOLES = {"f32": "c64", "f64": "c128"}
ELEMENT_BYTES = {"s": 4, "d": 8, "c": 8, "z": 16}
WITH_VECTORS = ("gesdd", "gesvd", "geev", "gees")       # which need memory for these
MOST = (1 << 31) - 1
DIAGONALS = 3                         # of a tridiagonal matrix, the columns of one that gtsv is given
LARGE, PIECE = 192, 40000             # of runtime/lapack.c: when a batch is divided


class Form(NamedTuple):
    """The arguments and results of a LAPACK routine per matrix, as (element type, dimensions); LAPACK's info is the
    last result, or omitted. options: its letters."""

    operands: list[tuple]
    results: list[tuple]
    options: str = ""
    other: int = 0


class Call(NamedTuple):
    """A hloc_lapack_call, but for its routine's and type's numbers there."""

    routine: str
    letter: str
    batch: int
    rows: int
    columns: int
    other: int
    options: str
    info: int

    def text(self) -> str:
        """As an initializer in C."""
        letters = ", ".join(f"'{letter}'" for letter in self.options) or "0"
        sizes = f"{self.batch}, {self.rows}, {self.columns}, {self.other}"
        return f"{{HLOC_{self.routine.upper()}, {'sdcz'.index(self.letter)}, {sizes}, {{{letters}}}, {self.info}}}"


def lapack_call(step: HostCall) -> str | None:
    """The initializer of a hloc_lapack_call."""
    call = _call_of(step)
    return call and call.text()


def _call_of(step: HostCall) -> Call | None:
    match = TARGET.fullmatch(step.target)
    if match is None or not step.arguments or _addresses() is None:
        return None
    routine = COMPLEX_NAMES.get(match[2], match[2])
    given, made = ([shape for _, shape in side] for side in (step.arguments, step.results))
    if given[0].rank < (1 if routine == "gtsv" else 2):
        return None
    if routine == "gtsv":
        batch, rows, columns = given[0].dimensions[:-1], given[0].dimensions[-1], DIAGONALS
    else:
        batch, (rows, columns) = given[0].dimensions[:-2], given[0].dimensions[-2:]
    element, real = LETTERS[match[1]]
    form = _form(routine, element, real, step.made_of, given)
    if form is None or not _fits(given, form.operands, batch):
        return None
    with_info = _fits(made, [*form.results, ("s32", ())], batch)
    if not (with_info or _fits(made, form.results, batch)) or 0 in (rows, columns):
        return None
    if prod(batch) > MOST or max(rows, columns, form.other) > MOST:
        return None
    return Call(routine, match[1], prod(batch), rows, columns, form.other, form.options,
                len(given) + len(form.results) if with_info else -1)


def _form(routine: str, element: str, real: str, call: Instruction, given: Sequence[Shape]) -> Form | None:
    if routine == "gtsv":
        return _tridiagonal_form(element, given)
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
    if routine in ("gehrd", "sytrd", "gees"):
        return _similar_form(routine, element, real, call, given[0])
    if routine == "geev":
        return _eigen_form(element, real, call, given[0])
    if routine in ("gesdd", "gesvd"):
        mode = _letter(call, "mode", "ASN")
        left, right = (small, small) if mode == "S" else (rows, columns)
        results = [matrix, (real, (small,)), (element, (rows, left)), (element, (right, columns))]
        return Form([matrix], results, mode) if mode else None
    return _triangular_form(element, call, given)


def _triangular_form(element: str, call: Instruction, given: Sequence[Shape]) -> Form | None:
    letters = [_letter(call, "side", "LR"), _letter(call, "uplo", "LU"), _letter(call, "trans_x", "NTC"),
               _letter(call, "diag", "NU")]
    size, sides = given[0].dimensions[-1], given[1].dimensions[-2:]
    if not all_known(letters) or len(sides) != 2:
        return None
    other = sides[1] if letters[0] == "L" else sides[0]
    wanted = (element, (size, other) if letters[0] == "L" else (other, size))
    return Form([(element, (size, size)), wanted], [wanted], "".join(letters), other) if other else None


def _similar_form(routine: str, element: str, real: str, call: Instruction, shape: Shape) -> Form | None:
    """Of a square matrix: its Hessenberg form, of all rows; its tridiagonal form; its Schur form, in any order."""
    rows, columns = shape.dimensions[-2:]
    matrix, line, beside = (element, (rows, columns)), (element, (rows,)), max(0, rows - 1)
    if rows != columns:
        return None
    if routine == "gehrd":
        whole = option(call, "low", 1) == 1 and option(call, "high", rows) == rows
        return Form([matrix], [matrix, (element, (beside,))]) if whole else None
    if routine == "sytrd":
        uplo = _letter(call, "uplo", "LU")
        results = [matrix, (real, (rows,)), (real, (beside,)), (element, (beside,))]
        return Form([matrix], results, uplo) if uplo else None
    mode, values = _letter(call, "mode", "V"), [line] if element != real else [line, line]
    return Form([matrix], [matrix, matrix, *values, ("s32", ())], mode) if mode and _letter(call, "sort", "N") else None


def _eigen_form(element: str, real: str, call: Instruction, shape: Shape) -> Form | None:
    """Eigenvalues, of real matrices in two parts, and left and right eigenvectors, which are complex."""
    size, columns = shape.dimensions[-2:]
    jobs = [_letter(call, name, "VN") for name in ("compute_left", "compute_right")]
    vectors, line = (WHOLES.get(element, element), (size, size)), (element, (size,))
    values = [line] if element != real else [line, line]
    return Form([(element, (size, size))], [*values, vectors, vectors], "".join(jobs)) \
        if size == columns and all_known(jobs) else None


def _tridiagonal_form(element: str, given: Sequence[Shape]) -> Form | None:
    size, other = given[0].dimensions[-1], given[-1].dimensions[-1] if given[-1].rank else 0
    arrays = [*[(element, (size,))] * DIAGONALS, (element, (size, other))]
    return Form(arrays, arrays, "", other) if other else None


def _letter(call: Instruction, name: str, known: str) -> str | None:
    """An option as LAPACK's letter; the first of `known` if it is not written, None for any other."""
    code = option(call, name, ord(known[0]))
    return chr(code) if code in map(ord, known) else None


def _fits(shapes: Sequence[Shape], wanted: Sequence[tuple], batch: tuple[int, ...]) -> bool:
    return [(s.element_type, s.dimensions) for s in shapes] == [(t, (*batch, *d)) for t, d in wanted]


# -- scratch memory ----------------------------------------------------------------------------------------------------

def lapack_scratch(step: HostCall, machine: Machine) -> Scratch:
    """The scratch memory of runtime/lapack.c for a call; none if Python makes it."""
    call = _call_of(step)
    if call is None:
        return NOTHING
    element, real = ELEMENT_BYTES[call.letter], ELEMENT_BYTES[call.letter] // (2 if call.letter in "cz" else 1)
    rows, columns, other = call.rows, call.columns, call.other
    b = rows * other if call.routine in ("trsm", "gtsv") else rows * rows if call.routine in WITH_VECTORS else 0
    c = columns * columns if call.routine in WITH_VECTORS and call.routine != "gees" else 0
    work, real_work, whole_work = _work(call)
    sizes = [rows * columns * element, b * element, c * element, work * element, real_work * real, 4 * whole_work]
    multiply_adds = rows * columns * max(min(rows, columns), other)
    has_threads = call.routine != "gtsv" and max(rows, columns) > LARGE
    grain = call.batch if has_threads else 1 + int(PIECE / (multiply_adds + 1))
    return Scratch.of(own=sum(map(aligned, sizes)) + 64, threads=busy_threads(call.batch, grain, machine))


@lru_cache(maxsize=256)
def _work(call: Call) -> tuple[int, int, int]:
    """Elements of work arrays, real and integer, that LAPACK needs, by its workspace queries."""
    if call.routine in ("potrf", "getrf", "trsm", "gtsv"):
        return 0, 0, 0
    rows, columns, minus_one = ctypes.c_int(call.rows), ctypes.c_int(call.columns), ctypes.c_int(-1)
    real_type = ctypes.c_float if call.letter in "sc" else ctypes.c_double
    work, real_work, whole_work = (real_type * 2)(), (real_type * 2)(), ctypes.c_int()
    letters, unused = [ctypes.c_char(letter.encode()) for letter in call.options], (ctypes.c_double * 8)()
    is_complex, small, info = call.letter in "cz", min(call.rows, call.columns), ctypes.c_int()
    if call.routine == "syevd":
        arguments = [*letters, rows, unused, rows, unused, work, minus_one,
                     *([real_work, minus_one] if is_complex else []), whole_work, minus_one]
    elif call.routine in ("gesdd", "gesvd"):
        right = ctypes.c_int(small if call.options == "S" else call.columns)
        jobs, whole = ([*letters, *letters], []) if call.routine == "gesvd" else (letters, [whole_work])
        arguments = [*jobs, rows, columns, unused, rows, unused, unused, rows, unused, right, work, minus_one,
                     *([real_work] if is_complex else []), *whole]
    elif call.routine == "geev":
        values, extra = ([unused], [real_work]) if is_complex else ([unused, unused], [])
        arguments = [*letters, rows, unused, rows, *values, unused, rows, unused, rows, work, minus_one, *extra]
    elif call.routine == "gehrd":
        arguments = [rows, ctypes.c_int(1), rows, unused, rows, unused, work, minus_one]
    elif call.routine == "sytrd":
        arguments = [*letters, rows, unused, rows, unused, unused, unused, work, minus_one]
    elif call.routine == "gees":
        values, extra = ([unused], [unused]) if is_complex else ([unused, unused], [])
        arguments = [*letters, ctypes.c_char(b"N"), unused, rows, unused, rows, unused, *values, unused, rows, work,
                     minus_one, *extra, unused]
    else:
        count = [ctypes.c_int(call.other)] if call.routine == "orgqr" else []
        arguments = [rows, columns, *count, unused, rows, unused, work, minus_one]
    place = list(ROUTINES).index(call.routine) * 4 + "sdcz".index(call.letter)
    addresses = _addresses()
    assert addresses is not None                # as _call_of has checked
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(arguments) + 1))(addresses[place])
    function(*(ctypes.addressof(a) for a in (*arguments, info)))
    real_sizes = {"gees": call.rows, "geev": 2 * call.rows, "gesvd": 5 * small}
    if call.routine in real_sizes:
        return max(1, int(work[0])), real_sizes[call.routine] if is_complex else 0, 0
    if call.routine != "gesdd":
        return max(1, int(work[0])), int(real_work[0]), whole_work.value
    large = max(call.rows, call.columns)
    return max(1, int(work[0])), small * max(5 * small + 7, 2 * large + 2 * small + 1) if is_complex else 0, 8 * small


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


def bind_functions(library: Any) -> None:
    """Fill in the addresses that a program calls. Raises RunError if SciPy was removed since it was compiled."""
    addresses = _addresses()
    if addresses is None:
        raise RunError("this program calls LAPACK through SciPy, which is not installed", hint="pip install scipy")
    table = (ctypes.c_void_p * len(addresses)).in_dll(library, "hloc_lapack_table")
    for place, address in enumerate(addresses):
        table[place] = address
