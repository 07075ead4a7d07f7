"""Images whose rows are divided, and networks of convolutions that are trained."""
from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from collected import Programs, normal
from jax import lax
from jax.sharding import PartitionSpec as P

NUMBERS = ("NHWC", "HWIO", "NHWC")


def convolved(x, kernel, stride: int = 1, spread: int = 1):
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", rhs_dilation=(spread, spread),
                                    dimension_numbers=NUMBERS)


def pooled(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def images(each: Programs) -> None:
    count, line, grid, program = each.count, each.line, each.grid, each.program
    rows = 4 * count
    pictures, first, second, third = normal(2, rows, 8, 4), normal(3, 3, 4, 8), normal(3, 3, 8, 8), normal(3, 3, 8, 8)
    of_rows = (P(None, "x"), P(), P(), P())

    def residual(x, first, second, third):
        x = jax.nn.relu(convolved(x, first))
        return x + convolved(jax.nn.relu(convolved(x, second)), third)

    program("residual_rows", line, (pictures, first, second, third), of_rows, P(None, "x"))(residual)

    @program("residual_rows_training", line, (pictures, first, second, third), of_rows, (P(), (P(), P(), P())))
    def _(x, *kernels):
        return jax.value_and_grad(lambda k: jnp.mean(residual(x, *k) ** 2))(kernels)

    @program("pooled_rows_training", line, (pictures, first, second), of_rows[:3], (P(), (P(), P())))
    def _(x, *kernels):
        def loss(k):
            return jnp.mean(convolved(pooled(jax.nn.relu(convolved(x, k[0]))), k[1]) ** 2)
        return jax.value_and_grad(loss)(kernels)

    @program("strides_and_holes", line, (pictures, first, second), of_rows[:3])
    def _(x, first, second):
        half = convolved(x, first, stride=2)
        wide = convolved(half, second, spread=2)
        up = lax.conv_transpose(wide, second, (2, 2), "SAME", dimension_numbers=NUMBERS)
        return half, up

    @program("image_and_features", grid, (pictures, first, second), (P(None, "data"), P(None, None, None, "model"),
                                                                     P(None, None, "model")))
    def _(x, first, second):
        return convolved(jax.nn.relu(convolved(x, first)), second)

    @program("normalized_images", line, (normal(2 * count, 6, 6, 4), first, np.ones(8, np.float32)),
             (P("x"), P(), P()), (P(), (P(), P())))
    def _(x, kernel, scale):
        def loss(weights):
            y = convolved(x, weights[0])
            y = (y - y.mean((0, 1, 2))) / jnp.sqrt(y.var((0, 1, 2)) + 1e-5) * weights[1]
            return jnp.mean(jax.nn.relu(y) ** 2)
        return jax.value_and_grad(loss)((kernel, scale))

    plate = normal(rows, 16)

    @program("heat", line, (plate,), (P("x"),), P("x"))
    def _(plate):
        def step(_, t):
            wide = jnp.pad(t, 1)
            return t + 0.1 * (wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2] - 4 * t)
        return lax.fori_loop(0, 5, step, plate)

    @program("waves_around", grid, (normal(rows, 16),), (P("data", "model"),), P("data", "model"))
    def _(t):
        return jnp.roll(t, 1, 0) + jnp.roll(t, -1, 0) + jnp.roll(t, 2, 1) - 3 * t
