"""Reads strided integers as floats of the same bits.

gcc builds a vector of floats by insertions, but one of integers by shifts in scalar registers, which takes two to four
times as long.

In: a Kernel. Out: the kernel whose VECTOR loops have `bits_read` around loads of 32- and 64-bit integers, except for
contiguous or loop-invariant ones.

    out[i] = in[i * 5]   ->   out[i] = (int)hloc_bits_f32(((const hloc_any_f32 *)in)[i * 5])
"""
from __future__ import annotations

from hloc.kernels.affine import Along
from hloc.kernels.ir import Apply, Expr, For, Kernel, Load
from hloc.kernels.walks import with_all_expressions, with_parts, with_vector_loops
from hloc.machine import Machine

BY_SHIFTS = frozenset(["s32", "u32", "s64", "u64"])
SIDE_BY_SIDE = (-1, 0, 1)


def strided_integer_loads(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with such loads, on x86."""
    if machine.arch != "x86_64":
        return kernel
    return kernel._replace(body=with_vector_loops(kernel.body, lambda loop: (_read_by_bits(loop),)))


def _read_by_bits(loop: For) -> For:
    along = Along(loop)

    def changed(expr: Expr) -> Expr:
        new = with_parts(expr, changed)
        if isinstance(new, Load) and new.type in BY_SHIFTS and along.step(new.position) not in SIDE_BY_SIDE:
            return Apply("bits_read", (new,), new.type)
        return new
    return loop._replace(body=with_all_expressions(loop.body, changed))
