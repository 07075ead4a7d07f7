"""What a tuning file gains: every variant of a few products and a convolution measured, the fastest right one against
the cost model's."""
from __future__ import annotations

from collections.abc import Iterator

from gpu_sections.products import DOT, SUMS
from hloc import api
from hloc.kernels.ir import Tile
from hloc.targets.cuda import compiler, kernel_images, target
from hloc.targets.cuda.execution import measure
from hloc.targets.cuda.tiles.source import variants

CONVOLUTION = """HloModule m
ENTRY e {{ x = {t}[{n},{s},{s},{c}] parameter(0)  w = {t}[3,3,{c},{c}] parameter(1)
  ROOT y = {t}[{n},{s},{s},{c}] convolution(x, w), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_01io->b01f }}
"""
SIZES = (("bf16", 8192, 8192, 8192), ("bf16", 512, 512, 16384), ("f32", 2048, 2048, 2048))
TINY = (("f32", 40, 40, 40),)


def cases(device) -> Iterator[tuple[str, str, int]]:
    """What it is, its text, and its operations."""
    n, size, c = device.size(128, 1), device.size(56, 6), device.size(64, 16)
    yield (f"bf16 convolution 3x3, {n} images of {size}x{size}, {c} channels",
           CONVOLUTION.format(t="bf16", n=n, s=size, c=c), 2 * n * size * size * 9 * c * c)
    for type, m, n, k in TINY if device.emulated else SIZES:
        text = DOT.format(t=type, o=SUMS[type], m=m, n=n, k=k, root="ROOT ") + "}\n"
        yield f"{type} {m} x {n} x {k}", text, 2 * m * n * k


def rows(device) -> Iterator[dict]:
    if device.emulated:
        kernel_images.images_of, compiler.compiler_version = device.images_of, lambda: 13000
    for what, text, operations in cases(device):
        own = target.cuda_target(device.machine)
        tile = next(k for k in api.plan(api.optimize(api.load(text), own), own).kernels if isinstance(k, Tile))
        names = [w for w in variants(tile, device.machine) if "wgmma" not in w]     # section warpgroups tries these
        found, first = measure.measure(tile, device.machine, names), names[0]
        best = found.microseconds[found.variant]
        order = sorted(found.microseconds, key=found.microseconds.get)
        all_variants = ", ".join(f"{variant} {found.microseconds[variant]:,.1f} us" for variant in order)
        refused = "; ".join(f"{variant}: {why}" for variant, why in found.refused.items())
        yield {"what": what, "value": operations / best / 1e6, "unit": "TFLOP/s",
               "compared": {"the cost model's time, without wgmma": best / found.microseconds[first]},
               "note": all_variants + (f"; refused: {refused}" if refused else ""),
               **({"wrong": True} if "its results are not" in refused else {})}
