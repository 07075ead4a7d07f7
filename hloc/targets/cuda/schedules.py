"""Schedules of loop kernels by their names: what `hloc explain --schedule -t h200` prints, and `--schedule FILE` takes.

    // k0_fusion_add.0: d1 < 512, d0 < 4096; 3 schedules, by predicted microseconds
    //    4.10  split(d0,4) vectorize(d0i,4) bind(d1,lane) bind(d0o,lane)
    k0_fusion_add.0 split(d0,4) vectorize(d0i,4) bind(d1,lane) bind(d0o,lane)

A kernel has one schedule, number 0. hloc/kernels/schedule/file.py reads the file.
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.errors import ParseError, Source
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.schedule.file import read_schedules, refuse_unknown
from hloc.kernels.schedule.steps import Refused, steps_text
from hloc.machine import Machine
from hloc.targets.cuda.costs.loop_choice import chosen_form
from hloc.targets.inlining import c_name


def named(kernels: Sequence[Kernel | Tile]) -> dict[str, Kernel]:
    """The loop kernels of a plan, as files of schedules name them."""
    return {f"{c_name(number, kernel.name)}.0": kernel for number, kernel in enumerate(kernels)
            if isinstance(kernel, Kernel)}


def variants_of(kernels: Sequence[Kernel | Tile], gpu: Machine, file: Source, variants: Sequence[str]) -> list[str]:
    """The variants (sources.make_sources) with the schedules of a file. Raises ParseError for one that is wrong."""
    given, known = read_schedules(file), named(kernels)
    refuse_unknown(given, known)
    for name, one in given.items():
        try:
            chosen_form(known[name], gpu, steps_text(one.steps))
        except Refused as error:
            raise ParseError(str(error), one.span) from None
    return [steps_text(given[name].steps) if (name := f"{c_name(number, kernel.name)}.0") in given else variant
            for number, (kernel, variant) in enumerate(zip(kernels, variants or [""] * len(kernels)))]
