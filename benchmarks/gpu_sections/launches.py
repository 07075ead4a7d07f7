"""A step of 500 small kernels: microseconds each, as a graph, launched one by one, and with the wait for the end."""
from __future__ import annotations

import time


def chain(length: int) -> str:
    """A module of `length` kernels that depend on each other, when nothing is fused."""
    lines = ["HloModule chain", "ENTRY e {", "  x0 = f32[1024] parameter(0)"]
    lines += [f"  {'ROOT ' if n == length else ''}x{n} = f32[1024] {'sine' if n % 2 else 'cosine'}(x{n - 1})"
              for n in range(1, length + 1)]
    return "\n".join([*lines, "}"])


def rows(device):
    length = device.size(500, 8)
    backend = device.program(chain(length), fusion="off")
    count = len(backend.packed.steps)
    each = device.seconds(backend) / count * 1e6
    yield {"what": f"a step of {count} kernels as a graph", "value": each, "unit": "us per kernel",
           "note": "to reach: 1 us" + ("" if each <= 1 else ", not reached")}
    start = time.perf_counter()
    backend.run()
    host = time.perf_counter() - start
    backend.wait()
    yield {"what": "the host's part of starting that graph", "value": host * 1e6, "unit": "us"}
    backend.use_graphs = False
    yield {"what": "the same kernels launched one by one", "value": device.seconds(backend) / count * 1e6,
           "unit": "us per kernel"}
    backend.close()
