"""Attention: two matmuls with a softmax between them.

In: the second dot of the two. Out: an Attention; otherwise None, or a reason if only a detail is missing.

    z = score(dot(q, k))                       score: anything elementwise, with whatever else it reads (a mask, a bias)
    e = exp(z - max z); p = e / sum e          over the keys; the division may also come after the second dot
    out = dot(p, v)                            then conversions and transpositions

There may be reshapes, transposes and conversions anywhere in between. So each array as large as the scores has a walk:
for every dimension its size and its stride in the flat scores of the first dot.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from hloc.analysis import strides
from hloc.analysis.fusible import RESHAPES, is_elementwise, is_static_array
from hloc.analysis.strides import View, collapsed
from hloc.ir import Computation, Instruction, row_major

RENAMES = RESHAPES | {"convert", "transpose"}
SPREADS = RENAMES | {"broadcast"}
OPERAND_TYPES = frozenset(["f32", "bf16", "f16"])
INNER = RENAMES | {"broadcast", "reduce"}
CONVERT = frozenset(["convert"])

Walk = tuple[tuple[int, int], ...]
Run = tuple[int, int]                   # (size, stride) of collapsed dimensions


class Attention(NamedTuple):
    """scores, output: the two dots; score: the operand of the softmax; slot: the operand of the output that holds the
    weights; largest: the subtracted reduce; sum: the reduce that the weights are divided by, in members or
    (divides_later) after the second dot; keys: their layout in the flat scores; walks: of the arrays as large as the
    scores; members: all instructions that depend on the first dot, up to the second, operands before users."""

    scores: Instruction
    score: Instruction
    output: Instruction
    slot: int
    largest: Instruction
    sum: Instruction
    divides_later: bool
    keys: Run
    walks: dict[Instruction, Walk]
    members: tuple[Instruction, ...]

    @property
    def side(self) -> int:
        """Which operand of the first dot has the keys: 0 or 1."""
        side = side_of(self.scores, self.walks[self.scores], self.keys)
        assert side is not None              # attention_of has checked it
        return side

    @property
    def weights(self) -> Instruction:
        return self.output.operands[self.slot]


# -- dots --------------------------------------------------------------------------------------------------------------

def contracting(dot: Instruction, side: int) -> tuple[int, ...]:
    return dot.get("rhs_contracting_dims" if side else "lhs_contracting_dims", ())


def batch(dot: Instruction, side: int) -> tuple[int, ...]:
    return dot.get("rhs_batch_dims" if side else "lhs_batch_dims", ())


def free(dot: Instruction, side: int) -> tuple[int, ...]:
    """Dimensions of an operand that are neither batch nor contracting ones."""
    taken = {*batch(dot, side), *contracting(dot, side)}
    return tuple(d for d in range(dot.operands[side].shape.rank) if d not in taken)


def free_of_side(dot: Instruction, side: int) -> tuple[int, ...]:
    """The dimensions of a dot's result that come from the free dimensions of one operand."""
    first = len(batch(dot, 0)) + (len(free(dot, 0)) if side else 0)
    return tuple(range(first, first + len(free(dot, side))))


def side_of(dot: Instruction, walk: Walk, keys: Run) -> int | None:
    """The operand whose free dimensions are the keys."""
    return next((n for n in (1, 0) if joined(walk, free_of_side(dot, n)) == keys), None)


# -- walks -------------------------------------------------------------------------------------------------------------

def walk_of(dimensions: tuple[int, ...]) -> Walk:
    """Of the scores themselves."""
    return tuple((n, s if n > 1 else 0) for n, s in zip(dimensions, row_major(dimensions)))


def joined(walk: Walk, dimensions: Iterable[int]) -> Run | None:
    """Some dimensions collapsed into one, in any order; None if they are not adjacent."""
    (size, distance), *others = collapsed(sorted((walk[d] for d in dimensions), key=lambda part: -part[1])) or [(1, 0)]
    return None if others else (size, distance)


def reshaped(walk: Walk, dimensions: tuple[int, ...]) -> Walk | None:
    """The walk of a reshape's result; None if a dimension would have no single stride."""
    source = [part for part in walk if part[0] > 1]
    found: list[tuple[int, int]] = []
    for wanted in reversed(dimensions):
        if wanted == 1:
            found.append((1, 0))
            continue
        size, distance = source.pop()
        while size < wanted and source and source[-1][1] == size * distance:
            size *= source.pop()[0]
        if size % wanted:
            return None
        if size > wanted:
            source.append((size // wanted, distance * wanted))
        found.append((wanted, distance))
    return tuple(reversed(found))


def walks_of(members: Iterable[Instruction], scores: Instruction) -> dict[Instruction, Walk]:
    """The walks of the members that are as large as the scores and computed from them elementwise."""
    found = {scores: walk_of(scores.shape.dimensions)}
    for member in members:
        walks = [found[o] for o in member.operands if o in found]
        if member in found or not walks:
            continue
        walk: Walk | None
        if member.opcode == "transpose":
            walk = tuple(walks[0][d] for d in member.get("dimensions"))
        elif member.opcode in RESHAPES:
            walk = reshaped(walks[0], member.shape.dimensions)
        else:
            walk = walks[0] if is_elementwise(member) and all(w == walks[0] for w in walks) else None
        if walk is not None:
            found[member] = walk
    return found


# -- the softmax -------------------------------------------------------------------------------------------------------

class Softmax(NamedTuple):
    """exponential: e; largest, sum: the two reduces; score: the operand; spread: the broadcasts of the reduces that e
    and the weights read, as (instruction, its reduce, its user)."""

    exponential: Instruction
    largest: Instruction
    sum: Instruction
    score: Instruction
    divides_later: bool
    spread: tuple[tuple[Instruction, Instruction, Instruction], ...]


def behind(node: Instruction, opcodes: frozenset[str]) -> Instruction:
    """The operand through instructions of these opcodes."""
    while node.opcode in opcodes:
        node = node.operands[0]
    return node


def softmax_of(node: Instruction, sums: Iterable[Instruction]) -> Softmax | None:
    """The softmax that ends in `node`, or in its exponential if the division comes later; sums: then the
    candidates for the sum."""
    node = behind(node, RENAMES)
    divisor: Instruction | None
    spread: list[tuple[Instruction, Instruction, Instruction]] = []
    if node.opcode == "exponential":
        exponential, later = node, True
        divisor = next((s for s in sums if behind(s.operands[0], RENAMES) is exponential), None)
    else:
        divided = division_by_reduce(node)
        if divided is None:
            return None
        exponential, divisor, by = divided
        exponential, later = behind(exponential, RENAMES), False
        spread.append((by, divisor, node))
    if divisor is None or exponential.opcode != "exponential" or not reduces_by(divisor, "add", 0.0) \
            or behind(divisor.operands[0], RENAMES) is not exponential:
        return None
    difference = behind(exponential.operands[0], RENAMES)
    if difference.opcode != "subtract":
        return None
    score, by = difference.operands
    largest = reduce_behind(by)
    if largest is None or not reduces_by(largest, "maximum", -np.inf) \
            or behind(largest.operands[0], RENAMES) is not behind(score, RENAMES):
        return None
    return Softmax(exponential, largest, divisor, score, later, (*spread, (by, largest, difference)))


def division_by_reduce(node: Instruction) -> tuple[Instruction, Instruction, Instruction] | None:
    """(x, s, broadcast(s)) for x / broadcast(s), and for x times broadcast(1 / s), if s is a reduce."""
    if node.opcode == "divide":
        pairs = [tuple(node.operands)]
    elif node.opcode == "multiply":
        pairs = [(x, i) for x, i in (tuple(node.operands), tuple(reversed(node.operands)))
                 if behind(i, SPREADS).opcode == "divide" and constant_value(behind(i, SPREADS).operands[0]) == 1]
    else:
        return None
    return next(((x, s, by) for x, s, by in ((x, reduce_behind(by), by) for x, by in pairs) if s is not None), None)


def steps_to_reduce(node: Instruction) -> Iterator[Instruction]:
    """The chain that broadcasts a value of each row, from its end to the reduce: reshapes and broadcasts, the inverse
    of the value, 0 instead of a value that is not finite."""
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


def reads_own_row(spread: Instruction, reader: Walk, reduce: Instruction, walk: Walk, keys: Run) -> bool:
    """Whether a value per row, reduced by `reduce` from an array of that walk and broadcast to an array with the walk
    `reader`, is read by the elements of its own row."""
    kept = [d for d in range(len(walk)) if d not in reduce.get("dimensions")]
    rows = [(*walk[d], s) for d, s in zip(kept, row_major(reduce.shape.dimensions)) if walk[d][0] > 1]
    expected = []
    for size, distance in reader:
        if size == 1:
            continue
        if keys[1] <= distance < keys[0] * keys[1]:
            expected.append((size, 0))
            continue
        home = next(((s, d) for n, d, s in rows if distance % d == 0 and d <= distance and distance * size <= d * n),
                    None)
        if home is None:
            return False
        expected.append((size, home[0] * (distance // home[1])))
    found: View | None = strides.whole(spread.shape.dimensions)
    for step in steps_to_reduce(spread):
        if step.opcode in ("broadcast", "transpose") and found is not None:
            found = strides.behind(step, found)
    return found == tuple(expected)


def constant_value(node: Instruction) -> float | None:
    """The number of a floating-point constant, or of a broadcast one."""
    node = behind(node, SPREADS)
    if node.opcode != "constant" or not node.shape.is_array or node.shape.num_elements != 1 or node.literal is None:
        return None
    return float(node.elements.reshape(()).astype(np.float64)) if node.shape.kind == "float" else None


def reduces_by(reduce: Instruction, opcode: str, initial: float) -> bool:
    """Whether it is a reduce of one array by one operation, from its neutral value."""
    if reduce.opcode != "reduce" or reduce.shape.is_tuple or not reduce.get("dimensions"):
        return False
    root = behind(reduce.get("to_apply").root, CONVERT)
    numbers = {o.parameter_number for o in (behind(o, CONVERT) for o in root.operands) if o.opcode == "parameter"}
    return root.opcode == opcode and numbers == {0, 1} and constant_value(reduce.operands[1]) == initial


# -- the whole ---------------------------------------------------------------------------------------------------------

def attention_of(output: Instruction, sums: Iterable[Instruction]) -> Attention | str | None:
    """The attention whose second dot is `output`; a reason if there is a softmax but something else is missing.
    sums: the reduces among which the sum is searched if the division comes after the second dot."""
    if output.opcode != "dot" or len(output.operands) != 2:
        return None
    sums = tuple(sums)
    for slot in (0, 1):
        softmax = softmax_of(output.operands[slot], sums)
        if softmax is not None:
            return whole(output, slot, softmax)
    return None


def whole(output: Instruction, slot: int, softmax: Softmax) -> Attention | str:
    """The attention around a softmax, or what is missing."""
    scores = product_behind(softmax.score)
    if scores is None:
        return "the softmax is not applied to a matmul"
    arrays = [*scores.operands, *output.operands, scores, output, softmax.score]
    if scores.get("sparsity") is not None or output.get("sparsity") is not None or not all(
            is_static_array(a.shape) and 0 not in a.shape.dimensions for a in arrays):
        return "attention kernels take arrays that are neither sparse nor empty"
    if any(a.shape.element_type not in OPERAND_TYPES for a in arrays):
        return "attention kernels compute in f32"
    members = dict.fromkeys([*between(scores, output.operands[slot]), *between(scores, softmax.sum), output])
    walks = walks_of(members, scores)
    needed = [output.operands[slot], softmax.largest.operands[0], softmax.sum.operands[0],
              *between(scores, softmax.score)]
    if any(n not in walks for n in needed):
        return "the scores are not computed elementwise"
    keys = joined(walks[output.operands[slot]], contracting(output, slot))
    reduced = [joined(walks[r.operands[0]], r.get("dimensions")) for r in (softmax.sum, softmax.largest)]
    if keys is None or keys[0] == 1 or reduced != [keys, keys] or side_of(scores, walks[scores], keys) is None:
        return "the softmax does not run over the contracting dimension of the second matmul"
    if not all(reads_own_row(by, walks[reader], reduce, walks[reduce.operands[0]], keys)
               for by, reduce, reader in softmax.spread):
        return "the softmax does not subtract and divide row by row"
    return Attention(scores, softmax.score, output, slot, softmax.largest, softmax.sum, softmax.divides_later, keys,
                     walks, tuple(members))


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
        if is_elementwise(node) or node.opcode in RENAMES:
            stack.extend(reversed(node.operands))
    return None



def between(first: Instruction, last: Instruction) -> list[Instruction]:
    """Instructions from `first` to `last` that depend on `first`, operands before users."""
    depends: dict[Instruction, bool] = {first: True}
    order: list[Instruction] = [first]
    waiting = [(last, False)]
    while waiting:
        node, finished = waiting.pop()
        if node in depends:
            continue
        if finished:
            depends[node] = any(depends[o] for o in node.operands)
            if depends[node]:
                order.append(node)
        elif not (is_elementwise(node) or node.opcode in INNER):
            depends[node] = False
        else:
            waiting.append((node, True))
            waiting.extend((o, False) for o in node.operands if o not in depends)
    return order


def tail_of(attention: Attention, readers: dict[Instruction, list[Instruction]], root: Instruction
            ) -> list[Instruction] | None:
    """The instructions after the second dot that belong to it: division, conversions, transposes, in order. None if the
    division is missing."""
    found: list[Instruction] = []
    chain, kept = [attention.output], 0
    node, divided = attention.output, not attention.divides_later
    while node is not root and len(readers[node]) == 1:
        before, node = node, readers[node][0]
        by = None if divided else divisor_of(attention, before, node)
        if by is not None:
            divided = True
            found += [step for step in reversed(list(steps_to_reduce(by))) if step is not attention.sum]
        elif node.opcode not in RENAMES or node.shape.element_type not in OPERAND_TYPES:
            break
        elif node.opcode == "transpose" and not divided:
            return None
        found.append(node)
        chain.append(node)
        if node.opcode not in RESHAPES and is_strided(chain):
            kept = len(found)
    return found[:kept] if divided else None


def is_strided(chain: list[Instruction]) -> bool:
    """Whether each dimension of the first of a chain of views has one stride in the last one's memory."""
    walk = walk_of(chain[-1].shape.dimensions)
    for node, before in zip(reversed(chain), reversed(chain[:-1])):
        if node.opcode == "transpose":
            walk = tuple(walk[node.get("dimensions").index(d)] for d in range(len(walk)))
        elif node.opcode in RESHAPES:
            after = reshaped(walk, before.shape.dimensions)
            if after is None:
                return False
            walk = after
    return True


def divisor_of(attention: Attention, before: Instruction, node: Instruction) -> Instruction | None:
    """The broadcast sums by which `node` divides the second matmul's result `before`, row by row."""
    divided = division_by_reduce(node)
    if divided is None or divided[:2] != (before, attention.sum):
        return None
    _, reduce, by = divided
    output, slot = attention.output, attention.slot
    weights = attention.walks[attention.weights]
    rows = [weights[d] for d in free(output, slot)]
    features = [(n, attention.keys[1]) for n in (output.shape.dimensions[d] for d in free_of_side(output, 1 - slot))]
    reader = [weights[d] for d in batch(output, slot)] + (features + rows if slot else rows + features)
    alike = reads_own_row(by, tuple(reader), reduce, attention.walks[reduce.operands[0]], attention.keys)
    return by if alike else None             # all features of a row must read the same sum


def attention_in(computation: Computation) -> Attention | None:
    """The attention that a fused computation consists of, if it does."""
    dots = [i for i in computation.instructions if i.opcode == "dot"]
    if len(dots) != 2:
        return None
    sums = [i for i in computation.instructions if i.opcode == "reduce"]
    found = attention_of(dots[1], sums)
    return found if isinstance(found, Attention) and found.scores is dots[0] else None
