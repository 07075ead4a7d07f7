"""Whether there is an NVIDIA driver; cheap, without imports."""
from __future__ import annotations

import os


def driver_present() -> bool:
    """Whether there is an NVIDIA driver."""
    return any(os.path.exists(p) for p in ("/dev/nvidiactl", "/dev/dxg"))
