"""Rewrites collectives into forms that NCCL has: it moves whole arrays, and knows some sums and extremes.

    g = f32[2,8] all-gather(f32[2,4] x), dimensions={1}
      =>   a = f32[2,2,4] all-gather(f32[1,2,4] reshape(x)), dimensions={0}
           g = f32[2,8] reshape(transpose(a), dimensions={1,0,2})

    m = f32[4] all-reduce(x), to_apply=max
      =>   a = f32[2,4] all-gather(f32[1,4] reshape(x)), dimensions={0}
           m = f32[4] maximum(a[0], a[1])

NCCL's blocks are contiguous: all-gather, reduce-scatter and all-to-all along another dimension than the most major one
get transposes, which fuse with what is beside them. XLA asks the same of its layouts. Reductions that NCCL does not
have (SUMS, EXTREMES) combine what each device gathers, in the order of the devices; of floats, so do maximum and
minimum, since NCCL's drop NaNs. A send and the recv that waits for it become a collective-permute where the sent array
does not depend on what comes: one after the other, in a ring, each device would wait for the next.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hloc.devices import device_counts
from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Computation, Instruction, Module, Shape, array, leaves
from hloc.ir.attributes import Verbatim
from hloc.ops.checks import root_parts
from hloc.ops.collectives import check_reducer, device_groups
from hloc.ops.combiners import plain_opcode
from hloc.ops.host import transfer_pairs
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite, unfused_computations

INTEGERS = frozenset(["s8", "u8", "s32", "u32", "s64", "u64"])
FLOATS = frozenset(["f16", "bf16", "f32", "f64"])
# What NCCL combines, by HLO's names. A pred is a byte, 0 or 1; the parts of complex numbers are added as floats.
SUMS = {"add": INTEGERS | FLOATS | {"c64", "c128"}, "multiply": INTEGERS | FLOATS}
EXTREMES = {"maximum": INTEGERS, "minimum": INTEGERS}
OF_PRED = {"add": "maximum", "or": "maximum", "maximum": "maximum",
           "multiply": "minimum", "and": "minimum", "minimum": "minimum"}
GROUPS = ("replica_groups", "channel_id", "use_global_device_ids")
ROUNDED_ONCE = ("add", "multiply")


def nccl_op(op: str, element_type: str) -> str | None:
    """NCCL's operation for a reduction: add, multiply, maximum or minimum; None where it has none."""
    if element_type == "pred":
        return OF_PRED.get(op)
    return op if element_type in SUMS.get(op, ()) or element_type in EXTREMES.get(op, ()) else None


def nccl_rewriter(module: Module, context: PassContext) -> bool:
    """True if a collective was not in a form that NCCL has. Raises UnsupportedError, located, for reductions that it
    cannot do and that no kernel combines."""
    rules, changed = _Rules(module), False
    for computation in unfused_computations(module):
        permuted = _Transfers(computation, rules.counts[1] > 1)
        changed |= rewrite(computation, permuted.visit, opcodes=("send", "recv"), expands=True)
        changed |= rewrite(computation, rules.visit, opcodes=("all-gather", "all-reduce", "all-to-all",
                                                              "reduce-scatter"), expands=True)
    return changed


class _Rules:
    def __init__(self, module: Module):
        self.counts = device_counts(module)

    def visit(self, instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        e = Expressions(rewriter, instruction.span)
        if instruction.opcode == "all-reduce":
            return self.all_reduce(e, instruction)
        if instruction.opcode == "reduce-scatter":
            return self.reduce_scatter(e, instruction)
        dimensions = instruction.get("dimensions")
        if not dimensions or all(_is_major(o.shape, dimensions[0]) for o in instruction.operands):
            return None
        if instruction.opcode == "all-gather":
            return _one_or_tuple(e, instruction, [
                _gathered_along(e, instruction, o, dimensions[0], s)
                for o, s in zip(instruction.operands, leaves(instruction.shape))])
        return self.all_to_all(e, instruction, dimensions[0])

    def group_size(self, instruction: Instruction) -> int:
        groups = device_groups(instruction, *self.counts)
        if len({len(g) for g in groups}) > 1:
            raise UnsupportedError(f"{instruction.opcode}: NCCL does not combine such elements, and the groups have "
                                   "several sizes", instruction.span)
        return len(groups[0]) if groups else 1

    def all_to_all(self, e: Expressions, instruction: Instruction, axis: int) -> Instruction | None:
        (x,), count = instruction.operands, self.group_size(instruction)
        if x.shape.dimensions[axis] % count:
            return None                                       # the planner refuses it
        front = _blocks_in_front(e, x, axis, count)
        moved = e.op("all-to-all", front, shape=front.shape, dimensions=(0,), **_groups_of(instruction))
        return _blocks_back(e, moved, axis)

    # -- reductions --------------------------------------------------------------------------------------------------

    def all_reduce(self, e: Expressions, instruction: Instruction) -> Instruction | None:
        check_reducer(instruction)
        op = plain_opcode(instruction.get("to_apply")) or ""
        known = [nccl_op(op, o.shape.element_type) is not None for o in instruction.operands]
        if all(known):
            return None
        count = self.group_size(instruction)
        own = [o for o, is_known in zip(instruction.operands, known) if is_known]
        results: list[Instruction] = []
        if own:
            shape = own[0].shape if len(own) == 1 else Shape.tuple([o.shape for o in own])
            reduced = e.op("all-reduce", *own, shape=shape, to_apply=instruction.get("to_apply"),
                           **_groups_of(instruction))
            results = [reduced] if len(own) == 1 else [
                e.op("get-tuple-element", reduced, index=n) for n in range(len(own))]
        found = iter(results)
        return _one_or_tuple(e, instruction, [
            next(found) if is_known else _combined(e, instruction, _gathered(e, instruction, o, count))
            for o, is_known in zip(instruction.operands, known)])

    def reduce_scatter(self, e: Expressions, instruction: Instruction) -> Instruction | None:
        check_reducer(instruction)
        op = plain_opcode(instruction.get("to_apply")) or ""
        (axis,) = instruction.get("dimensions")
        shapes = list(leaves(instruction.shape))
        known = [nccl_op(op, s.element_type) is not None for s in shapes]
        if all(known) and all(_is_major(s, axis) for s in shapes):
            return None
        count = self.group_size(instruction)
        results = []
        for operand, shape, is_known in zip(instruction.operands, shapes, known):
            front = _blocks_in_front(e, operand, axis, count)
            if is_known:
                part = e.op("reduce-scatter", front, shape=array(shape.element_type, 1, *shape.dimensions),
                            dimensions=(0,), to_apply=instruction.get("to_apply"), **_groups_of(instruction))
                results.append(e.reshape(part, *shape.dimensions))
            else:
                blocks = e.op("all-to-all", front, shape=front.shape, dimensions=(0,),
                              **self.groups_of_devices(instruction))
                results.append(_combined(e, instruction, blocks))
        return _one_or_tuple(e, instruction, results)

    def groups_of_devices(self, instruction: Instruction) -> dict:
        """The same groups for an all-to-all, which counts replicas or partitions."""
        replicas, partitions = self.counts
        if replicas > 1 and partitions > 1:
            raise UnsupportedError("reduce-scatter: NCCL does not combine such elements, and groups are of replicas "
                                   "and partitions", instruction.span)
        groups = Verbatim("{" + ",".join(
            "{" + ",".join(map(str, g)) + "}" for g in device_groups(instruction, replicas, partitions)) + "}")
        return {"replica_groups": groups, **({"channel_id": instruction.get("channel_id") or 1}
                                             if partitions > 1 else {})}


def _is_major(shape: Shape, axis: int) -> bool:
    return prod(shape.dimensions[:axis]) <= 1


def _groups_of(instruction: Instruction) -> dict:
    return {key: instruction.attributes[key] for key in GROUPS if key in instruction.attributes}


def _one_or_tuple(e: Expressions, instruction: Instruction, results: Sequence[Instruction]) -> Instruction:
    return e.op("tuple", *results) if instruction.shape.is_tuple else results[0]


def _gathered(e: Expressions, instruction: Instruction, x: Instruction, count: int) -> Instruction:
    """[count, ...]: the arrays of all members."""
    return e.op("all-gather", e.reshape(x, 1, *x.shape.dimensions), dimensions=(0,),
                shape=array(x.shape.element_type, count, *x.shape.dimensions), **_groups_of(instruction))


def _gathered_along(e: Expressions, instruction: Instruction, x: Instruction, axis: int, shape: Shape) -> Instruction:
    sizes = x.shape.dimensions
    count = shape.dimensions[axis] // sizes[axis] if sizes[axis] else 1
    return _blocks_back(e, _gathered(e, instruction, x, count), axis)


def _blocks_in_front(e: Expressions, x: Instruction, axis: int, count: int) -> Instruction:
    """[..., count * n, ...] as [count, ..., n, ...]."""
    sizes = x.shape.dimensions
    split = e.reshape(x, *sizes[:axis], count, sizes[axis] // count, *sizes[axis + 1:])
    order = (axis, *(d for d in range(split.shape.rank) if d != axis))
    return split if axis == 0 else e.op("transpose", split, dimensions=order, shape=array(
        x.shape.element_type, *(split.shape.dimensions[d] for d in order)))


def _blocks_back(e: Expressions, x: Instruction, axis: int) -> Instruction:
    """[count, ..., n, ...] as [..., count * n, ...]."""
    order = (*range(1, axis + 1), 0, *range(axis + 1, x.shape.rank))
    sizes = [x.shape.dimensions[d] for d in order]
    if axis:
        x = e.op("transpose", x, dimensions=order, shape=array(x.shape.element_type, *sizes))
    return e.reshape(x, *sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2:])


def _combined(e: Expressions, instruction: Instruction, parts: Instruction) -> Instruction:
    """The parts [count, ...] combined, in their order; sums and products of floats are rounded once, as in the
    evaluator (hloc/ops/combiners.py)."""
    reducer, type = instruction.get("to_apply"), parts.shape.element_type
    kind, op = ELEMENT_TYPES[type].kind, plain_opcode(reducer)
    wide = root_parts(reducer)[0].element_type
    if op in ROUNDED_ONCE and kind in ("float", "complex"):
        wide = "c128" if kind == "complex" else "f64"
    count, *sizes = parts.shape.dimensions
    values = [e.convert(e.reshape(e.slice(parts, {0: (n, n + 1)}), *sizes), wide) for n in range(count)]
    total = values[0]
    for value in values[1:]:
        if op is None or op in ("first", "second"):
            total = e.op("map", total, value, dimensions=tuple(range(len(sizes))), to_apply=reducer)
        else:
            total = e.op(op, total, value)
    return e.convert(total, type)


# -- sends -------------------------------------------------------------------------------------------------------------

class _Transfers:
    """Sends and recvs of a computation that become permutes. of_partitions: pairs name partitions, as those of a
    permute with a channel, else replicas."""

    def __init__(self, computation: Computation, of_partitions: bool):
        self.of_partitions = of_partitions
        places = {i: n for n, i in enumerate(computation.instructions)}
        sends: dict[tuple, list[Instruction]] = {}
        recvs: dict[tuple, list[Instruction]] = {}
        for instruction in computation.instructions:
            if instruction.opcode in ("send", "recv") and (pairs := transfer_pairs(instruction)) is not None:
                key = (instruction.get("channel_id", 0), tuple(map(tuple, pairs)))
                (sends if instruction.opcode == "send" else recvs).setdefault(key, []).append(instruction)
        self.source: dict[Instruction, Instruction] = {}          # recv -> send
        for key, (recv, *more) in recvs.items():
            send, *others = sends.get(key, [recv])
            if send is not recv and not more and not others and _is_flat(send, recv) \
                    and places[send.operands[0]] < places[recv]:
                self.source[recv] = send
        self.matched = {*self.source.values()}

    def visit(self, instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        e = Expressions(rewriter, instruction.span)
        if instruction in self.matched:
            return _transferred(e, instruction, instruction.operands[0])
        send = self.source.get(instruction)
        if send is None:
            return None
        return _transferred(e, instruction, self.permuted(e, instruction, rewriter.resolve(send.operands[0])))

    def permuted(self, e: Expressions, recv: Instruction, data: Instruction) -> Instruction:
        pairs = Verbatim("{" + ",".join(f"{{{s},{t}}}" for s, t in transfer_pairs(recv) or ()) + "}")
        arrays = [e.op("get-tuple-element", data, index=n) for n in range(len(data.shape.tuple_shapes))] \
            if data.shape.is_tuple else [data]
        channel = {"channel_id": recv.get("channel_id") or 1} if self.of_partitions else {}
        return e.op("collective-permute", *arrays, shape=data.shape, source_target_pairs=pairs, **channel)


def _is_flat(send: Instruction, recv: Instruction) -> bool:
    """Whether they have the same arrays: one, or a tuple."""
    data = send.operands[0].shape
    return data.compatible(recv.shape.tuple_shapes[0]) and (data.is_array or all(
        s.is_array for s in data.tuple_shapes))


def _transferred(e: Expressions, instruction: Instruction, data: Instruction) -> Instruction:
    """The result of a send or recv."""
    return e.op("tuple", data, e.full(0, instruction.shape.tuple_shapes[1]), e.op("after-all"))
