"""The fast call path of a program: facts about Python's and NumPy's objects for runtime/call.c.

In: the parameters of a program. Out: a C array of facts, or None if objects do not have the layout that call.c reads
(another Python, another NumPy): calls then take the slow path, which gets every address from NumPy.

    facts = call_facts(library, parameters, results)
    caller, quick = quick_caller(library, bases, facts, host, otherwise, ());  results = quick(arrays)

Without facts the caller is used by hloc_run_alone, which takes addresses.
"""
from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloc.inputs import Named
from hloc.ir import numpy_dtype
from hloc.targets.cpu.execution.result_memory import KEPT

Library = Any                       # a loaded program; its functions are attributes
Facts = ctypes.Array
NOT_AS_EXPECTED, BUSY, REENTERED, FAILED = -1, -3, -4, -16           # of runtime/call.c
Form = tuple[np.dtype, tuple[int, ...]]
OUT_OF_MEMORY, STOPPED = 12, 13     # returned by hloc_execute without scratch memory, or after a stop
METH_O = 8                          # of Python: one argument
PYTHON = {"save_thread": "PyEval_SaveThread", "restore_thread": "PyEval_RestoreThread", "take_reference": "Py_IncRef",
          "drop_reference": "Py_DecRef", "integer": "PyLong_FromLong", "call": "PyObject_CallFunctionObjArgs",
          "check_signals": "PyErr_CheckSignals", "raised": "PyErr_Occurred"}


class Caller(ctypes.Structure):
    """hloc_caller of runtime/call.c. The objects at its addresses must live as long."""

    _fields_ = (("taken", ctypes.c_int), ("owner", ctypes.c_ulong), ("main_thread", ctypes.c_ulong),
                ("bases", ctypes.c_void_p), ("facts", ctypes.c_void_p), ("host", ctypes.py_object),
                *((name, ctypes.c_void_p) for name in PYTHON), ("otherwise", ctypes.py_object),
                ("count", ctypes.c_ssize_t), ("kept", ctypes.c_void_p * KEPT))

    def keep(self, sets: Sequence[tuple[np.ndarray, ...]]) -> None:
        """Results that calls may reuse if they are not referenced. Other threads may call between any two lines."""
        self.count = 0
        self.kept[:len(sets)] = [id(results) for results in sets]
        self.count = len(sets)

    def start_anew(self) -> None:
        """Reset after a fork: nothing runs, and this thread may be the main one."""
        self.taken, self.owner, self.main_thread = 0, 0, threading.main_thread().ident


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p))


class _Box(np.ndarray):
    """The memory of a Caller, and the objects that must live as long."""

    held: tuple = ()


def quick_caller(library: Library, bases: ctypes.Array, facts: Facts | None, host: Callable, otherwise: Callable,
                 held: object) -> tuple[Caller, Callable]:
    """hloc_quick as a function of Python, tuple of arguments -> results, or the result of `otherwise(arguments,
    code)`; and its Caller. It keeps `held`, and everything else that C reads, alive."""
    box = np.zeros(ctypes.sizeof(Caller), np.uint8).view(_Box)
    caller = Caller.from_buffer(box.data)
    for name, function in PYTHON.items():
        setattr(caller, name, ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p))
    caller.bases, caller.facts = ctypes.addressof(bases), ctypes.addressof(facts) if facts else None
    caller.host, caller.otherwise = host, otherwise
    caller.start_anew()
    method = _Method(b"quick", ctypes.cast(library.hloc_quick, ctypes.c_void_p), METH_O, None)
    box.held = (library, bases, facts, host, otherwise, method, held)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return caller, make(("PyCFunction_NewEx", ctypes.pythonapi))(ctypes.addressof(method), box, None)


def call_facts(library: Library, parameters: Sequence[Named], results: Sequence[Named]) -> Facts | None:
    """Facts for hloc_call, tested on known arrays."""
    if object.__basicsize__ != 2 * ctypes.sizeof(ctypes.c_void_p):      # as where there is no GIL
        return None
    library.hloc_match.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
    forms = [[(numpy_dtype(v.shape.element_type), v.shape.dimensions) for v in values]
             for values in (parameters, results)]
    return _facts(*forms) if reads_arrays(library) else None


def _facts(parameters: Sequence[Form], results: Sequence[Form]) -> Facts:
    """As call.c says. The addresses are of objects that live as long as the process: ndarray and built-in dtypes."""
    numbers = [object.__basicsize__, tuple.__basicsize__, id(np.ndarray), len(parameters), len(results)]
    for dtype, dimensions in (*parameters, *results):
        numbers += [id(dtype), len(dimensions), *dimensions]
    return (ctypes.c_ssize_t * len(numbers))(*numbers)


class _OtherArray(np.ndarray):
    """Not a plain array: subclasses may give memory another meaning, as masked arrays do."""


def reads_arrays(library: Library) -> bool:
    """Whether hloc_match finds the right addresses, and refuses other types, shapes, strides and numbers of arrays."""
    right = (np.zeros((3, 5), np.float32), np.zeros((), np.int64))
    made = (np.zeros(7, np.uint8),)
    facts = _facts([(a.dtype, a.shape) for a in right], [(a.dtype, a.shape) for a in made])
    bases = (ctypes.c_void_p * 3)()
    if library.hloc_match(bases, right, made, facts) or list(bases) != [a.ctypes.data for a in right + made]:
        return False
    wrong = (np.zeros((3, 5), np.int32), np.zeros((5, 3), np.float32), np.zeros((5, 3), np.float32).T,
             np.zeros((3, 10), np.float32)[:, ::2], np.zeros(15, np.float32),
             np.zeros((3, 5), np.float32).view(_OtherArray), 1.0)
    return all(library.hloc_match(bases, (w, right[1]), made, facts) for w in wrong) \
        and bool(library.hloc_match(bases, right[:1], made, facts))


def detects_idle_results(library: Library) -> bool:
    """Whether hloc_are_idle says it of a tuple of arrays that only a list holds, and of no other: not of one that a
    name holds, nor where a name, a view, a buffer or a weak reference holds an array, or its shape, type or flags are
    others."""
    library.hloc_are_idle.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    facts = _facts((), [(np.dtype(np.float32), (3, 5)), (np.dtype(np.int64), ())])

    def says(kept: np.ndarray, hold: Callable[[tuple], object] = lambda results: None) -> tuple[bool, object]:
        sets = [(kept.copy(), np.zeros((), np.int64))]
        holder = hold(sets[0])                          # lives until the check is done
        return bool(library.hloc_are_idle(id(sets[0]), facts)), holder

    right = np.zeros((3, 5), np.float32)
    holders = (lambda r: r, lambda r: r[0], lambda r: r[0][1:], lambda r: memoryview(r[0]),
               lambda r: weakref.ref(r[0]), lambda r: r[0].setflags(write=False))
    others = (right.reshape(5, 3), right.view(np.int32), right.ravel())
    return (says(right)[0] and not any(says(right, hold)[0] for hold in holders)
            and not any(says(other)[0] for other in others))
