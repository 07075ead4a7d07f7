"""Which lines of HLO, loop IR and C, or CUDA C, speak of the same value.

In: a kernel, one instruction that it computes, and its texts. Out: lines with keys; lines that share one belong
together.

    code_lines("  const float t3 = hloc_exp_f32(t1 - t2);")      [Line("  const float ...", ("t3",))]
    hlo_lines(fusion, kernel)      the line of the exponential has the key t3, too: Kernel.made says that it is t3

A line of code has the names that it gives a value to, and the buffers of operands and results; a vector of a value,
t3_v14, has the name of the value, t3. An instruction has the names of its elements; one without any is a part of larger
expressions: it has the keys of its readers. Results are the buffers out0, out1 ...; operands in0, in1 ... (of matmuls
also lhs and rhs).
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hloc.ir import Computation, Instruction
from hloc.ir.printer import print_instruction
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.schedule.lanes import PARTS

MOST_LINES = 400                       # of one text; what comes behind is counted
_TARGET = re.compile(r"(?:^|[\s*(])([A-Za-z_]\w*)(?:\.at)?(?:\[[^=]*\])?\s*[-+*/|&^]?=(?!=)")
_COUNTER = re.compile(r"^\s*(?:parallel|serial|vector|unrolled)\S*\s+(\w+) <")
_DECLARED = re.compile(r"^\s*(?:local|shared) (\w+):|^\s*(?:__shared__ )?\w+ (\w+)\[\d+\]")
_VECTOR_STORE = re.compile(r"^\s*\*\(hloc_any_\w+ \*\)\((\w+) \+")
_PART = re.compile(rf"(?:_(?:{'|'.join(PARTS)})\d+)+$")    # of a value, by the lowering of schedules
_BUFFER = re.compile(r"\b(in\d+(?:_\d+)?|out\d+|lhs|rhs)\b")
_PACKED = re.compile(r"&(out\d+)\[.*\] = (\w+);")       # several results of CUDA C are stored together
_HEADS = ("kernel ", "void ", "static ", "HLOC_WIDE ", "extern ", "//", "/*", "struct ")
PRODUCT_BUFFERS = ("lhs", "rhs")


class Line(NamedTuple):
    """One line of a text. keys: what it speaks of; lines with a common key, within a kernel, belong together."""

    text: str
    keys: tuple[str, ...] = ()


def code_lines(text: str) -> list[Line]:
    """The lines of loop IR, C or CUDA C."""
    packs: dict[str, list[str]] = {}
    for buffer, pack in _PACKED.findall(text):
        packs.setdefault(pack, []).append(buffer)
    found = [Line(line, _keys(line)) for line in text.rstrip("\n").split("\n")]
    return [Line(line, tuple(dict.fromkeys(k for key in keys for k in (key, *packs.get(key, ())))))
            for line, keys in found]


def _keys(line: str) -> tuple[str, ...]:
    bare = line.lstrip()
    if line.startswith(_HEADS) or bare.startswith("#"):
        return ()
    named = [found[1] for pattern in (_VECTOR_STORE, _COUNTER, _TARGET) if (found := pattern.search(line))]
    if not named and (found := _DECLARED.match(line)):
        named = [found[1] or found[2]]
    return tuple(dict.fromkeys([*(_PART.sub("", name) for name in named[:1]), *_BUFFER.findall(line)]))


def hlo_lines(instruction: Instruction, kernel: Kernel | Tile) -> list[Line]:
    """An instruction, and what is inside where it is a fusion."""
    keys = instruction_keys(instruction, kernel)
    head = Line(print_instruction(instruction, elide_constants=True), keys.get(instruction, ()))
    return [head, *(Line("  " + print_instruction(i, elide_constants=True), own) for i, own in keys.items()
                    if i is not instruction)]


def instruction_keys(instruction: Instruction, kernel: Kernel | Tile) -> dict[Instruction, tuple[str, ...]]:
    """The keys of an instruction that a kernel computes; of a fusion, those of each instruction inside, in order."""
    results = tuple(b.name for b in kernel.buffers if b.name.startswith("out"))
    if instruction.opcode != "fusion":
        return {instruction: tuple(dict.fromkeys((*results, *_operand_keys(instruction, kernel))))}
    computation = instruction.get("calls")
    keys = _instruction_keys(computation, kernel, results)
    return {i: keys[i] for i in computation.instructions}


def _operand_keys(instruction: Instruction, kernel: Kernel | Tile) -> list[str]:
    names = {b.name for b in kernel.buffers}
    return [name for n in range(len(instruction.operands)) for name in _names_of_operand(n) if name in names]


def _names_of_operand(number: int) -> tuple[str, ...]:
    return (f"in{number}", *PRODUCT_BUFFERS[number:number + 1])


def _instruction_keys(computation: Computation, kernel: Kernel | Tile,
                      results: Sequence[str]) -> dict[Instruction, tuple[str, ...]]:
    made: dict[str, list[str]] = {}
    for name, instruction in getattr(kernel, "made", ()):
        made.setdefault(instruction, []).append(name)
    root = computation.root
    for name, result in zip(results, root.operands if root.opcode == "tuple" else [root] * len(results)):
        made.setdefault(result.name, []).append(name)
    buffers = {b.name for b in kernel.buffers}
    readers: dict[Instruction, list[Instruction]] = {}
    keys: dict[Instruction, tuple[str, ...]] = {}
    for i in reversed(computation.instructions):
        own = list(made.get(i.name, ()))
        if i.opcode == "parameter":
            own = [name for name in _names_of_operand(i.number) if name in buffers] or own
        elif not own:
            own = [key for reader in readers.get(i, ()) for key in keys[reader]]
        keys[i] = tuple(dict.fromkeys(own))
        for operand in i.operands:
            readers.setdefault(operand, []).append(i)
    return keys


def shortened(lines: Iterable[Line], most: int = MOST_LINES) -> list[Line]:
    """The first lines, and how many there are more."""
    held = list(lines)
    if len(held) <= most:
        return held
    return [*held[:most], Line(f"... {len(held) - most:,} more lines")]
