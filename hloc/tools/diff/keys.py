"""Numbers for the content of instructions: equal numbers mean equal opcode, shape, attributes and value.

Three levels, from strict to loose: everything but metadata and called computations; the same without
layouts; the opcode alone. A layout that is not written is row-major.
"""
from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

import numpy as np

from hloc.analysis.structure import ANNOTATIONS
from hloc.ir import Computation, Instruction, Shape

EXACT, NO_LAYOUT, OPCODE = LEVELS = (0, 1, 2)


class Keys:
    """Numbers keys; one for both modules."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._shapes: dict[int, tuple[str, str, Shape]] = {}     # by id: modules share shapes
        self._locals: tuple[dict[Instruction, int], ...] = ({}, {}, {})

    def number(self, key: Hashable) -> int:
        """The number of a key; equal for equal keys."""
        return self._numbers.setdefault(key, len(self._numbers))

    def shape(self, shape: Shape) -> tuple[str, str]:
        """The shape's text with layouts, except row-major ones, and without."""
        found = self._shapes.get(id(shape))
        if found is None:
            found = self._shapes[id(shape)] = str(_plain(shape)), shape.to_string(False), shape
        return found[:2]

    def local(self, instruction: Instruction, level: int) -> int:
        """The content of an instruction without its operands."""
        known = self._locals[level]
        if (number := known.get(instruction)) is None:
            number = known[instruction] = self.number((level, *self._key(instruction, level)))
        return number

    def _key(self, instruction: Instruction, level: int) -> tuple:
        if level == OPCODE:
            return (instruction.opcode,)
        exact, loose = self.shape(instruction.shape)
        said = tuple(sorted((k, _hashable(v)) for k, v in attributes(instruction).items()))
        shape = loose if level == NO_LAYOUT else exact
        return instruction.opcode, shape, said, value(instruction), instruction.parameter_number


def attributes(instruction: Instruction) -> dict[str, Any]:
    """The attributes that determine the result, without called computations."""
    return {k: v for k, v in instruction.attributes.items() if k not in ANNOTATIONS and not names_computations(v)}


def names_computations(value: Any) -> bool:
    """Whether an attribute's value is a computation or several."""
    first = value[0] if type(value) is tuple and value else value
    return isinstance(first, Computation)


def value(instruction: Instruction) -> Hashable:
    """A short form of a constant's value; None for other instructions and for omitted values."""
    return _literal(instruction.literal) if instruction.literal is not None else None


def _literal(literal: np.ndarray | tuple) -> Hashable:
    if isinstance(literal, tuple):
        return tuple(map(_literal, literal))
    return hashlib.blake2b(np.ascontiguousarray(literal).tobytes(), digest_size=16).digest()


def _hashable(value: Any) -> str:
    """Values of one key may have several types: texts can be sorted and hashed."""
    return str(value)


def _plain(shape: Shape) -> Shape:
    """The shape without row-major layouts."""
    if shape.is_aggregate:
        return Shape(shape.element_type, tuple_shapes=tuple(map(_plain, shape.tuple_shapes)))
    says_nothing = shape.layout is not None and shape.has_default_layout and not shape.layout.suffix
    return shape.with_layout(None) if says_nothing else shape
