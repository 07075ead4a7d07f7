"""Attention: two products with a softmax between them.

In: the second dot of the two. Out: an Attention, or where it is not one: None, or a reason where only a detail is
missing.

    z = score(dot(q, k))                       score: anything elementwise, with whatever else it reads (a mask, a bias)
    e = exp(z - max z); p = e / sum e          over the keys; the division may also come after the second dot
    out = dot(p, v)                            then conversions and transpositions

Each instruction from `scores` to `root` that depends on the first dot is a member. Rows of scores are any dimensions,
keys are one (or several that lie together).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from hloc.analysis import strides
from hloc.analysis.fusible import RESHAPES, is_elementwise, is_static_array
from hloc.analysis.strides import View, row_major
from hloc.ir import Computation, Instruction

RENAMES = RESHAPES | {"convert"}
SPREADS = RENAMES | {"broadcast"}
OPERAND_TYPES = frozenset(["f32", "bf16", "f16"])
KEEPING = frozenset(["reshape", "bitcast", "transpose", "convert"])
INNER = RESHAPES | {"broadcast", "reduce"}
CONVERT = frozenset(["convert"])


class Attention(NamedTuple):
    """scores, output: the two dots; score: what the softmax is taken of; keys: (number, distance) of neighbouring keys
    in the flat order of scores; members: in the order of dependence, without the output's tail."""

    scores: Instruction
    score: Instruction
    output: Instruction
    keys: tuple[int, int]
    members: tuple[Instruction, ...]
    sum: Instruction
    divides_later: bool

    @property
    def side(self) -> int:
        """Which operand of the first dot has the keys: 0 or 1."""
        return next(n for n in (1, 0) if one_dimension(*free_of_side(self.scores, n)) == self.keys)

    @property
    def weights_slot(self) -> int:
        """Which operand of the second dot holds the weights."""
        return next(n for n, operand in enumerate(self.output.operands) if operand in self.members)


# -- dots --------------------------------------------------------------------------------------------------------------

def contracting(dot: Instruction, side: int) -> tuple[int, ...]:
    return dot.get("rhs_contracting_dims" if side else "lhs_contracting_dims", ())


def batch(dot: Instruction, side: int) -> tuple[int, ...]:
    return dot.get("rhs_batch_dims" if side else "lhs_batch_dims", ())


def free(dot: Instruction, side: int) -> tuple[int, ...]:
    """Dimensions of an operand that are neither batch nor contracting ones."""
    taken = {*batch(dot, side), *contracting(dot, side)}
    return tuple(d for d in range(dot.operands[side].shape.rank) if d not in taken)


def free_of_side(dot: Instruction, side: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(dimensions of a dot's result, the ones of them that come from the free dimensions of one operand)."""
    first = len(batch(dot, 0)) + (len(free(dot, 0)) if side else 0)
    return dot.shape.dimensions, tuple(range(first, first + len(free(dot, side))))


def one_dimension(dimensions: tuple[int, ...], chosen: Iterable[int]) -> tuple[int, int] | None:
    """(size, stride) of neighbouring dimensions walked as one; None where they do not lie together."""
    strides = row_major(dimensions)
    size, stride = 1, 0
    for d in sorted(chosen, reverse=True):
        if dimensions[d] == 1:
            continue
        if size > 1 and strides[d] != size * stride:
            return None
        size, stride = size * dimensions[d], stride if size > 1 else strides[d]
    return size, stride


# -- the softmax -------------------------------------------------------------------------------------------------------

class Softmax(NamedTuple):
    """exponential: e; largest, sum: the two reduces; score: what it is taken of; divides_later: the end is e itself."""

    exponential: Instruction
    largest: Instruction
    sum: Instruction
    score: Instruction
    divides_later: bool


def behind(node: Instruction, opcodes: frozenset[str]) -> Instruction:
    """What is found behind instructions of these opcodes."""
    while node.opcode in opcodes:
        node = node.operands[0]
    return node


def softmax_of(node: Instruction, sums: Iterable[Instruction]) -> Softmax | None:
    """The softmax that ends in `node`, or in its exponential where the division comes later; sums: where to find the
    sum then."""
    node = behind(node, RENAMES)
    if node.opcode == "exponential":
        exponential, later = node, True
        divisor = next((s for s in sums if behind(s.operands[0], RENAMES) is exponential), None)
    else:
        exponential, divisor = division_by_reduce(node) or (node, None)
        exponential, later = behind(exponential, RENAMES), False
    if divisor is None or exponential.opcode != "exponential" or not reduces_by(divisor, "add", 0.0) \
            or behind(divisor.operands[0], RENAMES) is not exponential:
        return None
    difference = behind(exponential.operands[0], RENAMES)
    if difference.opcode != "subtract":
        return None
    score = difference.operands[0]
    largest = reduce_behind(difference.operands[1])
    if largest is None or not reduces_by(largest, "maximum", -np.inf) \
            or behind(largest.operands[0], RENAMES) is not behind(score, RENAMES):
        return None
    return Softmax(exponential, largest, divisor, score, later)


def division_by_reduce(node: Instruction) -> tuple[Instruction, Instruction] | None:
    """(x, s) for x / spread(s), and for x times spread(1 / s), where s is a reduce."""
    if node.opcode == "divide":
        pairs = [(node.operands[0], node.operands[1])]
    elif node.opcode == "multiply":
        pairs = [(x, i) for x, i in (tuple(node.operands), tuple(reversed(node.operands)))
                 if behind(i, SPREADS).opcode == "divide" and constant_value(behind(i, SPREADS).operands[0]) == 1]
    else:
        return None
    return next(((x, s) for x, s in ((x, reduce_behind(i)) for x, i in pairs) if s is not None), None)


def steps_to_reduce(node: Instruction) -> Iterator[Instruction]:
    """What spreads a value of each row, from its end to the reduce, or to what is none: renamings and broadcasts, the
    inverse of the value, 0 in place of a value that is not finite."""
    while True:
        yield node
        if node.opcode in SPREADS:
            node = node.operands[0]
        elif node.opcode == "divide" and constant_value(node.operands[0]) == 1:
            node = node.operands[1]
        elif node.opcode == "select" and is_finite_or_zero(node):
            node = node.operands[1]
        else:
            return


def is_finite_or_zero(select: Instruction) -> bool:
    """select(is-finite(x), x, 0)"""
    test, value, other = select.operands
    return test.opcode == "is-finite" and test.operands[0] is value and constant_value(other) == 0


def reduce_behind(node: Instruction) -> Instruction | None:
    *_, last = steps_to_reduce(node)
    return last if last.opcode == "reduce" and not last.shape.is_tuple else None


def reads_own_row(node: Instruction, view: View, keys: tuple[int, int]) -> bool:
    """Whether a value of each row, spread to be read as `node`, is read by the elements of its own row; view: where in
    the scores the dimensions of `node` walk."""
    size, stride = keys
    expected = tuple((n, s if s < stride else s // size if s >= size * stride else 0) for n, s in view)
    found: View | None = strides.whole(node.shape.dimensions)
    for step in steps_to_reduce(node):
        if step.opcode == "broadcast" and found is not None:
            found = strides.behind(step, found)
    return found == expected


def constant_value(node: Instruction) -> float | None:
    """The number of a floating-point constant, or of one that is spread."""
    node = behind(node, SPREADS)
    if node.opcode != "constant" or not node.shape.is_array or node.shape.num_elements != 1 or node.literal is None:
        return None
    return float(node.literal.reshape(()).astype(np.float64)) if node.shape.kind == "float" else None


def reduces_by(reduce: Instruction, opcode: str, initial: float) -> bool:
    """A reduce of one array by one operation, from the value that changes nothing."""
    if reduce.opcode != "reduce" or reduce.shape.is_tuple or not reduce.get("dimensions"):
        return False
    root = behind(reduce.get("to_apply").root, CONVERT)
    numbers = {o.parameter_number for o in (behind(o, CONVERT) for o in root.operands) if o.opcode == "parameter"}
    return root.opcode == opcode and numbers == {0, 1} and constant_value(reduce.operands[1]) == initial


# -- the whole ---------------------------------------------------------------------------------------------------------

def attention_of(output: Instruction, sums: Iterable[Instruction]) -> Attention | str | None:
    """The attention whose second dot is `output`; a reason where a softmax is there but something else is missing.
    sums: the reduces among which to look for the sum where the division comes after the second dot."""
    if output.opcode != "dot" or len(output.operands) != 2:
        return None
    sums = tuple(sums)
    for side in (0, 1):
        softmax = softmax_of(output.operands[side], sums)
        if softmax is not None:
            return whole(output, side, softmax)
    return None


def whole(output: Instruction, side: int, softmax: Softmax) -> Attention | str:
    """The attention around a softmax, or what is missing."""
    scores = product_behind(softmax.score)
    if scores is None:
        return "the softmax is not of a product"
    arrays = [*scores.operands, *output.operands, scores, output, softmax.score]
    if scores.get("sparsity") is not None or output.get("sparsity") is not None or not all(
            is_static_array(a.shape) and 0 not in a.shape.dimensions for a in arrays):
        return "attention kernels take arrays that are neither sparse nor empty"
    if any(a.shape.element_type not in OPERAND_TYPES for a in arrays):
        return "attention kernels compute in f32"
    keys = one_dimension(output.operands[side].shape.dimensions, contracting(output, side))
    reduced = [one_dimension(r.operands[0].shape.dimensions, r.get("dimensions"))
               for r in (softmax.sum, softmax.largest)]
    sides = [one_dimension(*free_of_side(scores, n)) for n in (0, 1)]
    if keys is None or keys[0] == 1 or reduced != [keys, keys] or keys not in sides:
        return "the softmax does not run over the dimension that the second product sums over"
    difference = behind(softmax.exponential.operands[0], RENAMES)
    spread = [difference.operands[1]]
    weights = behind(output.operands[side], RENAMES)
    if not softmax.divides_later:
        spread += [o for o in weights.operands if reduce_behind(o) is softmax.sum]
    if not all(reads_own_row(s, strides.whole(s.shape.dimensions), keys) for s in spread):
        return "the softmax does not subtract and divide row by row"
    return Attention(scores, softmax.score, output, keys, tuple(between(scores, output, side)), softmax.sum,
                     softmax.divides_later)


def product_behind(score: Instruction) -> Instruction | None:
    """The first dot from which elementwise instructions lead to the scores, at the scores' own positions."""
    size = score.shape.num_elements
    stack, seen = [score], set()
    while stack:
        node = stack.pop()
        if node in seen or node.shape.is_tuple or node.shape.num_elements != size:
            continue
        seen.add(node)
        if node.opcode == "dot":
            return node
        if is_elementwise(node) or node.opcode in RESHAPES:
            stack.extend(reversed(node.operands))
    return None


def between(first: Instruction, last: Instruction, side: int) -> list[Instruction]:
    """Instructions from `first` to operand `side` of `last` that depend on `first`, operands before users; and `last`.
    They are as large as the scores or as one of their rows."""
    depends: dict[Instruction, bool] = {first: True}
    order: list[Instruction] = [first]
    waiting = [(last.operands[side], False)]
    while waiting:
        node, finished = waiting.pop()
        if finished:
            depends[node] = any(depends[o] for o in node.operands)
            if depends[node]:
                order.append(node)
        elif node not in depends:
            if not (is_elementwise(node) or node.opcode in INNER):
                depends[node] = False
                continue
            waiting.append((node, True))
            waiting.extend((o, False) for o in node.operands if o not in depends)
    return [*dict.fromkeys(order), last]


def tail_of(attention: Attention, readers: dict[Instruction, list[Instruction]], root: Instruction
            ) -> list[Instruction] | None:
    """What follows the second dot and belongs to it: the division, conversions, transpositions, in their order. None
    where the division should be there and is not."""
    found: list[Instruction] = []
    kept = 0
    node, divided = attention.output, not attention.divides_later
    while node is not root and len(readers[node]) == 1:
        before, node = node, readers[node][0]
        if not divided and node.opcode in ("divide", "multiply") and divides_rows(attention, before, node):
            divided = True
            spread = next(o for o in node.operands if o is not before)
            steps = [s for s in steps_to_reduce(spread) if s is not attention.sum]
            found += reversed(steps)
        elif node.opcode not in KEEPING or node.shape.element_type not in OPERAND_TYPES:
            break
        elif node.opcode == "transpose" and not divided:
            return None
        found.append(node)
        if node.opcode not in RESHAPES:
            kept = len(found)
    return found[:kept] if divided else None


def divides_rows(attention: Attention, before: Instruction, node: Instruction) -> bool:
    """Whether `node` divides the second product, as it is in `before`, by the sum of its row."""
    quotient = division_by_reduce(node)
    if quotient is None or quotient[0] is not before or quotient[1] is not attention.sum:
        return False
    output, side = attention.output, attention.weights_slot
    weights = row_major(output.operands[side].shape.dimensions)
    rows = [weights[d] for d in free(output, side)]
    features = [attention.keys[1]] * len(free(output, 1 - side))           # read like keys: all alike
    walks = [weights[d] for d in batch(output, side)] + (features + rows if side else rows + features)
    spread = next(o for o in node.operands if o is not before)
    view = tuple((n, s) for n, s in zip(output.shape.dimensions, walks) if n != 1)
    return reads_own_row(spread, view, attention.keys)


def attention_in(computation: Computation) -> Attention | None:
    """The attention that a fused computation consists of, if it does."""
    dots = [i for i in computation.instructions if i.opcode == "dot"]
    if len(dots) != 2:
        return None
    sums = [i for i in computation.instructions if i.opcode == "reduce"]
    found = attention_of(dots[1], sums)
    return found if isinstance(found, Attention) and found.scores is dots[0] else None


def multiply_adds(dot: Instruction) -> int:
    """Of one run of a dot."""
    left = dot.operands[0].shape.dimensions
    return dot.shape.num_elements * int(np.prod([left[d] for d in contracting(dot, 0)], dtype=np.int64))
