"""NCCL, NVIDIA's library of collectives, through ctypes: seventeen functions and one struct.

Not through nccl4py, which needs cuda-bindings for the same calls. The library itself comes with JAX, PyTorch or a
distribution's packages; `pip install 'hloc[nccl]'` installs it on other machines.

    own = Nccl(library()); world = own.world(4, rank, id); own.all_reduce(world, to, source, 1024, "f32", "add", stream)

Addresses are of device memory, a stream is its handle, a communicator a number. Calls put work on a stream and return.
The library is loaded when a program with collectives starts. Raises RunError: no library, one that is too old, a status
that is not 0.
"""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from hloc.errors import RunError
from hloc.ir import ELEMENT_TYPES
from hloc.passes.nccl_rewriter import nccl_op
from hloc.targets.cuda.libraries import finding

NAMES = ("libnccl.so.2", "libnccl.so")
OLDEST = 21800                      # 2.18: ncclCommSplit
ID_BYTES = 128                      # NCCL_UNIQUE_ID_BYTES
NO_GROUP = -1                       # NCCL_SPLIT_NOCOLOR
# ncclDataType_t, ncclRedOp_t
BYTE = 0
TYPES = {"s8": 0, "u8": 1, "pred": 1, "s32": 2, "u32": 3, "s64": 4, "u64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
PARTS = {"c64": "f32", "c128": "f64"}           # of complex numbers, which are added part by part
OPS = {"add": 0, "multiply": 1, "maximum": 2, "minimum": 3}


class UniqueId(ctypes.Structure):
    """ncclUniqueId: how the processes of a communicator find each other."""

    _fields_ = (("bytes", ctypes.c_char * ID_BYTES),)


def library():
    """The library of a wheel or of the system. Raises RunError."""
    return finding.load("NCCL", "libnccl", NAMES, "nccl")


def version() -> str:
    """Of that library. Raises RunError."""
    number = ctypes.c_int()
    library().ncclGetVersion(ctypes.byref(number))
    return finding.version_text(number.value)


class Nccl:
    """The library's functions. Raises RunError for a version without ncclCommSplit."""

    def __init__(self, loaded):
        self.library = loaded
        version = ctypes.c_int()
        self._do("ncclGetVersion", ctypes.byref(version))
        if version.value < OLDEST:
            raise RunError(f"NCCL {finding.version_text(version.value)} is too old: collectives on GPUs need "
                           f"{finding.version_text(OLDEST)}", hint="pip install 'hloc[nccl]'")
        self.version = version.value

    def _do(self, name: str, *arguments) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RunError(f"NCCL refuses: {name}: {self._words(code)}",
                           hint="NCCL_DEBUG=WARN lets NCCL say more on stderr")

    def _words(self, code: int) -> str:
        text = self.library.ncclGetErrorString
        text.restype = ctypes.c_char_p
        return f"{(text(ctypes.c_int(code)) or b'').decode(errors='replace')} (status {code})"

    # -- communicators -----------------------------------------------------------------------------------------------

    def new_id(self) -> bytes:
        """Made by one process, for all."""
        made = UniqueId()
        self._do("ncclGetUniqueId", ctypes.byref(made))
        return ctypes.string_at(ctypes.byref(made), ID_BYTES)

    def world(self, count: int, rank: int, id: bytes) -> int:
        """The communicator of all; every process calls this, and waits for the others. The current context's GPU is
        this process's."""
        made, own = ctypes.c_void_p(), UniqueId.from_buffer_copy(id)
        self._do("ncclCommInitRank", ctypes.byref(made), ctypes.c_int(count), own, ctypes.c_int(rank))
        return made.value or 0

    def split(self, world: int, group: int, rank: int) -> int:
        """The communicator of a group, in which this process has the given rank; 0 for NO_GROUP. All processes of
        `world` call this, in the same order."""
        made = ctypes.c_void_p()
        self._do("ncclCommSplit", ctypes.c_void_p(world), ctypes.c_int(group), ctypes.c_int(rank), ctypes.byref(made),
                 None)
        return made.value or 0

    def abort(self, communicator: int) -> None:
        """Gives a communicator back; does not wait for others."""
        self._do("ncclCommAbort", ctypes.c_void_p(communicator))

    def check(self, communicator: int) -> None:
        """Raises RunError for an error of work that was put on streams."""
        code = ctypes.c_int()
        self._do("ncclCommGetAsyncError", ctypes.c_void_p(communicator), ctypes.byref(code))
        if code.value:
            raise RunError(f"NCCL stopped: {self._words(code.value)}")

    # -- collectives -------------------------------------------------------------------------------------------------

    @contextmanager
    def grouped(self) -> Iterator[None]:
        """Calls inside are one operation: messages in it do not wait for one another."""
        self._do("ncclGroupStart")
        try:
            yield
        finally:
            self._do("ncclGroupEnd")

    def all_reduce(self, communicator: int, to: int, source: int, size: int, type: str, op: str, stream: int) -> None:
        """size: bytes, as in all that follow."""
        self._do("ncclAllReduce", *_places(source, to), *_combined(size, type, op), *_where(communicator, stream))

    def reduce_scatter(self, communicator: int, to: int, source: int, size: int, type: str, op: str,
                       stream: int) -> None:
        """size: of the result."""
        self._do("ncclReduceScatter", *_places(source, to), *_combined(size, type, op), *_where(communicator, stream))

    def all_gather(self, communicator: int, to: int, source: int, size: int, stream: int) -> None:
        """size: of the operand."""
        self._do("ncclAllGather", *_places(source, to), ctypes.c_size_t(size), BYTE, *_where(communicator, stream))

    def broadcast(self, communicator: int, to: int, source: int, size: int, stream: int) -> None:
        """From rank 0."""
        self._do("ncclBroadcast", *_places(source, to), ctypes.c_size_t(size), BYTE, ctypes.c_int(0),
                 *_where(communicator, stream))

    def send(self, communicator: int, peer: int, source: int, size: int, stream: int) -> None:
        self._do("ncclSend", ctypes.c_void_p(source), ctypes.c_size_t(size), BYTE, ctypes.c_int(peer),
                 *_where(communicator, stream))

    def receive(self, communicator: int, peer: int, to: int, size: int, stream: int) -> None:
        self._do("ncclRecv", ctypes.c_void_p(to), ctypes.c_size_t(size), BYTE, ctypes.c_int(peer),
                 *_where(communicator, stream))


def _places(source: int, to: int) -> tuple:
    return ctypes.c_void_p(source), ctypes.c_void_p(to)


def _where(communicator: int, stream: int) -> tuple:
    return ctypes.c_void_p(communicator), ctypes.c_void_p(stream)


def _combined(size: int, type: str, op: str) -> tuple:
    """The number of elements, their type and the operation. Raises RunError for what nccl_rewriter should have
    replaced, as a changed file may hold it."""
    found = nccl_op(op, type)
    if found is None:
        raise RunError(f"NCCL has no {op} of {type}")
    type = PARTS.get(type, type)
    return ctypes.c_size_t(size // ELEMENT_TYPES[type].bytes), TYPES[type], OPS[found]
