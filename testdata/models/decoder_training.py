"""One training step of a small transformer: forward, cross entropy, backward, Adam.

In: tokens s32[batch, positions + 1] (each is to be predicted from those before it), step count s32[], then of every
parameter the running mean of its gradient, the running mean of the squared gradient, and its value.
Out: the loss f32[], then the new means, values and squares. They are in mid-training: in Adam's very first steps a tiny
difference in a gradient near zero decides on a whole step, and no two machines would agree.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from decoder import Config, decoder_weights, logits, read
from weights import Weight

RATE, BETA1, BETA2 = 1e-3, 0.9, 0.999


class Step(NamedTuple):
    loss: jax.Array
    state: dict


def training_step(config: Config):
    """The function of one step."""

    def loss(values: dict, tokens: jax.Array) -> jax.Array:
        features, _ = read(config, values, tokens[:, :-1])
        log_probabilities = jax.nn.log_softmax(logits(values, features))
        return -jnp.take_along_axis(log_probabilities, tokens[:, 1:, None], axis=2).mean()

    def train(tokens: jax.Array, count: jax.Array, state: dict) -> Step:
        values = part(state, "value")
        error, gradient = jax.value_and_grad(loss)(values, tokens)
        new = {}
        for name, g in gradient.items():
            mean = BETA1 * state[f"mean.{name}"] + (1 - BETA1) * g
            square = BETA2 * state[f"square.{name}"] + (1 - BETA2) * g * g
            scale = jnp.sqrt(square / (1 - BETA2**count)) + 1e-8
            new[f"mean.{name}"], new[f"square.{name}"] = mean, square
            new[f"value.{name}"] = values[name] - RATE * (mean / (1 - BETA1**count)) / scale
        return Step(error, new)

    return train


def part(state: dict, kind: str) -> dict:
    return {name.removeprefix(f"{kind}."): array for name, array in state.items() if name.startswith(f"{kind}.")}


def state_weights(config: Config) -> dict[str, Weight]:
    state = {}
    for name, weight in decoder_weights(config).items():
        state[f"mean.{name}"] = Weight(weight.shape, 1e-3)
        state[f"square.{name}"] = Weight(weight.shape, 4e-6, mean=1e-5)
        state[f"value.{name}"] = weight
    return dict(sorted(state.items()))


def training_model(config: Config, batch: int, size: str = "large") -> Model:
    tokens = np.random.default_rng(5).integers(0, config.vocabulary, (batch, config.positions + 1), np.int32)
    return Model(
        training_step(config),
        {"tokens": tokens, "count": np.int32(100)},
        weights=state_weights(config),
        seed=5,
        size=size,
        ranges={"tokens": [0, config.vocabulary], "count": [50, 200]},
    )
