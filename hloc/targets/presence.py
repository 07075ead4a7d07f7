"""Whether there is a GPU: its driver, and a device that can be used.

    driver_present()     cheap; machines without a GPU import nothing for it
    device_missing()     why no GPU can be used here; "" where one can
"""
from __future__ import annotations

import os

from hloc.errors import HlocError


def driver_present() -> bool:
    """Whether an NVIDIA driver shows itself."""
    return any(os.path.exists(p) for p in ("/dev/nvidiactl", "/dev/dxg"))


def device_missing() -> str:
    """Why no GPU can be used here; "" where one can."""
    if not driver_present():
        return "no NVIDIA driver"
    from hloc.targets.cuda.execution.runtime import device_machine
    try:
        device_machine()
    except HlocError as error:
        return error.message
    return ""


def device_present() -> bool:
    """Whether PyCUDA and a device are here."""
    return not device_missing()
