"""Which instructions and computations are equal except for names.

In: a module. Out: for each computation a number, equal for (small) computations that differ only in names, metadata
and spans; for each instruction a hashable key of everything but its operands.

    numbers = Structures(module)
    numbers.of[add_1] == numbers.of[add_2]        # two `add` regions that JAX wrote under different names
"""
from __future__ import annotations

from typing import Any

import numpy as np

from hloc.ir import Computation, Instruction, Module, Shape, reachable_computations

# Attributes about an instruction's origin, not its meaning.
ANNOTATIONS = frozenset({"metadata", "origin", "statistics"})
COMPARED_LITERAL_BYTES = 1 << 16
COMPARED_INSTRUCTIONS = 64          # larger computations equal only themselves by default


class Structures:
    """`of[computation]`: the number of its structure, for all computations the entry reaches.

    largest  computations of more instructions equal only themselves"""

    def __init__(self, module: Module, largest: int = COMPARED_INSTRUCTIONS):
        self.of: dict[Computation, int] = {}
        self._shapes: dict[int, tuple[Shape, int]] = {}        # by id: hashing a shape costs more than the rest
        self._shape_numbers: dict[Shape, int] = {}
        numbers: dict[Any, int] = {}
        for computation in reachable_computations(module.entry):
            small = len(computation.instructions) <= largest
            key = self.computation_key(computation) if small else id(computation)
            self.of[computation] = numbers.setdefault(key, len(numbers))

    def computation_key(self, computation: Computation) -> Any:
        position = {i: n for n, i in enumerate(computation.instructions)}
        body = tuple((self.key(i), tuple(position[o] for o in i.operands),
                      tuple(position[p] for p in i.control_predecessors)) for i in computation.instructions)
        return body, position[computation.root]

    def key(self, instruction: Instruction) -> Any:
        """Opcode, shape, attributes, literal: everything of an instruction but its operands."""
        attributes = instruction.attributes
        described = self.attributes_key(attributes) if attributes else ()
        shape = self.shape_number(instruction.shape)
        if instruction.opcode != "constant":
            return instruction.opcode, shape, described, instruction.parameter_number
        literal = instruction.literal           # an elided one equals only itself: its value is unknown
        value = literal_key(literal) if literal is not None else id(instruction)
        return "constant", shape, described, value

    def shape_number(self, shape: Shape) -> int:
        """Equal for equal shapes."""
        found = self._shapes.get(id(shape))
        if found is None:
            number = self._shape_numbers.setdefault(shape, len(self._shape_numbers))
            found = self._shapes[id(shape)] = shape, number
        return found[1]

    def attributes_key(self, attributes: dict[str, Any]) -> Any:
        if len(attributes) == 1:
            (key, value), = attributes.items()
            return () if key in ANNOTATIONS else (key, self.value_key(value))
        return tuple((key, self.value_key(attributes[key])) for key in sorted(attributes) if key not in ANNOTATIONS)

    def value_key(self, value: Any) -> Any:
        if isinstance(value, Computation):
            return self.of[value]
        if type(value) is tuple and value and isinstance(value[0], Computation):
            return tuple(self.of[c] for c in value)
        return value


def literal_key(literal: np.ndarray | tuple) -> Any:
    """Equal for literals with equal bytes; large ones equal only themselves, to keep comparing cheap."""
    if isinstance(literal, tuple) or literal.nbytes > COMPARED_LITERAL_BYTES:
        return id(literal)
    return literal.dtype.str, literal.shape, literal.tobytes()
