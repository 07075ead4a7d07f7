"""Lets the readers behind a place in a schedule read another array, also through reshapes and tuple elements of it.

    w = f32[8] exponential(x)                           w = f32[8] exponential(x)
    r = f32[2,4] reshape(w)                             r = f32[2,4] reshape(w)
    ...                           from here on   =>     ...
                                                        w.1 = f32[8] exponential(x)
                                                        r.1 = f32[2,4] reshape(w.1)
    y = f32[2,4] negate(r)                              y = f32[2,4] negate(r.1)
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hloc.ir import Computation, Instruction
from hloc.passes.rewriter import Names

VIEWS = frozenset(["bitcast", "reshape", "get-tuple-element"])


def redirect(computation: Computation, before: int, inserted: Sequence[Instruction],
             replaced: Mapping[Instruction, Instruction], names: Names, leaves: frozenset[int] | None = None
             ) -> Callable[[], None]:
    """Inserts instructions before a position; what stands behind it reads the replacements from then on. leaves: the
    elements of replaced tuples that are meant, if not all. Returns what undoes it."""
    order, old_operands = computation.instructions, {}
    known = dict(replaced)
    views: list[Instruction] = []
    readers = order[before:]
    for reader in readers:
        if reader.opcode in VIEWS:
            continue                                        # copied with its readers
        anew = [_replacement(o, replaced, leaves, known, names, views) for o in reader.operands]
        if anew != reader.operands:
            old_operands[reader], reader.operands = reader.operands, anew
    computation.instructions = [*order[:before], *inserted, *views, *readers]

    def undo() -> None:
        computation.instructions = order
        for reader, operands in old_operands.items():
            reader.operands = operands
    return undo


def _replacement(operand: Instruction, replaced: Mapping[Instruction, Instruction], leaves: frozenset[int] | None,
                 known: dict[Instruction, Instruction], names: Names, new_views: list[Instruction]) -> Instruction:
    """What stands for `operand`: itself, if it is no replaced array nor a view of one. known: what stands for what."""
    views: list[Instruction] = []
    source = operand
    while source not in replaced and source.opcode in VIEWS:
        views.append(source)
        source = source.operands[0]
    if source not in replaced or leaves is not None and views and views[-1].opcode == "get-tuple-element" \
            and views[-1].get("index") not in leaves:
        return operand
    for view in reversed(views):
        if view not in known:
            known[view] = view.copy(name=names.fresh(view.name), control_predecessors=(),
                                    operands=[known[view.operands[0]]])
            new_views.append(known[view])
    return known[operand]
