"""Whether an NVIDIA driver is here: cheap, and machines without one import nothing for it."""
from __future__ import annotations

import os


def driver_present() -> bool:
    """Whether an NVIDIA driver shows itself."""
    return any(os.path.exists(p) for p in ("/dev/nvidiactl", "/dev/dxg"))
