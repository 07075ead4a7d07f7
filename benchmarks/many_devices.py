"""How long hloc takes to partition a training step for 1,024 devices, and to simulate it on a cluster.

    python benchmarks/many_devices.py [--json FILE]

The step trains a transformer of 8 layers, exported from JAX over 2 x 2 devices (data, model), every layer written out.
It is partitioned over 128 x 8. Beside it: the passes of one device on the whole step, which the partitioner may take
three times; and a table over all meshes of 1,024 devices. Seconds of CPU, the least of several rounds.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hloc
from hloc.api import optimize
from hloc.ir import Module
from hloc.parallel import partition
from hloc.targets import find
from hloc.tools.simulate import find_cluster, mesh_shapes, simulate
from hloc.tools.simulate.trace import trace_of

MESH, CLUSTER, TARGET = {"data": 128, "model": 8}, "dgx-h100", "h100"
ROUNDS = 3
EXPORT = """
import os
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
LAYERS, BATCH, TOKENS, WIDTH, HEADS = 8, 1024, 512, 1024, 16
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))

def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

def block(x, q, k, v, o, up, down):
    b, t, d = x.shape
    h = norm(x)
    q, k, v = ((h @ w).reshape(b, t, HEADS, d // HEADS).transpose(0, 2, 1, 3) for w in (q, k, v))
    scores = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(d // HEADS), -1)
    x = x + (scores @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ o
    return x + jax.nn.gelu(norm(x) @ up) @ down

def loss(layers, x, y):
    for weights in layers:
        x = block(x, *weights)
    return jnp.mean((x - y) ** 2)

def step(layers, x, y):
    value, slopes = jax.value_and_grad(loss)(layers, x, y)
    return jax.tree.map(lambda w, s: w - 0.01 * s, layers, slopes), value

def of(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)

def placed(*names):
    return NamedSharding(mesh, P(*names))

across, down = placed(None, "model"), placed("model", None)
layers = [(*[of(WIDTH, WIDTH)] * 4, of(WIDTH, 4 * WIDTH), of(4 * WIDTH, WIDTH))] * LAYERS
places = [(across, across, across, down, across, down)] * LAYERS
rows, data = of(BATCH, TOKENS, WIDTH), placed("data")
lowered = jax.jit(step, in_shardings=(places, data, data), out_shardings=(places, placed())).lower(layers, rows, rows)
print(lowered.compiler_ir("hlo").as_hlo_text())
"""


def seconds(run: Callable[[Module], object], text: str, rounds: int = ROUNDS) -> float:
    """CPU seconds of the quickest run on the module, which is read anew each time."""
    times = []
    for _ in range(rounds):
        module = hloc.load(text)
        started = time.process_time()
        run(module)
        times.append(time.process_time() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    text = subprocess.run([sys.executable, "-c", EXPORT], stdout=subprocess.PIPE, text=True, check=True).stdout
    cluster = find_cluster(CLUSTER)
    found = {
        "instructions": sum(1 for _ in hloc.load(text).instructions()),
        "passes of one device": seconds(lambda module: optimize(module, find(TARGET)), text),
        "partitioning for 1,024": seconds(lambda module: partition(module, MESH), text),
        "hloc simulate": seconds(lambda module: simulate(module, MESH, cluster), text),
        "with a trace": seconds(lambda module: json.dumps(trace_of(simulate(module, MESH, cluster))), text),
        "a table of 11 meshes": seconds(lambda module: mesh_shapes(module, 1024, cluster), text, 1),
    }
    for name, value in found.items():
        print(f"{name:24}{value:8,}" if isinstance(value, int) else f"{name:24}{value:8.2f} s", flush=True)
    ratio = found["partitioning for 1,024"] / found["passes of one device"]
    print(f"partitioning takes {ratio:.2f} of the passes of one device")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
