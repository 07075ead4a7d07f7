"""Asynchronous pairs: X-start, which begins an operation, and X-done, which waits for it.

    started(d)          all-gather-start of an all-gather-done, through updates
    base_of(i)          all-gather of all-gather-start, all-gather-done and all-gather
"""
from __future__ import annotations

from hloc.ir import Instruction

STAGES = ("-start", "-update", "-done")


def base_of(instruction: Instruction) -> str:
    """The opcode without its stage."""
    stem, _, stage = instruction.opcode.rpartition("-")
    return stem if "-" + stage in STAGES else instruction.opcode


def is_start(instruction: Instruction) -> bool:
    return instruction.opcode.endswith("-start")


def is_done(instruction: Instruction) -> bool:
    return instruction.opcode.endswith("-done")


def started(instruction: Instruction) -> Instruction:
    """The start that an update or a done belongs to; another instruction itself."""
    while instruction.opcode.endswith(STAGES[1:]) and instruction.operands:
        instruction = instruction.operands[0]
    return instruction
