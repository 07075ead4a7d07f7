"""Collectives in the plan of a .cubin: as JSON, and checked.

    row = to_json(step); step = from_json(row); check(steps, devices)

A file from strangers may say anything: here it is found out whether the arrays are as large as NCCL is told, and
whether each collective that is started ends.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.plan import TRANSFER, Block, Branch, Collective, Ref, Step, WhileLoop, all_steps
from hloc.passes.nccl_rewriter import nccl_op
from hloc.targets.manifest import MOST_BYTES, whole

MOST_DEVICES = 1 << 20
GROUPED = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-broadcast", "ragged-all-to-all")
MESSAGES = ("collective-permute", "send", "recv")
REDUCTIONS = ("all-reduce", "reduce-scatter")


def to_json(step: Collective) -> list:
    return ["collective", step.number, step.kind, step.is_done, [list(r) for r in step.arguments],
            [list(r) for r in step.results], [list(b[:5]) for b in step.blocks], [list(g) for g in step.groups],
            [list(p) for p in step.pairs]]


def from_json(row: list, ref: Callable[[list], Ref]) -> Collective:
    """Raises ValueError, TypeError or KeyError for what is none."""
    _, number, kind, is_done, arguments, results, blocks, groups, pairs = row
    if kind not in (*GROUPED, *MESSAGES, TRANSFER):
        raise ValueError(f"unknown collective {kind!r}")
    return Collective(
        whole(number, MOST_BYTES), str(kind), bool(is_done), tuple(ref(r) for r in arguments),
        tuple(ref(r) for r in results), tuple(_block(b) for b in blocks),
        tuple(tuple(whole(d, MOST_DEVICES) for d in g) for g in groups),
        tuple((whole(s, MOST_DEVICES), whole(t, MOST_DEVICES)) for s, t in pairs))


def _block(row: list) -> Block:
    type, rows, run, stride, op = row
    _ = ELEMENT_TYPES[type]
    return Block(str(type), whole(rows, MOST_BYTES), whole(run, MOST_BYTES), whole(stride, MOST_BYTES), str(op))


def check(steps: Sequence[Step], devices: int) -> None:
    """Raises ValueError for collectives that do not fit their arrays or the devices, or do not end."""
    _check_ends(steps)
    for step in all_steps(steps):
        if isinstance(step, WhileLoop):
            _check_ends(step.condition)
            _check_ends(step.body)
        elif isinstance(step, Branch):
            for branch in step.branches:
                _check_ends(branch)
        elif isinstance(step, Collective):
            _check_devices(step, devices)
            _check_arrays(step)


def _check_ends(steps: Sequence[Step]) -> None:
    started: dict[tuple[int, str], Collective] = {}
    for step in steps:
        if not isinstance(step, Collective):
            continue
        if step.is_done != ((step.number, step.kind) in started):
            raise ValueError(f"{step.kind} ends before it starts, or starts twice")
        if not step.is_done:
            started[step.number, step.kind] = step
        elif started.pop((step.number, step.kind))._replace(is_done=True) != step:
            raise ValueError(f"{step.kind} ends as another one than it started")
    if started:
        raise ValueError("a collective that does not end")


def _check_devices(step: Collective, devices: int) -> None:
    named = [d for g in step.groups for d in g]
    if any(d >= devices for d in (*named, *(d for pair in step.pairs for d in pair))) or len(set(named)) != len(named) \
            or not all(step.groups) or (step.kind in (*MESSAGES, TRANSFER) and step.groups):
        raise ValueError(f"{step.kind} names devices that there are not")


def _check_arrays(step: Collective) -> None:
    """Whether arrays have the bytes that blocks say; of groups of every size."""
    if step.kind == "ragged-all-to-all":
        if wrong := _wrong_in_ragged(step):
            raise ValueError(f"ragged-all-to-all: {wrong}")
        return
    sizes = [b.rows * b.run for b in step.blocks]
    if any(b.rows > 1 for b in step.blocks):
        raise ValueError(f"{step.kind} of blocks that are not contiguous")
    if step.kind in REDUCTIONS and any(nccl_op(b.op, b.type) is None for b in step.blocks):
        raise ValueError(f"a {step.kind} that NCCL does not have")
    for count in {len(g) for g in step.groups} or {1}:
        given, made = list(sizes), list(sizes)
        if step.kind == "all-to-all":
            given = made = sizes[:1] * count
        elif step.kind == "reduce-scatter":
            given = [s * count for s in sizes]
        elif step.kind == "all-gather":
            made = [s * count for s in sizes]
        given, made = ([] if step.kind == "recv" else given), ([] if step.kind == "send" else made)
        if not _fit(step.arguments, given) or not _fit(step.results, made):
            raise ValueError(f"{step.kind} of arrays of other sizes")


def _fit(refs: Sequence[Ref], sizes: Sequence[int]) -> bool:
    return len(refs) == len(sizes) and all(ref.size >= size for ref, size in zip(refs, sizes))


def _wrong_in_ragged(step: Collective) -> str:
    """What is wrong; "" if nothing is."""
    if len(step.blocks) != 3 or len(step.arguments) != 6 or len(step.results) != 1:
        return "other arrays"
    source, target, vector = step.blocks
    sizes = [source.rows * source.run, *[target.rows * target.run] * 2, *[vector.rows * vector.run] * 4]
    refs = (*step.arguments[:2], step.results[0], *step.arguments[2:])
    if not _fit(refs, sizes) or source.run != target.run or vector.run != ELEMENT_TYPES[vector.type].bytes:
        return "arrays of other sizes"
    if ELEMENT_TYPES[vector.type].kind not in ("signed", "unsigned") or any(
            vector.rows % len(g) for g in step.groups):
        return "vectors that do not fit the groups"
    return ""
