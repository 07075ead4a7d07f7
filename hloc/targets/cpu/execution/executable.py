"""Loading and calling a CPU build: one arena, one ctypes call per run.

In: a shared object made by build.py, open, and the facts that its manifest holds. Out: a backend that takes checked
arrays.
The arena and the table of base addresses live as long as the backend; runs of one backend take turns. A child of a
fork may call programs of its parent, whatever another thread did with them.
"""
from __future__ import annotations

import _ctypes
import ctypes
import json
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate, count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import numpy as np

from hloc.analysis.packing import ALIGNMENT
from hloc.errors import RunError, UnsupportedError
from hloc.ir import Instruction, numpy_dtype
from hloc.kernels.plan import HostCall, Program
from hloc.limits import available_memory
from hloc.machine import available_cores
from hloc.sanitize import check_runtime
from hloc.targets.cpu.execution.calls import (
    BUSY,
    FAILED,
    NOT_AS_EXPECTED,
    OUT_OF_MEMORY,
    REENTERED,
    STOPPED,
    Caller,
    call_facts,
    detects_idle_results,
    quick_caller,
)
from hloc.targets.cpu.execution.result_memory import ResultMemory, aligned_bytes, bytes_at
from hloc.targets.manifest import MOST_BYTES, value_from_json, value_to_json, whole

if TYPE_CHECKING:
    from hloc.evaluate import Device
    from hloc.targets.cpu.execution.communicators import ThreadCommunicator
    from hloc.targets.cpu.execution.mpi import MpiCommunicator

MARK, VERSION = "hloc_shared_object", 3

MOST_DEVICES = 1 << 20
NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)         # prefixes of functions


def refuse_if_too_large(program: Program, largest: Instruction | None = None) -> None:
    """Raise RunError, before anything is allocated, if the bytes of its runs are not available; it names `largest`, if
    given."""
    needed = program.arena_size + sum(v.shape.num_bytes for v in program.results) + sum(program.held)
    free = available_memory()
    if free is not None and needed > free:
        why = f"; its largest array is %{largest.name}, {largest.shape}" if largest else ""
        raise RunError(f"running this module needs {needed / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB are free"
                       f"{why}", largest.span if largest else None)


_sharing = threading.Lock()
_loads = count(1)
_threads: int | None = None                 # of the process: the address of the first program's pool
_backends: weakref.WeakSet[CpuBackend] = weakref.WeakSet()
FUNCTIONS = ("hloc_use_threads", "hloc_execute", "hloc_run_alone", "hloc_forget_threads")


class NotLoaded(RunError):
    """A shared object that the system's loader refuses, or that is not a program."""


def open_library(file: IO[bytes], table: str = "") -> ctypes.CDLL | SavedLibrary:
    """Load a program, until it is not referenced any more. All programs of a process use the threads of the first one,
    which stays loaded. table: the symbol of a saved program's function table. Raises NotLoaded."""
    global _threads
    check_runtime()
    loaded = _load(file)
    library = SavedLibrary(loaded, table) if table else loaded
    if missing := [name for name in FUNCTIONS if not hasattr(library, name)]:
        raise NotLoaded(f"{file.name} is not a program of hloc: it has no function {missing[0]}")
    library.hloc_threads.restype = ctypes.c_void_p
    library.hloc_share_threads.argtypes = (ctypes.c_void_p,)
    with _sharing:
        if _threads is None:
            _threads = library.hloc_threads()
        else:
            library.hloc_share_threads(_threads)
            weakref.finalize(library, _ctypes.dlclose, library._handle).atexit = False
    return library


class _Row(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("address", ctypes.c_void_p))


class SavedLibrary:
    """A saved shared object with hidden functions, as attributes with the names of a program for Python; addresses: of
    all functions in its table. Raises NotLoaded."""

    def __init__(self, library: ctypes.CDLL, table: str):
        self.library, self._handle = library, library._handle
        try:
            row = ctypes.addressof(_Row.in_dll(library, table))
        except ValueError:
            raise NotLoaded(f"{library._name} is not a program of hloc: it has no {table}") from None
        self.addresses: dict[str, int] = {}
        while name := (found := _Row.from_address(row)).name:
            self.addresses[name.decode()] = found.address
            row += ctypes.sizeof(_Row)

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("addresses", ()):
            raise AttributeError(name)
        function: Any = ctypes.CFUNCTYPE(ctypes.c_int)(self.addresses[name])
        function.library = self.library                       # keeps it loaded
        setattr(self, name, function)
        return function


def _load(file: IO[bytes]) -> ctypes.CDLL:
    """Load the open file itself, not its path. Raises NotLoaded."""
    opened = f"/proc/self/fd/{file.fileno()}"
    try:
        return ctypes.CDLL(_new_name(opened) if os.path.exists(opened) else os.path.abspath(file.name))
    except OSError as error:
        reason = str(error).partition(": ")[2] or str(error)
        raise NotLoaded(f"{file.name} cannot be loaded: {reason}") from None


def _new_name(path: str) -> str:
    """A spelling of `path` that is new to the loader, which reuses a library for a known path without reading the file.
    A number is inserted before the last two parts, its digits as `./` and `.//`."""
    folder, parent, name = path.rsplit("/", 2)
    number = "".join(".//" if digit == "1" else "./" for digit in f"{next(_loads):b}")
    return f"{folder}/{number}{parent}/{name}"


def start_anew_after_fork() -> None:
    """Reset in the child of a fork: other threads do not exist, nor do their locks."""
    global _sharing
    _sharing = threading.Lock()
    for backend in list(_backends):
        backend.start_anew()


os.register_at_fork(after_in_child=start_anew_after_fork)


class CpuBackend:
    """Calls hloc_execute of one shared object. library: open until this is made; program: from a file it has neither
    kernels nor steps; devices: that it is for, 0: it takes no communicator; host_calls: the steps that Python runs, and
    their functions; key: of the library, if it is cached; table: of open_library; device: on which it runs."""

    def __init__(self, library: IO[bytes], program: Program, devices: int, *, key: str = "", table: str = "",
                 host_calls: Sequence[tuple[HostCall, Callable]] = (), device: Device | None = None):
        self.program, self.devices = program, devices
        self.communicator: ThreadCommunicator | MpiCommunicator | None = None
        self.key, self.host_calls = key, tuple(host_calls)
        parameters, results, constants = program.parameters, program.results, program.constants
        refuse_if_too_large(program)
        self.shared_object = open_library(library, table)
        if hasattr(self.shared_object, "hloc_lapack_table"):
            from hloc.targets.cpu.execution.lapack import bind_functions
            bind_functions(self.shared_object)
        sharing = 1 if device is None else device.neighbours           # the CPUs of this process
        self.shared_object.hloc_use_threads(max(1, available_cores() // sharing))
        self._arena = aligned_bytes(program.arena_size)
        count = 1 + len(parameters) + len(results) + len(constants) + len(program.held) + (devices > 0)
        self._bases = (ctypes.c_void_p * count)(self._arena.ctypes.data)
        self._held = [aligned_bytes(size) for size in program.held]
        for array in self._held[:1]:
            array[:] = 0                                      # the flag: nothing is made yet
        for place, array in enumerate((*constants, *self._held), 1 + len(parameters) + len(results)):
            self._bases[place] = array.ctypes.data
        if devices:
            self.communicator = communicator_of(device, self.shared_object)
            self._bases[count - 1] = self.communicator.address
        self._lock = threading.Lock()                         # of the memory for results
        self._start_calls()
        _backends.add(self)

    def _start_calls(self) -> None:
        """Make self.quick: it runs on unchecked arrays, or returns None if they are not exactly what the program takes.
        Without facts there is none."""
        results = self.program.results
        facts = call_facts(self.shared_object, self.program.parameters, results)
        self._memory = ResultMemory([(v.shape.dimensions, numpy_dtype(v.shape.element_type)) for v in results],
                                    facts is not None and detects_idle_results(self.shared_object))
        # these hold the GIL when they begin and end, and may raise
        self._call = ctypes.cast(self.shared_object.hloc_call, ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(Caller), ctypes.py_object, ctypes.py_object))
        self._run_alone = ctypes.cast(self.shared_object.hloc_run_alone, ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(Caller), ctypes.c_void_p))
        known: Callable[[], Any] = weakref.ref(self)          # no cycle: the arena is freed at once
        self._caller, quick = quick_caller(
            self.shared_object, self._bases, facts, lambda number, pointers: known()._call_host(number, pointers),
            lambda arrays, code: known()._call_anew(arrays, code),
            (self._arena, self.program, self._held, self._memory))
        if facts is not None:
            self.quick = quick

    def start_anew(self) -> None:
        """Reset after a fork."""
        self._lock = threading.Lock()
        self._caller.start_anew()
        self.shared_object.hloc_forget_threads()

    def _call_anew(self, arrays: tuple, code: int) -> tuple[np.ndarray, ...] | None:
        """Handle a quick call that failed, or found no reusable results."""
        if code <= FAILED or code == REENTERED:
            self._fail(code)
        if code == NOT_AS_EXPECTED:
            return None
        with self._lock:
            self._caller.keep(())                             # free old ones before allocating new ones
            outputs = self._memory.new_arrays()
            self._caller.keep(self._memory.kept)
        code = BUSY
        while code == BUSY:                                   # between two calls Python handles signals
            code = self._call(self._caller, arrays, outputs)
        if code == NOT_AS_EXPECTED:
            return None
        if code:
            self._fail(code)
        return outputs

    def __call__(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Run on checked arrays."""
        with self._lock:
            outputs = self._memory.arrays()
        bases = type(self._bases).from_buffer_copy(self._bases)
        for place, array in enumerate([*arrays, *outputs], 1):
            bases[place] = array.ctypes.data
        code = BUSY
        while code == BUSY:
            code = self._run_alone(self._caller, bases)
        if code:
            self._fail(code)
        return outputs

    def _fail(self, code: int) -> NoReturn:
        """Raise the error of a code of runtime/call.c."""
        if code == REENTERED:
            raise RunError("a custom call of a program calls that same program while it is running",
                           hint="compile the module a second time, and call that")
        code = FAILED - code if code <= FAILED else code
        if code == OUT_OF_MEMORY:
            raise RunError("out of memory: no scratch space for a matmul or convolution")
        if self.communicator is not None and code != STOPPED:
            raise self.communicator.error(code)
        raise RunError(f"the program stopped with code {code}")

    def _call_host(self, number: int, pointers: int) -> None:
        """A step that Python runs: NumPy views in, results copied out. pointers: the address of theirs."""
        from hloc.targets.host_calls import answered
        call, function = self.host_calls[number]
        places = (ctypes.c_void_p * len(call.arguments + call.results)).from_address(pointers)
        views = [bytes_at(place, shape.num_bytes).view(numpy_dtype(shape.element_type)).reshape(shape.dimensions)
                 for place, (_, shape) in zip(places, call.arguments + call.results)]
        inputs, outputs = views[:len(call.arguments)], views[len(call.arguments):]
        for output, answer in zip(outputs, answered(call, function, inputs)):
            np.copyto(output, answer)


def communicator_of(device: Device | None, library) -> ThreadCommunicator | MpiCommunicator:
    """The communicator of a run on `device`; None: on one alone. It has an address, and makes errors of codes."""
    from hloc.evaluate.simulate import SimulatedDevice
    from hloc.targets.cpu.execution.communicators import ThreadCommunicator, ThreadDevices
    if device is None or device.count == 1:
        return ThreadCommunicator(ThreadDevices(library, 1), 0)
    if isinstance(device, SimulatedDevice):
        devices = device.rendezvous.threads(lambda count: ThreadDevices(library, count))
        assert isinstance(devices, ThreadDevices)
        return ThreadCommunicator(devices, device.number)
    from hloc.evaluate.mpi import MpiDevice
    from hloc.targets.cpu.execution.mpi import MpiCommunicator
    assert isinstance(device, MpiDevice)
    return device.communicator(lambda: MpiCommunicator(device, library))


# -- the manifest of a saved .so --------------------------------------------------------------------------------------

def constant_places(constants: Sequence[np.ndarray]) -> list[int]:
    """The offset of each constant in the blob, and the end of the last one."""
    return [0, *accumulate(-(-c.nbytes // ALIGNMENT) * ALIGNMENT for c in constants)]


def manifest(program: Program, devices: int) -> dict:
    """Facts for JSON: names and shapes, arena size and offsets of constants in the blob; devices: as CpuBackend's."""
    places = constant_places(program.constants)
    return {"name": program.name, "arena": program.arena_size, "constants": places[:-1], "constant_bytes": places[-1],
            "devices": devices, "byte_order": sys.byteorder, "machine": os.uname().machine,
            "parameters": [value_to_json(v) for v in program.parameters],
            "results": [value_to_json(v) for v in program.results]}


def _check_manifest(facts: dict) -> None:
    """Raises ValueError, KeyError or TypeError for facts that `manifest` could not have made on this machine."""
    if (facts["machine"], facts["byte_order"]) != (os.uname().machine, sys.byteorder):
        raise ValueError(f"it is compiled for {str(facts['machine'])[:40]}, this is {os.uname().machine}")
    for row in (*facts["parameters"], *facts["results"]):
        value_from_json(row)
    whole(facts["arena"], MOST_BYTES)
    end = whole(facts["constant_bytes"], MOST_BYTES)
    if any(whole(place, end) % ALIGNMENT for place in facts["constants"]):
        raise ValueError("a constant that is not aligned")
    whole(facts["devices"], MOST_DEVICES)
    if not NAME.fullmatch(facts["functions"]) or not isinstance(facts["march"], str):
        raise ValueError("its functions have no name")


def load_shared_object(path: Path, device: Device | None = None) -> tuple[CpuBackend | None, dict]:
    """The backend of a .so that `hloc compile` wrote, on one of several devices or alone (None of a program of several
    devices), and its manifest. Raises RunError for any other file: before the system's loader sees it, its length, its
    hash and its manifest are checked."""
    from hloc.targets import sealed
    with sealed.reading(path, MARK, VERSION) as found:
        facts = found.plan["manifest"]
        _check_manifest(facts)
        if facts["devices"] > 1 and device is None:
            return None, facts
        table = f"{facts['functions']}_program"
        library = open_library(found.file, table)
        assert isinstance(library, SavedLibrary)              # as there is a table
        if json.loads(ctypes.string_at(library.addresses["hloc_manifest"])) != facts:
            raise ValueError("its code has another manifest")
        _refuse_other_cpu(path, library, facts["march"])
        blob = bytes_at(library.addresses["hloc_constants"], facts["constant_bytes"])
        return backend_of(found.file, facts, blob, table=table, device=device), facts


def _refuse_other_cpu(path: Path, library: SavedLibrary, march: str) -> None:
    """Raise RunError if the code may use instructions that this CPU lacks."""
    library.hloc_cpu_lacks.restype = ctypes.c_char_p
    lacks = library.hloc_cpu_lacks()
    if lacks is not None:
        made_for = "another CPU" if march == "native" else march
        raise RunError(f"{path} was compiled for {made_for}: this CPU, or its system, has no {lacks.decode()}",
                       hint="hloc compile --march x86-64-v2, or x86-64-v3, makes code for more CPUs")


def backend_of(library: IO[bytes], facts: dict, blob: np.ndarray, key: str = "", table: str = "",
               held: Sequence[int] = (), device: Device | None = None) -> CpuBackend:
    """The backend of a manifest; `blob` holds its constants. Raises UnsupportedError for a program of several devices
    without one of them."""
    refuse_other_devices(facts["devices"], device)
    parameters, results = (tuple(value_from_json(row) for row in facts[what]) for what in ("parameters", "results"))
    constants = tuple(blob[offset:] for offset in facts["constants"])
    program = Program(facts["name"], (), (), parameters, results, constants, facts["arena"], held=tuple(held))
    return CpuBackend(library, program, facts["devices"], key=key, table=table, device=device)


def refuse_other_devices(wanted: int, device: Device | None) -> None:
    """UnsupportedError where a program of several devices would run on one, or on another number."""
    if wanted > 1 and (device is None or device.count != wanted):
        raise UnsupportedError(f"the program is for {wanted} devices, not for {device.count if device else 1}",
                               hint=f"hloc run --devices {wanted} simulates them; under mpirun each process is one")
