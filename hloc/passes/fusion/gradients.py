"""The kernels of an attention's gradients, if a backward pass reads its weights again.

In: an attention whose inner arrays have other users. Out: the kernels of these users, which recompute the scores from
the row statistics (maximum and sum) that the attention then stores; or why that is impossible.

    o = dot(p, v)                     one kernel: o, m, l                          (reads q, k, v)
    dq = dot(z, k)                    one kernel: dq                               (reads q, k, v, do, m, l)
    dk = dot(z, q); dv = dot(p, do)   one kernel: dk and dv                        (the same)
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hloc.analysis.attention import RENAMES, Attention
from hloc.analysis.attention_gradient import (
    MOST_OUTPUTS,
    Weighted,
    behind_weights,
    gradient_of,
    tail_behind,
)
from hloc.analysis.fusible import is_elementwise
from hloc.ir import Computation, Instruction
from hloc.passes.fusion.whole import ATTENTION, WholeKernel

Readers = dict[Instruction, list[Instruction]]
KEPT = "others, such as a backward pass, read arrays that the attention kernel would not store"


class _Chain(NamedTuple):
    """A matmul with the weights, its operands, and the instructions after it."""

    product: Weighted
    before: tuple[Instruction, ...]
    tail: tuple[Instruction, ...]

    @property
    def root(self) -> Instruction:
        return self.tail[-1] if self.tail else self.product.dot


def gradient_kernels(attention: Attention, members: tuple[Instruction, ...], computation: Computation,
                     readers: Readers, pinned: set[Instruction]) -> list[WholeKernel] | str:
    """The attention's kernel, and those of all users of its inner arrays."""
    inner = set(attention.members) - {attention.output, attention.largest, attention.sum}
    size = attention.scores.shape.num_elements
    of_rows = {m for m in inner if m not in attention.walks and m.shape.num_elements < size}
    products = _products(inner - of_rows, set(members), readers)
    if isinstance(products, str):
        return products
    outside = {attention.largest, attention.sum}
    chains = [_Chain(p, tuple(behind_weights(p.weights, inner, outside)),
                     tuple(tail_behind(p.dot, readers, computation.root))) for p in products]
    read = {o for c in chains for m in c.before for o in m.operands}
    kept = [m for m in (attention.largest, attention.sum) if m in read or any(r not in members for r in readers[m])]
    inside = {*members, *(m for c in chains for m in (*c.before, c.product.dot, *c.tail))}
    shared = tuple(m for m in attention.members if m in of_rows and m is not computation.root and any(
        r not in inside for r in readers[m]))
    hidden = inside - {members[-1], *kept, *(c.root for c in chains)} - of_rows
    if any(m is computation.root or any(r not in inside for r in readers[m]) for m in hidden):
        return KEPT
    if inside & pinned:
        return "a control dependency fixes its place in the schedule"
    kernels = _joined(chains, attention.scores)
    if isinstance(kernels, str):
        return kernels
    if shared:                                          # from these
        kept = [m for m in (attention.largest, attention.sum) if m in members]
    own = WholeKernel(ATTENTION, attention.scores, members, (*kept, members[-1]), shared)
    return [own, *kernels]


def _products(inner: set[Instruction], members: set[Instruction], readers: Readers) -> list[Weighted] | str:
    """The dots outside an attention that elementwise instructions connect with its inner arrays."""
    found: dict[Weighted, None] = {}
    seen: set[Instruction] = set()
    waiting = list(inner)
    while waiting:
        node = waiting.pop()
        for reader in readers[node]:
            if reader in seen or reader in members:
                continue
            if reader.opcode == "dot" and len(reader.operands) == 2:
                if reader.operands[0] is reader.operands[1]:
                    return KEPT
                found[Weighted(reader, reader.operands.index(node))] = None
            elif is_elementwise(reader) or reader.opcode in RENAMES:
                seen.add(reader)
                waiting.append(reader)
            else:
                return KEPT
    if len({w.dot for w in found}) < len(found):
        return KEPT
    return list(found)


def _joined(chains: list[_Chain], scores: Instruction) -> list[WholeKernel] | str:
    """Merge chains that sum over the same dimension into one kernel; each kernel recomputes the scores."""
    together: dict[tuple, list[_Chain]] = {}
    for chain in chains:
        alone = gradient_of(_scores_first(chain.before, scores), (chain.product,))
        if isinstance(alone, str):
            return alone
        if alone.scores is not scores:
            return KEPT
        together.setdefault(alone.columns, []).append(chain)
    kernels = []
    for group in together.values():
        group = sorted(group, key=lambda c: len(c.before))
        for n in range(0, len(group), MOST_OUTPUTS):
            some = group[n:n + MOST_OUTPUTS]
            before = _scores_first((m for c in reversed(some) for m in c.before), scores)
            whole = gradient_of(before, tuple(c.product for c in some))
            if isinstance(whole, str):
                return whole
            rest = [m for c in some for m in (*_widened(c.product), c.product.dot, *c.tail)]
            kernels.append(WholeKernel(ATTENTION, scores, (*before, *rest), tuple(c.root for c in some)))
    return kernels


def _widened(product: Weighted) -> list[Instruction]:
    """The conversion from bf16 of an operand that f32 weights are multiplied with: the kernel reads the narrow
    array."""
    values = product.dot.operands[1 - product.slot]
    narrow = values.opcode == "convert" and values.operands[0].shape.element_type == "bf16"
    return [values] if narrow and values.shape.element_type == "f32" else []


def _scores_first(members: Iterable[Instruction], scores: Instruction) -> tuple[Instruction, ...]:
    return tuple(dict.fromkeys((scores, *members)))
