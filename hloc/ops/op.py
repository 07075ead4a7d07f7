"""The op record: one row per opcode, with every fact about it.

    TANH = Op("tanh", arity=1, infer=same_shape, evaluate=unary(np.tanh), scalar="tanh", domain=FLOATING | COMPLEX)

A row holds the number of operands, the attributes, the result's shape (`infer`), the result's value (`evaluate`) and,
for elementwise ops, the scalar function that computes one element (`scalar`). Rows are in the files of this folder by
family; hloc/ops/table.py assembles them. Nothing registers itself.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hloc.ir import Instruction, Shape
from hloc.sharding import rules

# infer(instruction) -> the Shape that the operands and attributes imply (row-major if the layout is free), or None if
# they do not determine it (parameter, constant, custom-call ...: the written shape is used).
# Raises VerifyError(message, instruction.span) naming both sides if operands or attributes do not fit.
Infer = Callable[[Instruction], "Shape | None"]

# evaluate(evaluator, instruction, *operand_values) -> value. A value is an ndarray of the logical shape (NumPy dtype
# from ELEMENT_TYPES), a tuple of values for tuple shapes, or None for a token.
Evaluate = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Op:
    """All facts about one opcode.

    arity        number of operands, or (least, most) with most None for no bound
    infer        shape inference, see above
    evaluate     reference meaning, or None for an op without a meaning on one device (`unsupported` says why)
    scalar       for elementwise ops: the name of the scalar function in hloc/targets/c/scalar.h, without its type
                 ending ("add", "shift_left"); None for everything else
    domain       element types of the operands that the op accepts (empty: any)
    required     attribute keys that must be there
    optional     attribute keys that may be there (metadata, sharding, frontend_attributes, backend_config, origin,
                 statistics, control-predecessors and result_accuracy are allowed everywhere)
    side_effect  must stay even when unused
    unsupported  the reason why there is no `evaluate`
    cost         of elementwise ops: vector instructions per vector of results, where an addition takes one
    gpu_cost     the same for a GPU, in instructions of a thread; 0: as `cost`
    rounds       of elementwise ops: whether results of narrow floats must be rounded; not where the result is one of
                 the operands, or always a number of the operand's type
    keeps_nans   of elementwise ops: whether a NaN that comes out has the bits of an operand's, or of the CPU's own
    sharding     how it works on parts of arrays (hloc/sharding/rules.py); elementwise ops need not say it
    """

    opcode: str
    arity: int | tuple[int, int | None]
    infer: Infer
    evaluate: Evaluate | None = None
    scalar: str | None = None
    domain: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    side_effect: bool = False
    unsupported: str = ""
    cost: float = 1
    gpu_cost: float = 0
    rounds: bool = True
    keeps_nans: bool = False
    sharding: rules.Rule | None = None

    @property
    def least_operands(self) -> int:
        return self.arity if isinstance(self.arity, int) else self.arity[0]

    @property
    def most_operands(self) -> int | None:
        return self.arity if isinstance(self.arity, int) else self.arity[1]

    def sharding_rule(self, instruction: Instruction) -> rules.ShardingRule | None:
        """How this one works on parts of its arrays; None where each device must do all of it."""
        if self.sharding is not None:
            return self.sharding(instruction)
        return rules.elementwise(instruction) if self.is_elementwise else None

    @property
    def is_elementwise(self) -> bool:
        return self.scalar is not None
