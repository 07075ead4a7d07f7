"""Layers that several models are made of. Weights are one flat dict; a layer takes its own by their names' prefix.

    dense(x, weights, "block00.out")    x @ weights["block00.out.kernel"] + weights["block00.out.bias"]

In: arrays with features last (NHWC for images).  Out: the same.  The `…_weights` functions say what a layer needs.
"""

import jax
import jax.numpy as jnp
from jax import lax
from weights import Weight


def dense(x: jax.Array, weights: dict, name: str) -> jax.Array:
    return x @ weights[f"{name}.kernel"] + weights[f"{name}.bias"]


def dense_weights(name: str, inputs: int, outputs: int, std: float) -> dict[str, Weight]:
    return {f"{name}.bias": Weight((outputs,), std), f"{name}.kernel": Weight((inputs, outputs), std)}


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: str = "SAME") -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def conv_weight(size: int, inputs: int, outputs: int) -> Weight:
    """He initialization: activations keep their scale through a ReLU."""
    return Weight((size, size, inputs, outputs), round((2 / (size * size * inputs)) ** 0.5, 6))


def layer_norm(x: jax.Array, weights: dict, name: str) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5) * weights[f"{name}.scale"] + weights[f"{name}.bias"]


def group_norm(x: jax.Array, weights: dict, name: str, groups: int = 8) -> jax.Array:
    """Mean 0 and variance 1 in each group of channels, over all places of an image."""
    grouped = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    mean = grouped.mean((1, 3), keepdims=True)
    variance = grouped.var((1, 3), keepdims=True)
    normal = ((grouped - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    return normal * weights[f"{name}.scale"] + weights[f"{name}.bias"]


def norm_weights(name: str, width: int) -> dict[str, Weight]:
    return {f"{name}.bias": Weight((width,), 0.02), f"{name}.scale": Weight((width,), 0.02, mean=1.0)}


def attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Softmax attention; all of [batch, heads, length, features]. Where the mask is false, nothing is seen."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e30)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), value)


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    """[batch, length, width] to [batch, heads, length, features]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def merge_heads(x: jax.Array) -> jax.Array:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)
