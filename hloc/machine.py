"""Machine: facts about hardware that cost decisions read. Passes and lowerings receive it; none asks the system.

    Machine.host()      this computer
    GPUS["h100"]        hloc/targets/cuda/gpus.py: data, so that a GPU build needs no GPU

Sizes are in bytes, bandwidths in bytes per second.
"""
from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from hloc.limits import quota_cores

MOST_THREADS = 256                   # MAX_THREADS in runtime/pool.c
AMX_FLAGS = frozenset(("amx_tile", "amx_bf16", "amx_int8"))
# What C compilers define for a -march, and the same in Linux's words, of those features that decisions ask for.
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
    dots: tuple[str, ...] = ()      # element types of which a CPU had best sum several products at once: bf16, s8, s16
    amx: bool = False               # whether it does so by tiles
    slow_pairs: bool = False        # whether it multiplies pairs of bf16 at half the rate of f32
    march: str = "native"           # of a CPU: what the C compiler's -march is

    @property
    def has_pairs(self) -> bool:
        """Whether a CPU multiplies pairs of bf16 in vectors, quicker than f32. AMX is of those that are slow at it."""
        return "bf16" in self.dots and not self.amx

    @staticmethod
    def host() -> Machine:
        """This computer's CPU, as far as Linux tells; sensible figures elsewhere."""
        return _cpu("native", cpu_flags(), has_amx(), has_slow_pairs())

    @staticmethod
    def of_march(march: str, macros: frozenset[str]) -> Machine:
        """Any CPU that a C compiler's -march stands for; macros: those that it defines for it (toolchain.py). Cores are
        this computer's: nothing says how many there will be."""
        flags = frozenset(flag for macro, flag in FLAG_OF_MACRO.items() if macro in macros)
        amx = os.environ.get("HLOC_AMX") != "0" and flags >= AMX_FLAGS
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
    """Cores that this process may use, in its container too, at most MOST_THREADS; HLOC_THREADS overrides."""
    asked = os.environ.get("HLOC_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return min(int(asked), MOST_THREADS)
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, quota_cores() or count, MOST_THREADS)


@lru_cache(maxsize=1)
def has_amx() -> bool:
    """Whether this CPU multiplies matrices of bf16 and s8 by tiles, and Linux keeps their registers for those programs
    that ask (5.16 and later); HLOC_AMX=0: they are not used."""
    if os.environ.get("HLOC_AMX") == "0" or not cpu_flags() >= AMX_FLAGS:
        return False
    import ctypes
    supported = ctypes.c_uint64()
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(ctypes.c_long(ARCH_PRCTL), ctypes.c_long(ARCH_GET_XCOMP_SUPP), ctypes.byref(supported))
    return not failed and bool(supported.value >> XFEATURE_XTILEDATA & 1)


@lru_cache(maxsize=1)
def has_slow_pairs() -> bool:
    """Whether this CPU multiplies pairs of bf16 (vdpbf16ps) at half the rate of f32's multiplications: Intel's, which
    leave that to AMX (measured on Sapphire and Emerald Rapids; AMD's Zen 4 and 5 take half the time of f32's)."""
    return "avx512_bf16" in cpu_flags() and "GenuineIntel" in _cpu_words("vendor_id") and not has_amx()


def cpu_flags() -> frozenset[str]:
    """What Linux says that the CPU can do; nothing elsewhere."""
    return _cpu_words("flags", "Features")


def _cpu_words(*names: str) -> frozenset[str]:
    """Of the first line of /proc/cpuinfo with one of these names."""
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
