"""Expands rng-bit-generator into integer arithmetic: Threefry-2x32 with 20 rounds, Philox-4x32 with 10.

    r = (u64[2], u32[1000]) rng-bit-generator(state), algorithm=rng_three_fry
    =>  500 counters state[1] + iota, put through 20 rounds of add, rotate, xor with the key state[0]

The bits equal those of hloc/ops/random.py; the layout of words over the result is explained there.
"""
from __future__ import annotations

import math

from hloc.ir import ELEMENT_TYPES, Instruction, Module, array
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEYS = (0x9E3779B9, 0xBB67AE85)


def rng_bit_generator_expander(module: Module, context: PassContext) -> bool:
    """True if there was an rng-bit-generator."""
    return rewrite_module(module, expand, revisit=False, expands=True)


def expand(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if instruction.opcode != "rng-bit-generator":
        return None
    e = Expressions(rewriter, instruction.span)
    operand = instruction.operands[0]
    if operand.shape.element_type not in ("u64", "u32"):
        return None                                  # a state that XLA's verifier accepts, but that has no meaning
    state = words_of_state(e, operand)
    shape = instruction.shape.tuple_shapes[1] if instruction.shape.is_tuple else instruction.shape
    after, bits = random_bits(e, instruction.get("algorithm"), state, shape.dimensions,
                              ELEMENT_TYPES[shape.element_type].bits)
    data = e.bits(bits, shape.element_type)
    if not instruction.shape.is_tuple:
        return data
    joined = e.op("concatenate", *(e.reshape(w, 1) for w in after), dimensions=(0,))
    if operand.shape.element_type != "u64":
        joined = e.reshape(e.op("bitcast-convert", joined, shape=array("u32", len(after), 2)), 2 * len(after))
    return e.op("tuple", joined, data)


def words_of_state(e: Expressions, state: Instruction) -> list[Instruction]:
    """The u64 scalars of a state of u64, or of pairs of u32 (the low half first)."""
    if state.shape.element_type != "u64":
        pairs = e.reshape(state, state.shape.num_elements // 2, 2)
        state = e.op("bitcast-convert", pairs, shape=array("u64", state.shape.num_elements // 2))
    return [e.reshape(e.slice(state, {0: (k, k + 1)})) for k in range(state.shape.num_elements)]


def random_bits(e: Expressions, algorithm: str, state: list[Instruction], dimensions: tuple[int, ...],
                bits: int) -> tuple[list[Instruction], Instruction]:
    """The next state (u64 scalars), and unsigned integers of `bits` bits; fewer than 32 are the low ones of 32."""
    generate = threefry_bits if algorithm == "rng_three_fry" else philox_bits
    after, values = generate(e, state, dimensions, 64 if bits == 64 else 32)
    return after, e.convert(values, f"u{bits}")


def halves(e: Expressions, x: Instruction) -> tuple[Instruction, Instruction]:
    """The low and the high u32 of u64 words."""
    high = e.op("shift-right-logical", x, e.like(32, x))
    return e.convert(x, "u32"), e.convert(high, "u32")


def joined_words(e: Expressions, low: Instruction, high: Instruction) -> Instruction:
    wide = e.convert(high, "u64")
    return e.op("or", e.convert(low, "u64"), e.op("shift-left", wide, e.like(32, wide)))


def counters(e: Expressions, first: Instruction, count: int) -> Instruction:
    """u64 numbers from `first` on."""
    steps = e.iota("u64", (count,), 0)
    return e.op("add", e.spread(first, steps.shape), steps)


def advanced(e: Expressions, word: Instruction, count: int) -> Instruction:
    return e.op("add", word, e.constant(count, "u64"))


# -- Threefry ----------------------------------------------------------------------------------------------------------

def threefry(e: Expressions, key: Instruction, counter: Instruction) -> tuple[Instruction, Instruction]:
    """Two u32 words per counter."""
    low, high = halves(e, key)
    third = e.op("xor", e.op("xor", low, high), e.constant(0x1BD11BDA, "u32"))
    x, y = halves(e, counter)
    return threefry_rounds(e, [e.spread(k, x.shape) for k in (low, high, third)], x, y)


def threefry_words(e: Expressions, low: Instruction, high: Instruction, x: Instruction,
                   y: Instruction) -> tuple[Instruction, Instruction]:
    """The same with a key for each counter, all of them given as arrays of words."""
    third = e.op("xor", e.op("xor", low, high), e.like(0x1BD11BDA, low))
    return threefry_rounds(e, [low, high, third], x, y)


def threefry_rounds(e: Expressions, keys: list[Instruction], x: Instruction,
                    y: Instruction) -> tuple[Instruction, Instruction]:
    x, y = e.op("add", x, keys[0]), e.op("add", y, keys[1])
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x = e.op("add", x, y)
            y = e.op("xor", x, rotated(e, y, distance))
        x = e.op("add", x, keys[(group + 1) % 3])
        y = e.op("add", e.op("add", y, keys[(group + 2) % 3]), e.like(group + 1, y))
    return x, y


def rotated(e: Expressions, x: Instruction, distance: int) -> Instruction:
    left = e.op("shift-left", x, e.like(distance, x))
    return e.op("or", left, e.op("shift-right-logical", x, e.like(32 - distance, x)))


def threefry_bits(e: Expressions, state: list[Instruction], dimensions: tuple[int, ...],
                  width: int) -> tuple[list[Instruction], Instruction]:
    """A u32 array is split along one dimension: neighbours there are the two words of one counter."""
    key, first = state[0], state[1]
    if width == 64:
        count = math.prod(dimensions)
        x, y = threefry(e, key, counters(e, first, count))
        return [key, advanced(e, first, count)], e.reshape(joined_words(e, x, y), *dimensions)
    split = split_dimension(dimensions)
    sizes = tuple(-(-n // 2) if d == split else n for d, n in enumerate(dimensions))
    count = math.prod(sizes)
    x, y = threefry(e, key, counters(e, first, count))
    after = [key, advanced(e, first, count)]
    if not dimensions:
        return after, e.reshape(x)
    apart = (*sizes[:split + 1], 1, *sizes[split + 1:])
    pairs = e.op("concatenate", e.reshape(x, *apart), e.reshape(y, *apart), dimensions=(split + 1,))
    even = tuple(2 * n if d == split else n for d, n in enumerate(sizes))
    return after, e.slice(e.reshape(pairs, *even), {split: (0, dimensions[split])})


def split_dimension(dimensions: tuple[int, ...]) -> int:
    """The first even dimension, or else the first of the largest."""
    for d, n in enumerate(dimensions):
        if n % 2 == 0:
            return d
    return dimensions.index(max(dimensions)) if dimensions else 0


# -- Philox ------------------------------------------------------------------------------------------------------------

def philox(e: Expressions, key: Instruction, low: Instruction, high: Instruction, count: int) -> list[Instruction]:
    """Four u32 words for each of `count` counters of 128 bits, from high:low on."""
    lows = counters(e, low, count)
    wrapped = e.compare(lows, "LT", e.spread(low, lows.shape))
    highs = e.spread(high, lows.shape)
    highs = e.chosen(wrapped, e.op("add", highs, e.like(1, highs)), highs)
    words = [*halves(e, lows), *halves(e, highs)]
    keys = list(halves(e, key))
    for _ in range(10):
        (first_low, first_high), (second_low, second_high) = (
            halves(e, multiplied(e, words[2 * k], factor)) for k, factor in enumerate(PHILOX_FACTORS))
        spread = [e.spread(k, first_low.shape) for k in keys]
        words = [e.op("xor", e.op("xor", second_high, words[1]), spread[0]), second_low,
                 e.op("xor", e.op("xor", first_high, words[3]), spread[1]), first_low]
        keys = [e.op("add", k, e.constant(bump, "u32")) for k, bump in zip(keys, PHILOX_KEYS)]
    return words


def multiplied(e: Expressions, x: Instruction, factor: int) -> Instruction:
    """The whole product, of 64 bits."""
    wide = e.convert(x, "u64")
    return e.op("multiply", wide, e.like(factor, wide))


def philox_bits(e: Expressions, state: list[Instruction], dimensions: tuple[int, ...],
                width: int) -> tuple[list[Instruction], Instruction]:
    """A state of two words is {key, counter}, of three has a low and a high counter."""
    key, low = state[0], state[1]
    high = state[2] if len(state) > 2 else state[0]
    size = math.prod(dimensions)
    count = -(-size * (2 if width == 64 else 1) // 4)
    words = philox(e, key, low, high, count)
    if width == 64:
        words = [joined_words(e, words[0], words[1]), joined_words(e, words[2], words[3])]
    rows = e.op("concatenate", *(e.reshape(w, count, 1) for w in words), dimensions=(1,))
    flat = e.slice(e.reshape(rows, count * len(words)), {0: (0, size)})
    low_after = advanced(e, low, count)
    carried = e.convert(e.compare(low_after, "LT", low), "u64")
    after = [key, low_after, e.op("add", high, carried)][:max(2, len(state))]
    return after, e.reshape(flat, *dimensions)
