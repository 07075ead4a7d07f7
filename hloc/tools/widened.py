"""A module whose 16-bit values are kept in f32, as by compilers that omit intermediate roundings.

    run = widened_run(module)       run(arrays): parameters and results have the module's own types; None if
                                    wider types have no meaning
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hloc.errors import HlocError
from hloc.evaluate import CustomCall, Evaluator
from hloc.ir import Instruction, Module, Shape, leaves, numpy_dtype
from hloc.ir.clone import clone_module
from hloc.verify import verify

NARROW = frozenset({"bf16", "f16"})
# Their results depend on bits or types.
REFUSED = frozenset({"bitcast-convert", "bitcast", "custom-call", "reduce-precision", "rng", "rng-bit-generator",
                     "infeed", "recv"})


def widened_run(module: Module, custom_calls: Mapping[str, CustomCall] | None = None) -> Callable | None:
    """The evaluator over the wider module."""
    if not any(map(_is_narrow, module.instructions())) or any(i.opcode in REFUSED for i in module.instructions()):
        return None
    wide = clone_module(module)
    wide.attributes = {}                              # the header has the old types
    for instruction in wide.instructions():
        if _is_narrow(instruction):
            _widen(instruction)
    try:
        verify(wide)
    except HlocError:
        return None
    types = [numpy_dtype(s.element_type) for s in leaves(module.entry.root.shape)]

    def run(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        given = [numpy_dtype(s.element_type) for p in wide.entry.parameters for s in leaves(p.shape)]
        results = Evaluator(wide, custom_calls=custom_calls).run([a.astype(t) for a, t in zip(arrays, given)])
        with np.errstate(all="ignore"):
            return tuple(r.astype(t) for r, t in zip(results, types))
    return run


def _is_narrow(instruction: Instruction) -> bool:
    return any(s.element_type in NARROW for s in leaves(instruction.shape))


def _widen(instruction: Instruction) -> None:
    instruction.shape = _wide(instruction.shape)
    if isinstance(instruction.literal, np.ndarray):
        instruction.literal = instruction.literal.astype(np.float32)


def _wide(shape: Shape) -> Shape:
    if shape.is_aggregate:
        return Shape.tuple(map(_wide, shape.tuple_shapes))
    return shape.with_element_type("f32") if shape.element_type in NARROW else shape
