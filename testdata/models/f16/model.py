"""The float16 type: products, convolution, softmax, norms, sums, conversions (see halves.py).

In: x f16[4,32], weights f16[32,16], image f16[2,8,8,3], kernel f16[3,3,3,4], wide f32[4,16].
Out: one array for each case of halves.compute.
"""

import jax.numpy as jnp
from common import Model
from halves import compute, inputs


def build() -> Model:
    return Model(compute, inputs(jnp.float16, 19), tolerance=2e-2)
