"""A cluster file for devices that are threads of this machine, fitted to measurements; how far hloc simulate is off.

    python benchmarks/fit_cluster.py host.json MODULE ...        # modules annotated for two devices

Fitted: what kernels take over the cost model (a matmul on one core), and latency and bandwidth of an all-reduce between
two threads, of few and of many floats. Then each module runs on two devices, and is simulated on the fitted cluster.
Times are CPU time, which other programs disturb less, and the least of several runs; those of a step are per device.
"""
from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["HLOC_THREADS"] = "1"            # a device is one core

import numpy as np  # noqa: E402

import hloc  # noqa: E402
from hloc.inputs import random_arrays  # noqa: E402
from hloc.parallel import compile_for_mesh  # noqa: E402
from hloc.tools.simulate import simulate  # noqa: E402
from hloc.tools.simulate.cluster import read_cluster  # noqa: E402

FEWEST, FEW, MANY = 16, 1 << 10, 1 << 20       # floats
MATMUL = """ENTRY e {
  x = f32[256,1024] parameter(0)
  w = f32[1024,1024] parameter(1)
  ROOT d = f32[256,1024] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
SUM = """HloModule sum, num_partitions=2
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY e_spmd {
  x = f32[COUNT] parameter(0), sharding={devices=[2]<=[2]}
  ROOT r = f32[COUNT] all-reduce(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add, sharding={replicated}
}
"""  # noqa: E501


def least(call: Callable[[], object], runs: int = 20) -> float:
    """CPU seconds."""
    found = []
    for _ in range(runs):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def fitted(factor: float, fewest: float, few: float, many: float) -> dict:
    """The cluster file: factor of kernels, and seconds of all-reduces of FEWEST, FEW and MANY floats by two devices,
    each of which sends as many bytes as it has. The shortest is mostly the call, so latency is what more adds."""
    return {"name": "two threads of this machine",
            "device": {"target": "cpu", "cores": 1, "kernel_time_factor": factor},
            "levels": [{"name": "memory", "joins": 2, "bandwidth": 4 * (MANY - FEW) / max(many - few, 1e-9),
                        "latency": max((few - fewest) / 2, 1e-6)}],
            "sources": {"all": "measured by benchmarks/fit_cluster.py"}}


def cluster_of(told: dict):
    return read_cluster(json.dumps(told), "fitted")


def seconds_of_sum(count: int) -> float:
    exe = compile_for_mesh(hloc.load(SUM.replace("COUNT", str(count))), None, "cpu")
    x = np.ones(2 * count, np.float32)
    exe(x)
    return least(lambda: exe(x))


def seconds_of(exe, share: int = 1) -> float:
    arrays = random_arrays(exe.parameters, 0)
    exe(*arrays)
    return least(lambda: exe(*arrays)) / share


def main(output: str, modules: list[str]) -> None:
    matmul = hloc.load(MATMUL)
    predicted = simulate(matmul, None, cluster_of(fitted(1.0, 0, 0, 1))).timeline.total
    told = fitted(seconds_of(hloc.compile(matmul, "cpu")) / predicted, *map(seconds_of_sum, (FEWEST, FEW, MANY)))
    Path(output).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"{'module':24} measured ms  simulated  ratio")
    for name in modules:
        module = hloc.load(name)
        measured = seconds_of(compile_for_mesh(module, None, "cpu"), 2)
        expected = simulate(module, None, cluster_of(told), overlap=False).timeline.total
        print(f"{Path(name).name:24} {1e3 * measured:11.2f}  {1e3 * expected:9.2f}  {expected / measured:5.2f}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
