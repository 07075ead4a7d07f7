"""GFLOP/s of the CPU runtime's matrix products and convolutions, beside NumPy's products.

    python benchmarks/runtime_kernels.py [--threads 2] [--types f32,bf16,s8] [--gemm] [--conv]

Compiles hloc/targets/cpu/runtime with gcc into a temporary folder. Columns: the median of repeated calls on `--threads`
threads, and the processor time of one thread alone, which other load on the machine disturbs less.
"""
import argparse
import ctypes
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time

import ml_dtypes
import numpy as np

from hloc.machine import Machine

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
from native import build_runtime  # noqa: E402
from test_cpu_runtime import conv_args, gemm_args, planned_call  # noqa: E402

TYPES = {"f32": (np.float32, np.float32), "f64": (np.float64, np.float64), "bf16": (ml_dtypes.bfloat16, np.float32),
         "f16": (np.float16, np.float32), "s8": (np.int8, np.int32)}
PRODUCTS = [(1, 64, 64, 64), (1, 256, 256, 256), (1, 1024, 1024, 1024), (1, 1, 4096, 4096), (1, 8, 4096, 4096),
            (1, 32, 1024, 4096), (1, 128, 3072, 768), (96, 128, 128, 64)]                 # batch, m, n, k
# ResNet-50's layers: image size, input and output channels, window, stride, padding
LAYERS = [(224, 3, 64, 7, 2, 3), (56, 64, 64, 1, 1, 0), (56, 64, 64, 3, 1, 1), (56, 64, 256, 1, 1, 0),
          (28, 128, 128, 3, 1, 1), (14, 256, 256, 3, 1, 1), (14, 512, 512, 3, 2, 1), (7, 512, 512, 3, 1, 1),
          (7, 2048, 512, 1, 1, 0)]
NONE = [1, 1, 1]


def seconds(call, clock, least=0.2):
    """Median time of a call; after one to warm up."""
    call()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < least or len(times) < 3:
        t = clock()
        call()
        times.append(clock() - t)
    return statistics.median(times)


def report(label, library, call, work, threads, numpy_call=None):
    library.hloc_pool_stop()
    alone = seconds(call, time.thread_time)
    library.hloc_pool_start(threads, 100)
    together = seconds(call, time.perf_counter)
    text = f"{label:34} {together * 1e3:9.3f} ms {work / together / 1e9:7.1f} GFLOP/s   alone {work / alone / 1e9:6.1f}"
    if numpy_call:
        text += f"   numpy {work / seconds(numpy_call, time.perf_counter) / 1e9:7.1f}"
    print(text, flush=True)


def machine(threads):
    return dataclasses.replace(Machine.host(), cores=threads)


def products(library, types, threads):
    on = machine(threads)
    rng = np.random.default_rng(0)
    for name in types:
        dtype, sums = TYPES[name]
        for batch, m, n, k in PRODUCTS:
            a = rng.normal(size=(batch, m, k)).astype(np.float32).astype(dtype)
            b = rng.normal(size=(batch, k, n)).astype(np.float32).astype(dtype)
            for transposed in (False, True):
                right = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2) if transposed else b
                args = ctypes.byref(gemm_args(a, right, c := np.zeros((batch, m, n), sums), on))
                function = getattr(library, f"hloc_gemm_{name}")
                label = f"{name} {batch} x {m}x{n}x{k}{' B^T' if transposed else ''}"
                beside = (lambda a=a, b=right, c=c: np.matmul(a, b, out=c)) if name in ("f32", "f64") else None
                report(label, library, lambda f=function, g=args: f(g), 2 * batch * m * n * k, threads, beside)


def convolutions(library, threads, batch=4):
    rng = np.random.default_rng(0)
    for size, inputs, outputs, window, stride, pad in LAYERS:
        out = (size + 2 * pad - window) // stride + 1
        x = rng.normal(size=(batch, 1, size, size, inputs)).astype(np.float32)
        w = rng.normal(size=(1, window, window, inputs, outputs)).astype(np.float32)
        y = rng.normal(size=(batch, 1, out, out, outputs)).astype(np.float32)
        steps, back = [1, stride, stride], window - 1 - pad
        ways = {
            "forward": conv_args(x, w, y, steps, [0, pad, pad], NONE, NONE, [0] * 3, 1, 1),
            "filter": conv_args(x.transpose(4, 1, 2, 3, 0), y.transpose(1, 2, 3, 0, 4), w.transpose(3, 0, 1, 2, 4),
                                NONE, [0, pad, pad], NONE, steps, [0] * 3, 1, 1),
            "data": conv_args(y, w.swapaxes(3, 4), x, NONE, [0, back, back], steps, NONE, [0, 1, 1], 1, 1)}
        for way, args in ways.items():
            label = f"{way} {size}x{size} {inputs}->{outputs} {window}x{window}/{stride}"
            work = 2 * batch * out * out * window * window * inputs * outputs
            entry, planned = planned_call(args, "f32", machine(threads))
            function = getattr(library, entry)
            report(label, library, lambda f=function, g=planned: f(ctypes.byref(g)), work, threads)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", default="f32,bf16,s8")
    parser.add_argument("--gemm", action="store_true")
    parser.add_argument("--conv", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = build_runtime(pathlib.Path(folder))
        if options.gemm or not options.conv:
            products(library, options.types.split(","), options.threads)
        if options.conv or not options.gemm:
            convolutions(library, options.threads)


if __name__ == "__main__":
    main()
