"""Calls of long functions instead of inlining them, if a kernel has many outside of vectors.

A C compiler takes 10 to 25 ms for each inlined function. Those of vectors are calls by targets/vectors.py.

In: a Kernel. Out: the kernel with calls (`called_sin`, targets/functions.py), if it has more than
MOST_INLINED functions.
"""
from __future__ import annotations

from hloc.kernels.ir import Kernel
from hloc.machine import Machine
from hloc.targets.functions import with_calls

MOST_INLINED = 24               # more than of vectors: a loop with a call is not vectorized


def function_calls(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with calls, if it has many functions."""
    return with_calls(kernel, MOST_INLINED)
