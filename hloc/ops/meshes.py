"""Meshes of devices: checks of the axes that a sharding, or the groups of a collective, names.

In: a text such as {mesh['x'=4,'y'=2], [{'x':(1)2}, {'y'}]}. Out: what is wrong with its axes, or None.

    'x':(2)2     the part of axis x of size 2 behind a part of size 2; each axis is used once, whole or in parts

Source: xla/hlo/ir/mesh_and_axis.cc, named_sharding.cc.
"""
from __future__ import annotations

import re
from typing import NamedTuple

_MESH = re.compile(r"(?<![a-z_])mesh\s*\[([^\[\]]*)\]")
_SIZE = re.compile(r"'([^']+)'\s*=\s*(\d+)")
_USE = re.compile(r"'([^']+)'(?:\s*:\s*\((\d+)\)\s*(\d+))?")


class Use(NamedTuple):
    """The places from `first` up to `end` (both are products of sizes) of an axis."""

    name: str
    first: int
    end: int


def axes_problem(text: str) -> str | None:
    """None also if the text has no mesh with axes."""
    mesh = _MESH.search(text)
    if mesh is None:
        return None
    sizes = _SIZE.findall(mesh[1])
    names = [name for name, _ in sizes]
    repeated = next((n for n in names if names.count(n) > 1), None)
    if repeated is not None:
        return f"the mesh has axis '{repeated}' twice"
    known = {name: int(size) for name, size in sizes}
    if 0 in known.values():
        return f"axis '{next(n for n, size in known.items() if not size)}' of the mesh has size 0"
    used: list[Use] = []
    for group in re.findall(r"\{([^{}]*)\}", text[mesh.end():]) if known else ():
        before = None
        for name, first, size in _USE.findall(group):
            if name not in known:
                return None if name.isdigit() else f"the mesh has no axis '{name}'"
            use = Use(name, int(first or 1), int(first or 1) * int(size or known[name]))
            problem = _part_problem(use, known[name], bool(size)) or next(
                (f"axis '{name}' is used twice" for u in used if u.name == name and max(
                    u.first, use.first) < max(min(u.end, use.end), 2)), None)
            if before and before.name == name and before.end == use.first:
                problem = f"two parts of axis '{name}' are one"
            if problem:
                return problem
            used.append(use)
            before = use
    return None


def _part_problem(use: Use, size: int, is_part: bool) -> str | None:
    if is_part and (not use.first or use.end <= use.first or size % use.end or use.end // use.first == size):
        return f"'{use.name}':({use.first}){use.end // max(use.first, 1)} is no part of an axis of size {size}"
    return None
