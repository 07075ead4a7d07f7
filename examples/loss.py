"""A loss that becomes NaN. `python loss.py` writes it as loss.hlo.pb, and its inputs as loss.npz."""
import jax
import jax.numpy as jnp
import numpy as np


def cross_entropy(probabilities, labels):
    return -jnp.sum(labels * jnp.log(probabilities), axis=-1)


def loss(logits, labels):
    return jnp.mean(cross_entropy(jax.nn.softmax(logits), labels))


if __name__ == "__main__":
    logits = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    logits[2] = [200, 0, -200]                   # a very sure answer
    labels = np.eye(3, dtype=np.float32)[[0, 1, 0, 2]]
    lowered = jax.jit(loss).lower(logits, labels)
    with open("loss.hlo.pb", "wb") as file:
        file.write(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    np.savez("loss.npz", logits=logits, labels=labels)
