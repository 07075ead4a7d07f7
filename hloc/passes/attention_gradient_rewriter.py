"""Computes the row sums of an attention's gradient from its result, instead of from arrays as large as the scores.

    p = exp(s - max s) / l; o = dot(p, v)                              over keys j, features f
    t = dot(do, v); d = reduce-add (t * p)
        =>   d = reduce-add (do * o)                                   since sum_j (do_i . v_j) p_ij = do_i . o_i

The reduce may also multiply by values of each row, and by exp(s - max s) instead of p. The gradients of the scores are
then elementwise functions of two matmuls and of values per row, as the backward kernels of attention need
(hloc/passes/fusion/gradients.py).
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hloc.analysis.attention import (
    RENAMES,
    Attention,
    Walk,
    attention_of,
    batch,
    behind,
    constant_value,
    contracting,
    free,
    free_of_side,
    joined,
    reduces_by,
)
from hloc.analysis.attention_gradient import behind_weights, tail_behind, walks_around
from hloc.analysis.control_flow import executed_computations
from hloc.analysis.fusible import RESHAPES
from hloc.ir import Computation, Instruction, Module, array, topological_order, users
from hloc.passes.context import PassContext
from hloc.passes.expressions import Body, Expressions
from hloc.passes.rewriter import Names, control_dependent, remove_dead

MOST_FACTORS, MOST_SEEN = 8, 64
Factors = list[tuple[Instruction, bool]]            # (array, whether it divides)


class RowSum(NamedTuple):
    """A reduce of a product `gradient` (of the result's gradient and the values) times the weights (or, not `divided`,
    times their exponentials), times values of each row; walks: of all as large as the scores."""

    reduce: Instruction
    gradient: Instruction
    divided: bool
    factors: Factors
    walks: dict[Instruction, Walk]


def attention_gradient_rewriter(module: Module, context: PassContext) -> bool:
    """True if a row sum was rewritten."""
    return any([_rewrite(module, computation) for computation in executed_computations(module)])


def _rewrite(module: Module, computation: Computation) -> bool:
    readers = users(computation)
    reduces = [i for i in computation.instructions if i.opcode == "reduce" and not i.shape.is_tuple]
    pinned = control_dependent(computation)
    names = Names(i.name for i in computation.instructions)
    products = sums_of_products(r for r in reduces if r not in pinned)
    places: dict[Instruction, Instruction] = {}             # replacement of a reduce
    made: list[Instruction] = []
    for output in [i for i in computation.instructions if i.opcode == "dot"]:
        attention = attention_of(output, reduces)
        if not isinstance(attention, Attention) or attention.divides_later:
            continue
        tail = tail_behind(output, readers, computation.root)
        for reduce in dict.fromkeys(r for source in ends_of(attention) for r in products.get(source, ())):
            found = row_sum(reduce, attention) if reduce not in places else None
            if found is None:
                continue
            body = Body(reduce.span)
            body.names = names
            new = _from_result(Expressions(body, reduce.span), module, attention, found, tail)
            if new is not None:
                places[reduce] = new
                made += body.instructions
    if places:
        _put(computation, places, made)
    return bool(places)


def _put(computation: Computation, places: dict[Instruction, Instruction], made: list[Instruction]) -> None:
    everything = [*computation.instructions, *made]
    for instruction in everything:
        instruction.operands = [places.get(o, o) for o in instruction.operands]
    computation.root = places.get(computation.root, computation.root)
    computation.instructions = topological_order(everything, lambda i: (*i.operands, *i.control_predecessors))
    remove_dead(computation)


# -- finding the row sum -----------------------------------------------------------------------------------------------

def row_sum(reduce: Instruction, attention: Attention) -> RowSum | None:
    """The reduce as a row sum of the gradient of that attention; None if it is not one."""
    if not reduces_by(reduce, "add", 0.0) or reduce is attention.sum:
        return None
    weights, exponential = ends_of(attention)
    gradients, mine, rows = [], [], []
    for leaf, divides in leaves_of(reduce.operands[0], {weights, exponential}):
        source = behind(leaf, RENAMES)
        if leaf.opcode == "broadcast":
            rows.append((leaf, divides))
        elif source.opcode == "dot" and not divides:
            gradients.append(source)
        elif source in (weights, exponential) and not divides:
            mine.append(source)
        else:
            return None
    if len(gradients) != 1 or len(mine) != 1 or len(rows) > MOST_FACTORS - 3:
        return None
    inner = set(attention.members) - {attention.output, attention.largest, attention.sum}
    members = behind_weights(reduce.operands[0], inner, {attention.largest, attention.sum})
    walks = walks_around(tuple(dict.fromkeys((attention.scores, *members))), attention.scores)
    needed = (reduce.operands[0], gradients[0], attention.weights)
    walks |= {k: w for k, w in attention.walks.items() if k not in walks}
    if any(n not in walks for n in needed) or joined(
            walks[reduce.operands[0]], reduce.get("dimensions")) != attention.keys:
        return None
    return RowSum(reduce, gradients[0], mine[0] is weights, rows, walks)


def ends_of(attention: Attention) -> tuple[Instruction, Instruction]:
    """The factors of a row sum: the weights, or their exponentials."""
    return behind(attention.weights, RENAMES), behind(attention.sum.operands[0], RENAMES)


def sums_of_products(reduces: Iterable[Instruction]) -> dict[Instruction, list[Instruction]]:
    """The reduces of products by their factors, so that each attention finds its own."""
    table: dict[Instruction, list[Instruction]] = {}
    for reduce in reduces:
        waiting, seen = [reduce.operands[0]], 0
        while waiting and seen < MOST_SEEN:
            source = behind(waiting.pop(), RENAMES)
            seen += 1
            table.setdefault(source, []).append(reduce)
            if source.opcode in ("multiply", "divide"):
                waiting += source.operands
    return table


def leaves_of(product: Instruction, ends: set[Instruction]) -> Factors:
    """The elementwise factors of an array, up to MOST_FACTORS, which is too many."""
    found: Factors = []
    waiting = [(product, False)]
    while waiting and len(found) < MOST_FACTORS:
        node, divides = waiting.pop()
        source = behind(node, RENAMES)
        if source in ends or source.opcode not in ("multiply", "divide"):
            found.append((source if source.opcode == "broadcast" else node, divides))
        else:
            left, right = source.operands
            waiting += [(left, divides), (right, divides != (source.opcode == "divide"))]
    return found


# -- the same from the result ------------------------------------------------------------------------------------------

def _from_result(e: Expressions, module: Module, attention: Attention, found: RowSum, tail: Sequence[Instruction]
                 ) -> Instruction | None:
    """The row sum computed from the attention's result and its gradient; None where dimensions do not agree."""
    gradient, output = found.gradient, attention.output
    values = output.operands[1 - attention.slot]
    side = next((n for n in (0, 1) if gradient.operands[n] is values), None)
    factors = _row_factors(e, attention, found)
    if side is None or factors is None or not _same_values(attention, found, side):
        return None
    other = 1 - side
    given = gradient.operands[other]
    rows = [*zip(batch(gradient, other), range(gradient.shape.rank)),
            *zip(free(gradient, other), free_of_side(gradient, other))]
    left = {found.walks[gradient][place]: d for d, place in rows if given.shape.dimensions[d] > 1}
    weights = found.walks[attention.weights]
    home = [*((weights[d], n) for n, d in enumerate(batch(output, attention.slot))),
            *zip((weights[d] for d in free(output, attention.slot)), free_of_side(output, attention.slot))]
    right = {walk: d for walk, d in home if output.shape.dimensions[d] > 1}
    kept = [d for d in range(found.reduce.operands[0].shape.rank) if d not in found.reduce.get("dimensions")]
    order = [w for w in (found.walks[found.reduce.operands[0]][d] for d in kept) if w[0] > 1]
    if not set(order) == left.keys() == right.keys():
        return None
    features = dict(zip(free(output, 1 - attention.slot), free_of_side(output, 1 - attention.slot)))
    pairs = [(b, features[a]) for a, b in zip(contracting(gradient, side), contracting(gradient, other))
             if given.shape.dimensions[b] > 1]
    a = _ordered(e, given, [left[w] for w in order] + [b for b, _ in pairs])
    b = _ordered(e, _undone(e, output, tail), [right[w] for w in order] + [f for _, f in pairs],
                 tail[-1] if tail else output)
    total = e.reduce(module, e.op("multiply", a, b), "add", range(len(order), len(order) + len(pairs)), 0)
    result = e.reshape(total, *found.reduce.shape.dimensions)
    for factor, divides in factors:
        result = e.op("divide" if divides else "multiply", result, factor)
    return e.convert(result, found.reduce.shape.element_type)


def _same_values(attention: Attention, found: RowSum, side: int) -> bool:
    """Whether the gradient's product reads the values as the attention's second product does: along its features, and
    at the same keys and batches."""
    gradient, output, slot = found.gradient, attention.output, attention.slot
    walk, weights = found.walks[gradient], found.walks[attention.weights]
    if set(contracting(gradient, side)) != set(free(output, 1 - slot)):
        return False
    here = dict(zip(batch(gradient, side), walk))
    here.update(zip(free(gradient, side), (walk[d] for d in free_of_side(gradient, side))))
    there = dict(zip(batch(output, 1 - slot), (weights[d] for d in batch(output, slot))))
    there.update(zip(contracting(output, 1 - slot), (weights[d] for d in contracting(output, slot))))
    return here == there


def _row_factors(e: Expressions, attention: Attention, found: RowSum) -> Factors | None:
    """The factors of each row, in the reduce's shape, and in f32."""
    reduce = found.reduce
    rank, sizes = reduce.operands[0].shape.rank, reduce.shape.dimensions
    kept = tuple(d for d in range(rank) if d not in reduce.get("dimensions"))
    made: Factors = []
    for spread, divides in found.factors:
        value = spread.operands[0]
        if constant_value(spread) is not None:
            made.append((e.full(constant_value(spread), reduce.shape.with_element_type("f32")), divides))
        elif spread.get("dimensions") == kept and value.shape.dimensions == sizes:
            made.append((e.convert(value, "f32"), divides))
        else:
            return None
    if not found.divided:                                       # exponentials are weights times their sum
        sum = attention.sum
        summed = found.walks.get(sum.operands[0])
        if summed is None or sum.shape.dimensions != sizes or sum.get("dimensions") != reduce.get("dimensions") \
                or summed != found.walks[reduce.operands[0]]:
            return None
        made.append((e.convert(sum, "f32"), False))
    return made


def _undone(e: Expressions, output: Instruction, tail: Sequence[Instruction]) -> Instruction:
    """A dot, computed from its converted and transposed result, so that only the result is read."""
    value = tail[-1] if tail else output
    for step in reversed(tail):
        if step.opcode == "transpose":
            order = step.get("dimensions")
            value = _transposed(e, value, tuple(order.index(d) for d in range(len(order))))
        elif step.opcode != "convert":
            value = e.reshape(value, *step.operands[0].shape.dimensions)
    return value


def _ordered(e: Expressions, value: Instruction, order: list[int], stop: Instruction | None = None) -> Instruction:
    """An array in f32 without its dimensions of size one, the others in that order; read before
    transposes, but not beyond `stop`."""
    while value is not stop and value.opcode in ("transpose", *RESHAPES):
        source = value.operands[0]
        if value.opcode == "transpose":
            order = [value.get("dimensions")[d] for d in order]
        else:
            here, there = _whole(value), _whole(source)
            if [value.shape.dimensions[d] for d in here] != [source.shape.dimensions[d] for d in there]:
                break
            order = [there[here.index(d)] for d in order]
        value = source
    sizes, whole = value.shape.dimensions, _whole(value)
    value = e.reshape(value, *(sizes[d] for d in whole))
    places = tuple(whole.index(d) for d in order)
    if places != tuple(range(len(places))):
        value = _transposed(e, value, places)
    return e.convert(value, "f32")


def _transposed(e: Expressions, value: Instruction, order: tuple[int, ...]) -> Instruction:
    """A transposition, row-major like everything after layout_assignment."""
    sizes = (value.shape.dimensions[d] for d in order)
    return e.op("transpose", value, shape=array(value.shape.element_type, *sizes), dimensions=order)


def _whole(value: Instruction) -> list[int]:
    """The dimensions that are larger than one."""
    return [d for d, size in enumerate(value.shape.dimensions) if size > 1]
