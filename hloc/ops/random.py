"""Random numbers: rng-bit-generator, rng, rng-get-and-update-state.

In: a state of 64-bit words. Out: bits, and the state to go on with. The algorithms encrypt counters, so
that the bits of an element depend only on the state and its position, and equal XLA's bit for bit.

    rng-bit-generator(u64[2] {key, counter}), algorithm=rng_three_fry   ->  ({key, counter + used}, bits)

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011); xla/hlo/builder/lib/prng.cc.
"""
from __future__ import annotations

import math

import numpy as np

from hloc.ir import ELEMENT_TYPES, Instruction, Shape, array, numpy_dtype
from hloc.ops.checks import array_operand, attribute, fail, require, text
from hloc.ops.op import Op
from hloc.ops.values import result_of

U32, U64 = np.uint32, np.uint64
_MASK64 = (1 << 64) - 1
_MASK128 = (1 << 128) - 1


def _words(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The low and high half of 64-bit words."""
    return x.astype(U32), (x >> U64(32)).astype(U32)


def _joined(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low.astype(U64) | high.astype(U64) << U64(32)


# -- Threefry-2x32, 20 rounds ------------------------------------------------------------------------------------------

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: int | np.ndarray, counters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two u32 per u64 counter; one key, or one for each counter."""
    low, high = _words(np.asarray(key).astype(U64))
    keys = (low, high, low ^ high ^ U32(0x1BD11BDA))
    x, y = _words(counters)
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ (y << U32(distance) | y >> U32(32 - distance))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + U32(group + 1)
    return x, y


def threefry_bits(state: list[int], dimensions: tuple[int, ...], width: int) -> tuple[list[int], np.ndarray]:
    """The next state, and bits of u64 (width 64) or u32. A u32 array is split along one dimension: neighbours there
    are the two words of one counter."""
    key, counter = state[0], state[1]
    if width == 64:
        count = math.prod(dimensions)
        x, y = threefry(key, U64(counter) + np.arange(count, dtype=U64))
        return [key, (counter + count) & _MASK64], _joined(x, y).reshape(dimensions)
    split = _split_dimension(dimensions)
    halves = [-(-n // 2) if d == split else n for d, n in enumerate(dimensions)] or [1]
    count = math.prod(halves)
    x, y = threefry(key, U64(counter) + np.arange(count, dtype=U64))
    if not dimensions:
        bits = x.reshape(())
    else:
        pairs = np.stack([x.reshape(halves), y.reshape(halves)], axis=split + 1)
        even = [2 * n if d == split else n for d, n in enumerate(halves)]
        bits = pairs.reshape(even)[tuple(slice(0, n) for n in dimensions)]
    return [key, (counter + count) & _MASK64], bits


def _split_dimension(dimensions: tuple[int, ...]) -> int:
    """The first even dimension, or else the first of the largest."""
    for d, n in enumerate(dimensions):
        if n % 2 == 0:
            return d
    return dimensions.index(max(dimensions)) if dimensions else 0


# -- Philox-4x32, 10 rounds --------------------------------------------------------------------------------------------

def philox(key: int, counter: int, count: int) -> list[np.ndarray]:
    """Four u32 for each of `count` 128-bit counters, from `counter` on.

    The carry into the upper half is taken where the lower half wraps, as in XLA."""
    low = U64(counter & _MASK64) + np.arange(count, dtype=U64)
    high = np.where(low < U64(counter & _MASK64), U64((counter >> 64) + 1 & _MASK64), U64(counter >> 64))
    words = [*_words(low), *_words(high)]
    key0, key1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first = words[0].astype(U64) * U64(0xD2511F53)
        second = words[2].astype(U64) * U64(0xCD9E8D57)
        (first_low, first_high), (second_low, second_high) = _words(first), _words(second)
        words = [second_high ^ words[1] ^ U32(key0), second_low, first_high ^ words[3] ^ U32(key1), first_low]
        key0, key1 = key0 + 0x9E3779B9 & 0xFFFFFFFF, key1 + 0xBB67AE85 & 0xFFFFFFFF
    return words


def philox_bits(state: list[int], dimensions: tuple[int, ...], width: int) -> tuple[list[int], np.ndarray]:
    """The next state, and bits of u64 (width 64) or u32. A state of two words is {key, counter}, of three has a low and
    a high counter."""
    key = state[0]
    counter = state[1] | state[2] << 64 if len(state) > 2 else state[1] | state[0] << 64
    size = math.prod(dimensions)
    count = -(-size * (2 if width == 64 else 1) // 4)
    words = philox(key, counter, count)
    if width == 64:
        numbers = np.stack([_joined(words[0], words[1]), _joined(words[2], words[3])], axis=1)
    else:
        numbers = np.stack(words, axis=1)
    counter = counter + count & _MASK128
    after = [key, counter & _MASK64, counter >> 64][:max(2, len(state))]
    return after, numbers.reshape(-1)[:size].reshape(dimensions)


# -- rng-bit-generator -------------------------------------------------------------------------------------------------

def random_bits(algorithm: str, state: list[int], dimensions: tuple[int, ...],
                bits: int) -> tuple[list[int], np.ndarray]:
    """The next state, and unsigned integers of `bits` bits; fewer than 32 are the low ones of 32."""
    generate = threefry_bits if algorithm == "rng_three_fry" else philox_bits
    after, values = generate(state, dimensions, 64 if bits == 64 else 32)
    return after, values.astype(numpy_dtype(f"u{bits}")) if bits < 32 else values


def evaluate_rng_bit_generator(evaluator, instruction: Instruction, state: np.ndarray):
    shape = instruction.shape
    data = shape.tuple_shapes[1] if shape.is_tuple else shape
    bits = ELEMENT_TYPES[data.element_type].bits
    as_words = state if state.dtype == U64 else np.ascontiguousarray(state).view(U64)
    after, values = random_bits(instruction.get("algorithm"), [int(w) for w in as_words], data.dimensions, bits)
    state_after = np.array(after, U64)
    values = np.ascontiguousarray(values).reshape(-1).view(numpy_dtype(data.element_type)).reshape(data.dimensions)
    return result_of([state_after.view(state.dtype), values] if shape.is_tuple else [values], shape)


_ALGORITHMS = ("rng_default", "rng_three_fry", "rng_philox")


def infer_rng_bit_generator(instruction: Instruction) -> None:
    """The written shape determines the data; the state keeps its shape."""
    state = array_operand(instruction, 0)
    algorithm = attribute(instruction, "algorithm")
    require(algorithm in _ALGORITHMS, instruction, f"algorithm={algorithm} is none of {', '.join(_ALGORITHMS)}")
    require(state.rank == 1 and state.num_bytes >= 16, instruction,
            f"the state must be a vector of at least two 64-bit words, is {text(state)}")
    shape = instruction.shape
    if shape is None:
        fail(instruction, "the result shape must be written")
    data = shape.tuple_shapes[-1] if shape.is_tuple and shape.tuple_shapes else shape
    if shape.is_tuple:
        require(len(shape.tuple_shapes) == 2 and shape.tuple_shapes[0].compatible(state), instruction,
                f"the result {text(shape)} must be the state {text(state)} and the bits")
    kind = data.kind if data.is_array else "other"
    require(kind in ("signed", "unsigned", "float") and ELEMENT_TYPES[data.element_type].bits >= 8, instruction,
            f"random bits cannot be {text(data)}")


# -- rng-get-and-update-state, rng -------------------------------------------------------------------------------------

def next_state(evaluator, delta: int) -> int:
    """The run's 128-bit counter before it advances by `delta`."""
    state = evaluator.random_state
    evaluator.random_state = state + delta & _MASK128
    return state


def evaluate_rng_get_and_update_state(evaluator, instruction: Instruction) -> np.ndarray:
    state = next_state(evaluator, instruction.get("delta"))
    return np.array([state & _MASK64, state >> 64], U64)


def infer_rng_get_and_update_state(instruction: Instruction) -> Shape:
    attribute(instruction, "delta")
    return array("u64", 2)


def evaluate_rng(evaluator, instruction: Instruction, a: np.ndarray, b: np.ndarray, *_) -> np.ndarray:
    """Uniform in [a, b) or normal with mean a and deviation b; the key is the run's seed."""
    shape = instruction.shape
    kind, bits = shape.kind, ELEMENT_TYPES[shape.element_type].bits
    size = shape.num_elements
    dtype = numpy_dtype(shape.element_type)
    width = 64 if bits == 64 else 32
    if instruction.get("distribution") == "rng_normal":
        values = a.astype(np.float64) + b.astype(np.float64) * _normal(evaluator, size)
        return values.astype(dtype).reshape(shape.dimensions)
    raw = _raw_bits(evaluator, size, width)
    if kind == "pred":
        return np.where(raw & U32(1), b, a).reshape(shape.dimensions)
    if kind == "float":
        low, high = a.astype(np.float64), b.astype(np.float64)
        values = (low + (high - low) * _unit(raw, width)).astype(dtype)
        return np.where(values < b, values, a).astype(dtype).reshape(shape.dimensions)        # rounding may reach b
    reach = U64(max(1, int(b) - int(a)))
    values = (raw.astype(U64) % reach).astype(np.int64) + np.asarray(a).astype(np.int64)
    return values.astype(dtype).reshape(shape.dimensions)


def _raw_bits(evaluator, size: int, width: int) -> np.ndarray:
    state = next_state(evaluator, size * width // 32)
    words = [evaluator.options.seed & _MASK64, state & _MASK64, state >> 64]
    return random_bits("rng_philox", words, (size,), width)[1]


def _unit(raw: np.ndarray, width: int) -> np.ndarray:
    """[0, 1) from the upper bits, as many as the float type of that width has in its mantissa."""
    kept = 52 if width == 64 else 23
    return (raw >> raw.dtype.type(width - kept)).astype(np.float64) * 2.0 ** -kept


def _normal(evaluator, size: int) -> np.ndarray:
    """Box and Muller's transform of pairs."""
    pairs = -(-size // 2)
    u = _unit(_raw_bits(evaluator, 2 * pairs, 64), 64)
    radius, angle = np.sqrt(-2 * np.log(1 - u[:pairs])), 2 * np.pi * u[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


def infer_rng(instruction: Instruction) -> None:
    """The written shape determines the result; both bounds are scalars of its type."""
    require(len(instruction.operands) == 2, instruction, f"takes 2 operands, here are {len(instruction.operands)}")
    distribution = attribute(instruction, "distribution")
    require(distribution in ("rng_uniform", "rng_normal"), instruction,
            f"distribution={distribution} is neither rng_uniform nor rng_normal")
    shape = instruction.shape
    if shape is None:
        fail(instruction, "the result shape must be written")
    for index in (0, 1):
        bound = array_operand(instruction, index)
        require(bound.rank == 0 and bound.element_type == shape.element_type, instruction,
                f"operand {index} must be {shape.element_type}[], is {text(bound)}")
    require(distribution == "rng_uniform" or shape.kind == "float", instruction,
            f"rng_normal cannot give {text(shape)}")
    require(shape.kind != "complex", instruction, f"rng cannot give {text(shape)}")


ROWS: tuple[Op, ...] = (
    Op("rng-bit-generator", arity=1, infer=infer_rng_bit_generator, evaluate=evaluate_rng_bit_generator,
       required=("algorithm",)),
    Op("rng-get-and-update-state", arity=0, infer=infer_rng_get_and_update_state,
       evaluate=evaluate_rng_get_and_update_state, required=("delta",), side_effect=True),
    Op("rng", arity=(2, 3), infer=infer_rng, evaluate=evaluate_rng, required=("distribution",), side_effect=True),
)
