"""ResNet-50 with random weights classifies two images.

In: images u8[2,224,224,3], weights.  Out: logits f32[2,1000].
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from resnet import RESNET50, parameter_weights, part, prefixed, resnet, statistics_weights
from weights import Weight


def classify(images: jax.Array, weights: dict) -> jax.Array:
    scaled = images.astype(jnp.float32) / 127.5 - 1
    return resnet(RESNET50, scaled, part(weights, "parameter"), part(weights, "statistic"), training=False)[0]


def norm_weights(name: str, width: int) -> dict[str, Weight]:
    """What a block adds to its shortcut is small, so that values keep their size through sixteen blocks."""
    return {"bias": Weight((width,), 0.1), "scale": Weight((width,), 0.1, mean=0.3 if "norm3" in name else 1.0)}


def pictures(count: int, size: int) -> np.ndarray:
    """Coloured waves in coarse pixels, which pack well."""
    y, x = (np.mgrid[:size, :size] // 8) * 8 / size
    k = np.arange(1, 3 * count + 1).reshape(count, 1, 1, 3)
    waves = np.sin(k * 3 * x[None, :, :, None] + k) * np.cos(k * 2 * y[None, :, :, None])
    return (127.5 + 120 * waves).astype(np.uint8)


def build() -> Model:
    weights = prefixed("parameter", parameter_weights(RESNET50, norm_weights))
    weights |= prefixed("statistic", statistics_weights(RESNET50))
    return Model(
        classify,
        {"images": pictures(2, 224)},
        weights=dict(sorted(weights.items())),
        seed=50,
        size="large",
        ranges={"images": [0, 256]},
    )
