"""Rules of asynchronous operations: what has begun ends in exactly one place.

    for error in ending_errors(computation): ...
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hloc.errors import VerifyError
from hloc.ir import Computation, Instruction

# A copy or collective ends in exactly one place.
ENDINGS = {"copy-start": "copy-done", "all-gather-start": "all-gather-done", "all-reduce-start": "all-reduce-done",
           "collective-permute-start": "collective-permute-done"}
BEGINNINGS = {done: start for start, done in ENDINGS.items()}


def ending_errors(computation: Computation) -> Iterator[VerifyError]:
    starts = [i for i in computation.instructions if i.opcode in ENDINGS]
    if starts:
        yield from _start_errors(computation, starts)
    yield from _consumer_errors(computation)
    for instruction in computation.instructions:
        begin = BEGINNINGS.get(instruction.opcode)
        if begin and instruction.operands and instruction.operands[0].opcode != begin:
            operand = instruction.operands[0]
            yield VerifyError(f"the operand of {instruction.opcode} must be {begin}, but %{operand.name} is "
                              f"{operand.opcode}", instruction.span)


def _consumer_errors(computation: Computation) -> Iterator[VerifyError]:
    """Each asynchronous -start and -update has exactly one -update or -done."""
    starts = [i for i in computation.instructions
              if i.opcode.endswith(("-start", "-update")) and i.opcode not in ENDINGS]
    if not starts:
        return
    count = Counter(o for i in computation.instructions if i.opcode.endswith(("-update", "-done")) for o in i.operands)
    for start in starts:
        if count[start] != 1:
            yield VerifyError(f"%{start.name} needs one -update or -done, but has {count[start]}", start.span)


def _start_errors(computation: Computation, starts: list[Instruction]) -> Iterator[VerifyError]:
    count = Counter(o for i in computation.instructions for o in i.operands if o.opcode in ENDINGS)
    for start in starts:
        if count[start] != 1:
            yield VerifyError(f"%{start.name} needs one {ENDINGS[start.opcode]}, but is used {count[start]} times",
                              start.span)
