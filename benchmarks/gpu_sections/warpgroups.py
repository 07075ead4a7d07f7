"""wgmma and the bulk copy engine: products in ways that only sm_90a has, against the cost model's way.

No device had run them when they were written: each is tried in a process of its own, so that one that hangs or faults
takes nothing else with it.
"""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from gpu_sections.products import SUMS
from gpu_sections.programs import ROOT
from hloc import api
from hloc.kernels.ir import Tile
from hloc.targets.cuda import measure, target
from hloc.targets.cuda.tiles import ways

SECONDS = 7                             # of one way
CASES = (("bf16", "bulk copies"), ("bf16", "wgmma"), ("s8", "bulk copies"), ("f8e4m3fn", "bulk copies"))
# Both operands along the depth, as bytes must be
TEXT = "HloModule m\nENTRY e {{ a = {t}[{n},{n}] parameter(0)  b = {t}[{n},{n}] parameter(1)\n" \
       "  ROOT d = {o}[{n},{n}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}} }}\n"
CHILD = """
import json, sys
sys.path[:0] = [sys.argv[1] + "/benchmarks", sys.argv[1]]
from gpu_sections import warpgroups
from gpu_sections.device import Device
print(json.dumps(warpgroups.measured(Device(False), *sys.argv[2:4])))
"""


def rows(device) -> Iterator[dict]:
    if device.machine.arch != "sm_90a":
        yield {"what": "wgmma", "missing": f"{device.machine.name} is no sm_90a"}
        return
    if device.emulated:
        target.compile_cuda, target.compiler_version = device.compile, lambda: 13000
        yield measured(device, *CASES[0])
        return
    for type, way in CASES:
        what = title(device, type, way)
        try:
            done = subprocess.run([sys.executable, "-c", CHILD, str(ROOT), type, way], capture_output=True, text=True,
                                  errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            yield {"what": what, "missing": f"no answer in {SECONDS} s: compiled, it hangs, or the machine is slow"}
            continue
        lines = [line for line in (done.stdout if done.returncode == 0 else done.stderr).splitlines() if line.strip()]
        if done.returncode == 0:
            yield json.loads(lines[-1])
        else:
            yield {"what": what, "missing": lines[-1][:300] if lines else f"exit code {done.returncode}"}


def title(device, type: str, way: str) -> str:
    n = device.size(4096, 40)
    return f"{type} {n} x {n} x {n}, {way}"


def measured(device, type: str, way: str) -> dict:
    """A row: one way, and the cost model's."""
    n, own = device.size(4096, 40), target.cuda_target(device.machine)
    program = api.plan(api.optimize(api.load(TEXT.format(t=type, o=SUMS.get(type, "f32"), n=n)), own), own)
    tile = next(k for k in program.kernels if isinstance(k, Tile))
    names = ways(tile, device.machine)
    label = next(w for w in names if w.endswith(way))
    found = measure.measure(tile, device.machine, [names[0], label])
    if label in found.refused:
        return {"what": title(device, type, way), "value": "wrong", "wrong": True, "note": found.refused[label]}
    seconds = found.microseconds[label] * 1e-6
    return {"what": title(device, type, way), "value": 2 * n ** 3 / seconds / 1e12, "unit": "TFLOP/s",
            "compared": {"the cost model's time": found.microseconds[label] / found.microseconds[names[0]]},
            "note": f"{label}, against {names[0]}"}
