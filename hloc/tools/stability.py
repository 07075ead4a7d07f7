"""How much rounding alone changes a module's results.

In: a module and inputs. Out: the evaluator's results with every inexact operation and every floating-point input
changed by one unit in the last place, up or down at random. Other correct implementations differ by about as much.

    with_stability(rows, results, want, perturbed_results(module, arrays))       (hloc/tools/compare.py)
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hloc.evaluate import CustomCall, Device, Evaluator, Plan, make_plan
from hloc.inputs import check_inputs
from hloc.ir import Computation, Instruction, Module
from hloc.ops.table import OPS, SCALARS
from hloc.ops.values import Value
from hloc.tools.compare import nudged

EXACT = frozenset(row.opcode for row in SCALARS.values() if not row.rounds)
SUMS = frozenset("batch-norm-grad batch-norm-inference batch-norm-training cholesky convolution dot fft map ragged-dot "
                 "reduce reduce-window scaled-dot scan scatter select-and-scatter triangular-solve".split())

SEED_DISTANCE = 1 << 40              # between the random choices of two runs


def perturbed_results(module: Module, arrays: Sequence[object],
                   custom_calls: Mapping[str, CustomCall] | None = None, seed: int = 0,
                      device: Device | None = None) -> tuple[np.ndarray, ...]:
    """Flattened results of one changed run; deterministic for a seed. device: one of several, which run at the same
    time."""
    evaluator = _PerturbedEvaluator(module, custom_calls=custom_calls, device=device)
    evaluator.draws = seed * SEED_DISTANCE
    return tuple(evaluator.run(nudged(check_inputs(module, arrays), evaluator.draws)))


class AlteredEvaluator(Evaluator):
    """An evaluator whose ops are replaced by `altered`."""

    can_look_ahead = False

    def prepare(self, computation: Computation) -> Plan:
        plan = make_plan(computation)
        return plan._replace(steps=tuple(s._replace(function=self.altered(s.function, s.instruction))
                                         for s in plan.steps))

    def altered(self, function: Callable, instruction: Instruction) -> Callable:
        """`function(evaluator, instruction, *operands)`, or its replacement."""
        return function


class _PerturbedEvaluator(AlteredEvaluator):
    draws = 0            # seed of the next random choices

    def altered(self, function: Callable, instruction: Instruction) -> Callable:
        opcode = instruction.opcode
        if opcode not in SUMS and (opcode in EXACT or not OPS[opcode].is_elementwise):
            return function

        def run(evaluator: Evaluator, instruction: Instruction, *operands: Value) -> Value:
            if opcode in SUMS:                        # each of the terms is rounded, which shows where they cancel
                operands = tuple(self._moved(o) for o in operands)
            return self._moved(function(evaluator, instruction, *operands))
        return run

    def _moved(self, value: Value) -> Value:
        self.draws += 1
        return nudged([value], self.draws)[0] if isinstance(value, np.ndarray) else value
