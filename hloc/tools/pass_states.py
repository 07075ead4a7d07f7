"""A module between two passes.

    before, after = pass_states(module, find("cpu"), {}, before="fusion", after="fusion")

A pass may run several times: "before" is its first run, "after" its last.
"""
from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from hloc.errors import UsageError
from hloc.ir import Module
from hloc.ir.clone import clone_module
from hloc.passes.context import PassContext
from hloc.passes.pipelines import pipeline_for
from hloc.passes.runner import flatten, run_passes
from hloc.targets.target import Target


def pass_states(module: Module, target: Target, options: Mapping[str, Any], *, before: str | None = None,
                after: str | None = None) -> tuple[Module, Module]:
    """The module before a pass (None: as it was read) and after a pass (None: after the last one of the pipeline).

    The module itself is optimized. options: of passes (hloc/passes/context.py). Raises UsageError for a pass that is
    not in the target's pipeline, or if `after` ends before `before` begins.
    """
    pipeline = pipeline_for(target.name)
    check_passes((name for name in (before, after) if name is not None), {p.__name__ for p in flatten(pipeline)})
    first = clone_module(module) if before is None else None
    last: Module | None = None

    def watch(when: str, name: str) -> None:
        nonlocal first, last
        if when == "before" and name == before and first is None:
            first = clone_module(module)
        if when == "after" and name == after:
            last = clone_module(module) if first is not None else None

    run_passes(module, pipeline, PassContext(target.machine, target.name, dict(options)), verify=False, watch=watch)
    if after is None:
        last = module
    if first is None or last is None:
        raise UsageError(f"{after} does not run after {before} in the pipeline for {target.name}",
                         hint="hloc opt --time-passes shows the order")
    return first, last


def check_passes(names: Iterable[str], running: set[str]) -> None:
    """Raises UsageError for a name that is no pass of the pipeline."""
    for name in names:
        if name not in running:
            near = difflib.get_close_matches(name, running, n=1)
            raise UsageError(f"no pass {name!r} in this pipeline", hint=f"did you mean {near[0]}?" if near else
                             "passes: " + ", ".join(sorted(running)))
