"""The kernels of a module as text, after or between passes on kernels: `hloc opt --kernels`.

    kernel_text(kernels_of(module, target), target)                        all kernels, before they are printed as C
    kernel_text(read_loops(source), target, passes=["loop_schedules"])       of loop-IR text, after these passes
    kernel_text(kernels, target, dump_after=["loop_versioning"])              what this pass changed
"""
from __future__ import annotations

import difflib
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from hloc.api import Options, optimized_plan
from hloc.errors import UsageError
from hloc.ir import Module
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.text import print_loops
from hloc.targets.target import Target


class KernelTiming(NamedTuple):
    """All runs of one pass on kernels: seconds, and how many kernels it changed."""

    name: str
    seconds: float
    changed: int


def kernels_of(module: Module, target: Target, options: Options | None = None) -> tuple[Kernel | Tile, ...]:
    """The kernels of a module's plan, as they were lowered; the module is optimized in place."""
    return optimized_plan(module, target, options)[1].kernels


def pipeline_of(target: Target) -> dict:
    """The passes on kernels of a target by name, in order. CUDA has none: forms bind loops to threads."""
    from hloc.targets.cpu.vector_loops.pipeline import KERNEL_PASSES
    return KERNEL_PASSES if target.name == "cpu" else {}


def kernel_text(kernels: Sequence[Kernel | Tile], target: Target, passes: Sequence[str] | None = None, *,
                dump_before: Collection[str] = (), dump_after: Collection[str] = (),
                timings: list[KernelTiming] | None = None) -> str:
    """Loop-IR text (grammar/loops.lark) of the kernels after `passes` (default: the target's pipeline), or, with
    dumps, of those that a pass changed, before or after it ("all": every pass that changed one). Library
    kernels are comments. Raises UsageError for an unknown pass."""
    known = pipeline_of(target)
    chosen = list(known) if passes is None else list(passes)
    for name in (*chosen, *dump_before, *dump_after):
        if name not in known and name != "all":
            near = difflib.get_close_matches(name, known, n=1)
            raise UsageError(f"no pass on kernels {name!r} for target {target.name}", hint=f"did you mean {near[0]}?"
                             if near else "passes: " + (", ".join(known) or "none"))
    current, dumps = list(kernels), []
    for name in chosen:
        start = time.perf_counter()
        after = [k if isinstance(k, Tile) else known[name](k, target.machine) for k in current]
        seconds = time.perf_counter() - start
        changed = [(a, b) for a, b in zip(current, after)
                   if a != b and isinstance(a, Kernel) and isinstance(b, Kernel)]
        if timings is not None:
            timings.append(KernelTiming(name, seconds, len(changed)))
        if name in dump_before or changed and "all" in dump_before:
            dumps.append(_dump("before", name, [a for a, _ in changed]))
        if name in dump_after or changed and "all" in dump_after:
            dumps.append(_dump("after", name, [b for _, b in changed]))
        current = after
    return "\n".join(dumps) if dump_before or dump_after else _all(current)


def _dump(when: str, name: str, kernels: Sequence[Kernel]) -> str:
    if not kernels:
        return f"// {name} changes no kernel\n"
    return f"// {when} {name}\n{print_loops(kernels)}"


def _all(kernels: Sequence[Kernel | Tile]) -> str:
    texts = [print_loops([k]) if isinstance(k, Kernel) else
             f"// {k.name}: library kernel {k.library_kernel}({', '.join(b.name for b in k.buffers)})\n"
             for k in kernels]
    return "\n".join(texts)
