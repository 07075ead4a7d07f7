"""Transfers from and to the host: infeed, outfeed, send, recv.

In: values, and tokens that order them. Out: values from the host. In a run, Transfers holds both directions.

    i = ((f32[3]), token[]) infeed(token[] t)
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from hloc.errors import RunError
from hloc.ir import TOKEN, Instruction, Shape, leaves, numpy_dtype
from hloc.ops.checks import fail, require, text
from hloc.ops.device_groups import missing_devices
from hloc.ops.op import Op
from hloc.ops.values import flatten, unflatten

PAIRS = re.compile(r"_xla_send_recv_source_target_pairs=\"?(\{[\d\s,{}]*\})")
PAIR = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}")


@dataclass
class Transfers:
    """The values from and to the host in one or several runs.

    infeed    values for infeed, taken from the front: an array (or tuple of arrays) for each, or flat arrays, of which
              each infeed takes as many as it has
    outfeed   collects the values of outfeed
    received  values for recv by channel;  sent  collects (channel, value) of send
    """

    infeed: list[Any] = field(default_factory=list)
    outfeed: list[Any] = field(default_factory=list)
    received: dict[int, list[Any]] = field(default_factory=dict)
    sent: list[tuple[int, Any]] = field(default_factory=list)


def transfer_name(instruction: Instruction) -> str:
    """The name of a host call for one of these ops: infeed, outfeed, send:1, recv:2."""
    if instruction.opcode in ("infeed", "outfeed"):
        return instruction.opcode
    return f"{instruction.opcode}:{instruction.get('channel_id', 0)}"


def transfer_pairs(instruction: Instruction) -> list[list[int]] | None:
    """The pairs {source, target} of a send or receive between devices; None where it is one with the host."""
    noted = PAIRS.search(str(instruction.get("frontend_attributes", "")))
    if noted is None or instruction.get("is_host_transfer", False):
        return None
    return [[int(a), int(b)] for a, b in PAIR.findall(noted[1])]


def device_transfers(instruction: Instruction, replicas: int, partitions: int) -> list[tuple[int, int]]:
    """The same of device numbers: pairs are of partitions, within each replica, or, where there is only one, of
    replicas. Raises UnsupportedError for a device that there is not."""
    pairs, limit = transfer_pairs(instruction) or [], partitions if partitions > 1 else replicas
    if wrong := next((pair for pair in pairs if max(pair) >= limit), None):
        raise missing_devices(instruction, wrong, limit, 1 + max(n for pair in pairs for n in pair))
    firsts = range(0, replicas * partitions, partitions) if partitions > 1 else (0,)
    return [(first + s, first + t) for s, t in pairs for first in firsts]


def transfer_function(instruction: Instruction, transfers: Transfers) -> Callable[..., tuple[np.ndarray, ...]]:
    """The op as a function over arrays: all arrays of its operands in, all of its result out."""
    evaluate = next(row.evaluate for row in ROWS if row.opcode == instruction.opcode)
    assert evaluate is not None
    run = SimpleNamespace(options=transfers)

    def function(*operands) -> tuple[np.ndarray, ...]:
        arrays = iter([a.copy() for a in flatten(tuple(operands))])         # the memory is reused
        return tuple(map(np.asarray, flatten(evaluate(run, instruction, *(
            unflatten(o.shape, arrays) for o in instruction.operands)))))
    return function


def taken(queue: list[Any], shape: Shape) -> Any:
    """The next value of a queue."""
    if shape.is_array or queue and isinstance(queue[0], tuple):
        return queue.pop(0)
    count = sum(1 for _ in leaves(shape))
    if len(queue) < count:
        raise RunError(f"{text(shape)} needs {count} arrays, {len(queue)} are left")
    arrays = [queue.pop(0) for _ in range(count)]
    return unflatten(shape, arrays)


def _check_token(instruction: Instruction, index: int) -> None:
    shape = instruction.operands[index].shape
    require(shape.is_token, instruction, f"operand {index} must be a token, is {text(shape)}")


def _written_tuple(instruction: Instruction, *rest: Shape) -> Shape:
    """(data, rest ...) with the data's written shape, which determines what the host sends."""
    written = instruction.shape
    if written is None or not written.is_tuple or not written.tuple_shapes:
        fail(instruction, f"the result must be a tuple of data and {', '.join(map(text, rest))}")
    return Shape.tuple([written.tuple_shapes[0], *rest])


def evaluate_infeed(evaluator, instruction: Instruction, token):
    data = instruction.shape.tuple_shapes[0]
    if not evaluator.options.infeed and next(leaves(data), None) is not None:
        raise RunError("infeed has nothing to take: no (more) values were given", instruction.span)
    return taken(evaluator.options.infeed, data), None


def infer_infeed(instruction: Instruction) -> Shape:
    _check_token(instruction, 0)
    return _written_tuple(instruction, TOKEN)


def evaluate_outfeed(evaluator, instruction: Instruction, data, token):
    evaluator.options.outfeed.append(data)


def infer_outfeed(instruction: Instruction) -> Shape:
    _check_token(instruction, 1)
    return TOKEN


def evaluate_send(evaluator, instruction: Instruction, data, token):
    if transfer_pairs(instruction) is not None:
        device = evaluator.device
        for source, target in device_transfers(instruction, device.replica_count, device.partition_count):
            if source == device.number:
                device.post(instruction, target, instruction.get("channel_id", 0), data)
        return data, np.zeros((), np.uint32), None
    evaluator.options.sent.append((instruction.get("channel_id", 0), data))
    return data, np.zeros((), np.uint32), None


def infer_send(instruction: Instruction) -> Shape:
    _check_token(instruction, 1)
    return Shape.tuple([instruction.operands[0].shape, Shape("u32"), TOKEN])


def evaluate_recv(evaluator, instruction: Instruction, token):
    if transfer_pairs(instruction) is not None:
        return _received(evaluator.device, instruction), np.zeros((), np.uint32), None
    channel = instruction.get("channel_id", 0)
    queue = evaluator.options.received.get(channel)
    if not queue:
        raise RunError(f"recv has nothing to take on channel {channel}", instruction.span)
    return taken(queue, instruction.shape.tuple_shapes[0]), np.zeros((), np.uint32), None


def _received(device, instruction: Instruction):
    """What another device has sent; zeros if none sends to this one."""
    shape = instruction.shape.tuple_shapes[0]
    for source, target in device_transfers(instruction, device.replica_count, device.partition_count):
        if target == device.number:
            return device.fetch(instruction, source, instruction.get("channel_id", 0), shape)
    return unflatten(shape, iter([np.zeros(s.dimensions, numpy_dtype(s.element_type)) for s in leaves(shape)]))


def infer_recv(instruction: Instruction) -> Shape:
    _check_token(instruction, 0)
    return _written_tuple(instruction, Shape("u32"), TOKEN)


def evaluate_send_done(evaluator, instruction: Instruction, sent):
    return None


def infer_send_done(instruction: Instruction) -> Shape:
    _check_pending(instruction)
    return TOKEN


def evaluate_recv_done(evaluator, instruction: Instruction, pending):
    return pending[0], None


def infer_recv_done(instruction: Instruction) -> Shape:
    return Shape.tuple([_check_pending(instruction).tuple_shapes[0], TOKEN])


def _check_pending(instruction: Instruction) -> Shape:
    shape = instruction.operands[0].shape
    if not (shape.is_tuple and len(shape.tuple_shapes) == 3 and shape.tuple_shapes[2].is_token):
        fail(instruction, f"operand 0 must be (data, u32[], token[]), is {text(shape)}")
    begun = instruction.operands[0]
    differs = begun.get("is_host_transfer", False) != instruction.get("is_host_transfer", False)
    if begun.opcode in ("send", "recv") and differs:
        fail(instruction, f"is_host_transfer differs from that of %{begun.name}")
    return shape


_CHANNEL = ("channel_id", "is_host_transfer")

ROWS: tuple[Op, ...] = (
    Op("infeed", 1, infer_infeed, evaluate_infeed, optional=("infeed_config",), side_effect=True),
    Op("outfeed", 2, infer_outfeed, evaluate_outfeed, optional=("outfeed_config", "outfeed_shape"), side_effect=True),
    Op("send", 2, infer_send, evaluate_send, optional=_CHANNEL, side_effect=True),
    Op("send-done", 1, infer_send_done, evaluate_send_done, optional=_CHANNEL, side_effect=True),
    Op("recv", 1, infer_recv, evaluate_recv, optional=_CHANNEL, side_effect=True),
    Op("recv-done", 1, infer_recv_done, evaluate_recv_done, optional=_CHANNEL, side_effect=True),
)
