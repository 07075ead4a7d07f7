"""What a tuning file gains: every way of a few products measured, the fastest right one against the cost model's."""
from __future__ import annotations

from collections.abc import Iterator

from gpu_sections.products import DOT, SUMS
from hloc import api
from hloc.kernels.ir import Tile
from hloc.targets.cuda import measure, target
from hloc.targets.cuda.tiles import ways

SIZES = (("bf16", 8192, 8192, 8192), ("bf16", 512, 512, 16384), ("f32", 2048, 2048, 2048))
TINY = (("f32", 40, 40, 40),)


def rows(device) -> Iterator[dict]:
    if device.emulated:
        target.compile_cuda, target.compiler_version = device.compile, lambda: 13000
    for type, m, n, k in TINY if device.emulated else SIZES:
        text = DOT.format(t=type, o=SUMS[type], m=m, n=n, k=k, root="ROOT ") + "}\n"
        own = target.cuda_target(device.machine)
        tile = next(k for k in api.plan(api.optimize(api.load(text), own), own).kernels if isinstance(k, Tile))
        found, first = measure.measure(tile, device.machine), ways(tile, device.machine)[0]
        best = found.microseconds[found.way]
        refused = "; ".join(f"{way}: {why}" for way, why in found.refused.items())
        yield {"what": f"{type} {m} x {n} x {k}", "value": 2 * m * n * k / best / 1e6, "unit": "TFLOP/s",
               "compared": {"the cost model's time": best / found.microseconds[first]},
               "note": f"{found.way}, of {len(found.microseconds)} ways" + (f"; {refused}" if refused else ""),
               **({"wrong": True} if "its results are not" in refused else {})}
