"""The scratch memory of the library kernels of runtime/, computed before anything is compiled, so that the plan
includes it.

In: a Tile, or a host call that C makes (LAPACK). Out: a Scratch. The plan reserves its bytes in the arena for the
duration of the step, and the driver passes them to the library kernel (hloc_give_room in runtime/pool.h). Plans of
matmuls, convolutions and attention hold them; those of other library kernels follow the C code. If one is too small,
the library kernel allocates, and hloc_unplanned_bytes counts it: tests check that.

    scratch_of(tile, machine)                     Scratch(first=1 << 20, second=0, third=0, own=66_048, threads=4)
    scratch_of(tile, machine).bytes               what the plan reserves
    kept_bytes(program.kernels, machine)          what library kernels keep between runs: roots of unity
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isqrt, prod
from typing import NamedTuple

from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import HostCall
from hloc.machine import Machine
from hloc.targets.cpu.plans.slots import Scratch, aligned, busy_threads

LONGEST_KEPT, LONGEST_IN_LANES, PLAN_BYTES = 1 << 20, 1 << 16, 384             # of runtime/fft_lines.h


def scratch_of(step: Tile | HostCall, machine: Machine) -> Scratch:
    """The scratch memory of one step on this machine."""
    if isinstance(step, HostCall):
        from hloc.targets.cpu.execution.lapack import lapack_scratch
        return lapack_scratch(step, machine)
    return LIBRARY_KERNELS[step.library_kernel](step, machine)


def kept_bytes(kernels: Iterable[Kernel | Tile], machine: Machine) -> int:
    """Bytes that the library kernels of a program keep until the process ends: the plans of FFTs."""
    plans = {plan for k in kernels if isinstance(k, Tile) and k.library_kernel == "fft" for plan in _plans(k, machine)}
    return sum(plan.bytes for plan in plans if plan.n <= LONGEST_KEPT)


def _gemm(tile: Tile, machine: Machine) -> Scratch:
    from hloc.targets.cpu.plans.matmul_choice import gemm_scratch
    return gemm_scratch(tile, machine)


def _convolution(tile: Tile, machine: Machine) -> Scratch:
    from hloc.targets.cpu.plans.convolutions import convolution_scratch
    return convolution_scratch(tile, machine)


def _cholesky(tile: Tile, machine: Machine) -> Scratch:
    from hloc.targets.cpu.plans.triangular import cholesky_scratch
    return cholesky_scratch(tile, machine)


def _triangular_solve(tile: Tile, machine: Machine) -> Scratch:
    from hloc.targets.cpu.plans.triangular import triangular_solve_scratch
    return triangular_solve_scratch(tile, machine)


def _attention(tile: Tile, machine: Machine) -> Scratch:
    from hloc.targets.cpu.plans.attention import attention_scratch
    return attention_scratch(tile, machine)


# -- FFTs --------------------------------------------------------------------------------------------------------------

def _dimensions(tile: Tile) -> list[tuple[int, bool]]:
    """For each transformed dimension the points of its plan, and whether real lines are computed as complex lines of
    half the length."""
    given = dict(tile.parameters)
    kind, lengths = given["kind"], given["lengths"]
    last = len(lengths) - 1
    folded = [kind in ("RFFT", "IRFFT") and d == last and n % 2 == 0 for d, n in enumerate(lengths)]
    return [(n // 2 if half else n, half) for n, half in zip(lengths, folded)]


def _point(tile: Tile) -> int:
    return 16 if tile.buffers[1].type in ("c128", "f64") else 8


class _Plan(NamedTuple):
    """runtime/fft_lines.h: computed once for lines of n points, split into rows (0: not split)."""

    n: int
    real: bool
    point: int
    rows: int
    lanes: int

    @property
    def bytes(self) -> int:
        turns = aligned((self.n // 2 + 1) * self.point) if self.real else 0
        return turns + (self._split_bytes() if self.rows else _roots_bytes(self.n, self.point))

    def _split_bytes(self) -> int:
        between = aligned((self.n + self.lanes) * self.point)
        return PLAN_BYTES + between + sum(_roots_bytes(n, self.point) for n in (self.rows, self.n // self.rows))


def _plans(tile: Tile, machine: Machine) -> list[_Plan]:
    """The plan of each dimension."""
    given, point = dict(tile.parameters), _point(tile)
    sizes, lanes, last = _sizes(tile), 2 * machine.vector_bytes // point, len(given["lengths"]) - 1
    plans = []
    for d, (n, real) in enumerate(_dimensions(tile)):
        lines = given["batch"] * prod(s for i, s in enumerate(sizes) if i != d)
        splits = d == last and (real or given["kind"] in ("FFT", "IFFT"))
        plans.append(_Plan(n, real, point, _rows_of(n, lines, point, lanes) if splits else 0, lanes))
    return plans


def _sizes(tile: Tile) -> list[int]:
    """The sizes of the complex side."""
    given = dict(tile.parameters)
    *outer, last = given["lengths"]
    return [*outer, last // 2 + 1 if given["kind"] in ("RFFT", "IRFFT") else last]


def _rows_of(n: int, lines: int, point: int, lanes: int) -> int:
    """F(rows_of) of runtime/fft_lines.h."""
    if lines >= lanes and _fit_lanes(n, point) or not _is_smooth(n):
        return 0
    return next((rows for rows in range(isqrt(n), lanes - 1, -1) if n % rows == 0), 0)


def _fit_lanes(n: int, point: int) -> bool:
    return (n if _is_smooth(n) else 2 * _chirp_length(n)) * point <= LONGEST_IN_LANES


def _fft(tile: Tile, machine: Machine) -> Scratch:
    """runtime/fft_lines.h: lines and the scratch memory of one transform; all points if the last dimension is
    transformed last."""
    given = dict(tile.parameters)
    lengths, batch, point, sizes = given["lengths"], given["batch"], _point(tile), _sizes(tile)
    plans, total = _plans(tile, machine), Scratch()
    for length, size, plan in zip(lengths, sizes, plans):
        if plan.rows:
            columns = plan.n // plan.rows
            for n, lines in ((plan.rows, columns), (columns, plan.rows)):
                total = total.joined(_lines(n, n, lines, plan.lanes, point, machine))
        else:
            lines = batch * prod(sizes) // size
            lanes = plan.lanes if _fit_lanes(plan.n, point) and lines >= plan.lanes // 4 else 1
            total = total.joined(_lines(length, plan.n, lines, lanes, point, machine))
    first = batch * prod(sizes) if given["kind"] == "IRFFT" and len(lengths) > 1 else 0
    first += plans[-1].n if plans[-1].rows else 0
    second = max(0 if plan.n <= LONGEST_KEPT else plan.bytes for plan in plans)
    return total.joined(Scratch.of(first=first * point, second=second))


def _lines(length: int, n: int, lines: int, lanes: int, point: int, machine: Machine) -> Scratch:
    """F(run_lines): `lanes` lines at a time, each of `length` points that are transformed as n."""
    spare = n if _is_smooth(n) else 2 * _chirp_length(n)
    threads = busy_threads(-(-lines // lanes), 8192 // (lanes * (length + 1)) + 1, machine)
    return Scratch.of(own=(length + 1 + spare) * lanes * point, threads=threads)


def _roots_bytes(n: int, point: int) -> int:
    """Bytes of a plan for lines that are not split."""
    roots = PLAN_BYTES + aligned(n * point)
    if _is_smooth(n):
        return roots
    m = _chirp_length(n)
    return roots + 2 * aligned(m * point) + _roots_bytes(m, point)


def _is_smooth(n: int) -> bool:
    """Whether n has no prime factor above 31."""
    for r in range(2, 32):
        while n > 1 and n % r == 0:
            n //= r
    return n == 1


def _chirp_length(n: int) -> int:
    return min(start << (-(-2 * n // start) - 1).bit_length() for start in (1, 3, 5, 9, 15))


# -- sorts -------------------------------------------------------------------------------------------------------------

def _sort(tile: Tile, machine: Machine) -> Scratch:
    from hloc.targets.cpu.plans.sorts import plan_of_sort
    return plan_of_sort(tile, machine).scratch


def _topk(tile: Tile, machine: Machine) -> Scratch:
    from hloc.targets.cpu.plans.sorts import plan_of_topk
    return plan_of_topk(tile, machine).scratch


LIBRARY_KERNELS: dict[str, Callable[[Tile, Machine], Scratch]] = {
    "gemm": _gemm, "attention": _attention, "convolution": _convolution, "sort": _sort, "topk": _topk, "fft": _fft,
    "cholesky": _cholesky, "triangular-solve": _triangular_solve,
}
