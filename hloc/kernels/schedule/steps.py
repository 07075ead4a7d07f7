"""Steps: what a schedule does with the axes of a nest. A schedule is a list of steps, and a text.

    split(i1,16,overlap) vectorize(i1i,16) rfactor(i1o,4)

Each step is a function from a Nest to a Nest; one that does not apply raises Refused with the reason. A split of axis x
makes the axes xo (outer) and xi (inner); its last argument says what happens to iterations that do not fill the inner
axis:

    overlap   the last whole one is moved back, and ignores what was combined before
    peel      they run in parts of half the length, and so on; single ones at the end
    mask      they run in lanes of a vector, which is read and written element by element
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hloc.kernels.ir import SERIAL, VECTOR
from hloc.kernels.schedule.nest import UNROLL, Axis, Nest, Refused, Split

N = TypeVar("N")
Step = tuple[str, tuple[str | int, ...]]
TAILS = OVERLAP, PEEL, MASK = "overlap", "peel", "mask"
MOST_UNROLLED = 16
_STEP = re.compile(r"(\w+)\(([^()]*)\)\s*")


def split(nest: Nest, axis: str, n: int, tail: str = PEEL) -> Nest:
    """Two axes for one: blocks of n iterations, and the iterations of a block."""
    one = nest.axis(axis)
    if n < 2 or one.extent is not None and n > one.extent and tail != MASK:
        raise Refused(f"{axis} has {one.extent} iterations: no blocks of {n}")
    if tail not in TAILS:
        raise Refused(f"{tail} is no tail: {', '.join(TAILS)}")
    if one.extent is None and tail == OVERLAP:
        raise Refused(f"the number of iterations of {axis} is not constant: no {tail}")
    if one.kind != SERIAL:
        raise Refused(f"{axis} is {one.kind}")
    if any(axis in (s.outer, s.inner) for s in nest.splits) and tail != PEEL:
        raise Refused(f"only {nest.loop.name} may have a tail that overlaps")
    pair = Axis(axis + "o", one.extent and one.extent // n), Axis(axis + "i", n)
    return nest._replace(axes=tuple(b for a in nest.axes for b in (pair if a is one else (a,))),
                         splits=(*nest.splits, Split(axis, pair[0].name, pair[1].name, n, tail)))


def vectorize(nest: Nest, axis: str, lanes: int) -> Nest:
    """The iterations of an axis become the lanes of a vector, each with accumulators of its own."""
    one = nest.axis(axis)
    if one.extent != lanes or lanes & lanes - 1:
        raise Refused(f"{axis} has {one.extent} iterations: lanes are a power of two, and as many")
    if any(a.kind == VECTOR for a in nest.axes):
        raise Refused("there are lanes already")
    if axis == nest.loop.name:
        raise Refused(f"{axis} is not split: lanes are the inner axis of a split")
    nest = _with_kind(nest, axis, VECTOR)
    return nest._replace(accumulators=nest.accumulators | {axis})


def unroll(nest: Nest, axis: str) -> Nest:
    """The iterations of an axis are written one after the other."""
    one = nest.axis(axis)
    if one.kind != SERIAL or one.extent is None or one.extent > MOST_UNROLLED:
        raise Refused(f"{axis} has {one.extent} iterations: at most {MOST_UNROLLED} are unrolled")
    if not any(s.inner == axis for s in nest.splits):
        raise Refused(f"{axis} is not the inner axis of a split")
    return _with_kind(nest, axis, UNROLL)


def rfactor(nest: Nest, axis: str, n: int) -> Nest:
    """n accumulators, which take the iterations of an axis in turn and are joined at the end."""
    nest = unroll(split(nest, axis, n), axis + "i")
    return nest._replace(accumulators=nest.accumulators | {axis + "i"})


def _with_kind(nest: Nest, axis: str, kind: str) -> Nest:
    return nest._replace(axes=tuple(a._replace(kind=kind) if a.name == axis else a for a in nest.axes))


STEPS: dict[str, Callable[..., Nest]] = {f.__name__: f for f in (split, vectorize, unroll, rfactor)}


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
