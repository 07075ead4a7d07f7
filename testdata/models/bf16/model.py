"""The bfloat16 type: products, convolution, softmax, norms, sums, conversions (see halves.py).

In: x bf16[4,32], weights bf16[32,16], image bf16[2,8,8,3], kernel bf16[3,3,3,4], wide f32[4,16].
Out: one array for each case of halves.compute.
"""

import jax.numpy as jnp
from common import Model
from halves import compute, inputs


def build() -> Model:
    return Model(compute, inputs(jnp.bfloat16, 18), tolerance=2e-2)
