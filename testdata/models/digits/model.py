"""A small CNN for scikit-learn's handwritten digits, trained here; its weights are constants, so the model is one file.

In: images f32[360,8,8,1], grey values 0 to 16.  Out: probabilities f32[360,10], predicted class s32[360].
The 360 images are never seen in training; labels.npy says what they are.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax
from sklearn.datasets import load_digits

TEST_IMAGES = 360
STEPS = 1500
BATCH = 128


class Prediction(NamedTuple):
    probabilities: jax.Array
    digit: jax.Array


def logits(weights: dict, images: jax.Array) -> jax.Array:
    x = images / 16.0
    for layer in ("conv1", "conv2"):
        x = lax.conv_general_dilated(x, weights[layer], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + weights[layer + "_bias"])
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.reshape(x.shape[0], -1) @ weights["dense"] + weights["dense_bias"]


def initial_weights(rng: np.random.Generator) -> dict:
    def normal(*shape):
        return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))).astype(np.float32)

    def zeros(n):
        return np.zeros(n, np.float32)

    kernels = {"conv1": normal(3, 3, 1, 16), "conv2": normal(3, 3, 16, 32), "dense": normal(4 * 4 * 32, 10)}
    return kernels | {"conv1_bias": zeros(16), "conv2_bias": zeros(32), "dense_bias": zeros(10)}


def loss(weights: dict, images: jax.Array, labels: jax.Array) -> jax.Array:
    log_probabilities = jax.nn.log_softmax(logits(weights, images))
    decay = sum(jnp.sum(w * w) for w in weights.values())
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], 1)) + 1e-4 * decay


@jax.jit
def step(weights: dict, velocity: dict, images: jax.Array, labels: jax.Array, rate: float) -> tuple[dict, dict]:
    gradient = jax.grad(loss)(weights, images, labels)
    velocity = jax.tree.map(lambda v, g: 0.9 * v - rate * g, velocity, gradient)
    return jax.tree.map(jnp.add, weights, velocity), velocity


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images moved by up to one pixel, so that the network does not learn places by heart."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    y, x = rng.integers(0, 3, 2)
    return padded[:, y:y + 8, x:x + 8]


def train(images: np.ndarray, labels: np.ndarray) -> dict:
    """Momentum SGD with a rate that falls to zero; weights rounded to four digits, which keeps the text short."""
    rng = np.random.default_rng(0)
    weights = initial_weights(rng)
    velocity = jax.tree.map(np.zeros_like, weights)
    for k in range(STEPS):
        chosen = rng.integers(0, len(images), BATCH)
        rate = np.float32(0.05 * (1 - k / STEPS))
        weights, velocity = step(weights, velocity, shifted(images[chosen], rng), labels[chosen], rate)
    return {name: np.round(np.asarray(w), 4) for name, w in weights.items()}


def build() -> Model:
    data = load_digits()
    order = np.random.default_rng(1).permutation(len(data.images))
    images, labels = data.images[order, :, :, None].astype(np.float32), data.target[order].astype(np.int32)
    weights = train(images[TEST_IMAGES:], labels[TEST_IMAGES:])

    def digits(images):
        scores = logits(weights, images)
        return Prediction(jax.nn.softmax(scores), jnp.argmax(scores, axis=1).astype(jnp.int32))

    print(f"right: {np.mean(digits(images[:TEST_IMAGES]).digit == labels[:TEST_IMAGES]):.1%}")
    return Model(digits, {"images": images[:TEST_IMAGES]}, extra={"labels": labels[:TEST_IMAGES]})
