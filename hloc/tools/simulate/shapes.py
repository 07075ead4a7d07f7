"""All ways to lay a number of devices onto the axes of a module's mesh, and what a step takes on each.

    mesh_shapes(module, 8, cluster)      data=8,model=1; data=4,model=2; data=2,model=4; data=1,model=8
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hloc.api import Options
from hloc.errors import HlocError, Span, UsageError
from hloc.ir import Module
from hloc.parallel import Warn
from hloc.tools.mesh_axes import axis_sizes
from hloc.tools.simulate.cluster import Cluster
from hloc.tools.simulate.simulation import Simulation, one_device, simulate

MOST_SHAPES = 300


class Shape(NamedTuple):
    """told: None where `problem` says why there is nothing to tell."""

    mesh: dict[str, int]
    told: Simulation | None
    problem: str = ""


def mesh_shapes(module: Module, devices: int | None, cluster: Cluster, *, title: str = "",
                options: Options | None = None, overlap: bool = True, strict: bool = False, warn: Warn | None = None,
                progress: Callable[[int, int], None] | None = None) -> list[Shape]:
    """Those that take least time first, those that cannot be last. devices: None: as many as the annotations have.
    warn: of what cannot be divided, each message once, whatever the meshes that have it."""
    divided = one_device(module, strict=strict)
    said: set[tuple[str, Span | None]] = set()

    def warn_once(message: str, span: Span | None = None) -> None:
        if warn is not None and (message, span) not in said:
            said.add((message, span))
            warn(message, span)
    if divided.mesh is None:
        raise UsageError(f"{module.name} is partitioned already: its mesh has one shape",
                         hint="take the module as it was before it was partitioned")
    names, count = list(axis_sizes(module, divided)), devices or divided.count
    shapes = list(factorizations(count, len(names), MOST_SHAPES + 1))
    if len(shapes) > MOST_SHAPES:
        raise UsageError(f"{count:,} devices lie on the axes {', '.join(names)} in more than {MOST_SHAPES} ways")
    found = []
    for number, sizes in enumerate(shapes):
        if progress is not None:
            progress(number, len(shapes))
        mesh = dict(zip(names, sizes))
        try:
            found.append(Shape(mesh, simulate(module, mesh, cluster, title=title, options=options, overlap=overlap,
                                              strict=strict, warn=warn_once)))
        except HlocError as error:
            found.append(Shape(mesh, None, error.message))
    return sorted(found, key=lambda s: s.told.timeline.total if s.told else math.inf)


def factorizations(count: int, axes: int, most: int) -> Iterator[Sequence[int]]:
    """At most `most` lists of `axes` sizes whose product is `count`, the first axis largest first."""
    divisors = sorted(n for k in range(1, math.isqrt(count) + 1) if count % k == 0 for n in {k, count // k})
    stack: list[tuple[tuple[int, ...], int]] = [((), count)]
    made = 0
    while stack and made < most:
        sizes, left = stack.pop()
        if len(sizes) == axes - 1:
            made += 1
            yield (*sizes, left)
        else:
            stack.extend(((*sizes, n), left // n) for n in divisors if left % n == 0)
