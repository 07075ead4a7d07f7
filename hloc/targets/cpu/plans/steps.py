"""The scratch memory of the library kernels of runtime/, computed before anything is compiled, so that the plan
includes it.

In: a Tile, or a host call that C makes (LAPACK). Out: a Scratch. The plan reserves its bytes in the arena for the
duration of the step, and the driver passes them to the library kernel (hloc_give_room in runtime/pool.h). If one is too
small, the library kernel allocates, and hloc_unplanned_bytes counts it: tests check that.

    scratch_of(tile, machine)                     Scratch(first=1 << 20, second=0, third=0, own=66_048, threads=4)
    scratch_of(tile, machine).bytes               what the plan reserves
    kept_bytes(program.kernels, machine)          what library kernels keep between runs: roots of unity
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import HostCall
from hloc.machine import Machine
from hloc.targets.cpu.plans.attention import attention_scratch
from hloc.targets.cpu.plans.convolutions import convolution_scratch
from hloc.targets.cpu.plans.fft import plan_of_fft
from hloc.targets.cpu.plans.matmul_choice import gemm_scratch
from hloc.targets.cpu.plans.slots import Scratch
from hloc.targets.cpu.plans.sorts import plan_of_sort, plan_of_topk
from hloc.targets.cpu.plans.triangular import plan_of_cholesky, plan_of_system

LIBRARY_KERNELS: dict[str, Callable[[Tile, Machine], Scratch]] = {
    "gemm": gemm_scratch, "attention": attention_scratch, "convolution": convolution_scratch,
    "sort": lambda tile, machine: plan_of_sort(tile, machine).scratch,
    "topk": lambda tile, machine: plan_of_topk(tile, machine).scratch,
    "fft": lambda tile, machine: plan_of_fft(tile, machine).scratch,
    "cholesky": lambda tile, machine: plan_of_cholesky(tile, machine).scratch,
    "triangular-solve": lambda tile, machine: plan_of_system(tile, machine).scratch,
}


def scratch_of(step: Tile | HostCall, machine: Machine) -> Scratch:
    """The scratch memory of one step on this machine."""
    if isinstance(step, HostCall):
        from hloc.targets.cpu.plans.lapack import lapack_scratch
        return lapack_scratch(step, machine)
    return LIBRARY_KERNELS[step.library_kernel](step, machine)


def kept_bytes(kernels: Iterable[Kernel | Tile], machine: Machine) -> int:
    """Bytes that the library kernels of a program keep until the process ends: the roots of FFTs."""
    kept = {(k.buffers[1].type in ("c128", "f64"), points) for k in kernels
            if isinstance(k, Tile) and k.library_kernel == "fft" for points in plan_of_fft(k, machine).kept_points}
    return sum(points.bytes for _, points in kept)
