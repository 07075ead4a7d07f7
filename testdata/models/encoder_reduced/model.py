"""An encoder of one layer for two sentences of up to twelve tokens: the kinds of kernels of minilm, small enough for
the GPU emulation."""

import jax
import numpy as np
from common import Model
from encoder import Config, encode
from weights import Weight

WIDTH, HIDDEN, VOCABULARY, POSITIONS = 32, 64, 50, 16


def encoder_reduced(tokens: jax.Array, mask: jax.Array, weights: dict) -> jax.Array:
    return encode(Config(layers=1, heads=2), tokens, mask, weights)


def shapes() -> dict[str, Weight]:
    rows = {"word": VOCABULARY, "position": POSITIONS, "token_type": 2}
    found = {f"embeddings.{name}_embeddings.weight": Weight((count, WIDTH), 0.5) for name, count in rows.items()}
    name = "encoder.layer.0"
    for norm in ("embeddings.LayerNorm", f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"):
        found |= {f"{norm}.weight": Weight((WIDTH,), 0.1, mean=1.0), f"{norm}.bias": Weight((WIDTH,), 0.1)}
    dense = {**{f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")},
             "attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (HIDDEN, WIDTH),
             "output.dense": (WIDTH, HIDDEN)}
    for part, shape in dense.items():
        found |= {f"{name}.{part}.weight": Weight(shape, 0.2), f"{name}.{part}.bias": Weight(shape[:1], 0.1)}
    return dict(sorted(found.items()))


def build() -> Model:
    lengths = np.array([[12], [7]])
    return Model(
        encoder_reduced,
        {"tokens": np.random.default_rng(5).integers(0, VOCABULARY, (2, 12), np.int32),
         "mask": (np.arange(12)[None] < lengths).astype(np.int32)},
        weights=shapes(),
        seed=7,
        ranges={"tokens": [0, VOCABULARY], "mask": [0, 2]},
    )
