"""The decoder of gpt2_prefill reads 64 tokens, then a while loop generates 32 more, the likeliest each time.

In: tokens s32[1,64], weights.  Out: the 32 generated tokens s32[1,32], and by how much the likeliest token's logit
exceeds the second one's, f32[1,32]. The loop carries the position, the tokens, and a KV cache of 96 places
in each layer.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from decoder import GPT2, GPT2_SEED, decoder_weights, logits, read, read_one
from jax import lax

PROMPT, GENERATED = 64, 32


class Generated(NamedTuple):
    tokens: jax.Array
    margins: jax.Array


def generate(tokens: jax.Array, weights: dict) -> Generated:
    features, cache = read(GPT2, weights, tokens)
    cache = jax.tree.map(longer, cache)
    token, margin = likeliest(logits(weights, features[:, -1]))
    made = jnp.zeros((1, GENERATED), jnp.int32).at[:, 0].set(token)
    margins = jnp.zeros((1, GENERATED), jnp.float32).at[:, 0].set(margin)

    def step(state):
        count, made, margins, cache = state
        features, cache = read_one(GPT2, weights, made[:, count - 1], PROMPT + count - 1, cache)
        token, margin = likeliest(logits(weights, features[:, 0]))
        return count + 1, made.at[:, count].set(token), margins.at[:, count].set(margin), cache

    _, made, margins, _ = lax.while_loop(lambda state: state[0] < GENERATED, step, (1, made, margins, cache))
    return Generated(made, margins)


def longer(part: jax.Array) -> jax.Array:
    """Keys or values with room for the tokens to come."""
    return jnp.pad(part, ((0, 0), (0, 0), (0, GENERATED), (0, 0)))


def likeliest(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The token with the largest logit, and its lead over the next."""
    best, tokens = lax.top_k(scores, 2)
    return tokens[:, 0], best[:, 0] - best[:, 1]


def build() -> Model:
    return Model(
        generate,
        {"tokens": np.random.default_rng(64).integers(0, GPT2.vocabulary, (1, PROMPT), np.int32)},
        weights=decoder_weights(GPT2),
        seed=GPT2_SEED,
        weights_of="gpt2_prefill",
        size="large",
        ranges={"tokens": [0, GPT2.vocabulary]},
    )
