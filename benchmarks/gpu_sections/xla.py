"""Whole programs against XLA:GPU on the same HLO text and inputs, in one process; data stays on the device."""
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

FIRST = ("transformer_train", "gpt2_prefill", "ResNet-50 training step, bf16, 128 images of 224x224",
         "ResNet-50 training step, f32, 128 images of 224x224")        # XLA takes long to compile: what matters most
LOOSE = 0.1                             # of the first number of the results: a loss, a logit; bf16 in other orders


class Xla:
    """The module compiled by XLA:GPU, its inputs on the device. Raises RuntimeError where JAX has no GPU."""

    def __init__(self, module, arrays):
        import jax

        from hloc.tools.xla_text import text_for_xla
        jax.config.update("jax_enable_x64", True)
        device = jax.devices("gpu")[0]
        self.compiled = compiled(text_for_xla(module), device)
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


def compiled(text: str, device):
    """HLO text, compiled by XLA for a device of JAX, whose inner modules have had several names."""
    try:
        from jaxlib import _jax
    except ImportError:                                     # before 0.6
        from jaxlib import xla_extension as _jax
    try:
        from jaxlib import _hlo
    except ImportError:                                     # then it is part of the other
        _hlo = _jax
    stablehlo = _jax.mlir.hlo_to_stablehlo(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    if hasattr(device.client, "compile_and_load"):
        return device.client.compile_and_load(stablehlo, _jax.DeviceList((device,)), _jax.CompileOptions())
    return device.client.compile(stablehlo, _jax.CompileOptions())


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
        return
    ratios: list[float] = []
    for case in sorted(cases(device), key=lambda c: FIRST.index(c.name) if c.name in FIRST else len(FIRST)):
        try:
            yield measured(device, case, *source(case, device), ratios)
        except (HlocError, LookupError, subprocess.TimeoutExpired) as error:
            yield {"what": case.name, "missing": (str(error).strip() or type(error).__name__).splitlines()[0]}
    if ratios:
        yield {"what": "all of them", "value": statistics.geometric_mean(ratios), "unit": "of XLA:GPU's time",
               "note": f"the slowest: {max(ratios):.2f}; to reach: 1.0 as geometric mean, 1.2 for each"}


def measured(device, case: Case, text, arrays, ratios: list[float]) -> dict:
    backend = device.program(text, arrays, "on", case.name)
    own, first = device.seconds(backend), backend.fetch()[0].ravel()[:1].astype(np.float64)
    given = random_arrays(backend.packed.parameters) if arrays is None else arrays
    backend.close()
    try:
        xla = Xla(api.load(text), given)
        theirs, number = xla.seconds(), xla.first()
    except Exception as error:                              # of any kind: JAX's inner interfaces change
        why = str(error).strip() or "no message"
        return {"what": case.name, "missing": f"XLA:GPU: {type(error).__name__}: {why.splitlines()[0][:200]}"}
    ratios.append(own / theirs)
    right = np.allclose(first, number, rtol=LOOSE, atol=LOOSE)
    told = f"{case.count / own:,.1f} {case.unit}/s, XLA:GPU {case.count / theirs:,.1f}"
    return {"what": case.name, "value": own * 1e3, "unit": "ms", "compared": {"XLA:GPU's time": own / theirs},
            "note": told if right else f"{told}; the first number is {first[0]:.5g}, XLA's {number[0]:.5g}",
            **({} if right else {"wrong": True})}
