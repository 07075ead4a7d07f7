"""Random numbers as JAX makes them: Threefry in plain integer arithmetic, and distributions on top of it.

In: key u32[2].  Out: one array for each case below; the raw bits are the same on every machine.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model


def random_threefry(key: jax.Array) -> dict:
    keys = jax.random.split(jax.random.wrap_key_data(key, impl="threefry2x32"), 12)
    logits = jnp.log(jnp.arange(1.0, 6.0))
    return {
        "keys": jax.random.key_data(keys),
        "folded": jax.random.key_data(jax.random.fold_in(keys[0], 7)),
        "bits": jax.random.bits(keys[0], (5, 7)),
        "octets": jax.random.bits(keys[1], (33,), jnp.uint8),
        "uniform": jax.random.uniform(keys[2], (10, 10)),
        "normal": jax.random.normal(keys[3], (50, 3)),
        "normal_half": jax.random.normal(keys[4], (17,), jnp.float16),
        "integers": jax.random.randint(keys[5], (40,), -5, 100),
        "bernoulli": jax.random.bernoulli(keys[6], 0.3, (64,)),
        "permutation": jax.random.permutation(keys[7], 30),
        "categorical": jax.random.categorical(keys[8], logits, shape=(20,)),
        "exponential": jax.random.exponential(keys[9], (12,)),
        "truncated": jax.random.truncated_normal(keys[10], -1.0, 2.0, (12,)),
        "dropout": jnp.where(jax.random.bernoulli(keys[11], 0.9, (4, 8)), 1 / 0.9, 0.0),
    }


def build() -> Model:
    return Model(random_threefry, {"key": np.array([0, 42], np.uint32)})
