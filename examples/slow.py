"""A product of matrices in the slow order. `python slow.py` writes slow.hlo.pb and fast.hlo.pb."""
import jax
import jax.numpy as jnp
import numpy as np


def project(a, b, v):
    return jnp.tanh((a @ b) @ v)                 # two matrices multiplied: 2 * 768 ** 3 operations


def project_fast(a, b, v):
    return jnp.tanh(a @ (b @ v))                 # two products of a matrix and a vector


def write(function, name):
    matrix, vector = np.zeros((768, 768), np.float32), np.zeros(768, np.float32)
    lowered = jax.jit(function).lower(matrix, matrix, vector)
    with open(name, "wb") as file:
        file.write(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


if __name__ == "__main__":
    write(project, "slow.hlo.pb")
    write(project_fast, "fast.hlo.pb")
