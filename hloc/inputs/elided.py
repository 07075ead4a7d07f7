"""Constants whose values the text leaves out: `constant({...})`, as JAX prints large ones, and TensorFlow.

In: a module and what to make up, 'sensible:SEED', 'random:SEED' or 'zeros' (files.py). Out: the module, every constant
with a value: it runs, takes the time and the memory that it would take, and gives results of no meaning.
"""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hloc.errors import RunError, UsageError
from hloc.inputs.arrays import Parameter
from hloc.inputs.files import made_up, made_up_rule
from hloc.inputs.sensible import sensible_values
from hloc.ir import Computation, Instruction, Module, Shape

OTHER_SEEDS = 1 << 32             # a constant is not to equal the parameter that is made up with the same seed


def fill_elided(module: Module, values: str) -> int:
    """Give all elided constants values, in place; the number of arrays that were made up.

    Raises UsageError for `values` of another form, RunError where an array does not fit into memory.
    """
    rule = made_up_rule(values)
    if rule is None:
        raise UsageError(f"'{values}' cannot fill elided constants: write 'sensible:SEED', 'random:SEED' or 'zeros'")
    wanted = list(_elided(module))
    kind, seed = rule
    try:
        arrays = iter(made_up(kind, seed + OTHER_SEEDS, [Parameter(i.name, shape) for _, i, shape in wanted],
                              sensible_values(module, wanted)))
    except MemoryError:
        _, largest, _ = max(wanted, key=lambda entry: entry[2].num_bytes)
        raise RunError(f"out of memory: the elided constant %{largest.name} is {largest.shape.to_string(False)}",
                       largest.span) from None
    for instruction in dict.fromkeys(i for _, i, _ in wanted):
        instruction.literal = _filled(instruction.literal, instruction.shape, arrays)
    return len(wanted)


def _elided(module: Module) -> Iterator[tuple[Computation, Instruction, Shape]]:
    """Where, in which constant, of what shape: one per array without a value, in the order of _filled."""
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "constant":
                yield from ((computation, instruction, s) for s in _open(instruction.literal, instruction.shape))


def _open(literal, shape: Shape) -> Iterator[Shape]:
    if shape.is_tuple:
        for part, inner in zip(literal or [None] * len(shape.tuple_shapes), shape.tuple_shapes):
            yield from _open(part, inner)
    elif literal is None and shape.is_array:
        yield shape


def _filled(literal, shape: Shape, arrays: Iterator[np.ndarray]):
    if shape.is_tuple:
        return tuple(_filled(part, inner, arrays)
                     for part, inner in zip(literal or [None] * len(shape.tuple_shapes), shape.tuple_shapes))
    return next(arrays) if literal is None and shape.is_array else literal
