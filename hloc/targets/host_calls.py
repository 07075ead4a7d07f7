"""Steps of a plan that Python runs: custom calls, infeed, outfeed, send and recv.

    function = host_function(call, options); answers = answered(call, function, arrays)
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hloc.errors import RunError
from hloc.ir import leaves, numpy_dtype
from hloc.ir.narrowing import known
from hloc.kernels.plan import HostCall
from hloc.ops.custom_calls import call_known, unknown
from hloc.ops.host import transfer_function


def host_function(call: HostCall, options) -> Callable:
    """The function of a host call: the user's, else hloc's own. Raises UnsupportedError, located, if there is
    neither."""
    if call.target in options.custom_calls:
        return options.custom_calls[call.target]
    instruction = known(call.instruction)
    if instruction.opcode != "custom-call":
        return transfer_function(instruction, options.transfers)
    from hloc.ops.known_calls import CUSTOM_CALLS
    if call.target not in CUSTOM_CALLS:
        raise unknown(instruction, call.target)
    return partial(call_known, instruction)


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
            for o in known(call.instruction).operands if not o.shape.is_token]


def _checked(call: HostCall, number: int, answer: np.ndarray) -> np.ndarray:
    shape = call.results[number][1]
    dtype = numpy_dtype(shape.element_type)
    if answer.shape != shape.dimensions or answer.dtype != dtype:
        raise RunError(f"custom call {call.target!r} returned {answer.dtype}{list(answer.shape)} for result {number}, "
                       f"which is {dtype}{list(shape.dimensions)}")
    return answer
