"""A decoder reads a prompt, then a while loop generates more tokens, the likeliest each time.

In: tokens s32[1, prompt], weights.  Out: the generated tokens s32[1, generated], and by how much the likeliest token's
logit exceeds the second one's, f32[1, generated]. The loop carries the position, the tokens, and a KV cache with room
for all of them in each layer.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from decoder import Config, decoder_weights, logits, read, read_one
from jax import lax


class Generated(NamedTuple):
    tokens: jax.Array
    margins: jax.Array


def generation_model(config: Config, prompt: int, generated: int, **facts) -> Model:
    """facts: further fields of the Model."""

    def longer(part: jax.Array) -> jax.Array:
        """Keys or values with room for the tokens to come."""
        return jnp.pad(part, ((0, 0), (0, 0), (0, generated), (0, 0)))

    def generate(tokens: jax.Array, weights: dict) -> Generated:
        features, cache = read(config, weights, tokens)
        cache = jax.tree.map(longer, cache)
        token, margin = likeliest(logits(weights, features[:, -1]))
        made = jnp.zeros((1, generated), jnp.int32).at[:, 0].set(token)
        margins = jnp.zeros((1, generated), jnp.float32).at[:, 0].set(margin)

        def step(state):
            count, made, margins, cache = state
            features, cache = read_one(config, weights, made[:, count - 1], prompt + count - 1, cache)
            token, margin = likeliest(logits(weights, features[:, 0]))
            return count + 1, made.at[:, count].set(token), margins.at[:, count].set(margin), cache

        _, made, margins, _ = lax.while_loop(lambda state: state[0] < generated, step, (1, made, margins, cache))
        return Generated(made, margins)

    return Model(
        generate,
        {"tokens": np.random.default_rng(64).integers(0, config.vocabulary, (1, prompt), np.int32)},
        weights=decoder_weights(config),
        ranges={"tokens": [0, config.vocabulary]},
        **facts,
    )


def likeliest(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The token with the largest logit, and its lead over the next."""
    best, tokens = lax.top_k(scores, 2)
    return tokens[:, 0], best[:, 0] - best[:, 1]
