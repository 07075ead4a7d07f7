"""The largest and the smallest: top-k of rows, with ties, of integers and halves; arg max and arg min.

In: scores f32[4,100] (many of them equal), counts s32[200], halves f16[3,33].
Out: values and places for each case below; among equals the first one comes first.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax


def topk(scores: jax.Array, counts: jax.Array, halves: jax.Array) -> dict:
    best, places = lax.top_k(scores, 10)
    return {
        "scores": (best, places),
        "smallest": lax.top_k(-scores, 3),
        "counts": lax.top_k(counts, 7),
        "halves": lax.top_k(halves, 5),
        "all": lax.top_k(halves, 33),
        "batched": lax.top_k(scores.reshape(2, 2, 10, 10), 4),
        "one": lax.top_k(scores, 1),
        "chosen": jax.nn.softmax(best, axis=1) @ jnp.eye(10),
        "first_max": jnp.argmax(scores, axis=1),
        "first_min": jnp.argmin(scores, axis=0),
        "mask": (scores >= best[:, -1:]).sum(1),
    }


def build() -> Model:
    rng = np.random.default_rng(12)
    inputs = {
        "scores": rng.standard_normal((4, 100), np.float32).round(1),
        "counts": rng.integers(-50, 50, 200, np.int32),
        "halves": rng.standard_normal((3, 33)).astype(np.float16),
    }
    return Model(topk, inputs)
