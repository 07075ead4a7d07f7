"""A module as a graph for display: which instructions are shown, their classes, sizes, and parts.

    graph = Graph(module, shown=neighbourhood(module, "dot.7", 3), weights=predicted(module, machine), unit="seconds")
    parts(computation.instructions)      a tree of lists with at most MOST_ITEMS items each

Parts are ranges of the order of execution, so that all edges between them point one way. They are cut where the fewest
values are live.
"""
from __future__ import annotations

import difflib
import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hloc.analysis.control_flow import is_control_flow
from hloc.analysis.cost import bytes_accessed, flops, predicted_seconds
from hloc.analysis.fusible import is_elementwise
from hloc.errors import UsageError
from hloc.ir import Computation, Instruction, Module
from hloc.ir.literal_printer import print_literal
from hloc.machine import Machine
from hloc.ops.collectives import COLLECTIVES

TYPICAL_ITEMS, MOST_ITEMS = 16, 42      # of a part, which is laid out in one step
# Class of an instruction -> its text in the legend. Fusions have the class of their kernel.
CLASSES = {
    "parameter": "parameter", "constant": "constant", "elementwise": "elementwise (kLoop)",
    "reduction": "reduction (kInput)", "product": "matmul, convolution (kOutput)", "custom": "other kernels (kCustom)",
    "movement": "data movement", "control": "control flow, calls", "collective": "collective", "free": "tuple, bitcast",
}
_FUSIONS = {"kLoop": "elementwise", "kInput": "reduction", "kOutput": "product"}
_OPCODES = {
    "parameter": "parameter", "constant": "constant", "iota": "constant",
    "reduce": "reduction", "reduce-window": "reduction", "select-and-scatter": "reduction",
    "dot": "product", "convolution": "product", "ragged-dot": "product", "scaled-dot": "product",
    "tuple": "free", "get-tuple-element": "free", "bitcast": "free", "reshape": "free", "after-all": "free",
    "opt-barrier": "free", "add-dependency": "free", "domain": "free",
}
_MOVEMENT = frozenset(["broadcast", "transpose", "copy", "copy-start", "copy-done", "slice", "dynamic-slice",
                       "dynamic-update-slice", "concatenate", "pad", "reverse", "gather", "scatter"])


@dataclass
class Graph:
    """shown: the instructions that are drawn, None: all; weights: what makes a node larger, in `unit` (seconds, bytes
    or flops)."""

    module: Module
    shown: Collection[Instruction] | None = None
    weights: Mapping[Instruction, float] = field(default_factory=dict)
    unit: str = ""

    def of(self, computation: Computation) -> list[Instruction]:
        """The instructions of a computation that are shown, leaves right before their first reader."""
        shown = [i for i in computation.instructions if self.shown is None or i in self.shown]
        return _leaves_late(shown)


def inlined(instructions: Sequence[Instruction], root: Instruction) -> set[Instruction]:
    """Instructions without a box: an element of a tuple is an edge; a scalar constant, also a broadcast one, is shown
    in its users. XLA's graphs do the same."""
    among, read = set(instructions), {operand for i in instructions for operand in i.operands}
    elements = {i for i in instructions
                if i is not root and i.opcode == "get-tuple-element" and (i in read or i.operands[0] in among)}
    return elements | {i for i in instructions if i in read and constant_of(i) is not None}


def constant_of(i: Instruction) -> str | None:
    """The text of a scalar constant, or of one that is broadcast; None for other instructions."""
    constant = i.operands[0] if i.opcode == "broadcast" else i
    if constant.opcode != "constant" or constant.shape.is_tuple or constant.shape.dimensions:
        return None
    return print_literal(constant.shape, constant.literal)


def edges_to(i: Instruction, without_box: Collection[Instruction]) -> Iterator[tuple[Instruction, Instruction]]:
    """(source, value) of each edge to a box: the value is the source, or an element of it."""
    for value in dict.fromkeys(i.operands):
        source = value
        while source in without_box and source.operands:
            source = source.operands[0]
        if source not in without_box:
            yield source, value


def constants_in(i: Instruction, without_box: Collection[Instruction]) -> str:
    """The constants that are shown in the box of an instruction."""
    return ", ".join(filter(None, (constant_of(o) for o in i.operands if o in without_box)))


def class_of(instruction: Instruction) -> str:
    """A key of CLASSES."""
    opcode = instruction.opcode
    if opcode == "fusion":
        return _FUSIONS.get(str(instruction.get("kind")), "custom")
    if opcode in _OPCODES:
        return _OPCODES[opcode]
    if is_control_flow(instruction) or opcode == "call":
        return "control"
    if opcode.removesuffix("-start").removesuffix("-done") in COLLECTIVES:
        return "collective"
    if opcode in _MOVEMENT:
        return "movement"
    return "elementwise" if is_elementwise(instruction) else "custom"


# -- what is shown -----------------------------------------------------------------------------------------------------

def neighbourhood(module: Module, name: str, radius: int) -> set[Instruction]:
    """The instructions called `name` and all within `radius` operands or users; the instructions that call their
    computations are shown, too. Raises UsageError if no instruction has the name."""
    found = [i for i in module.instructions() if i.name == name.lstrip("%")]
    if not found:
        names = [i.name for i in module.instructions()]
        near = difflib.get_close_matches(name, names, n=3)
        raise UsageError(f"no instruction {name!r} in the module",
                         hint=f"did you mean {', '.join(near)}?" if near else "hloc opt prints the module")
    home = {i: c for c in module.computations for i in c.instructions}
    users: dict[Instruction, list[Instruction]] = {i: [] for i in home}
    callers: dict[Computation, list[Instruction]] = {}
    for i in home:
        for operand in i.operands:
            users[operand].append(i)
        for callee in i.called_computations:
            callers.setdefault(callee, []).append(i)
    distance = {i: 0 for i in found}
    waiting = deque(found)
    while waiting:
        i = waiting.popleft()
        if distance[i] < radius:
            for other in (*i.operands, *users[i]):
                if other not in distance:
                    distance[other] = distance[i] + 1
                    waiting.append(other)
    shown = dict.fromkeys(distance)
    waiting = deque(shown)
    while waiting:                                        # frames around the shown ones, up to the entry
        for caller in callers.get(home[waiting.popleft()], ()):
            if caller not in shown:
                shown[caller] = None
                waiting.append(caller)
    return set(shown)


# -- sizes -------------------------------------------------------------------------------------------------------------

def weights(module: Module, cost: str, machine: Machine) -> tuple[dict[Instruction, float], str]:
    """The cost of one execution of each instruction, and its unit: cost is "time" (predicted), "bytes" or "flops"."""
    table = {"time": (lambda i: predicted_seconds(i, machine), "seconds"), "bytes": (bytes_accessed, "bytes"),
             "flops": (flops, "flops")}
    measure, unit = table[cost]
    return {i: float(measure(i)) for i in module.instructions()}, unit


def measured(module: Module, profile: Any) -> dict[Instruction, float]:
    """Seconds per call from the output of `hloc run --profile --json`, by the names of instructions. Raises UsageError
    for other JSON, and if no name is in the module."""
    rows = profile.get("profile") if isinstance(profile, dict) else None
    if not isinstance(rows, list):
        raise UsageError("the file is not a profile", hint="hloc run MODULE --profile --json > profile.json")
    seconds: dict[str, float] = {}
    for row in rows:
        if not (isinstance(row, dict) and isinstance(row.get("instruction"), str)
                and isinstance(row.get("seconds"), (int, float)) and 0 <= row["seconds"] < 1e9):
            raise UsageError("the file is not a profile: a step without instruction and seconds")
        seconds[row["instruction"]] = seconds.get(row["instruction"], 0.0) + row["seconds"]
    found = {i: seconds[i.name] for i in module.instructions() if i.name in seconds}
    if not found:
        raise UsageError("no instruction of the profile is in this module",
                         hint="profiles name instructions of the optimized module: --after end")
    return found


# -- parts -------------------------------------------------------------------------------------------------------------

def parts(instructions: Sequence[Instruction]) -> list:
    """The instructions as a tree of about equally long lists, of at most MOST_ITEMS instructions or lists each."""
    items: list = list(instructions)
    if len(items) <= MOST_ITEMS:
        return items
    levels = 1
    while TYPICAL_ITEMS ** levels < len(items):
        levels += 1
    size = math.ceil(len(items) ** (1 / levels))
    alive = _alive_before(instructions)
    starts = list(range(len(items)))                # of each item, in `instructions`
    for _ in range(levels - 1):
        cuts = _cuts(starts, alive, size - size // 5, min(MOST_ITEMS, size + size // 3))
        ends = [*cuts[1:], len(items)]
        items, starts = [items[a:b] for a, b in zip(cuts, ends)], [starts[a] for a in cuts]
    return items if len(items) <= MOST_ITEMS else [items[n:n + MOST_ITEMS] for n in range(0, len(items), MOST_ITEMS)]


def _cuts(starts: Sequence[int], alive: Sequence[int], fewest: int, most: int) -> list[int]:
    """Positions in `starts` at which parts begin: of `fewest` to `most` items, few values live in between."""
    cuts, begin = [0], 0
    while len(starts) - begin > most:
        last = max(begin + fewest, min(begin + most, len(starts) - fewest))
        begin = min(range(begin + fewest, last + 1), key=lambda n: (alive[starts[n]], -n))
        cuts.append(begin)
    return cuts


def _alive_before(instructions: Sequence[Instruction]) -> list[int]:
    """The number of values that are live at each instruction: made before it, read there or later."""
    place = {i: n for n, i in enumerate(instructions)}
    change = [0] * (len(instructions) + 2)
    last: dict[Instruction, int] = {}
    for n, i in enumerate(instructions):
        for operand in i.operands:
            if operand in place:
                last[operand] = n
    for i, end in last.items():
        change[place[i] + 1] += 1
        change[end + 1] -= 1
    alive, total = [], 0
    for n in range(len(instructions)):
        total += change[n]
        alive.append(total)
    return alive


def _leaves_late(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The same order, but instructions without operands stand right before their first user."""
    order: list[Instruction] = []
    placed: set[Instruction] = set()
    among = set(instructions)
    for i in instructions:
        if i.operands:
            for operand in dict.fromkeys(i.operands):
                if not operand.operands and operand in among and operand not in placed:
                    placed.add(operand)
                    order.append(operand)
            placed.add(i)
            order.append(i)
    return [*(i for i in instructions if i not in placed), *order]          # first those without users here
