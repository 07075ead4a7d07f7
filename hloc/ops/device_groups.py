"""Device lists: which devices work together in a collective.

In: the text of replica_groups or source_target_pairs. Out: lists of numbers. Four forms:

    {{0,1},{2,3}}                            as written
    [2,2]<=[4]T(0)                           counts up in the shape behind <=, transposed, cut into groups
    mesh['x'=2,'y'=3] {'y'}                  one group for each place along the axes that are not named
    mesh['x'=4] {'x':(1)2}                   of a part of an axis, too
    {}                                       all devices in one group: []
"""
from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from hloc.errors import HlocError, UnsupportedError
from hloc.ir import Instruction
from hloc.phrases import Phrase
from hloc.sharding.annotation import LARGEST_DEVICE_COUNT, AxisUse
from hloc.sharding.text import read_axes, read_mesh

_IOTA = re.compile(r"\[([\d,]+)\]\s*<=\s*\[([\d,]+)\]\s*(?:T\(([\d,]+)\))?$")


def parse_groups(text: str) -> list[list[int]]:
    """Groups of device numbers. Raises UnsupportedError for a form that is none of the above."""
    try:
        return _groups(text)
    except (ValueError, IndexError):                       # sizes that do not fit each other
        raise UnsupportedError(f"device groups {text!r}") from None


def _groups(text: str) -> list[list[int]]:
    text = re.sub(r"/\*.*?\*/", "", text).strip()
    if text.startswith("["):
        return _iota_groups(text)
    if "mesh" in text:
        return _mesh_groups(text)
    if not re.fullmatch(r"[\d\s,{}]*", text):
        raise UnsupportedError(f"device groups {text!r}")
    return [[int(n) for n in re.findall(r"\d+", group)] for group in re.findall(r"\{([^{}]*\d[^{}]*)\}", text)]


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def _iota(sizes: list[int], order: list[int] | None) -> np.ndarray:
    if math.prod(sizes) > LARGEST_DEVICE_COUNT:
        raise UnsupportedError(f"more than {LARGEST_DEVICE_COUNT} devices")
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return numbers.transpose(order) if order else numbers


def _iota_groups(text: str) -> list[list[int]]:
    match = _IOTA.match(text)
    if match is None:
        raise UnsupportedError(f"device groups {text!r}")
    shape = _numbers(match[1])
    numbers = _iota(_numbers(match[2]), _numbers(match[3]) if match[3] else None)
    return numbers.reshape(shape[0], -1).tolist()


def _mesh_groups(text: str) -> list[list[int]]:
    """One group for each place along the axes, and parts of axes, that are not named."""
    try:
        phrase = Phrase(text.lstrip("@"))
        if phrase.text != "mesh" or phrase.whole[phrase.at:].lstrip().startswith("="):        # @name = mesh[...]
            phrase.word()
            phrase.expect("=")
        mesh, uses = read_mesh(phrase), read_axes(phrase).axes
    except HlocError:
        raise UnsupportedError(f"device groups {text!r}") from None
    if not mesh.axes or math.prod(n for _, n in mesh.axes) > LARGEST_DEVICE_COUNT:
        raise UnsupportedError(f"device groups {text!r}")
    devices = mesh.order()
    if devices is not None and len(devices) != mesh.size:
        raise UnsupportedError(f"device_ids has {len(devices)} devices, the mesh {mesh.size}")
    sizes, last = _cut_axes(mesh.axes, uses, text)
    numbers = (np.arange(mesh.size) if devices is None else np.array(devices)).reshape(sizes)
    first = [d for d in range(len(sizes)) if d not in last]
    return numbers.transpose(first + last).reshape(-1, math.prod(sizes[d] for d in last)).tolist()


def _cut_axes(axes: Sequence[tuple[str, int]], uses: Sequence[AxisUse], text: str) -> tuple[list[int], list[int]]:
    """The sizes of the axes, cut where parts of them are used, and which of these are used, in their order."""
    cuts: dict[str, set[int]] = {name: {1, size} for name, size in axes}
    for use in uses:
        if use.name not in cuts:
            raise UnsupportedError(f"device groups {text!r}")
        if use.size is not None:
            cuts[use.name] |= {use.before or 1, (use.before or 1) * use.size}
    sizes: list[int] = []
    places: dict[tuple[str, int], int] = {}                  # axis and what stands before a piece -> its dimension
    for name, size in axes:
        found = sorted(cuts[name])
        if any(after % before for before, after in zip(found, found[1:])) or found[-1] != size:
            raise UnsupportedError(f"device groups {text!r}")
        for before, after in zip(found, found[1:]):
            places[name, before] = len(sizes)
            sizes.append(after // before)
    last = []
    for use in uses:
        low, whole = use.before or 1, dict(axes)[use.name]
        high = whole if use.size is None else low * use.size
        last += [places[use.name, cut] for cut in sorted(cuts[use.name]) if low <= cut < high]
    return sizes, last


def missing_devices(instruction: Instruction, named: Sequence[int], there: int, wanted: int) -> UnsupportedError:
    """What to raise where an instruction names devices that a run has not. there: so many it has; wanted: so many it
    should have."""
    have = "1 device" if there == 1 else f"{there} devices"
    shown = ", ".join([*map(str, named[:8]), *["..."][:len(named) > 8]])
    return UnsupportedError(f"{instruction.opcode} names the devices [{shown}], this run has {have}", instruction.span,
                            hint=f"--devices {wanted} gives it so many; under mpirun each process is one")


def check_groups(text: str) -> str | None:
    """What is wrong with the groups of a collective, or None: none is empty, and together they name 0 to n - 1 once."""
    bare = re.sub(r"\s", "", text)
    if "{}" in bare and bare != "{}":
        return "a group is empty"
    numbers = [n for group in parse_groups(text) for n in group]
    seen = set(numbers)
    if len(seen) != len(numbers):
        return f"device {Counter(numbers).most_common(1)[0][0]} is named twice"
    if seen and max(seen) != len(seen) - 1:
        return f"device {max(seen)} is named, but there are {len(seen)}"
    return None
