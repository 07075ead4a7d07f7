"""XLA on the CPU, through jaxlib, as a judge of the examples: run(text, inputs) -> outputs.

Raises ImportError where jaxlib is missing. The way leads through StableHLO, so the entry has arrays only.
"""
from __future__ import annotations

import os
from functools import lru_cache

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_allow_excess_precision=false")

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jaxlib import _hlo, _jax  # noqa: E402


@lru_cache(maxsize=1)
def _device():
    return jax.devices("cpu")[0]


def run(text: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Compile and run a module on flattened inputs. Raises RuntimeError or ValueError where XLA refuses."""
    device = _device()
    stablehlo = _jax.mlir.hlo_to_stablehlo(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    program = device.client.compile_and_load(stablehlo, _jax.DeviceList((device,)), _jax.CompileOptions())
    with jax.enable_x64(True):      # here only: other tests of this process see JAX as its users do
        results = program.execute_sharded([jax.device_put(x, device) for x in inputs])
    return [np.asarray(r[0]) for r in results.disassemble_into_single_device_arrays()]
