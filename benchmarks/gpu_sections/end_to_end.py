"""Whole programs against hloc without fusion; data stays on the device."""
from __future__ import annotations

import subprocess
from collections.abc import Iterator

from gpu_sections.programs import Case, cases, source
from hloc.errors import HlocError


def rows(device) -> Iterator[dict]:
    for case in cases(device):
        if device.emulated and case.made:                   # a training step takes the emulation half a minute
            continue
        try:
            yield measured(device, case, *source(case, device))
        except (HlocError, LookupError, subprocess.TimeoutExpired) as error:
            yield {"what": case.name, "missing": (str(error).strip() or type(error).__name__).splitlines()[0]}


def measured(device, case: Case, text, arrays) -> dict:
    seconds = {}
    for fusion in ("on", "off"):
        backend = device.program(text, arrays, fusion, case.name)
        seconds[fusion] = device.seconds(backend)
        backend.close()
    published = f" ({case.published})" if case.published else ""
    return {"what": case.name, "value": seconds["on"] * 1e3, "unit": "ms",
            "compared": {"the time without fusion": seconds["on"] / seconds["off"]},
            "note": f"{case.count / seconds['on']:,.1f} {case.unit}/s; "
                    f"fused {seconds['off'] / seconds['on']:.2f} times as fast{published}"}
