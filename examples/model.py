"""A small network in JAX. `python model.py` writes it as model.hlo.pb, and an input as x.npy."""
import jax
import jax.numpy as jnp
import numpy as np

random = np.random.default_rng(0)
W1 = random.normal(size=(16, 32), scale=0.25).astype(np.float32)
W2 = random.normal(size=(32, 4), scale=0.25).astype(np.float32)


def layer(x, weights):
    return jnp.maximum(x @ weights, 0)


def model(x):
    """f32[8,16] -> f32[8,4]: probabilities of four classes."""
    return jax.nn.softmax(layer(x, W1) @ W2)


if __name__ == "__main__":
    x = random.normal(size=(8, 16)).astype(np.float32)
    lowered = jax.jit(model).lower(x)
    with open("model.hlo.pb", "wb") as file:
        file.write(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    np.save("x.npy", x)
