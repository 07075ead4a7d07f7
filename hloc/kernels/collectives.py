"""Collectives of a plan: which devices meet, what they exchange, and the kernels that combine elements.

In: a collective, and the numbers of replicas and partitions. Out: Exchanges, which the planner makes steps of.

    exchanges_of(all_reduce, 1, 4)[0].groups              ((0, 1, 2, 3),)
    exchanges_of(all_reduce, 1, 4)[0].blocks[0]           Block("f32", rows=1, run=4096, stride=4096, op="add")

A combining kernel takes the same elements of all members, at most COMBINED_AT_ONCE, and how many there are: sums and
products of floats are rounded once, as in the evaluator (hloc/ops/combiners.py).
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction, Shape, leaves
from hloc.kernels.builder import Builder
from hloc.kernels.elements import Elements
from hloc.kernels.group import RULES
from hloc.kernels.ir import INDEX, PARALLEL, VECTOR, Apply, Buffer, Const, Cost, Expr, For, Kernel, Load
from hloc.kernels.plan import Block
from hloc.kernels.scalars import convert_to, converted, narrow, widen
from hloc.ops.checks import root_parts
from hloc.ops.collectives import check_reducer, device_groups, device_pairs, named_devices
from hloc.ops.combiners import plain_opcode
from hloc.ops.device_groups import missing_devices
from hloc.ops.host import device_transfers

COMBINED_AT_ONCE = 4096                 # HLOC_COMBINED_AT_ONCE in targets/cpu/runtime/communicator.h
REDUCTIONS = frozenset(["all-reduce", "reduce-scatter"])
MESSAGES = frozenset(["collective-permute", "send", "recv"])
NAMED_OPS = frozenset(["add", "multiply", "maximum", "minimum", "and", "or", "xor"])


@dataclass(frozen=True)
class Exchange:
    """What one collective does. kernels: of its blocks, where it combines, in the same order; pieces: of operands and
    results, where not all: (array, first byte, bytes) of what is exchanged with each member."""

    groups: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    blocks: tuple[Block, ...]
    kernels: tuple[Kernel, ...] = ()
    pieces: tuple[tuple[int, int, int], ...] | None = None


def exchanges_of(instruction: Instruction, replicas: int, partitions: int, combines: bool = True) -> list[Exchange]:
    """combines: whether the target has kernels combine elements, not a library. Raises UnsupportedError, located, for
    groups that do not fit the devices, and what cannot combine elements."""
    kind = instruction.opcode
    operands = [s for o in instruction.operands for s in leaves(o.shape) if s.is_array]
    if kind in MESSAGES:
        if kind == "collective-permute":
            pairs = device_pairs(instruction, replicas, partitions)
        else:
            pairs = device_transfers(instruction, replicas, partitions)
        sent = operands if kind != "recv" else list(leaves(instruction.shape.tuple_shapes[0]))
        return [Exchange((), tuple(pairs), tuple(_whole(s) for s in sent))]
    groups = _checked_groups(instruction, replicas, partitions)
    size = len(groups[0]) if groups else 1
    if kind == "all-to-all":
        block, pieces = _pieces(instruction, operands, size)
        return [Exchange(groups, (), (block,), (), pieces)]
    if kind == "ragged-all-to-all":
        return [Exchange(groups, (), _ragged(operands))]
    if kind not in REDUCTIONS:
        axis = (instruction.get("dimensions") or [0])[0]
        blocks = [_part(s, axis, size) if kind == "all-gather" else _whole(s) for s in operands]
        return [Exchange(groups, (), tuple(blocks))]
    check_reducer(instruction)
    return _reductions(instruction, groups, combines)


def _reductions(instruction: Instruction, groups: Sequence[tuple[int, ...]], combines: bool) -> list[Exchange]:
    """One for all groups of the same size, which have the same kernels. A device takes part in that of its group."""
    op = plain_opcode(instruction.get("to_apply"))
    results = list(leaves(instruction.shape))
    exchanges = []
    for size in sorted({len(g) for g in groups}):
        if instruction.opcode == "reduce-scatter":
            (axis,) = instruction.get("dimensions")
            blocks = [_part(s, axis, size) for s in results]
        else:
            blocks = [_whole(s) for s in results]
        kernels = {s.element_type: combining_kernel(instruction, s.element_type, size)
                   for s in (results if combines else ())}
        exchanges.append(Exchange(tuple(g for g in groups if len(g) == size), (),
                                  tuple(b._replace(op=op if op in NAMED_OPS else "other") for b in blocks),
                                  tuple(kernels[s.element_type] for s in results if combines)))
    return exchanges


def collective_key(instruction: Instruction, exchange: Exchange) -> tuple:
    """Equal for what meets: a send and a receive on the same channel between the same devices, of the same arrays; else
    an instruction by itself, of these groups."""
    if instruction.opcode in ("send", "recv"):
        return "channel", instruction.get("channel_id", 0), exchange.pairs, exchange.blocks
    return instruction, exchange.groups


def _checked_groups(instruction: Instruction, replicas: int, partitions: int) -> tuple[tuple[int, ...], ...]:
    """Raises UnsupportedError unless the groups hold each device once, or, of broadcasts, at most once."""
    groups, count = device_groups(instruction, replicas, partitions), replicas * partitions
    named = [d for g in groups for d in g]
    wrong = next((g for g in groups if any(d >= count for d in g)), None)
    missing = sorted(set(range(count)) - set(named)) if instruction.opcode != "collective-broadcast" else []
    if wrong or missing or len(named) != len(set(named)):
        shown = wrong or (groups[0] if groups else [])
        raise missing_devices(instruction, shown, count, prod(named_devices([instruction])))
    if instruction.opcode not in ("all-reduce", "collective-broadcast") and len({len(g) for g in groups}) > 1:
        raise UnsupportedError(f"{instruction.opcode} has groups of several sizes", instruction.span)
    return tuple(map(tuple, groups))


# -- blocks ------------------------------------------------------------------------------------------------------------

def _whole(shape: Shape) -> Block:
    return Block(shape.element_type, 1, shape.num_bytes, shape.num_bytes)


def _part(shape: Shape, axis: int, size: int) -> Block:
    """A block of this shape, in an array of `size` of them along `axis`."""
    run = prod(shape.dimensions[axis:]) * ELEMENT_TYPES[shape.element_type].bytes
    return Block(shape.element_type, prod(shape.dimensions[:axis]), run, run * size)


def _pieces(instruction: Instruction, operands: Sequence[Shape], size: int) -> tuple[Block, tuple]:
    """Block and places of an all-to-all: parts of its array along a dimension, or one array for each member."""
    dimensions, shape = instruction.get("dimensions"), operands[0]
    if not dimensions:
        if len(operands) != size:
            raise UnsupportedError(f"{len(operands)} operands, the groups have {size} devices", instruction.span)
        return _whole(shape), tuple((j, 0, shape.num_bytes) for j in range(size))
    (axis,) = dimensions
    if shape.dimensions[axis] % size:
        raise UnsupportedError(f"dimension {axis} of {shape.to_string(False)} is no multiple of {size} devices",
                               instruction.span)
    sizes = list(shape.dimensions)
    sizes[axis] //= size
    block = _part(shape.with_dimensions(tuple(sizes)), axis, size)
    last = max(0, block.rows - 1) * block.stride + block.run
    return block, tuple((0, j * block.run, last) for j in range(size))


def _ragged(operands: Sequence[Shape]) -> tuple[Block, ...]:
    """Rows of the input and of the result, and vectors of integers."""
    rows = [Block(s.element_type, s.dimensions[0], run, run) for s in operands[:2]
            for run in [prod(s.dimensions[1:]) * ELEMENT_TYPES[s.element_type].bytes]]
    vector, element = operands[2], ELEMENT_TYPES[operands[2].element_type].bytes
    return (*rows, Block(vector.element_type, vector.dimensions[0], element, element))


# -- combining ---------------------------------------------------------------------------------------------------------

def combining_kernel(where: Instruction, element_type: str, members: int) -> Kernel:
    """out[i] = in0[i] op in1[i] op ..., for i < count[0]."""
    computation = where.get("to_apply")
    builder = Builder()
    count = builder.let(Apply("convert", (Load("count", Const(0, INDEX), "s64"),), INDEX), "n")
    with builder.loop(count, VECTOR, high=COMBINED_AT_ONCE - 1) as position:
        values = [builder.load(f"in{m}", element_type, position) for m in range(members)]
        rounds_once = ELEMENT_TYPES[element_type].kind in ("float", "complex")
        op = plain_opcode(computation)
        if rounds_once and op is not None and op in ("add", "multiply"):
            total = _summed(builder, op, values)
        else:
            total = _combined(builder, where, element_type, values)
        builder.store("out", position, narrow(total, element_type))
    buffers = [*(Buffer(f"in{m}", element_type, COMBINED_AT_ONCE) for m in range(members)),
               Buffer("out", element_type, COMBINED_AT_ONCE, "write"), Buffer("count", "s64", 1)]
    cost = Cost((members + 1) * COMBINED_AT_ONCE * ELEMENT_TYPES[element_type].bytes, members * COMBINED_AT_ONCE)
    outer = For("part", 1, PARALLEL, builder.body())
    return Kernel(f"combine_{computation.name}", tuple(buffers), (outer,), cost)


def _summed(builder: Builder, op: str, values: Sequence[Load]) -> Expr:
    """A sum or product in f64, or c128."""
    wide = "c128" if ELEMENT_TYPES[values[0].type].kind == "complex" else "f64"
    total = convert_to(widen(values[0]), wide)
    for value in values[1:]:
        total = builder.let(Apply(op, (total, convert_to(widen(value), wide)), wide))
    return total


def _combined(builder: Builder, where: Instruction, element_type: str, values: Sequence[Load]) -> Expr:
    """The reducer, one member after the other, in its own type, which may be wider than that of the elements."""
    elements, reducer = Elements(builder, {}, {}, RULES), where.get("to_apply")
    own = root_parts(reducer)[0].element_type
    wide: list[Expr] = [builder.let(converted(widen(v), element_type, own)) for v in values]
    total, *others = wide
    for other in others:
        (total,) = elements.inline(reducer, [total, other], where)
    return converted(total, own, element_type)
