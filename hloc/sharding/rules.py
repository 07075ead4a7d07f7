"""What an op does with parts of its operands: which dimensions of operands and results go together.

In: an instruction, of which operands' and results' shapes are known. Out: a ShardingRule in factors, the loops that the
op is made of, as in a product:

    dot(f32[m,k], f32[k,n])      factors m, n, k;  operands (m,k), (k,n);  result (m,n);  k is reduced

Devices may have parts of a factor: its part of each array that has it. Partial results of a reduced factor are joined
afterwards. `whole` factors cannot be divided: what an op does there reaches over all of the dimension.
A rule of None means that each device must do all of the op. The rows of hloc/ops name their rules; those of ops with
windows are in window_rules.py, of ops with indices in index_rules.py.
Source of the idea: Shardy's OpShardingRule (shardy/dialect/sdy/ir/attrs.td).
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from hloc.ir import Instruction, Shape, WindowDim, leaves

Mapping = tuple[tuple[int, ...], ...]          # by dimension: its factors, the major one first


class Reach(NamedTuple):
    """Which elements of an operand's dimension a part of a factor reads: of `count` positions from `first` on, the
    (count-1) * stride + span from first * stride + offset on, some of them outside of the array.

    dilation  elements are so far apart, where positions are counted so; between them there is nothing
    windows   of select-and-scatter, the factor being the elements that windows of this size and stride may cover: what
              is read is all elements of the windows that cover a part or, if is_source, one element of each window
    flipped   the elements are counted from the end of the dimension
    wraps     behind the last element comes the first; only of dimensions that divide evenly
    """

    operand: int
    dimension: int
    factor: int
    stride: int = 1
    offset: int = 0
    span: int = 1
    dilation: int = 1
    windows: WindowDim | None = None
    is_source: bool = False
    flipped: bool = False
    wraps: bool = False

    def ranges(self, part: int, count: int) -> tuple[np.ndarray, int]:
        """Where each of `count` parts of `part` positions begins to read, and how much each reads."""
        firsts = np.arange(count, dtype=np.int64) * part
        if self.windows is None:
            return firsts * self.stride + self.offset, (part - 1) * self.stride + self.span
        size, stride = self.windows.size, self.windows.stride
        covering = -((size - 1 - firsts) // stride)                   # the first window that covers the part
        number = int(((firsts + part - 1) // stride - covering).max()) + 1
        return (covering, number) if self.is_source else (covering * stride, (number - 1) * stride + size)


@dataclass(frozen=True, slots=True)
class ShardingRule:
    """sizes      of the factors
    operands    by operand, by dimension: the factors that it is made of
    results     likewise, by array of the result
    reduced     factors over which partial results are joined, by the combiner of the op
    whole       factors that stay whole
    once        operands that partial results may hold only once: the others start from the combiner's identity
    again       whether partial results are joined by doing the op again on all of them
    other       another rule by which the op may work on parts, where that costs less
    running     factors along which results are those of all elements up to there: each part continues what the parts
                before it come to. downward: from the last element on
    located     factors along which indices say where an op reads or writes: it does what falls into its part. Where
                they are `reduced`, too, what a device does not have is nothing
    reaches     operands of which a part of a factor reads more than, or other than, the part along their dimension
    """

    sizes: tuple[int, ...]
    operands: tuple[Mapping, ...]
    results: tuple[Mapping, ...]
    reduced: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    once: tuple[int, ...] = ()
    located: frozenset[int] = frozenset()
    reaches: tuple[Reach, ...] = ()
    again: bool = False
    other: ShardingRule | None = None
    running: frozenset[int] = frozenset()
    downward: bool = False


Rule = Callable[[Instruction], "ShardingRule | None"]


class Builder:
    """Factors as they come up."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.whole: set[int] = set()
        self.reduced: set[int] = set()
        self.located: set[int] = set()
        self.reaches: list[Reach] = []

    def factor(self, size: int, whole: bool = False, reduced: bool = False, located: bool = False) -> int:
        number = len(self.sizes)
        self.sizes.append(size)
        if located:
            self.located.add(number)
        if whole:
            self.whole.add(number)
        if reduced:
            self.reduced.add(number)
        return number

    def reach(self, operand: int, dimension: int, factor: int, **how: Any) -> int:
        """The factor, of which a part reads such elements of an operand's dimension."""
        self.reaches.append(Reach(operand, dimension, factor, **how))
        return factor

    def wholes(self, shape: Shape) -> Mapping:
        return tuple((self.factor(size, whole=True),) for size in shape.dimensions)

    def rule(self, operands: Sequence[Mapping], results: Sequence[Mapping], once: tuple[int, ...] = ()) -> ShardingRule:
        return ShardingRule(tuple(self.sizes), tuple(operands), tuple(results), frozenset(self.reduced),
                            frozenset(self.whole), once, frozenset(self.located), tuple(self.reaches))


def _arrays(instruction: Instruction) -> list[Shape]:
    return [leaf for leaf in leaves(instruction.shape) if leaf.is_array]


def _shapes(instruction: Instruction) -> list[Shape]:
    return [o.shape for o in instruction.operands]


def aligned(instruction: Instruction, whole: Sequence[int] = ()) -> ShardingRule:
    """Dimension k of every array belongs to dimension k of the others; scalars to all. The op reaches over the
    dimensions in `whole`, whose sizes may differ."""
    made = Builder()
    results = _arrays(instruction)
    factors = [made.factor(size, whole=k in whole) for k, size in enumerate(results[0].dimensions)]

    def mapping(shape: Shape) -> Mapping:
        if shape.rank != len(factors):
            return made.wholes(shape)
        return tuple((factors[k] if made.sizes[factors[k]] == size else made.factor(size, whole=True),)
                     for k, size in enumerate(shape.dimensions))
    return made.rule([mapping(s) if s.is_array else () for s in _shapes(instruction)], [mapping(s) for s in results])


def elementwise(instruction: Instruction) -> ShardingRule:
    return aligned(instruction)


def along(dimensions: Callable[[Instruction], Sequence[int]]) -> Rule:
    """Of an op that reaches over these dimensions alone."""
    return lambda instruction: aligned(instruction, dimensions(instruction))


def batched(core: int) -> Rule:
    """Of an op on matrices (core 2), rows (core 1): all dimensions before are independent."""
    def rule(instruction: Instruction) -> ShardingRule:
        made = Builder()
        ranks = [s.rank for s in (*_shapes(instruction), *_arrays(instruction)) if s.is_array]
        batch = max(max(ranks, default=0) - core, 0)
        first = next((s for s in _shapes(instruction) if s.is_array and s.rank >= batch), None)
        factors = [made.factor(size) for size in first.dimensions[:batch]] if first else []

        def mapping(shape: Shape) -> Mapping:
            sizes = tuple(made.sizes[f] for f in factors)
            if shape.dimensions[:batch] != sizes or not factors:
                return made.wholes(shape)
            return (*((f,) for f in factors), *((made.factor(n, whole=True),) for n in shape.dimensions[batch:]))
        return made.rule([mapping(s) if s.is_array else () for s in _shapes(instruction)],
                         [mapping(s) for s in _arrays(instruction)])
    return rule


# -- movement ----------------------------------------------------------------------------------------------------------

def broadcast(instruction: Instruction) -> ShardingRule:
    made = Builder()
    factors = [made.factor(size) for size in instruction.shape.dimensions]
    operand = instruction.operands[0].shape
    into = instruction.get("dimensions", ())
    return made.rule([tuple((factors[d],) if made.sizes[factors[d]] == size else (made.factor(size, whole=True),)
                            for d, size in zip(into, operand.dimensions))], [tuple((f,) for f in factors)])


def transpose(instruction: Instruction) -> ShardingRule:
    made = Builder()
    factors = [made.factor(size) for size in instruction.operands[0].shape.dimensions]
    return made.rule([tuple((f,) for f in factors)], [tuple((factors[d],) for d in instruction.get("dimensions"))])


def reshape(instruction: Instruction) -> ShardingRule:
    """Both shapes as products of the same factors: [8,6] and [2,4,6] are (2 4) 6; [4,6] and [3,8] have one of 24, that
    neither holds in parts."""
    made = Builder()
    sides = [instruction.operands[0].shape.dimensions, instruction.shape.dimensions]
    if 0 in sides[0] or 0 in sides[1]:
        return made.rule([made.wholes(instruction.operands[0].shape)], [made.wholes(instruction.shape)])
    cuts = [_places(sizes) for sizes in sides]
    common = sorted(set(cuts[0]) & set(cuts[1]))
    everything = set(cuts[0]) | set(cuts[1])
    places = [1]
    for low, high in zip(common, common[1:]):            # within, each cut must divide the next
        inner = sorted(c for c in everything if low <= c <= high)
        exact = all(b % a == 0 for a, b in zip(inner, inner[1:]))
        places += inner[1:] if exact else [high]
    factors = {place: made.factor(place // before) for before, place in zip(places, places[1:])}

    def mapping(sizes: tuple[int, ...]) -> Mapping:
        found, low = [], 1
        for size in reversed(sizes):
            inside = [factors[p] for p in places[1:] if low < p <= low * size]
            exact = size == math.prod(made.sizes[f] for f in inside)
            found.append(tuple(reversed(inside)) if exact else (made.factor(size, whole=True),))
            low *= size
        return tuple(reversed(found))
    return made.rule([mapping(sides[0])], [mapping(sides[1])])


def _places(sizes: tuple[int, ...]) -> list[int]:
    """Where dimensions end, in elements from the last."""
    found = [1]
    for size in reversed(sizes):
        found.append(found[-1] * size)
    return found


def bitcast_convert(instruction: Instruction) -> ShardingRule:
    """Elements of another width have a dimension more or less at the end."""
    made = Builder()
    operand, result = instruction.operands[0].shape, instruction.shape
    factors = [made.factor(size) for size in operand.dimensions[:result.rank]]
    return made.rule([tuple((f,) for f in factors) + tuple((made.factor(n, whole=True),) for n in operand.dimensions[
        len(factors):])], [tuple((f,) for f in factors) + tuple((made.factor(n, whole=True),) for n in
                                                                  result.dimensions[len(factors):])])


# -- products and reductions -------------------------------------------------------------------------------------------

def sums_join(instruction: Instruction) -> bool:
    """Whether partial sums, each in the result's type, add up to the sum: of floats, and of integers that wrap around,
    but not of what is rounded to an integer, or a truth value, at the end."""
    kinds = {o.shape.kind for o in instruction.operands}
    return instruction.shape.kind in ("float", "complex") or instruction.shape.kind in (
        "signed", "unsigned") and kinds <= {"signed", "unsigned"}


def dot(instruction: Instruction) -> ShardingRule:
    made = Builder()
    joins = sums_join(instruction)
    left, right = (o.shape for o in instruction.operands[:2])
    keys = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")
    left_batch, right_batch, left_sum, right_sum = (tuple(instruction.get(k, ())) for k in keys)
    batch = [made.factor(left.dimensions[d]) for d in left_batch]
    summed = [made.factor(left.dimensions[d], reduced=joins, whole=not joins) for d in left_sum]

    def mapping(shape: Shape, batch_dims: tuple[int, ...], sum_dims: tuple[int, ...]) -> tuple[Mapping, list[int]]:
        known = dict(zip((*batch_dims, *sum_dims), (*batch, *summed)))
        own = [d for d in range(shape.rank) if d not in known]
        known |= {d: made.factor(shape.dimensions[d]) for d in own}
        return tuple((known[d],) for d in range(shape.rank)), [known[d] for d in own]
    left_mapping, left_own = mapping(left, left_batch, left_sum)
    right_mapping, right_own = mapping(right, right_batch, right_sum)
    return made.rule([left_mapping, right_mapping], [tuple((f,) for f in (*batch, *left_own, *right_own))])


# Ops that join partial results in any order, and what they join nothing to.
COMBINERS = frozenset(["add", "multiply", "maximum", "minimum", "and", "or"])


def combiner_of(instruction: Instruction, key: str = "to_apply") -> str | None:
    """The one op of to_apply, where that joins two numbers in any order."""
    computation = instruction.get(key)
    root = computation.root
    plain = root.opcode in COMBINERS and len(computation.instructions) == 3 and root.operands != [] and {
        o.opcode for o in root.operands} == {"parameter"} and root.operands[0] is not root.operands[1]
    return root.opcode if plain else None


def reduce(instruction: Instruction) -> ShardingRule:
    """Partial results of a plain combiner are joined by it; others (places of maxima) are reduced again."""
    made = Builder()
    count = len(instruction.operands) // 2
    dimensions, sizes = instruction.get("dimensions"), instruction.operands[0].shape.dimensions
    joined = count == 1 and combiner_of(instruction) is not None
    factors = [made.factor(size, reduced=d in dimensions) for d, size in enumerate(sizes)]
    kept = tuple((f,) for d, f in enumerate(factors) if d not in dimensions)
    rule = made.rule([tuple((f,) for f in factors)] * count + [()] * count, [kept] * count)
    return replace(rule, again=not joined)
