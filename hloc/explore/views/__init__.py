"""The kinds of pane, by name; `view` makes a pane's content.

    view(work, {"kind": "cuda", "target": "h100"})

Kinds stand in the order in which they are computed: what is quick comes first.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hloc.errors import UsageError
from hloc.explore.content import Content
from hloc.explore.views import code, facts, hlo, machine, results
from hloc.explore.work import END, Work
from hloc.targets.cuda.gpus import DEFAULT, GPUS

CPU = ("cpu",)
GPU_NAMES = tuple(GPUS)


class Kind(NamedTuple):
    """targets: what may be chosen, the default first; states: whether a pass is chosen; choices: other settings, each
    with its values, the default first."""

    title: str
    make: Callable[[Work, Mapping[str, str]], Content]
    targets: tuple[str, ...] = ()
    states: bool = False
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANY = (*CPU, *GPU_NAMES)
GPU = (DEFAULT, *(name for name in GPU_NAMES if name != DEFAULT))
KINDS: dict[str, Kind] = {
    "after": Kind("HLO after a pass", hlo.after_pass, ANY, states=True),
    "diff": Kind("Diff with the pass before", hlo.difference, ANY, states=True),
    "loops": Kind("Kernels, as loop IR", code.loops, ANY),
    "c": Kind("C", code.c_text, CPU),
    "cuda": Kind("CUDA C", code.cuda_text, GPU),
    "graph": Kind("Graph", hlo.graph, ANY, states=True),
    "memory": Kind("Memory over time", facts.memory, ANY),
    "decisions": Kind("Fusion and schedules", facts.decisions, ANY),
    "times": Kind("Predicted times", facts.times, GPU),
    "results": Kind("Results on made-up inputs", results.results, (), choices=(("by", ("evaluator", "compiled C")),)),
    "machine": Kind("Machine code", machine.machine_code, ANY),
    "ptx": Kind("PTX", machine.ptx, GPU),
}


def settings(pane: Mapping[str, Any]) -> dict[str, str]:
    """What a pane asks for, complete. Raises UsageError for what it cannot ask for."""
    kind = KINDS.get(str(pane.get("kind")))
    if kind is None:
        raise UsageError(f"no kind of pane {str(pane.get('kind'))[:40]!r}", hint="kinds: " + ", ".join(KINDS))
    found = {"kind": str(pane["kind"])}
    for name, values in (("target", kind.targets), *kind.choices):
        if values:
            value = str(pane.get(name) or values[0])
            if value not in values:
                raise UsageError(f"no {name} {value[:40]!r} for {kind.title}", hint="one of " + ", ".join(values))
            found[name] = value
    if kind.states:
        found["state"] = str(pane.get("state") or END)[:200]
    return found


def view(work: Work, chosen: Mapping[str, str]) -> Content:
    """The content of a pane. Raises HlocError where there is none."""
    return KINDS[chosen["kind"]].make(work, chosen)
