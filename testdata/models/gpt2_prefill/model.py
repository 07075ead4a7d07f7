"""A decoder of GPT-2's size with random weights reads a prompt of 64 tokens at once.

In: tokens s32[1,64], weights.  Out: logits of the last position f32[1,50257], then of each of the 12 layers the keys
and the values f32[1,12,64,64].
"""

from typing import NamedTuple

import jax
import numpy as np
from common import Model
from decoder import GPT2, GPT2_SEED, Cache, decoder_weights, logits, read

PROMPT = 64


class Prefill(NamedTuple):
    logits: jax.Array
    cache: Cache


def prefill(tokens: jax.Array, weights: dict) -> Prefill:
    features, cache = read(GPT2, weights, tokens)
    return Prefill(logits(weights, features[:, -1]), cache)


def prompt() -> np.ndarray:
    return np.random.default_rng(64).integers(0, GPT2.vocabulary, (1, PROMPT), np.int32)


def build() -> Model:
    return Model(
        prefill,
        {"tokens": prompt()},
        weights=decoder_weights(GPT2),
        seed=GPT2_SEED,
        size="large",
        ranges={"tokens": [0, GPT2.vocabulary]},
    )
