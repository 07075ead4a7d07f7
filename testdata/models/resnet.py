"""ResNet-50 in plain JAX: its layers for inference and for training, and its weights; any other size by a Config.

In: images f32[batch, height, width, 3], parameters, statistics (running mean and variance of every batch norm).
Out: logits f32[batch, classes], and the new statistics. With a narrow `dtype`, what lies between the norms has it.

A batch norm gets its mean and variance either from the statistics (inference) or from the batch (training).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from layers import conv, conv_weight, dense, dense_weights
from weights import Weight

MOMENTUM = 0.9  # of the running statistics


class Config(NamedTuple):
    """stages: (blocks, inner channels) of each; stem: channels of the first convolution."""

    stages: tuple[tuple[int, int], ...]
    stem: int
    classes: int


RESNET50 = Config(((3, 64), (4, 128), (6, 256), (3, 512)), 64, 1000)
REDUCED = Config(((1, 8), (2, 16)), 8, 10)  # every kind of layer once or twice


def resnet(config: Config, images: jax.Array, parameters: dict, statistics: dict, training: bool,
           dtype=jnp.float32) -> tuple[jax.Array, dict]:
    """Logits, and the statistics as they are after this batch (unchanged at inference)."""
    norm = Norm(parameters, statistics, training)
    kernels = {name: parameters[name].astype(dtype) for name in convolutions(config)}
    x = conv(images.astype(dtype), kernels["stem.conv"], stride=2)
    x = jax.nn.relu(norm(x, "stem.norm"))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for name, _, _, _, stride in blocks(config):
        with jax.named_scope(name):
            x = bottleneck(x, kernels, norm, name, stride)
    return dense(x.astype(jnp.float32).mean((1, 2)), parameters, "top"), norm.updated


def bottleneck(x: jax.Array, kernels: dict, norm: "Norm", name: str, stride: int) -> jax.Array:
    """1x1 down, 3x3, 1x1 up; where the shape changes, the shortcut has a 1x1 convolution of its own."""
    shortcut = x
    if f"{name}.shortcut.conv" in kernels:
        shortcut = norm(conv(x, kernels[f"{name}.shortcut.conv"], stride), f"{name}.shortcut.norm")
    x = jax.nn.relu(norm(conv(x, kernels[f"{name}.conv1"]), f"{name}.norm1"))
    x = jax.nn.relu(norm(conv(x, kernels[f"{name}.conv2"], stride), f"{name}.norm2"))
    return jax.nn.relu(norm(conv(x, kernels[f"{name}.conv3"]), f"{name}.norm3") + shortcut)


class Norm:
    """Batch norm of any layer by its name; gathers the new running statistics."""

    def __init__(self, parameters: dict, statistics: dict, training: bool):
        self.parameters, self.statistics, self.training = parameters, statistics, training
        self.updated = {}

    def __call__(self, x: jax.Array, name: str) -> jax.Array:
        mean, variance = self.statistics[f"{name}.mean"], self.statistics[f"{name}.variance"]
        dtype, x = x.dtype, x.astype(jnp.float32)
        if self.training:
            batch_mean, batch_variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            self.updated[f"{name}.mean"] = MOMENTUM * mean + (1 - MOMENTUM) * batch_mean
            self.updated[f"{name}.variance"] = MOMENTUM * variance + (1 - MOMENTUM) * batch_variance
            mean, variance = batch_mean, batch_variance
        scale = self.parameters[f"{name}.scale"] * lax.rsqrt(variance + 1e-5)
        return ((x - mean) * scale + self.parameters[f"{name}.bias"]).astype(dtype)


def blocks(config: Config):
    """(name, input channels, inner channels, output channels, stride) of every block."""
    inputs = config.stem
    for stage, (count, inner) in enumerate(config.stages):
        for k in range(count):
            yield f"stage{stage}.block{k}", inputs, inner, 4 * inner, 2 if k == 0 and stage > 0 else 1
            inputs = 4 * inner


def convolutions(config: Config) -> dict[str, tuple[int, int, int]]:
    """(size, input channels, output channels) of every convolution, by name."""
    found = {"stem.conv": (7, 3, config.stem)}
    for name, inputs, inner, outputs, _ in blocks(config):
        found |= {f"{name}.conv1": (1, inputs, inner), f"{name}.conv2": (3, inner, inner)}
        found[f"{name}.conv3"] = (1, inner, outputs)
        if inputs != outputs:
            found[f"{name}.shortcut.conv"] = (1, inputs, outputs)
    return found


def parameter_weights(config: Config, norm_weights: Callable) -> dict[str, Weight]:
    """`norm_weights` says of a norm's name and width what its scale and bias are like."""
    weights = dense_weights("top", 4 * config.stages[-1][1], config.classes, 0.03)
    for name, (size, inputs, outputs) in convolutions(config).items():
        weights[name] = conv_weight(size, inputs, outputs)
        weights |= prefixed(norm_of(name), norm_weights(norm_of(name), outputs))
    return weights


def statistics_weights(config: Config) -> dict[str, Weight]:
    weights = {}
    for name, (_, _, outputs) in convolutions(config).items():
        weights[f"{norm_of(name)}.mean"] = Weight((outputs,), 0.1)
        weights[f"{norm_of(name)}.variance"] = Weight((outputs,), 0.2, mean=1.0)
    return weights


def norm_of(conv_name: str) -> str:
    return conv_name.replace("conv", "norm")


def prefixed(prefix: str, weights: dict) -> dict:
    return {f"{prefix}.{name}": weight for name, weight in weights.items()}


def part(state: dict, prefix: str) -> dict:
    """The entries of a flat dict under this prefix, without it."""
    return {name.removeprefix(f"{prefix}."): array for name, array in state.items() if name.startswith(f"{prefix}.")}
