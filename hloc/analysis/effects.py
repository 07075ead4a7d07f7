"""Side effects of instructions.

In: an instruction. Out: whether it must stay though unused (infeed, outfeed, send, a custom-call that says so, or
anything that calls a computation holding one), and whether two equal copies of it may give different results (rng).
"""
from __future__ import annotations

from hloc.analysis.asynchronous import started
from hloc.ir import Computation, Instruction, reachable_computations
from hloc.ops.table import OPS

# Ops with new values in every execution, or whose identity matters: merging two of them changes the program.
NOT_MERGEABLE = frozenset({"rng", "rng-get-and-update-state", "infeed", "outfeed", "send", "recv", "after-all",
                           "parameter", "opt-barrier", "domain"})
# Their computations are functions of scalars.
ARITHMETIC_CALLERS = frozenset({"reduce", "reduce-window", "scatter", "select-and-scatter", "sort", "map", "all-reduce",
                                "reduce-scatter"})


def has_side_effect(instruction: Instruction) -> bool:
    """Whether the instruction must stay even if it has no users. The end of an operation stays with its start."""
    instruction = started(instruction)
    if acts_by_itself(instruction):
        return True
    if instruction.opcode in ARITHMETIC_CALLERS:
        return False
    callees = instruction.called_computations
    return bool(callees) and any(computation_has_side_effect(c) for c in callees)


def acts_by_itself(instruction: Instruction) -> bool:
    """has_side_effect without called computations."""
    if instruction.opcode.startswith("custom-call"):
        return bool(instruction.get("custom_call_has_side_effect", False))
    op = OPS.get(instruction.opcode)
    return op is None or op.side_effect


def computation_has_side_effect(computation: Computation) -> bool:
    """True where anything in the computation, or in what it calls, has a side effect."""
    return any(acts_by_itself(i) for c in reachable_computations(computation) for i in c.instructions)
