"""Device lists: which devices work together in a collective.

In: the text of replica_groups or source_target_pairs. Out: lists of numbers. Four forms:

    {{0,1},{2,3}}                            as written
    [2,2]<=[4]T(0)                           counts up in the shape behind <=, transposed, cut into groups
    mesh['x'=2,'y'=3] {'y'}                  one group for each place along the axes that are not named
    {}                                       all devices in one group: []
"""
from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np

from hloc.errors import UnsupportedError

LARGEST_DEVICE_COUNT = 1 << 20

_IOTA = re.compile(r"\[([\d,]+)\]\s*<=\s*\[([\d,]+)\]\s*(?:T\(([\d,]+)\))?$")
_MESH = re.compile(r"@?(?:\w+\s*=\s*)?mesh\s*\[([^\]]*)\](.*?)\s*\{([^{}]*)\}$", re.S)
_AXIS = re.compile(r"'([^']+)'\s*=\s*(\d+)")


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
    match = _MESH.match(text)
    axes = _AXIS.findall(match[1]) if match else []
    named = re.findall(r"'([^']+)'", match[3]) if match else []
    names = [name for name, _ in axes]
    if not axes or ":" in match[3] or any(n not in names for n in named):
        raise UnsupportedError(f"device groups {text!r}")
    sizes = [int(size) for _, size in axes]
    numbers = _mesh_devices(match[2], sizes)
    last = [names.index(n) for n in named]
    first = [d for d in range(len(sizes)) if d not in last]
    return numbers.transpose(first + last).reshape(-1, math.prod(sizes[d] for d in last)).tolist()


def _mesh_devices(text: str, sizes: list[int]) -> np.ndarray:
    """device_ids=(3,2,1,0) or device_ids=([2,2]T(1,0)) between the mesh and its axes; in order where there is none."""
    match = re.search(r"device_ids\s*=\s*\((.*)\)\s*$", text, re.S)
    if match is None:
        return _iota(sizes, None)
    inner = match[1].strip()
    transposed = re.match(r"\[([\d,]+)\]\s*(?:T\(([\d,]+)\))?$", inner)
    if transposed:
        return _iota(_numbers(transposed[1]), _numbers(transposed[2]) if transposed[2] else None).reshape(sizes)
    numbers = [int(n) for n in re.findall(r"\d+", inner)]
    if len(numbers) != math.prod(sizes):
        raise UnsupportedError(f"device_ids has {len(numbers)} devices, the mesh {math.prod(sizes)}")
    return np.array(numbers).reshape(sizes)


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
