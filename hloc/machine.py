"""Machine: facts about hardware for cost decisions. Passes and lowerings receive it; none queries the system.

    Machine.host()      this computer
    GPUS["h100"]        hloc/targets/cuda/gpus.py: data, so that a GPU build needs no GPU

Sizes are in bytes, bandwidths in bytes per second.
"""
from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from hloc import settings
from hloc.limits import quota_cores

MOST_THREADS = 256                   # MAX_THREADS in runtime/pool.c
AMX_FLAGS = frozenset(("amx_tile", "amx_bf16", "amx_int8"))
# Macros of C compilers for a -march, and Linux's names of the same features, as far as decisions use them.
FLAG_OF_MACRO = {"__AVX2__": "avx2", "__AVX512F__": "avx512f", "__AVX512BW__": "avx512bw", "__AVX512DQ__": "avx512dq",
                 "__AVX512BF16__": "avx512_bf16", "__AVX512VNNI__": "avx512_vnni", "__AMX_TILE__": "amx_tile",
                 "__AMX_BF16__": "amx_bf16", "__AMX_INT8__": "amx_int8"}
QUICK_PAIRS = frozenset(("__znver4__", "__znver5__", "__znver6__"))        # AMD's, see has_slow_pairs
ARCH_PRCTL, ARCH_GET_XCOMP_SUPP, XFEATURE_XTILEDATA = 158, 0x1021, 18      # of Linux on x86-64


@dataclass(frozen=True, slots=True)
class Machine:
    """kind: cpu or gpu; cores: CPU cores or SMs; vector_bytes: width of one SIMD register (a warp's load on a GPU)."""

    name: str
    kind: str
    cores: int
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    bandwidth: float
    launch_seconds: float           # cost of starting one parallel kernel
    shared_bytes: int = 0           # per block, GPU only
    arch: str = ""                  # sm_90a; of a CPU what uname says
    dots: tuple[str, ...] = ()      # element types with fast dot-product instructions: bf16, s8, s16
    amx: bool = False               # whether these use AMX tiles
    slow_pairs: bool = False        # whether pairs of bf16 are multiplied at half the rate of f32
    march: str = "native"           # of a CPU: the C compiler's -march
    host_bandwidth: float = 0.0     # of copies between a GPU's memory and its host's, in one direction

    @property
    def has_pairs(self) -> bool:
        """Whether a CPU multiplies pairs of bf16 in vectors faster than f32. CPUs with AMX do not."""
        return "bf16" in self.dots and not self.amx

    @staticmethod
    def host() -> Machine:
        """This computer's CPU, by Linux's files; on other systems defaults."""
        return _cpu("native", cpu_flags(), has_amx(), has_slow_pairs())

    @staticmethod
    def of_march(march: str, macros: frozenset[str]) -> Machine:
        """The CPU of a C compiler's -march; macros: those that the compiler defines for it (toolchain.py). The number
        of cores is this computer's, because the other's is unknown."""
        flags = frozenset(flag for macro, flag in FLAG_OF_MACRO.items() if macro in macros)
        amx = settings.choice("HLOC_AMX", "1", "0") == "1" and flags >= AMX_FLAGS
        return _cpu(march, flags, amx, "avx512_bf16" in flags and not amx and not macros & QUICK_PAIRS)


def _cpu(march: str, flags: frozenset[str], may_use_amx: bool, slow_pairs: bool) -> Machine:
    width = _vector_bytes(flags)
    dots = tuple(t for t, flag in (("bf16", "avx512_bf16"), ("s8", "avx512_vnni")) if width == 64 and flag in flags)
    amx = len(dots) == 2 and may_use_amx
    dots = tuple(t for t in dots if t != "bf16" or not slow_pairs)
    dots += ("s16",) * (width >= 32)
    return Machine("cpu", "cpu", available_cores(), width, 32 << 10, 1 << 20, 20e9, 4e-6, arch=os.uname().machine,
                   dots=dots, amx=amx, slow_pairs=slow_pairs, march=march)


def available_cores() -> int:
    """Cores that this process and its container may use, at most MOST_THREADS; HLOC_THREADS overrides. Raises
    UsageError where that is no number."""
    if asked := settings.whole_number("HLOC_THREADS", least=1):
        return min(asked, MOST_THREADS)
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, quota_cores() or count, MOST_THREADS)


@lru_cache(maxsize=1)
def has_amx() -> bool:
    """Whether this CPU has AMX for bf16 and s8, and Linux permits it (5.16 and later); HLOC_AMX=0 disables it."""
    if settings.choice("HLOC_AMX", "1", "0") == "0" or not cpu_flags() >= AMX_FLAGS:
        return False
    import ctypes
    supported = ctypes.c_uint64()
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(ctypes.c_long(ARCH_PRCTL), ctypes.c_long(ARCH_GET_XCOMP_SUPP), ctypes.byref(supported))
    return not failed and bool(supported.value >> XFEATURE_XTILEDATA & 1)


@lru_cache(maxsize=1)
def has_slow_pairs() -> bool:
    """Whether this CPU multiplies pairs of bf16 (vdpbf16ps) at half the rate of f32: Intel's do (measured on Sapphire
    and Emerald Rapids); AMD's Zen 4 and 5 take half the time of f32."""
    return "avx512_bf16" in cpu_flags() and "GenuineIntel" in _cpu_words("vendor_id") and not has_amx()


def cpu_flags() -> frozenset[str]:
    """The CPU's flags by Linux; empty elsewhere."""
    return _cpu_words("flags", "Features")


def _cpu_words(*names: str) -> frozenset[str]:
    """The value of the first line of /proc/cpuinfo with one of these names."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return frozenset(next((line for line in file if line.startswith(names)), "").split())
    except OSError:
        return frozenset()


def _vector_bytes(flags: frozenset[str]) -> int:
    """As runtime/vector.h says."""
    if flags >= {"avx512f", "avx512bw", "avx512dq"}:
        return 64
    return 32 if "avx2" in flags else 16
