"""The kernel passes for CPUs and their order: they rewrite code that C compilers vectorize badly.

In: a lowered Kernel, and its target Machine. Out: the Kernel that is printed as C.

    run_kernel_passes(kernel, Machine.host())

A pass is a function with the name of its file; KERNEL_ORDERING states the required orders and their reasons: other
neighbours can be swapped (a test tries it on the project's own kernels).
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from hloc.kernels.ir import Kernel
from hloc.kernels.schedule.file import ROWS, Given
from hloc.kernels.schedule.nest import Nest
from hloc.kernels.schedule.row_nest import RowNest
from hloc.kernels.verify import verify_kernel
from hloc.machine import Machine
from hloc.targets.cpu.vector_loops.bitcast_copies import bitcast_copies
from hloc.targets.cpu.vector_loops.function_calls import function_calls
from hloc.targets.cpu.vector_loops.loop_schedules import loop_schedules, nests
from hloc.targets.cpu.vector_loops.loop_versioning import loop_versioning
from hloc.targets.cpu.vector_loops.nan_check_elimination import nan_check_elimination
from hloc.targets.cpu.vector_loops.pixel_shuffles import pixel_shuffles
from hloc.targets.cpu.vector_loops.row_schedules import row_schedules, with_row_nests
from hloc.targets.cpu.vector_loops.scalar_conversions import scalar_conversions
from hloc.targets.cpu.vector_loops.specialization import specialization
from hloc.targets.cpu.vector_loops.ssa_conversion import ssa_conversion

KernelPass = Callable[..., Kernel]                   # of a Kernel and a Machine
Observer = Callable[[str, Kernel, Kernel], None]

KERNEL_PIPELINE: tuple[KernelPass, ...] = (
    bitcast_copies,
    specialization,
    ssa_conversion,
    pixel_shuffles,
    row_schedules,
    nan_check_elimination,
    loop_schedules,
    loop_versioning,
    function_calls,
    scalar_conversions,
)

SCHEDULING = row_schedules, loop_schedules         # passes that take the schedules of a file

# (first, second, why): `first` runs before `second`.
KERNEL_ORDERING: tuple[tuple[KernelPass, KernelPass, str], ...] = (
    (bitcast_copies, row_schedules, "vectors hold floats, but no complex numbers"),
    (specialization, ssa_conversion, "names are given to straight-line code, and cases that are apart are straight"),
    (ssa_conversion, pixel_shuffles, "pixels are straight-line code"),
    (pixel_shuffles, row_schedules, "pixels that are only moved take no other schedule"),
    (loop_schedules, loop_versioning, "vectors have functions that C compilers do not vectorize in loops"),
    (loop_versioning, function_calls, "functions that are called are no longer found"),
    (nan_check_elimination, loop_schedules, "roundings without a check are found among scalars"),
    (loop_schedules, scalar_conversions, "tails of vectors are single numbers"),
)

KERNEL_PASSES: dict[str, KernelPass] = {one.__name__: one for one in KERNEL_PIPELINE}


def run_kernel_passes(kernel: Kernel, machine: Machine, passes: Iterable[KernelPass] = KERNEL_PIPELINE, *,
                      schedules: Mapping[str, Given] | None = None, observe: Observer | None = None,
                      verify: bool = False) -> Kernel:
    """The kernel after `passes`, in order. schedules: of its nests, by their numbers, instead of those chosen;
    observe(name, before, after) is called for each pass; verify: check each result against the rules of the loop IR
    (KernelError)."""
    for one in passes:
        after = one(kernel, machine, schedules) if one in SCHEDULING else one(kernel, machine)
        if verify and after is not kernel:
            verify_kernel(after)
        if observe is not None:
            observe(one.__name__, kernel, after)
        kernel = after
    return kernel


def scheduled_nests(kernel: Kernel, machine: Machine,
                    schedules: Mapping[str, Given] | None = None) -> dict[str, Nest | RowNest]:
    """The nests of a kernel that the pipeline gives schedules, by their numbers. Which loops go along rows depends
    on the schedules of the rows."""
    before = KERNEL_PIPELINE[:KERNEL_PIPELINE.index(loop_schedules)]
    inner = nests(run_kernel_passes(kernel, machine, before, schedules=schedules), machine)
    return {f"{ROWS}{n}": nest for n, nest in enumerate(nests(kernel, machine, with_row_nests))} | {
        str(n): nest for n, nest in enumerate(inner)}
