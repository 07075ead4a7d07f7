"""The gradients of attention: one or two matmuls as large as the scores, elementwise operations on them, and one or two
matmuls of the result with other arrays. In a fused computation or, one output at a time, in plain HLO.

    s = dot(q, k); t = dot(do, v)               both as large as the scores
    p = exp(s - m) / l                          m, l, d: of each row, from memory
    z = p * (t - d)
    dq = dot(z, k)                              sums over the keys
    dk = dot(z, q); dv = dot(p, do)             sum over the queries: one kernel

A softmax is not required: any elementwise operations may be between the matmuls.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hloc.analysis.attention import (
    OPERAND_TYPES,
    RENAMES,
    SPREADS,
    Run,
    Walk,
    batch,
    contracting,
    free,
    free_of_side,
    is_strided,
    joined,
    reshaped,
    side_of,
    walks_of,
)
from hloc.analysis.fusible import RESHAPES, is_elementwise, is_static_array
from hloc.ir import Computation, Instruction

MOST_PRODUCTS = MOST_OUTPUTS = 2


class Weighted(NamedTuple):
    """A matmul with weights: the dot, and which of its operands the weights are."""

    dot: Instruction
    slot: int

    @property
    def weights(self) -> Instruction:
        return self.dot.operands[self.slot]


class Gradient(NamedTuple):
    """One kernel. products: matmuls as large as the scores; outputs: matmuls of the weights; columns: the dimensions of
    the flat scores that the outputs sum over; walks: of the arrays as large as the scores."""

    products: tuple[Instruction, ...]
    outputs: tuple[Weighted, ...]
    columns: Run
    walks: dict[Instruction, Walk]

    @property
    def scores(self) -> Instruction:
        return self.products[0]


def behind_weights(weights: Instruction, inner: set[Instruction], outside: set[Instruction]) -> list[Instruction]:
    """The instructions between matmuls as large as the weights, or `inner` (members of an attention), and the weights,
    operands before users. `outside` is read from memory."""
    size = weights.shape.num_elements
    depends: dict[Instruction, bool] = dict.fromkeys(outside, False)
    order: list[Instruction] = []
    waiting = [(weights, False)]
    while waiting:
        node, finished = waiting.pop()
        if node in depends:
            continue
        product = node.opcode == "dot" and node.shape.num_elements == size
        if finished or product:
            depends[node] = product or node in inner or any(depends[o] for o in node.operands)
            if depends[node]:
                order.append(node)
        elif is_elementwise(node) or node.opcode in SPREADS:
            waiting.append((node, True))
            waiting.extend((o, False) for o in node.operands if o not in depends)
        else:
            depends[node] = False
    return order


def gradient_of(members: Iterable[Instruction], outputs: tuple[Weighted, ...]) -> Gradient | str:
    """The gradient that members (operands before users, without the outputs) are, or why they are not one."""
    members = tuple(dict.fromkeys(members))
    products = tuple(m for m in members if m.opcode == "dot")
    if not 1 <= len(products) <= MOST_PRODUCTS or not 1 <= len(outputs) <= MOST_OUTPUTS:
        return "a gradient kernel has two matmuls as large as the scores, and two results"
    dots = [*products, *(o.dot for o in outputs)]
    arrays = [a for d in dots for a in (d, *d.operands)]
    if any(d.get("sparsity") is not None or len(d.operands) != 2 for d in dots) or not all(
            is_static_array(a.shape) and 0 not in a.shape.dimensions for a in arrays):
        return "attention kernels take arrays that are neither sparse nor empty"
    if any(a.shape.element_type not in OPERAND_TYPES for a in arrays):
        return "attention kernels compute in f32"
    walks = walks_around(members, products[0])
    if any(n not in walks for n in (*products, *(o.weights for o in outputs))):
        return "the gradients' weights are not computed elementwise"
    sums = {joined(walks[o.weights], contracting(o.dot, o.slot)) for o in outputs}
    columns = sums.pop()
    if sums or columns is None or columns[0] == 1:
        return "the gradients sum over dimensions that are not adjacent"
    if any(side_of(p, walks[p], columns) is None for p in products):
        return "the gradients sum over a dimension that no operand of the scores' matmul has"
    if any(sum(o.dot.shape.dimensions[d] > 1 for d in free_of_side(o.dot, 1 - o.slot)) > 1 for o in outputs) \
            or not _divide_alike(_lines(products, outputs, columns, walks)):
        return "the gradients' matmuls disagree on the dimensions of the scores"
    return Gradient(products, outputs, columns, walks)


def _lines(products: tuple[Instruction, ...], outputs: tuple[Weighted, ...], columns: Run,
           walks: dict[Instruction, Walk]) -> list[Walk]:
    """The dimensions of each product, and of each output's weights, that are not the columns."""
    found = []
    for product in products:
        side = side_of(product, walks[product], columns)
        assert side is not None              # the caller has checked it
        gone = free_of_side(product, side)
        found.append(tuple(w for d, w in enumerate(walks[product]) if d not in gone))
    for output in outputs:
        kept = (*batch(output.dot, output.slot), *free(output.dot, output.slot))
        found.append(tuple(walks[output.weights][d] for d in kept))
    return found


def _divide_alike(lists: list[Walk]) -> bool:
    """Whether lists of dimensions of the same elements can be split into the same ones."""
    first, *others = ([part for part in sorted(walk, key=lambda p: p[1]) if part[0] > 1] for walk in lists)
    for other in others:
        merged, left, right = [], [*first], [*other]
        while left and right:
            (n, step), (m, same) = left.pop(0), right.pop(0)
            least = min(n, m)
            if step != same or n % least or m % least:
                return False
            for size, rest in ((n, left), (m, right)):
                if size > least:
                    rest.insert(0, (size // least, step * least))
            merged.append((least, step))
        if left or right:
            return False
        first = merged
    return True


def walks_around(members: tuple[Instruction, ...], scores: Instruction) -> dict[Instruction, Walk]:
    """The walks of the members that are as large as the scores: from the scores on, and back from where they meet."""
    found = walks_of(members, scores)
    inside = set(members)
    for member in reversed(members):
        walk = found.get(member)
        if walk is None or member.opcode == "dot":
            continue
        for operand in member.operands:
            before = walk_before(member, operand, walk)
            if operand in inside and operand not in found and before is not None:
                found[operand] = before
    return {m: walk for m, walk in found.items() if _agrees(m, walk, found)}


def walk_before(member: Instruction, operand: Instruction, walk: Walk) -> Walk | None:
    """The walk of a member's operand of the same size."""
    if operand.shape.num_elements != member.shape.num_elements:
        return None
    if member.opcode == "transpose":
        order = member.get("dimensions")
        return tuple(walk[order.index(d)] for d in range(len(order)))
    if member.opcode in RESHAPES:
        return reshaped(walk, operand.shape.dimensions)
    return walk if is_elementwise(member) else None


def _agrees(member: Instruction, walk: Walk, found: dict[Instruction, Walk]) -> bool:
    """Whether a member is read where its own operands' walks say."""
    if member.opcode == "dot":
        return walk is not None
    return all(found[o] == walk_before(member, o, walk) for o in member.operands if o in found)


def tail_behind(dot: Instruction, readers: dict[Instruction, list[Instruction]], root: Instruction
                ) -> list[Instruction]:
    """Conversions and transposes after a dot, without other users."""
    found: list[Instruction] = []
    kept = 0
    node = dot
    while node is not root and len(readers[node]) == 1:
        node = readers[node][0]
        if node.opcode not in RENAMES or node.shape.element_type not in OPERAND_TYPES:
            break
        found.append(node)
        if node.opcode not in RESHAPES and is_strided([dot, *found]):
            kept = len(found)
    return found[:kept]


def gradient_in(computation: Computation) -> Gradient | None:
    """The gradient that a fused computation consists of, if it does."""
    dots = [i for i in computation.instructions if i.opcode == "dot"]
    if len(dots) < 2 or any(i.opcode == "reduce" for i in computation.instructions):
        return None
    below: dict[Instruction, bool] = {}                      # whether it depends on a dot
    for instruction in computation.instructions:
        below[instruction] = any(o.opcode == "dot" or below[o] for o in instruction.operands)
    outputs = tuple(Weighted(d, 0 if _is_made_of_dots(d.operands[0], below) else 1) for d in dots if below[d])
    wanted = {o.weights for o in outputs}
    for instruction in reversed(computation.instructions):
        if instruction in wanted:
            wanted.update(instruction.operands)
    found = gradient_of([i for i in computation.instructions if i in wanted], outputs)
    return found if isinstance(found, Gradient) else None


def _is_made_of_dots(node: Instruction, below: dict[Instruction, bool]) -> bool:
    return node.opcode == "dot" or below[node]
