"""A decoder-only transformer in the form of GPT-2: of its size for the gpt2 models, small for transformer_train.

In: token ids s32[batch, length], weights.  Out: features, logits, and keys and values of every layer (the KV cache).

    features, cache = read(config, weights, tokens)            # all positions at once, each sees those before it
    features, cache = read_one(config, weights, token, k, cache)   # one more token, at position k
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from layers import attend, dense, dense_weights, layer_norm, merge_heads, norm_weights, split_heads
from weights import Weight


class Memory(NamedTuple):
    """Of one layer: [batch, heads, length, features] each."""

    keys: jax.Array
    values: jax.Array


Cache = list[Memory]  # one for each layer


class Config(NamedTuple):
    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int


GPT2 = Config(layers=12, width=768, heads=12, vocabulary=50257, positions=1024)
GPT2_SEED = 12  # of a few tried, the one where the likeliest token always leads clearly


def decoder_weights(config: Config) -> dict[str, Weight]:
    """As GPT-2 is initialized, but attention more decided, so that what is generated depends on what was read."""
    width, residual = config.width, round(0.02 / (2 * config.layers) ** 0.5, 6)
    weights = norm_weights("final_norm", width)
    weights["position_embeddings"] = Weight((config.positions, width), 0.04)
    weights["token_embeddings"] = Weight((config.vocabulary, width), 0.02)
    for k in range(config.layers):
        name = f"block{k:02}"
        weights |= norm_weights(f"{name}.norm1", width) | norm_weights(f"{name}.norm2", width)
        weights |= dense_weights(f"{name}.qkv", width, 3 * width, 0.06)
        weights |= dense_weights(f"{name}.attention_out", width, width, residual)
        weights |= dense_weights(f"{name}.hidden", width, 4 * width, 0.04)
        weights |= dense_weights(f"{name}.hidden_out", 4 * width, width, residual)
    return dict(sorted(weights.items()))


def read(config: Config, weights: dict, tokens: jax.Array) -> tuple[jax.Array, Cache]:
    """Features [batch, length, width] of all tokens, and the cache."""
    length = tokens.shape[1]
    x = weights["token_embeddings"][tokens] + weights["position_embeddings"][:length]
    causal = jnp.tril(jnp.ones((length, length), bool))
    cache = []

    def remember(key, value):
        cache.append(Memory(key, value))
        return key, value, causal

    for k in range(config.layers):
        x = block(config, x, weights, f"block{k:02}", remember)
    return layer_norm(x, weights, "final_norm"), cache


def read_one(config: Config, weights: dict, token: jax.Array, position: jax.Array, cache: Cache) -> tuple:
    """Features [batch, 1, width] of one token each, and the cache with its keys and values at that position."""
    x = (weights["token_embeddings"][token] + weights["position_embeddings"][position])[:, None]
    updated = []

    def remember(key, value):
        old = cache[len(updated)]
        keys = lax.dynamic_update_slice_in_dim(old.keys, key, position, axis=2)
        values = lax.dynamic_update_slice_in_dim(old.values, value, position, axis=2)
        updated.append(Memory(keys, values))
        return keys, values, jnp.arange(keys.shape[2]) <= position

    for k in range(config.layers):
        x = block(config, x, weights, f"block{k:02}", remember)
    return layer_norm(x, weights, "final_norm"), updated


def block(config: Config, x: jax.Array, weights: dict, name: str, remember: Callable) -> jax.Array:
    """Attention and a hidden layer, both added to x. `remember` gets new keys and values, gives all and the mask."""
    with jax.named_scope(name):
        qkv = dense(layer_norm(x, weights, f"{name}.norm1"), weights, f"{name}.qkv")
        query, key, value = (split_heads(part, config.heads) for part in jnp.split(qkv, 3, axis=-1))
        keys, values, mask = remember(key, value)
        mixed = merge_heads(attend(query, keys, values, mask))
        x = x + dense(mixed, weights, f"{name}.attention_out")
        hidden = jax.nn.gelu(dense(layer_norm(x, weights, f"{name}.norm2"), weights, f"{name}.hidden"))
        return x + dense(hidden, weights, f"{name}.hidden_out")


def logits(weights: dict, features: jax.Array) -> jax.Array:
    return features @ weights["token_embeddings"].T
