"""XLA on the CPU as a second implementation, through jaxlib (the `jax` extra). It is imported only here, in
conformance/judge.py, and for StableHLO in text/stablehlo.py.

    run = xla_runner(module); results = run(arrays)

XLA's own parser reads the module's text, in the form that xla_text.py makes.
"""
from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from hloc.errors import RunError
from hloc.ir import Module
from hloc.tools.xla_text import text_for_xla


class XlaProgram:
    """A module that XLA:CPU compiled. Called with NumPy arrays it returns NumPy arrays."""

    def __init__(self, text: str) -> None:
        """Raises RunError if jaxlib is missing or XLA refuses the text, which text_for_xla made."""
        try:
            import jax
            from jaxlib import _hlo, _jax
            from jaxlib.cpu import _lapack
        except ImportError as error:
            raise RunError(f"comparing with XLA needs jax, which is not installed ({error})",
                           hint="pip install 'hloc[jax]'") from None
        _lapack.initialize()          # without it XLA calls LAPACK at address 0; JAX does it when it makes such a call
        jax.config.update("jax_platforms", "cpu")
        self._jax = jax
        self._device = jax.devices("cpu")[0]
        try:
            proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
            stablehlo, devices = _jax.mlir.hlo_to_stablehlo(proto), _jax.DeviceList((self._device,))
            start = time.perf_counter()
            self._compiled = self._device.client.compile_and_load(stablehlo, devices, _jax.CompileOptions())
            self.compile_seconds = time.perf_counter() - start
        except Exception as error:                 # jaxlib's exceptions vary by version
            raise RunError(f"XLA refuses the module: {first_line(error)}") from None

    def placed(self, arrays: Sequence[np.ndarray]) -> list:
        """The arguments, on XLA's device."""
        with self._jax.enable_x64(True):          # here only: the caller's JAX keeps its types
            return [self._jax.device_put(a, self._device).block_until_ready() for a in arrays]

    def execute(self, placed: Sequence) -> list:
        """Run to the end; the results stay with XLA. Raises RunError if it fails."""
        try:
            answers = self._compiled.execute_sharded(placed).disassemble_into_single_device_arrays()
            return [a[0].block_until_ready() for a in answers]
        except Exception as error:
            raise RunError(f"XLA fails to run the module: {first_line(error)}") from None

    def __call__(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        return tuple(np.array(a) for a in self.execute(self.placed(arrays)))


def xla_runner(module: Module) -> XlaProgram:
    """Compile with XLA:CPU. Raises RunError if jaxlib is missing or XLA refuses the module."""
    return XlaProgram(text_for_xla(module))


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
