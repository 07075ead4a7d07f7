"""Double precision: elementary functions, sums, products, convolution, an iteration to convergence.

In: x f64[50] (-3 to 3), positive f64[50], matrix f64[8,8], signal f64[1,40,2], kernel f64[5,2,3].
Out: one array for each case below, right to twelve digits.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax


def f64(x: jax.Array, positive: jax.Array, matrix: jax.Array, signal: jax.Array, kernel: jax.Array) -> dict:
    functions = (jnp.sin, jnp.cos, jnp.tan, jnp.exp, jnp.expm1, jnp.tanh, jnp.arctan, jnp.cbrt, lax.erf, lax.logistic)
    of_positive = (jnp.log, jnp.log1p, jnp.sqrt, lax.rsqrt, lax.lgamma, lax.digamma)
    return {
        "functions": jnp.stack([f(x) for f in functions]),
        "of_positive": jnp.stack([f(positive) for f in of_positive]),
        "inverse_error": lax.erf_inv(x / 3.5),
        "angles": jnp.arctan2(x, positive),
        "powers": positive**x,
        "remainders": jnp.stack([jnp.remainder(x, 0.7), lax.rem(x, positive), jnp.floor(x), jnp.round(x * 4)]),
        "product": matrix @ matrix,
        "softmax": jax.nn.softmax(matrix * 20, axis=1),
        "statistics": jnp.stack([x.sum(), x.mean(), x.std(), x.max(), x.min(), jnp.prod(positive)]),
        "convolved": lax.conv_general_dilated(signal, kernel, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")),
        "newton": lax.fori_loop(0, 8, lambda _, y: (y + positive / y) / 2, positive),
        "narrowed": x.astype(jnp.float32).astype(jnp.float64),
        "truncated": (x * 1e10).astype(jnp.int64),
        "next": jnp.nextafter(x, 0.0),
        "bits": lax.bitcast_convert_type(x, jnp.uint64),
    }


def build() -> Model:
    rng = np.random.default_rng(17)
    inputs = {
        "x": rng.uniform(-3, 3, 50),
        "positive": rng.uniform(0.01, 5, 50),
        "matrix": rng.standard_normal((8, 8)),
        "signal": rng.standard_normal((1, 40, 2)),
        "kernel": rng.standard_normal((5, 2, 3)),
    }
    return Model(f64, inputs, x64=True, tolerance=1e-12)
