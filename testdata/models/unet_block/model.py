"""The parts of a diffusion U-Net: residual blocks that know the noise level, self-attention, a way down and back up.

In: images f32[2,16,16,8], noise level f32[2] (0 to 1000), weights.  Out: the predicted noise f32[2,16,16,8].
Between: group norm, SiLU, 3x3 convolutions, a sinusoidal embedding of the noise level, 16x16 -> 8x8 -> 16x16 with the
features of the way down joined on the way up.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from layers import attend, conv, conv_weight, dense, dense_weights, group_norm, merge_heads, norm_weights, split_heads
from weights import Weight

CHANNELS, WIDE, DEEP, EMBEDDING, HEADS = 8, 32, 64, 64, 4
BLOCKS = {"down": (WIDE, WIDE), "middle1": (WIDE, DEEP), "middle2": (DEEP, DEEP), "up": (DEEP + WIDE, WIDE)}


def unet(images: jax.Array, level: jax.Array, weights: dict) -> jax.Array:
    embedding = level_embedding(level, weights)
    x = conv(images, weights["first"])
    high = residual_block(x, embedding, weights, "down")
    x = conv(high, weights["downsample"], stride=2)
    x = residual_block(x, embedding, weights, "middle1")
    x = self_attention(x, weights, "attention")
    x = residual_block(x, embedding, weights, "middle2")
    x = conv(upsampled(x), weights["upsample"])
    x = residual_block(jnp.concatenate([x, high], axis=3), embedding, weights, "up")
    return conv(jax.nn.silu(group_norm(x, weights, "last_norm")), weights["last"])


def level_embedding(level: jax.Array, weights: dict) -> jax.Array:
    """Sines and cosines of the level at geometrically falling frequencies, then two dense layers."""
    frequencies = jnp.exp(-jnp.log(10000.0) * jnp.arange(EMBEDDING // 2) / (EMBEDDING // 2))
    angles = level[:, None] * frequencies
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
    return dense(jax.nn.silu(dense(waves, weights, "embedding1")), weights, "embedding2")


def residual_block(x: jax.Array, embedding: jax.Array, weights: dict, name: str) -> jax.Array:
    with jax.named_scope(name):
        hidden = conv(jax.nn.silu(group_norm(x, weights, f"{name}.norm1")), weights[f"{name}.conv1"])
        hidden = hidden + dense(jax.nn.silu(embedding), weights, f"{name}.embedding")[:, None, None]
        hidden = conv(jax.nn.silu(group_norm(hidden, weights, f"{name}.norm2")), weights[f"{name}.conv2"])
        return hidden + conv(x, weights[f"{name}.shortcut"])


def self_attention(x: jax.Array, weights: dict, name: str) -> jax.Array:
    with jax.named_scope(name):
        places = group_norm(x, weights, f"{name}.norm").reshape(x.shape[0], -1, x.shape[3])
        qkv = jnp.split(dense(places, weights, f"{name}.qkv"), 3, axis=2)
        mixed = merge_heads(attend(*(split_heads(part, HEADS) for part in qkv)))
        return x + dense(mixed, weights, f"{name}.out").reshape(x.shape)


def upsampled(x: jax.Array) -> jax.Array:
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def unet_weights() -> dict[str, Weight]:
    weights = {
        "first": conv_weight(3, CHANNELS, WIDE),
        "downsample": conv_weight(3, WIDE, WIDE),
        "upsample": conv_weight(3, DEEP, DEEP),
        "last": conv_weight(3, WIDE, CHANNELS),
    }
    weights |= norm_weights("last_norm", WIDE) | norm_weights("attention.norm", DEEP)
    weights |= dense_weights("attention.qkv", DEEP, 3 * DEEP, 0.2) | dense_weights("attention.out", DEEP, DEEP, 0.1)
    weights |= dense_weights("embedding1", EMBEDDING, EMBEDDING, 0.1)
    weights |= dense_weights("embedding2", EMBEDDING, EMBEDDING, 0.1)
    for name, (inputs, outputs) in BLOCKS.items():
        weights |= norm_weights(f"{name}.norm1", inputs) | norm_weights(f"{name}.norm2", outputs)
        weights |= dense_weights(f"{name}.embedding", EMBEDDING, outputs, 0.1)
        weights[f"{name}.conv1"] = conv_weight(3, inputs, outputs)
        weights[f"{name}.conv2"] = conv_weight(3, outputs, outputs)
        weights[f"{name}.shortcut"] = conv_weight(1, inputs, outputs)
    return dict(sorted(weights.items()))


def build() -> Model:
    images = np.random.default_rng(7).standard_normal((2, 16, 16, CHANNELS), np.float32).round(3)
    return Model(
        unet, {"images": images, "level": np.array([17, 830], np.float32)}, weights=unet_weights(), seed=7
    )
