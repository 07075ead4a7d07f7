"""What the bf16 and f16 models compute: the mixtures of narrow and wide types that real models hold.

In: x half[4,32], weights half[32,16], image half[2,8,8,3], kernel half[3,3,3,4], wide f32[4,16].
Out: one array for each case below.
"""

import jax
import jax.numpy as jnp
import numpy as np
from layers import conv


def compute(x: jax.Array, weights: jax.Array, image: jax.Array, kernel: jax.Array, wide: jax.Array) -> dict:
    half = x.dtype
    product = jnp.dot(x, weights, preferred_element_type=jnp.float32)
    return {
        "product": x @ weights,
        "product_f32": product,
        "mixed": (product + wide).astype(half),
        "convolved": conv(image, kernel),
        "softmax": jax.nn.softmax(x, axis=1),
        "normalized": (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + jnp.asarray(1e-3, half)),
        "gelu": jax.nn.gelu(x),
        "functions": jnp.stack([jnp.exp(x), jnp.tanh(x), jnp.sin(x), jnp.sqrt(jnp.abs(x)), jax.nn.sigmoid(x)]),
        "sum": x.sum(0),
        "sum_f32": x.sum(0, dtype=jnp.float32),
        "largest": image.max((1, 2)),
        "rounded": wide.astype(half),
        "integers": x.astype(jnp.int32),
        "compared": x[:, :16] > x[:, 16:],
        "sorted": jnp.sort(x, axis=1),
        "gradient": jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w).astype(jnp.float32)))(weights),
    }


def inputs(dtype: np.dtype, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def half(*shape):
        return rng.standard_normal(shape).astype(dtype)

    arrays = {"x": half(4, 32), "weights": half(32, 16), "image": half(2, 8, 8, 3), "kernel": half(3, 3, 3, 4)}
    return arrays | {"wide": rng.standard_normal((4, 16), np.float32)}
