"""Whole programs against XLA:GPU on the same HLO text and inputs, in one process. Data stays on the device; both are
timed by the host's clock, from the start of a run to the end of its last kernel.

    python benchmarks/gpu.py --compile-xla          what `prepare` starts: XLA's compilations, into a folder

XLA takes longer to compile the large programs than this section has: `prepare` lets it begin, alone on the GPU, and
what is not ready by then is compiled here.
"""
from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gpu_sections.device import random_arrays
from gpu_sections.programs import FOLDER, Case, cases, key, source
from hloc import api
from hloc.errors import HlocError

FIRST = ("transformer_train", "gpt2_prefill", "ResNet-50 training step, bf16, 128 images of 224x224",
         "ResNet-50 training step, f32, 128 images of 224x224")        # XLA takes long to compile: what matters most
LOOSE = 0.1                             # of the first number of the results: a loss, a logit; bf16 in other orders


class Xla:
    """The module compiled by XLA:GPU, its inputs on the device. Raises RuntimeError where JAX has no GPU."""

    def __init__(self, name: str, module, arrays):
        import jax
        jax.config.update("jax_enable_x64", True)
        device = own_device()
        self.compiled = made_before(name, device) or compiled(module, device)
        self.arguments = [jax.device_put(a, device) for a in arrays]

    def run(self) -> None:
        for answer in self.compiled.execute_sharded(self.arguments).disassemble_into_single_device_arrays():
            answer[0].block_until_ready()

    def first(self) -> np.ndarray:
        """The first number of the first result."""
        answer = self.compiled.execute_sharded(self.arguments).disassemble_into_single_device_arrays()[0][0]
        return np.asarray(answer).ravel()[:1].astype(np.float64)


def own_device():
    """JAX's name of the GPU."""
    import jax
    return jax.devices("gpu")[0]


def seconds(run: Callable[[], None]) -> float:
    """The median of runs that end when their work has ended."""
    for _ in range(2):
        run()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < 0.5 and len(times) < 100):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# -- compiling ---------------------------------------------------------------------------------------------------------

def path_of(name: str) -> Path | None:
    """Where `prepare` puts what XLA made of a program."""
    return Path(os.environ[FOLDER]) / f"{key(name, 'xla')}.xla" if FOLDER in os.environ else None


def made_before(name: str, device):
    """What `prepare` has compiled, or None."""
    made = path_of(name)
    if made is None or not made.exists():
        return None
    jaxlib, _ = inner_modules()
    devices = jaxlib.DeviceList((device,))
    with contextlib.suppress(Exception):                    # of any kind: JAX's inner interfaces change
        return device.client.deserialize_executable(made.read_bytes(), devices, jaxlib.CompileOptions())
    return None


def compile_ahead(device) -> int:
    """Compile all programs, one after the other, so that XLA measures its ways on a GPU that nobody else uses. Exit
    code."""
    missing = xla_missing(device)
    if missing:
        print(missing, file=sys.stderr)
        return 1
    import jax
    jax.config.update("jax_enable_x64", True)
    gpu = own_device()
    for case in in_order(device):
        try:
            made = compiled(api.load(source(case, device)[0]), gpu)
            beside = path_of(case.name).with_suffix(".part")
            beside.write_bytes(made.serialize())
            beside.replace(path_of(case.name))
        except Exception as error:                          # is met again, and told, where it is measured
            print(f"{case.name}: {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)
    return 0


def inner_modules():
    """JAX's inner modules, which have had several names: of devices and programs, of HLO."""
    try:
        from jaxlib import _jax
    except ImportError:                                     # before 0.6
        from jaxlib import xla_extension as _jax
    try:
        from jaxlib import _hlo
    except ImportError:                                     # then it is part of the other
        _hlo = _jax
    return _jax, _hlo


def compiled(module, device):
    """A module, compiled by XLA for a device of JAX."""
    from hloc.tools.xla_text import text_for_xla
    jaxlib, hlo = inner_modules()
    proto = hlo.hlo_module_from_text(text_for_xla(module)).as_serialized_hlo_module_proto()
    stablehlo = jaxlib.mlir.hlo_to_stablehlo(proto)
    if hasattr(device.client, "compile_and_load"):
        return device.client.compile_and_load(stablehlo, jaxlib.DeviceList((device,)), jaxlib.CompileOptions())
    return device.client.compile(stablehlo, jaxlib.CompileOptions())


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


# -- measuring ---------------------------------------------------------------------------------------------------------

def in_order(device) -> list[Case]:
    return sorted(cases(device), key=lambda c: FIRST.index(c.name) if c.name in FIRST else len(FIRST))


def rows(device) -> Iterator[dict]:
    missing = xla_missing(device)
    if missing:
        yield {"what": "XLA:GPU", "missing": missing}
        return
    ratios: list[float] = []
    for case in in_order(device):
        try:
            yield measured(device, case, *source(case, device), ratios)
        except (HlocError, LookupError, subprocess.TimeoutExpired) as error:
            yield {"what": case.name, "missing": (str(error).strip() or type(error).__name__).splitlines()[0]}
    if ratios:
        yield {"what": "all of them", "value": statistics.geometric_mean(ratios), "unit": "of XLA:GPU's time",
               "note": f"the slowest: {max(ratios):.2f}; to reach: 1.0 as geometric mean, 1.2 for each"}


def measured(device, case: Case, text, arrays, ratios: list[float]) -> dict:
    backend = device.program(text, arrays, "on", case.name)

    def run() -> None:
        backend.run()
        backend.wait()
    own, first = seconds(run), backend.fetch()[0].ravel()[:1].astype(np.float64)
    given = random_arrays(backend.packed.parameters) if arrays is None else arrays
    backend.close()
    try:
        xla = Xla(case.name, api.load(text), given)
        theirs, number = seconds(xla.run), xla.first()
    except Exception as error:                              # of any kind: JAX's inner interfaces change
        why = str(error).strip() or "no message"
        return {"what": case.name, "missing": f"XLA:GPU: {type(error).__name__}: {why.splitlines()[0][:200]}"}
    ratios.append(own / theirs)
    right = np.allclose(first, number, rtol=LOOSE, atol=LOOSE)
    told = f"{case.count / own:,.1f} {case.unit}/s, XLA:GPU {case.count / theirs:,.1f}"
    return {"what": case.name, "value": own * 1e3, "unit": "ms", "compared": {"XLA:GPU's time": own / theirs},
            "note": told if right else f"{told}; the first number is {first[0]:.5g}, XLA's {number[0]:.5g}",
            **({} if right else {"wrong": True})}
