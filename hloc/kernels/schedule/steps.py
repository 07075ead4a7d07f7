"""Steps: what a schedule does with a nest. A schedule is a list of steps, and a text.

    vectorize(i1,16) rfactor(i1,4)

Each step is a function from a nest to a nest; one that does not apply raises Refused with the reason. The kinds of
nests have tables of their steps: nest.py, row_nest.py, on a GPU cuda/loops/nest.py.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

N = TypeVar("N")
Step = tuple[str, tuple[str | int, ...]]
_STEP = re.compile(r"(\w+)\(([^()]*)\)\s*")


class Refused(Exception):
    """A loop that is no nest, or a step that does not apply; the message says why."""


def apply_steps(nest: N, steps: Sequence[Step], known: Mapping[str, Callable[..., N]]) -> N:
    """The nest after all steps, which are functions of `known`. Raises Refused."""
    for name, arguments in steps:
        step = known.get(name)
        if step is None:
            raise Refused(f"no step {name}: there are {', '.join(known)}")
        try:
            nest = step(nest, *arguments)
        except TypeError:
            raise Refused(f"{name} does not take these arguments: {steps_text([(name, arguments)])}") from None
    return nest


def steps_text(steps: Sequence[Step]) -> str:
    """The text of a schedule; "scalar" for no steps."""
    return " ".join(f"{name}({','.join(map(str, arguments))})" for name, arguments in steps) or "scalar"


def read_steps(text: str) -> tuple[Step, ...]:
    """The steps of a text. Raises Refused where it is none."""
    if text.strip() == "scalar":
        return ()
    steps, place = [], len(text) - len(text.lstrip())
    while place < len(text):
        match = _STEP.match(text, place)
        if match is None:
            raise Refused(f"not a step: {text[place:place + 40]!r}")
        arguments = [a.strip() for a in match[2].split(",")]
        if not all(re.fullmatch(r"[a-zA-Z_]\w*|\d{1,9}", a) for a in arguments):
            raise Refused(f"not the arguments of a step: {match[2][:40]!r}")
        steps.append((match[1], tuple(int(a) if a.isdigit() else a for a in arguments)))
        place = match.end()
    if not steps:
        raise Refused("a schedule without steps is written: scalar")
    return tuple(steps)
