"""The device: PyCUDA's driver, the context of a GPU, and facts about it.

Only this file imports PyCUDA. If something is missing (package, driver, device, architecture), it raises one RunError
that names it.

    cuda = driver(); primary_context(cuda).push()
    device_machine().arch == "sm_90a"
"""
from __future__ import annotations

import atexit
from dataclasses import replace
from functools import cache, lru_cache

from hloc.errors import RunError
from hloc.machine import Machine
from hloc.targets.cuda.container import Container
from hloc.targets.cuda.gpus import device_named

UNKNOWN_BUS = 12e9                  # bytes a second between host and device: PCIe 3
WITHOUT = "hloc run --target cpu runs HLO text without one"


def driver():
    """pycuda.driver, initialized. Raises RunError naming what is missing."""
    try:
        import pycuda.driver as cuda
    except ImportError as error:
        if "undefined symbol: cu" in str(error):
            raise RunError(f"the NVIDIA driver is too old for the PyCUDA that is installed: {error}",
                           hint="update the driver, or build PyCUDA with the toolkit of the driver's version") from None
        if "libcuda" in str(error):
            raise RunError(f"running on a GPU needs the NVIDIA driver (libcuda): {error}", hint=WITHOUT) from None
        raise RunError(f"running on a GPU needs PyCUDA: {error}", hint="pip install 'hloc[cuda]'; see hloc doctor"
                       ) from None
    try:
        cuda.init()
        count = cuda.Device.count()
    except cuda.Error as error:
        if "no CUDA-capable device" in str(error):
            raise no_device() from None
        raise RunError(f"the NVIDIA driver does not start: {error}",
                       hint="nvidia-smi shows the driver's state; PyCUDA may be newer than the driver") from None
    if count == 0:
        raise no_device()
    return cuda


def no_device() -> RunError:
    return RunError("no GPU on this machine", hint=WITHOUT)


def pinned_pool():
    """A pool of page-locked memory for results; memory is reused after the last reference to its array is gone."""
    from pycuda.tools import PageLockedMemoryPool
    return PageLockedMemoryPool()


@cache
def primary_context(cuda, gpu: int = 0):
    """A GPU's primary context, one for the process. cuBLAS and NCCL share it. Results in page-locked memory belong to
    it and may outlive their program. It is released when Python exits: PyCUDA's own destructor would call cuCtxDetach,
    which fails for primary contexts."""
    try:
        context = cuda.Device(gpu).retain_primary_context()
    except cuda.Error as error:
        raise RunError(f"the GPU cannot be used: {error}", hint="nvidia-smi shows its processes and compute mode"
                       ) from None
    atexit.register(context.detach)
    return context


@lru_cache(maxsize=1)
def device_machine() -> Machine:
    """Facts about the first GPU. Raises RunError if there is none."""
    cuda = driver()
    device = cuda.Device(0)
    major, minor = device.compute_capability()
    ask, of = device.get_attribute, cuda.device_attribute
    cores, shared = ask(of.MULTIPROCESSOR_COUNT), ask(of.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    known = device_named(device.name(), f"sm_{major}{minor}")
    if known is not None and (known.cores, known.shared_bytes) == (cores, shared):
        return replace(known, name=device.name())           # the same code as --target NAME makes on other machines
    bandwidth = ask(of.MEMORY_CLOCK_RATE) * 1e3 * 2 * ask(of.GLOBAL_MEMORY_BUS_WIDTH) / 8
    return Machine(device.name(), "gpu", cores, 16, known.l1_bytes if known else 128 << 10, ask(of.L2_CACHE_SIZE),
                   known.bandwidth if known else bandwidth or 1e12, 3e-6, shared,
                   known.arch if known else f"sm_{major}{minor}",
                   host_bandwidth=known.host_bandwidth if known else UNKNOWN_BUS)


def check_architecture(packed: Container, device: str, capability: tuple[int, int]) -> None:
    """A cubin runs on GPUs of its major and at least its minor version; one of sm_90a and similar on exactly these."""
    digits = packed.arch.removeprefix("sm_")
    number = digits.rstrip("af")
    if not number.isdigit():
        raise RunError(f"the program was compiled for {packed.arch!r}, which is not a GPU architecture")
    major, minor = divmod(int(number), 10)
    same = (major, minor) == tuple(capability)
    if not (same or (digits == number and major == capability[0] and minor <= capability[1])):
        arch = f"sm_{capability[0]}{capability[1]}"
        known = device_named(device, arch)
        raise RunError(f"this program was compiled for {packed.arch}; {device} is {arch}",
                       hint=f"hloc compile --target {known.arch if known else arch}")
