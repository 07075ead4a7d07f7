"""Whole models against XLA:GPU on the same HLO text, and against hloc without fusion; data stays on the device."""
from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator

import numpy as np

from gpu_sections.device import random_arrays
from gpu_sections.programs import Case, cases, source
from hloc import api
from hloc.errors import HlocError

LOOSE = 0.1                             # of the first number of the results: a loss, a logit; bf16 in other orders


class Xla:
    """The module compiled by XLA:GPU, its inputs on the device. Raises RuntimeError where JAX has no GPU."""

    def __init__(self, module, arrays):
        import jax
        from jaxlib import _hlo, _jax

        from hloc.tools.xla_text import text_for_xla
        jax.config.update("jax_enable_x64", True)
        device = jax.devices("gpu")[0]
        proto = _hlo.hlo_module_from_text(text_for_xla(module)).as_serialized_hlo_module_proto()
        self.compiled = device.client.compile_and_load(
            _jax.mlir.hlo_to_stablehlo(proto), _jax.DeviceList((device,)), _jax.CompileOptions())
        self.arguments = [jax.device_put(a, device) for a in arrays]

    def run(self) -> None:
        for answer in self.compiled.execute_sharded(self.arguments).disassemble_into_single_device_arrays():
            answer[0].block_until_ready()

    def first(self) -> np.ndarray:
        """The first number of the first result."""
        answer = self.compiled.execute_sharded(self.arguments).disassemble_into_single_device_arrays()[0][0]
        return np.asarray(answer).ravel()[:1].astype(np.float64)

    def seconds(self) -> float:
        for _ in range(2):
            self.run()
        times = []
        while len(times) < 5 or (sum(times) < 0.5 and len(times) < 100):
            start = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def xla_missing(device) -> str:
    """Why XLA:GPU is not measured; "" where it is."""
    if device.emulated:
        return "XLA:GPU does not run on the emulation"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")         # hloc wants memory too
    try:
        import jax
        jax.devices("gpu")
    except (ImportError, RuntimeError) as error:
        return f"jax has no GPU: {str(error).splitlines()[0]}; pip install 'jax[cuda13]'"
    return ""


def rows(device) -> Iterator[dict]:
    missing = xla_missing(device)
    if missing:
        yield {"what": "XLA:GPU", "missing": missing}
    ratios: list[float] = []
    for case in cases(device):
        try:
            text, arrays = source(case, device)
            yield measured(device, case, text, arrays, not missing, ratios)
        except (HlocError, LookupError, RuntimeError, subprocess.TimeoutExpired) as error:
            yield {"what": case.name, "missing": (str(error).strip() or type(error).__name__).splitlines()[0]}
    if ratios:
        yield {"what": "all of them", "value": statistics.geometric_mean(ratios), "unit": "of XLA:GPU's time",
               "note": f"the slowest: {max(ratios):.2f}; to reach: 1.0 as geometric mean, 1.2 for each"}


def measured(device, case: Case, text, arrays, with_xla: bool, ratios: list[float]) -> dict:
    seconds, first = {}, None
    for fusion in ("on", "off"):
        backend = device.program(text, arrays, fusion, case.name)
        seconds[fusion] = device.seconds(backend)
        if fusion == "on":
            first = backend.fetch()[0].ravel()[:1].astype(np.float64)
        given = random_arrays(backend.packed.parameters) if arrays is None else arrays
        backend.close()
    compared = {"the time without fusion": seconds["on"] / seconds["off"]}
    published = f" ({case.published})" if case.published else ""
    note = [f"{case.count / seconds['on']:,.1f} {case.unit}/s",
            f"fused {seconds['off'] / seconds['on']:.2f} times as fast{published}"]
    row = {"what": case.name, "value": seconds["on"] * 1e3, "unit": "ms", "compared": compared}
    if with_xla:
        xla = Xla(api.load(text), given)
        compared["XLA:GPU's time"] = seconds["on"] / xla.seconds()
        ratios.append(compared["XLA:GPU's time"])
        theirs = xla.first()
        if not np.allclose(first, theirs, rtol=LOOSE, atol=LOOSE):
            row["wrong"] = True
            note.append(f"the first number is {first[0]:.5g}, XLA's {theirs[0]:.5g}")
    return {**row, "note": "; ".join(note)}
