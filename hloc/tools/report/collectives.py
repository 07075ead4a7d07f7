"""The collectives of a module, by what they do and which devices work together.

    collective_rows(module)      [Row("all-reduce", "2 groups of 4, 1 apart", "x", 3, 12288), ...]
"""
from __future__ import annotations

import re
from typing import NamedTuple

from hloc.analysis.control_flow import executed_computations
from hloc.errors import UnsupportedError
from hloc.ir import Instruction, Module, leaves
from hloc.ops.collectives import EXCHANGES
from hloc.ops.device_groups import parse_groups

_AXES = re.compile(r"mesh\s*\[[^\]]*\].*\{([^{}]*)\}\s*$", re.S)


class Row(NamedTuple):
    """Collectives of a kind over the same groups. axis: of the mesh that the text names, "" where it names none;
    instructions: how many; size: bytes of their results on one device, each counted once."""

    opcode: str
    groups: str
    axis: str
    instructions: int
    size: int


def collective_rows(module: Module) -> list[Row]:
    """Those that move most bytes first."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for computation in executed_computations(module):
        for i in computation.instructions:
            opcode = i.opcode.removesuffix("-start")
            if opcode in EXCHANGES:
                text = str(i.get("replica_groups") or i.get("source_target_pairs") or "")
                row = found.setdefault((opcode, described(text, opcode), axis_of(text)), [0, 0])
                row[0] += 1
                row[1] += moved(i)
    return sorted((Row(*key, *row) for key, row in found.items()), key=lambda r: (-r.size, r))


def moved(instruction: Instruction) -> int:
    """Bytes of the result; of the started half of an asynchronous one, of its last part."""
    shape = instruction.shape
    if instruction.opcode.endswith("-start") and shape.tuple_shapes:
        shape = shape.tuple_shapes[-1]
    return sum(leaf.num_bytes for leaf in leaves(shape))


def axis_of(text: str) -> str:
    """The axes along which devices exchange, where the groups are written over a mesh."""
    found = _AXES.search(text)
    return ", ".join(re.findall(r"'([^']+)'", found[1])) if found else ""


def described(text: str, opcode: str = "") -> str:
    """2 groups of 4, 1 apart: what the numbers of each group have between them, where that is one number."""
    if opcode == "collective-permute":
        return f"pairs {text}"
    try:
        groups = parse_groups(text)
    except UnsupportedError:
        return text
    if not groups:
        return "all devices"
    sizes = {len(g) for g in groups}
    steps = {b - a for g in groups for a, b in zip(g, g[1:])}
    size = f"{len(groups)} {'group' if len(groups) == 1 else 'groups'} of {'/'.join(map(str, sorted(sizes)))}"
    return f"{size}, {steps.pop()} apart" if len(steps) == 1 else size
