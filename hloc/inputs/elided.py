"""Constants whose values the text omits: `constant({...})`, as JAX and TensorFlow print large ones.

In: a module and the values to generate: 'sensible:SEED', 'random:SEED' or 'zeros' (files.py). Out: the module with a
value for every constant: time and memory of a run are as with the true values, the results have no meaning.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hloc.errors import RunError, UsageError
from hloc.inputs.arrays import Parameter
from hloc.inputs.files import generated, generator_rule
from hloc.inputs.sensible import sensible_values
from hloc.ir import Computation, Instruction, Module, Shape

OTHER_SEEDS = 1 << 32             # a constant must differ from the parameter that is generated with the same seed


def fill_elided(module: Module, values: str) -> int:
    """Give all elided constants values, in place. Returns the number of generated arrays.

    Raises UsageError for `values` of another form, RunError if an array does not fit into memory.
    """
    rule = generator_rule(values)
    if rule is None:
        raise UsageError(f"'{values}' cannot fill elided constants: write 'sensible:SEED', 'random:SEED' or 'zeros'")
    wanted = list(_elided(module))
    kind, seed = rule
    try:
        arrays = iter(generated(kind, seed + OTHER_SEEDS, [Parameter(i.name, shape) for _, i, shape in wanted],
                              sensible_values(module, wanted)))
    except MemoryError:
        _, largest, _ = max(wanted, key=lambda entry: entry[2].num_bytes)
        raise RunError(f"out of memory: the elided constant %{largest.name} is {largest.shape.to_string(False)}",
                       largest.span) from None
    for instruction in dict.fromkeys(i for _, i, _ in wanted):
        instruction.literal = _filled(instruction.literal, instruction.shape, arrays)
    return len(wanted)


def _elided(module: Module) -> Iterator[tuple[Computation, Instruction, Shape]]:
    """Path, constant and shape of each array without a value, in the order of _filled."""
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "constant":
                yield from ((computation, instruction, s) for s in _open(instruction.literal, instruction.shape))


def _open(literal: Any, shape: Shape) -> Iterator[Shape]:
    if shape.is_tuple:
        shapes = shape.tuple_shapes
        for part, inner in zip(literal or [None] * len(shapes), shapes):
            yield from _open(part, inner)
    elif literal is None and shape.is_array:
        yield shape


def _filled(literal: Any, shape: Shape, arrays: Iterator[np.ndarray]) -> Any:
    if shape.is_tuple:
        shapes = shape.tuple_shapes
        return tuple(_filled(part, inner, arrays) for part, inner in zip(literal or [None] * len(shapes), shapes))
    return next(arrays) if literal is None and shape.is_array else literal
