"""XLA on the CPU as a second opinion, through jaxlib (the `jax` extra). It is imported only here, in
conformance/judge.py, and for StableHLO in text/stablehlo.py.

    run = xla_runner(module); results = run(arrays)

The module's text goes through XLA's own parser, in the form that xla_text.py gives it.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hloc.errors import RunError
from hloc.ir import Module
from hloc.tools.xla_text import text_for_xla


def xla_runner(module: Module) -> Callable[[Sequence[np.ndarray]], tuple[np.ndarray, ...]]:
    """Compile with XLA:CPU. Raises RunError where jaxlib is missing or XLA refuses the module."""
    return runner_of_text(text_for_xla(module))


def runner_of_text(text: str) -> Callable[[Sequence[np.ndarray]], tuple[np.ndarray, ...]]:
    """The same for a text that text_for_xla made."""
    try:
        import jax
        from jaxlib import _hlo, _jax
        from jaxlib.cpu import _lapack
    except ImportError as error:
        raise RunError(f"comparing with XLA needs jax, which is not here ({error})",
                       hint="pip install 'hloc[jax]'") from None
    _lapack.initialize()              # without it XLA calls LAPACK at address 0; JAX does it when it writes such a call
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    devices = jax.devices("cpu")[:1]
    try:
        proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
        stablehlo = _jax.mlir.hlo_to_stablehlo(proto)
        compiled = devices[0].client.compile_and_load(stablehlo, _jax.DeviceList(tuple(devices)), _jax.CompileOptions())
    except Exception as error:                     # jaxlib raises its own kinds, by version
        raise RunError(f"XLA refuses the module: {first_line(error)}") from None

    def run(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        given = [jax.device_put(a, devices[0]) for a in arrays]
        try:
            answers = compiled.execute_sharded(given).disassemble_into_single_device_arrays()
            return tuple(np.array(a[0]) for a in answers)
        except Exception as error:
            raise RunError(f"XLA fails to run the module: {first_line(error)}") from None

    return run


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
