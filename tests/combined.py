"""Several modules as one, so that one build runs them all.

    module = combined([first, second])       its entry calls the first's and the second's entry
    parts = split([first, second], results)  the flat results of each
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloc.ir import Computation, Instruction, Module, Shape, leaves
from hloc.ir.clone import clone_module


def combined(modules: Sequence[Module], name: str = "combined") -> Module:
    """A module that takes all parameters, one module's after the other's, and returns a tuple of all results."""
    computations: list[Computation] = []
    lines: list[Instruction] = []
    calls: list[Instruction] = []
    for number, module in enumerate(map(clone_module, modules)):
        for computation in module.computations:
            computation.name = f"m{number}.{computation.name}"
            computations.append(computation)
        arguments = []
        for parameter in module.entry.parameters:
            place = sum(1 for i in lines if i.opcode == "parameter")
            arguments.append(Instruction(f"m{number}.p{place}", "parameter", parameter.shape,
                                         parameter_number=place))
            lines.append(arguments[-1])
        calls.append(Instruction(f"m{number}.call", "call", module.entry.root.shape, arguments,
                                 {"to_apply": module.entry}))
        lines.append(calls[-1])
    root = Instruction("results", "tuple", Shape.tuple(c.shape for c in calls), calls)
    entry = Computation("all", [*lines, root], root)
    return Module(name, [*computations, entry], entry)


def split(modules: Sequence[Module], results: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    rest = list(results)
    found = []
    for module in modules:
        count = sum(1 for _ in leaves(module.entry.root.shape))
        found.append(rest[:count])
        del rest[:count]
    return found
