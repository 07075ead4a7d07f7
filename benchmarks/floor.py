"""How fast a module could be on this machine: what its products need at the measured peak, its arrays at the measured
bandwidth, whichever is more.

    Floor().seconds(module, arrays)
    Floor().most_fusion(module, arrays)     how many times faster fusion could make it

    python benchmarks/floor.py          what was measured here

Products: operations of every dot and convolution that ran (loops as often as they ran), over what all cores reach with
multiply-adds that never leave their registers; of windows of 3x3 over neighbouring positions 4/9, as Winograd's
filtering of 2x2 positions multiplies (runtime/conv_winograd.c). Arrays: parameters, constants and results, each once,
over what all cores reach when they read as many bytes again and again. Nothing reaches both at once, so this is a lower
bound, not a forecast. f32 is measured; where the processor has dot instructions for a narrower type, its products may
take half (bf16, f16) or a quarter (s8) as long; f64 takes twice as long, complex numbers four multiply-adds.

Fusion makes one kernel of several, and leaves products, convolutions, sorts and the like (LIBRARY_KERNELS) as they are:
at most all other kernels vanish. So it gains at most the time of all kernels of `--fusion off` over that of the library
kernels among them, or over what the arrays need, whichever is more.
"""
from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

SOURCE = r"""
#ifdef __AVX512F__
enum { LANES = 16, SUMS = 24 };
#elif defined(__AVX__)
enum { LANES = 8, SUMS = 12 };
#else
enum { LANES = 4, SUMS = 12 };
#endif
typedef float vector __attribute__((vector_size(4 * LANES)));
float multiply_add(long rounds, float factor) {     /* SUMS that do not wait for each other, all in registers */
  vector sums[SUMS], x = (vector){0} + factor, y = x * 1e-9f;
  _Pragma("GCC unroll 24")
  for (int s = 0; s < SUMS; s++) sums[s] = y * (float)s;
  for (long r = 0; r < rounds; r++) {
    _Pragma("GCC unroll 24")
    for (int s = 0; s < SUMS; s++) sums[s] = sums[s] * x + y;
  }
  float total = 0;
  for (int s = 0; s < SUMS; s++) for (int i = 0; i < LANES; i++) total += sums[s][i];
  return total;
}
long operations_per_round(void) { return 2l * LANES * SUMS; }
float read_all(const float *data, long bytes, long rounds) {
  vector sums[8] = {{0}};
  for (long r = 0; r < rounds; r++) {
    for (long i = 0; i + 8 <= bytes / (long)sizeof(vector); i += 8) {
      _Pragma("GCC unroll 8")
      for (int s = 0; s < 8; s++) sums[s] += ((const vector *)data)[i + s];
    }
    __asm__ volatile("" ::: "memory");
  }
  float total = 0;
  for (int s = 0; s < 8; s++) for (int i = 0; i < LANES; i++) total += sums[s][i];
  return total;
}
"""
LIBRARY_KERNELS = frozenset(["dot", "convolution", "sort", "topk", "fft", "custom-call", "scatter",
                             "select-and-scatter", "reduce-window", "cholesky", "triangular-solve",
                             "rng-bit-generator"])
MOST_TOLD = 10                   # of a bound: beyond, it is arithmetic that takes the time
LEAST_BYTES = 1 << 16
TIMES_F32 = {"f64": 2.0, "c64": 4.0, "c128": 8.0}
DOT_INSTRUCTIONS = {"bf16": ("avx512_bf16", 0.5), "f16": ("avx512_fp16", 0.5), "s8": ("vnni", 0.25),
                    "u8": ("vnni", 0.25)}

BY_BLOCKS = 4 / 9                # of the multiplications: 16 for 2x2 positions instead of 36


def goes_by_blocks(instruction) -> bool:
    """Whether a convolution has windows of 3x3 over neighbouring positions, and channels are not on their own."""
    from hloc.ir import window_of
    if instruction.opcode != "convolution" or instruction.get("feature_group_count", 1) != 1:
        return False
    window = window_of(instruction)
    return len(window) == 2 and all(
        (d.size, d.stride, d.base_dilation, d.window_dilation) == (3, 1, 1, 1) for d in window)


class Floor:
    """Measures the machine when made (about a second)."""

    def __init__(self) -> None:
        self.threads = len(os.sched_getaffinity(0))
        self.library = self._built()
        self.times = {**TIMES_F32, **{t: times for t, (flag, times) in DOT_INSTRUCTIONS.items() if flag in cpu_flags()}}
        self.peak = self._peak()
        self.bandwidths: dict[int, float] = {}

    def seconds(self, module, arrays) -> float:
        """The lower bound of one run of a module with these inputs; compiles it anew, with its steps counted."""
        import hloc
        exe = hloc.compile(module, target="cpu", options=hloc.Options(profile=True))
        exe.profile()
        exe(*arrays)
        products = sum(self._products(step.instruction) * step.runs for step in exe.profile())
        return max(products, self._arrays(module, exe))

    def most_fusion(self, module, arrays, runs: int = 9) -> float | None:
        """The upper bound of run time without fusion over run time with it: the median of some runs, kernel by kernel.
        None where library kernels take so little that it would be no bound."""
        import hloc
        exe = hloc.compile(module, target="cpu", options=hloc.Options(profile=True, passes={"fusion": "off"}))
        exe(*arrays)
        exe.profile()
        least, bounds = self._arrays(module, exe), []
        for _ in range(runs):
            exe(*arrays)
            steps = exe.profile()
            library_kernels = sum(step.seconds for step in steps if step.instruction.opcode in LIBRARY_KERNELS)
            bounds.append(sum(step.seconds for step in steps) / max(library_kernels, least))
        most = statistics.median(bounds)
        return most if most <= MOST_TOLD else None

    def _arrays(self, module, exe) -> float:
        """What parameters, constants and results need at the bandwidth, in seconds."""
        size = sum(v.shape.num_bytes for v in (*exe.parameters, *exe.results))
        size += sum(i.shape.num_bytes for i in module.instructions() if i.opcode == "constant" and i.shape.is_array)
        return size / self.bandwidth(size)

    def _products(self, kernel) -> float:
        """What the products of one kernel need at the peak, in seconds."""
        from hloc.analysis.cost import flops
        stack, seconds = [kernel], 0.0
        while stack:
            instruction = stack.pop()
            if instruction.opcode in ("dot", "convolution"):
                element_type = instruction.operands[0].shape.element_type
                times = self.times.get(element_type, 1.0) * (BY_BLOCKS if goes_by_blocks(instruction) else 1.0)
                seconds += flops(instruction) * times / self.peak
            elif instruction.opcode == "fusion":
                stack += [i for c in instruction.called_computations for i in c.instructions]
        return seconds

    def bandwidth(self, size: int) -> float:
        """Bytes per second when all cores together read so many bytes over and over."""
        size = max(LEAST_BYTES, 1 << (size - 1).bit_length()) if size else LEAST_BYTES
        if size not in self.bandwidths:
            share = max(size // self.threads // 512, 1) * 512
            rounds = max(1, (256 << 20) // share)
            data = [np.ones(share // 4 + 16, np.float32) for _ in range(self.threads)]
            places = [(d.ctypes.data + 63) // 64 * 64 for d in data]
            seconds = self._together(lambda t: self.library.read_all(places[t], share, rounds))
            self.bandwidths[size] = share * rounds * self.threads / seconds
        return self.bandwidths[size]

    def _peak(self) -> float:
        rounds = 30_000_000
        seconds = self._together(lambda _: self.library.multiply_add(rounds, 0.999))
        return self.library.operations_per_round() * rounds * self.threads / seconds

    def _together(self, work) -> float:
        """Seconds until all threads have done their part; the best of three."""
        best = float("inf")
        for _ in range(3):
            threads = [threading.Thread(target=work, args=(t,)) for t in range(self.threads)]
            start = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            best = min(best, time.perf_counter() - start)
        return best

    def _built(self) -> ctypes.CDLL:
        from hloc.targets.cpu.building import toolchain
        chain = toolchain.find()
        with tempfile.TemporaryDirectory() as folder:
            source, output = Path(folder) / "floor.c", Path(folder) / "floor.so"
            source.write_text(SOURCE)
            subprocess.run([*chain.command, "-O3", *chain.native, "-ffp-contract=fast", "-fno-math-errno", "-shared",
                            "-fPIC", str(source), "-o", str(output)], check=True)
            library = ctypes.CDLL(str(output))
        library.multiply_add.argtypes = [ctypes.c_long, ctypes.c_float]
        library.read_all.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
        library.operations_per_round.restype = ctypes.c_long
        library.multiply_add.restype = library.read_all.restype = ctypes.c_float
        return library


def cpu_flags() -> str:
    """What the processor says it can do; nothing where Linux does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


if __name__ == "__main__":
    floor = Floor()
    print(f"{floor.threads} threads: {floor.peak / 1e9:.0f} GFLOP/s in f32")
    for power in range(16, 29, 2):
        print(f"{1 << power >> 10:8} KiB read again and again: {floor.bandwidth(1 << power) / 1e9:7.1f} GB/s")
