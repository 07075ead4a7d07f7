"""One training step of a ResNet: batch norm over the batch, cross entropy, gradients, SGD with momentum.

In: images u8[batch, size, size, 3], labels s32[batch], then momentum, parameters and running statistics, all f32.
Out: the loss f32[], then the new momentum, parameters and statistics.

A gradient through ReLU jumps where its argument passes through zero. Millions of arguments come from a batch, so with
ordinary weights a few always lie so close to zero that rounding decides, and no two machines agree to more than a few
percent. Here the norms' biases keep the arguments away from zero: a channel is on or off.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from resnet import Config, parameter_weights, part, prefixed, resnet, statistics_weights
from weights import Weight

RATE, MOMENTUM, DECAY = 0.1, 0.9, 1e-4


class Step(NamedTuple):
    loss: jax.Array
    state: dict


def training_step(config: Config, dtype):
    """The function of one step; what lies between the norms has this type."""

    def loss(parameters: dict, statistics: dict, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, dict]:
        scaled = images.astype(jnp.float32) / 127.5 - 1
        logits, statistics = resnet(config, scaled, parameters, statistics, training=True, dtype=dtype)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean(), statistics

    def train(images: jax.Array, labels: jax.Array, state: dict) -> Step:
        parameters, momentum = part(state, "parameter"), part(state, "momentum")
        (error, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(
            parameters, part(state, "statistic"), images, labels
        )
        momentum = {name: MOMENTUM * momentum[name] + g + DECAY * parameters[name] for name, g in gradient.items()}
        parameters = {name: parameter - RATE * momentum[name] for name, parameter in parameters.items()}
        return Step(error, prefixed("momentum", momentum) | prefixed("parameter", parameters)
                    | prefixed("statistic", statistics))

    return train


def norm_weights(name: str, width: int) -> dict[str, Weight]:
    """Biases of four to five standard deviations, of either sign inside a block; what blocks add up stays positive."""
    if name.endswith("shortcut.norm"):
        bias, scale = Weight((width,), 0.1, mean=2.0), Weight((width,), 0.02, mean=0.15)
    elif name.endswith("norm3"):
        bias, scale = Weight((width,), 0.1, mean=0.2), Weight((width,), 0.02, mean=0.15)
    else:
        bias, scale = Weight((width,), 0.05, mean=1.35, either_sign=True), Weight((width,), 0.03, mean=0.3)
    return {"bias": bias, "scale": scale}


def training_model(config: Config, batch: int, size: int, dtype=jnp.float32, kind: str = "large") -> Model:
    parameters = parameter_weights(config, norm_weights)
    state = prefixed("parameter", parameters) | prefixed("statistic", statistics_weights(config))
    state |= prefixed("momentum", {name: Weight(w.shape, 3e-3) for name, w in parameters.items()})
    rng = np.random.default_rng(51)
    images = rng.integers(0, 256, (batch, size // 8, size // 8, 3), np.uint8).repeat(8, axis=1).repeat(8, axis=2)
    return Model(
        training_step(config, dtype),
        {"images": images, "labels": rng.integers(0, config.classes, batch, np.int32)},
        weights=dict(sorted(state.items())),
        seed=51,
        size=kind,
        ranges={"images": [0, 256], "labels": [0, config.classes]},
    )
