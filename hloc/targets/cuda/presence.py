"""Whether a usable GPU is present.

    device_missing()     why there is none; "" if there is one
"""
from __future__ import annotations

from hloc.errors import HlocError
from hloc.targets import presence


def device_missing() -> str:
    """Why no GPU can be used here; "" if one can."""
    if not presence.driver_present():
        return "no NVIDIA driver"
    from hloc.targets.cuda.execution.context import device_machine
    try:
        device_machine()
    except HlocError as error:
        return error.message
    return ""


def device_present() -> bool:
    """Whether PyCUDA and a device are present."""
    return not device_missing()
