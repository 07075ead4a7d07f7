"""The communicators of runs: their table of functions, and those of devices that are threads of this process
(runtime/threads.c). MPI processes have theirs (mpi.py).

In: a program's library, which holds the C code. Out: an address for each device.

    devices = ThreadDevices(library, 4);  ThreadCommunicator(devices, 0).address
"""
from __future__ import annotations

import ctypes
import weakref

from hloc.errors import RunError
from hloc.evaluate.simulate import AbandonedError

VERSION = 1
DEVICES_FAIL = 14                                  # code of a run: other devices do not come


class Table(ctypes.Structure):
    """hloc_communicator of runtime/communicator.h: one device's part in the collectives of programs."""

    _fields_ = (("version", ctypes.c_int32), ("device", ctypes.c_int32), ("devices", ctypes.c_int32),
                *((name, ctypes.c_void_p) for name in (
                    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "permute", "send", "recv",
                    "ragged_all_to_all", "done", "begin", "failed", "message")))


class ThreadDevices:
    """The devices that are threads of this process: an hloc_devices. library: any program's; it stays loaded."""

    def __init__(self, library, count: int):
        self.library = library
        for name, result in (("new", ctypes.c_void_p), ("of", ctypes.c_void_p)):
            getattr(library, f"hloc_devices_{name}").restype = result
        self.address = library.hloc_devices_new(ctypes.c_int(count))
        if not self.address:
            raise RunError("out of memory for the devices of a run")
        weakref.finalize(self, library.hloc_devices_free, ctypes.c_void_p(self.address)).atexit = False

    def of(self, device: int) -> int:
        return self.library.hloc_devices_of(ctypes.c_void_p(self.address), ctypes.c_int(device))

    def reset(self) -> None:
        """Before a run."""
        self.library.hloc_devices_reset(ctypes.c_void_p(self.address))

    def leave(self, device: int) -> None:
        """A device has ended: who waits for it fails."""
        self.library.hloc_devices_leave(ctypes.c_void_p(self.address), ctypes.c_int(device))

    def stop(self) -> None:
        """Whoever waits fails."""
        self.library.hloc_devices_stop(ctypes.c_void_p(self.address))


class ThreadCommunicator:
    """That of one of them."""

    def __init__(self, devices: ThreadDevices, device: int):
        self.devices = devices
        self.address = devices.of(device)

    def error(self, code: int) -> BaseException:
        table = Table.from_address(self.address)
        said = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(table.message)(self.address)
        return AbandonedError((said or b"").decode(errors="replace"), is_cause=code == DEVICES_FAIL)
