"""An LSTM layer over a sequence, as lax.scan: a while loop that reads a slice of inputs and writes one of outputs.

In: sequence f32[64,8,64] (time, batch, features), first cell and first output f32[8,128], weights.
Out: all outputs f32[64,8,128], the last cell and the last output f32[8,128].
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax
from layers import dense, dense_weights

TIME, BATCH, FEATURES, WIDTH = 64, 8, 64, 128


class Result(NamedTuple):
    outputs: jax.Array
    cell: jax.Array
    output: jax.Array


def lstm(sequence: jax.Array, cell: jax.Array, output: jax.Array, weights: dict) -> Result:
    def step(state, x):
        cell, output = state
        gates = dense(jnp.concatenate([x, output], axis=1), weights, "gates")
        take, forget, show, candidate = jnp.split(gates, 4, axis=1)
        cell = jax.nn.sigmoid(forget + 1) * cell + jax.nn.sigmoid(take) * jnp.tanh(candidate)
        output = jax.nn.sigmoid(show) * jnp.tanh(cell)
        return (cell, output), output

    (cell, output), outputs = lax.scan(step, (cell, output), sequence)
    return Result(outputs, cell, output)


def build() -> Model:
    rng = np.random.default_rng(6)
    inputs = {
        "sequence": rng.standard_normal((TIME, BATCH, FEATURES), np.float32).round(3),
        "cell": rng.standard_normal((BATCH, WIDTH), np.float32).round(3),
        "output": np.tanh(rng.standard_normal((BATCH, WIDTH), np.float32)).round(3),
    }
    return Model(lstm, inputs, weights=dense_weights("gates", FEATURES + WIDTH, 4 * WIDTH, 0.1), seed=6)
