"""BERT's encoder with mean pooling, as sentence encoders have it.

In: token ids s32[batch, length], attention mask s32[batch, length] (1 for a token, 0 for padding), weights under the
names of such a model's file.  Out: one embedding of length 1 for each sentence; dot products are cosine similarities.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Config(NamedTuple):
    layers: int
    heads: int


def encode(config: Config, tokens: jax.Array, mask: jax.Array, weights: dict) -> jax.Array:
    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, weights, "embeddings.LayerNorm")
    for k in range(config.layers):
        with jax.named_scope(f"layer{k}"):
            x = layer(config, x, mask, weights, f"encoder.layer.{k}")
    return normalized(mean_of_tokens(x, mask))


def layer(config: Config, x: jax.Array, mask: jax.Array, weights: dict, name: str) -> jax.Array:
    attended = attention(config, x, mask, weights, f"{name}.attention.self")
    attended = dense(attended, weights, f"{name}.attention.output.dense")
    x = layer_norm(x + attended, weights, f"{name}.attention.output.LayerNorm")
    hidden = jax.nn.gelu(dense(x, weights, f"{name}.intermediate.dense"), approximate=False)
    return layer_norm(x + dense(hidden, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm")


def attention(config: Config, x: jax.Array, mask: jax.Array, weights: dict, name: str) -> jax.Array:
    batch, length, width = x.shape

    def heads(part):
        return dense(x, weights, f"{name}.{part}").reshape(batch, length, config.heads, width // config.heads)

    scores = jnp.einsum("bqhd,bkhd->bhqk", heads("query"), heads("key")) / (width // config.heads) ** 0.5
    scores = jnp.where(mask[:, None, None, :] > 0, scores, jnp.finfo(scores.dtype).min)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), heads("value"))
    return mixed.reshape(batch, length, width)


def dense(x: jax.Array, weights: dict, name: str) -> jax.Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(x: jax.Array, weights: dict, name: str) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-12) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def mean_of_tokens(x: jax.Array, mask: jax.Array) -> jax.Array:
    weight = mask[:, :, None].astype(x.dtype)
    return (x * weight).sum(1) / weight.sum(1)


def normalized(x: jax.Array) -> jax.Array:
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True))
