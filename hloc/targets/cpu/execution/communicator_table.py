"""The layout of runtime/communicator.h's table of functions, for Python."""
from __future__ import annotations

import ctypes

VERSION = 1
DEVICES_FAIL, OTHERS_FAIL = 14, 15                 # codes of runs: other devices do not come; another one failed


class Table(ctypes.Structure):
    """hloc_communicator: one device's part in the collectives of programs."""

    _fields_ = (("version", ctypes.c_int32), ("device", ctypes.c_int32), ("devices", ctypes.c_int32),
                *((name, ctypes.c_void_p) for name in (
                    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "permute", "send", "recv",
                    "ragged_all_to_all", "done", "begin", "failed", "message")))
