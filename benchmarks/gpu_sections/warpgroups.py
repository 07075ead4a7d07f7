"""wgmma and the bulk copy engine: products and attention in variants that only sm_90a has, against the best other one.

No device had run them when they were written: each is tried in a process of its own, so that one that hangs or faults
takes nothing else with it.
"""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from gpu_sections.products import ATTENTION, SUMS, cublas, cublas_rate
from gpu_sections.programs import ROOT
from gpu_sections.tuning import CONVOLUTION
from hloc import api
from hloc.kernels.ir import Tile
from hloc.targets.cuda import compiler, kernel_images, target
from hloc.targets.cuda.execution import measure
from hloc.targets.cuda.tiles.source import variants

SECONDS = 10                            # of one way
BULK = "wgmma, bulk copies"
LARGE = "cuBLASLt's bf16 product of 8192 cubed"
# type, or attention, or convolution; how the variant's label begins, and ends
CASES = (("bf16", "128x256", BULK), ("attention", "128 queries, 128 keys", BULK), ("f16", "128x256", "wgmma"),
         ("convolution", "128x256", BULK), ("f8e4m3fn", "128x128", BULK), ("tf32", "128x256", BULK))
# Both operands along the depth, as bytes must be
TEXT = "HloModule m\nENTRY e {{ a = {t}[{n},{n}] parameter(0)  b = {t}[{n},{n}] parameter(1)\n" \
       "  ROOT d = {o}[{n},{n}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}{how} }}\n"
CHILD = """
import json, sys
sys.path[:0] = [sys.argv[1] + "/benchmarks", sys.argv[1]]
from gpu_sections import warpgroups
from gpu_sections.device import Device
print(json.dumps(warpgroups.measured(Device(False), *sys.argv[2:5])))
"""


def rows(device) -> Iterator[dict]:
    if device.machine.arch != "sm_90a":
        yield {"what": "wgmma", "missing": f"{device.machine.name} is no sm_90a"}
        return
    if device.emulated:
        kernel_images.images_of, compiler.compiler_version = device.images_of, lambda: 13000
        for case in CASES[:2]:
            yield measured(device, *case)
        return
    for case in CASES:
        what = problem(device, *case)[0]
        try:
            done = subprocess.run([sys.executable, "-c", CHILD, str(ROOT), *case], capture_output=True, text=True,
                                  errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            yield {"what": what, "missing": f"no answer in {SECONDS} s: compiled, it hangs, or the machine is slow"}
            continue
        lines = [line for line in (done.stdout if done.returncode == 0 else done.stderr).splitlines() if line.strip()]
        if done.returncode == 0:
            yield json.loads(lines[-1])
        else:
            yield {"what": what, "missing": lines[-1][:300] if lines else f"exit code {done.returncode}"}


def problem(device, kind: str, first: str, last: str) -> tuple[str, str, float]:
    """What is measured, its HLO, its operations."""
    if kind == "attention":
        h, s, d = device.size(64, 2), device.size(2048, 40), device.size(128, 16)
        return f"attention bf16 {h} heads, {s} positions of {d}, {first}, {last}", ATTENTION.format(h=h, s=s, d=d), \
            4 * h * s * s * d
    if kind == "convolution":
        n, s, c = device.size(128, 3), device.size(28, 6), device.size(256, 64)
        return f"bf16 convolution 3x3, {n} images of {s}x{s}, {c} channels, {first}, {last}", \
            CONVOLUTION.format(t="bf16", n=n, s=s, c=c), 2 * n * s * s * 9 * c * c
    n, type = device.size(8192 if kind == "bf16" else 4096, 40), "f32" if kind == "tf32" else kind
    how = ", algorithm=dot_tf32_tf32_f32" if kind == "tf32" else ""
    text = TEXT.format(t=type, o=SUMS.get(type, "f32"), n=n, how=how)
    return f"{kind} {n} x {n} x {n}, {first}, {last}", text, 2 * n ** 3


def measured(device, kind: str, first: str, last: str) -> dict:
    """A row: one way, and the one that the cost model would choose without wgmma."""
    own = target.cuda_target(device.machine)
    what, text, operations = problem(device, kind, first, last)
    program = api.plan(api.optimize(api.load(text), own), own)
    tile = next(k for k in program.kernels if isinstance(k, Tile))
    names = variants(tile, device.machine)
    label = next(w for w in names if w.startswith(first) and w.endswith(last))
    plain = next(w for w in names if "wgmma" not in w)
    found = measure.measure(tile, device.machine, [plain, label])
    if label in found.refused:
        return {"what": what, "value": "wrong", "wrong": True, "note": found.refused[label]}
    rate = operations / found.microseconds[label] * 1e6
    compared = {"the time by mma.sync": found.microseconds[label] / found.microseconds[plain]}
    if kind in ("bf16", "attention") and (lt := cublas(device)[0]) is not None:
        compared["cuBLASLt" if kind == "bf16" else LARGE] = rate / cublas_rate(device, lt, "bf16", 8192, 8192, 8192)
    return {"what": what, "value": rate / 1e12, "unit": "TFLOP/s", "compared": compared,
            "note": f"{label}, against {plain}"}
