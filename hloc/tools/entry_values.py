"""The evaluator's values of all instructions of a module's entry, for tools that start in the middle."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloc.errors import HlocError
from hloc.evaluate import Device, Evaluator, Options
from hloc.ir import Instruction, Module, leaves
from hloc.ops.values import Value


def entry_values(module: Module, arrays: Sequence[np.ndarray], *, partial: bool = False,
                 device: Device | None = None) -> dict[Instruction, Value]:
    """Instruction -> value, without unused ones. `arrays`: one per flattened parameter. device: one of several, which
    run at the same time.

    partial   if the run fails, return the values computed so far, instead of raising the error
    """
    own = set(module.entry.instructions)
    values: dict[Instruction, Value] = {i: i.literal for i in own if i.opcode == "constant"}

    def observe(instruction: Instruction, _operands: Sequence[Value], value: Value) -> None:
        if instruction in own:
            values[instruction] = value

    try:
        Evaluator(module, options=Options(observer=observe), device=device).run(arrays)
    except HlocError:
        if not partial:
            raise
    given = iter(arrays)
    for parameter in module.entry.parameters:
        parts = [next(given) for _ in leaves(parameter.shape)]
        values[parameter] = parts[0] if not parameter.shape.is_aggregate else tuple(parts)
    return values
