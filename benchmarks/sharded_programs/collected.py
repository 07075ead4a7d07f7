"""What the programs are collected in, and what they are made with."""
from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

RANDOM = np.random.default_rng(0)


def normal(*sizes: int) -> np.ndarray:
    return (RANDOM.standard_normal(sizes) / np.sqrt(sizes[0] if sizes else 1)).astype(np.float32)


class Programs:
    """Collects programs over three meshes of the devices; by name: (function, arguments, mesh, shardings of the
    arguments, of the results or None)."""

    def __init__(self, count: int) -> None:
        devices = np.array(jax.devices()[:count])
        self.count = count
        self.line = Mesh(devices, ("x",))
        self.grid = Mesh(devices.reshape(count // 2, 2), ("data", "model"))
        self.odd = Mesh(devices[np.random.default_rng(1).permutation(count)].reshape(2, count // 2), ("a", "b"))
        self.found: dict = {}

    def program(self, name: str, mesh: Mesh, arguments, taken, given=None):
        def add(function):
            self.found[name] = (function, arguments, mesh, taken, given)
            return function
        return add


def pinned(x, mesh, *axes):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))
