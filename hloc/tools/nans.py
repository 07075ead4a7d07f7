"""The instructions that produce NaN and infinities.

In: a module and inputs. Out: the instructions that produce a NaN, or an infinity, from operands without one, in the
order of execution; parameters that hold some come first.

    told = nan_origins(module, arrays)        told.origins[0].instruction.name == "log.3"; told.results == (0,)
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hloc.analysis.effects import ARITHMETIC_CALLERS
from hloc.evaluate import CustomCall, Device, Evaluator, Options
from hloc.inputs import check_inputs
from hloc.ir import ELEMENT_TYPES, Instruction, Module, element_type_of, leaves
from hloc.ops.table import OPS
from hloc.ops.values import Value, flatten


@dataclass
class Origin:
    """instruction   which one;  what: "NaN" or "infinity";  runs: how many of its runs produced some
    count, size   how many elements of how many, in the first of these runs
    where         the index of the first one;  operands: values of an elementwise op there
    """

    instruction: Instruction
    what: str
    count: int
    size: int
    where: tuple[int, ...]
    operands: tuple[object, ...] = ()
    runs: int = 1


class NanReport(NamedTuple):
    """origins: in the order of the run;  results: the numbers of the results that hold any."""

    origins: tuple[Origin, ...]
    results: tuple[int, ...]


def nan_origins(module: Module, arrays: Sequence[object], *, infinities: bool = False,
                custom_calls: Mapping[str, CustomCall] | None = None, device: Device | None = None) -> NanReport:
    """Run the module in the evaluator and watch every instruction, those of loops and calls included.

    device       one of several, which run at the same time (hloc/evaluate/simulate.py)
    infinities   look for infinities, too. Scalar functions (of reduce, sort ...) are not searched.
    """
    watch = _Watch(infinities)
    given = check_inputs(module, arrays)
    rest = iter(given)
    for parameter in module.entry.parameters:
        for part in [next(rest) for _ in leaves(parameter.shape)]:
            watch.look(parameter, (), part)
    evaluator = Evaluator(module, custom_calls=custom_calls, options=Options(observer=watch.observe), device=device)
    results = evaluator.run(given)
    return NanReport(tuple(watch.found.values()), tuple(i for i, r in enumerate(results) if watch.strange(r).any()))


class _Watch:
    def __init__(self, infinities: bool):
        self.infinities = infinities
        self.found: dict[Instruction, Origin] = {}

    def observe(self, instruction: Instruction, operands: Sequence[Value], value: Value) -> None:
        if instruction.called_computations and instruction.opcode not in ARITHMETIC_CALLERS:
            return                                               # called computations have been searched
        read = [part for operand in operands for part in flatten(operand)]
        for part in flatten(value):
            self.look(instruction, read, part)

    def look(self, instruction: Instruction, operands: Sequence[np.ndarray], value: np.ndarray) -> None:
        made = self.strange(value)
        if not made.any():
            return
        elementwise = OPS[instruction.opcode].is_elementwise
        for operand in operands:
            had = self.strange(operand)
            made = made & ~had if elementwise else made & (not had.any())
        if made.any():
            self.note(instruction, operands if elementwise else (), value, made)

    def note(self, instruction: Instruction, operands: Sequence[np.ndarray], value: np.ndarray,
             made: np.ndarray) -> None:
        known = self.found.get(instruction)
        if known is not None:
            known.runs += 1
            return
        where = tuple(int(i) for i in np.argwhere(made)[0])
        what = "NaN" if np.isnan(value[where]) else "infinity"
        self.found[instruction] = Origin(instruction, what, int(made.sum()), made.size, where,
                                         tuple(o[where] if o.shape == value.shape else o[()] for o in operands))

    def strange(self, value: np.ndarray) -> np.ndarray:
        """Which elements are NaN (or infinite, if these are searched)."""
        if ELEMENT_TYPES[element_type_of(value.dtype)].kind not in ("float", "complex"):
            return np.zeros(value.shape, bool)
        with np.errstate(all="ignore"):
            return ~np.isfinite(value) if self.infinities else np.isnan(value)
