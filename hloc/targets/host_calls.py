"""Steps of a plan that Python runs: custom calls, infeed, outfeed, send, recv, and, on GPUs, collectives.

    function = host_function(call, options); answers = answered(call, function, arrays)
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hloc.errors import RunError, UnsupportedError
from hloc.ir import Instruction, leaves, numpy_dtype
from hloc.kernels.plan import HostCall
from hloc.ops.collectives import meets_devices
from hloc.ops.custom_calls import call_known, unknown
from hloc.ops.host import transfer_function
from hloc.ops.table import OPS
from hloc.ops.values import flatten, unflatten

if TYPE_CHECKING:
    from hloc.evaluate import Device


def host_function(call: HostCall, options) -> Callable:
    """The function of a host call: the user's, else hloc's own. Raises UnsupportedError, located, if there is
    neither."""
    if call.target in options.custom_calls:
        return options.custom_calls[call.target]
    instruction = call.made_of
    if meets_devices(instruction):
        return collective_function(instruction, options.device)
    if instruction.opcode != "custom-call":
        return transfer_function(instruction, options.transfers)
    from hloc.ops.known_calls import CUSTOM_CALLS
    if call.target not in CUSTOM_CALLS:
        raise unknown(instruction, call.target)
    return partial(call_known, instruction)


# Collectives after which no device reads another's operands: devices wait for each other at their ends, too.
COMBINED = frozenset(["all-reduce", "reduce-scatter"])


def collective_function(instruction: Instruction, device: Device | None) -> Callable[..., tuple[np.ndarray, ...]]:
    """A collective as a function from this device's arrays to its results; it waits for the others."""
    if device is None:
        raise UnsupportedError(
            f"'{instruction.opcode}' takes several devices, this program is compiled for one", instruction.span,
            hint="hloc run --devices N simulates them; under mpirun each process is one")
    from hloc.evaluate import Evaluator
    evaluate, evaluator = OPS[instruction.opcode].evaluate, Evaluator(device=device)
    assert evaluate is not None

    def function(*operands) -> tuple[np.ndarray, ...]:
        own = operands if instruction.opcode in COMBINED else [
            unflatten(o.shape, iter([a.copy() for a in flatten(value)]))          # the memory is reused
            for o, value in zip(instruction.operands, operands)]
        return tuple(map(np.asarray, flatten(evaluate(evaluator, instruction, *own))))
    return function


def answered(call: HostCall, function: Callable, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a call on flat arrays, flat. Raises RunError if their number, types or shapes are wrong."""
    answers = function(*_arranged(call, inputs))
    answers = answers if isinstance(answers, tuple) else (answers,)
    if len(answers) != len(call.results):
        raise RunError(f"custom call {call.target!r} returned {len(answers)} results, not {len(call.results)}")
    return [_checked(call, n, np.asarray(answer)) for n, answer in enumerate(answers)]


def _arranged(call: HostCall, inputs: Sequence[np.ndarray]) -> list:
    """The flat arrays as the call's operands, with tuples."""
    flat = iter(inputs)
    return [next(flat) if o.shape.is_array else tuple(next(flat) for _ in leaves(o.shape))
            for o in call.made_of.operands if not o.shape.is_token]


def _checked(call: HostCall, number: int, answer: np.ndarray) -> np.ndarray:
    shape = call.results[number][1]
    dtype = numpy_dtype(shape.element_type)
    if answer.shape != shape.dimensions or answer.dtype != dtype:
        raise RunError(f"custom call {call.target!r} returned {answer.dtype}{list(answer.shape)} for result {number}, "
                       f"which is {dtype}{list(shape.dimensions)}")
    return answer
