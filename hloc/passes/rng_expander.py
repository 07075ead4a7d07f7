"""Expands rng and rng-get-and-update-state into rng-bit-generator and arithmetic.

    r = f32[8] rng(low, high), distribution=rng_uniform      =>   low + (high - low) * (bits >> 9) * 2^-23

A run draws from one counter of 128 bits, which starts at the same value each time and advances with each draw, in the
order of the program. The entry begins with the counter as a constant; loops, branches and functions that draw take it
as two more values and return it (rng_counter.py). `context.options["seed"]` is the key (0 unless given).
Equal to hloc/ops/random.py, which defines how numbers are made from bits.
"""
from __future__ import annotations

import math

from hloc.evaluate import FIRST_RANDOM_STATE
from hloc.ir import ELEMENT_TYPES, Instruction, Module, array, reachable_computations
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter
from hloc.passes.rng_bit_generator_expander import random_bits
from hloc.passes.rng_counter import DRAWS, Counter, computations_that_draw, thread

MASK64 = (1 << 64) - 1


def rng_expander(module: Module, context: PassContext) -> bool:
    """True if there was an rng."""
    drawing = computations_that_draw(module)
    if not drawing:
        return False
    seed = context.options.get("seed", 0)
    for computation in reachable_computations(module.entry):
        if computation in drawing:
            thread(module, computation, drawing, lambda counter: Expander(seed, counter).visit, FIRST_RANDOM_STATE)
    return True


class Expander:
    """Walks a computation in its order, which is the order of the draws."""

    def __init__(self, seed: int, counter: Counter):
        self.seed = seed & MASK64
        self.counter = counter

    def visit(self, instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if instruction.opcode not in DRAWS:
            return None
        e = Expressions(rewriter, instruction.span)
        if instruction.opcode == "rng-get-and-update-state":
            return e.op("concatenate", *(e.reshape(w, 1) for w in self.counter.draw(e, instruction.get("delta"))),
                        dimensions=(0,))
        if instruction.get("distribution") == "rng_normal":
            return self.normal(e, instruction)
        return self.uniform(e, instruction)

    def raw(self, e: Expressions, size: int, width: int) -> Instruction:
        """`size` words of random bits."""
        words = [e.constant(self.seed, "u64"), *self.counter.draw(e, size * width // 32)]
        return random_bits(e, "rng_philox", words, (size,), width)[1]

    def unit(self, e: Expressions, size: int, width: int) -> Instruction:
        """f64 in [0, 1), from the upper bits of each word."""
        kept = 52 if width == 64 else 23
        bits = self.raw(e, size, width)
        upper = e.convert(e.op("shift-right-logical", bits, e.like(width - kept, bits)), "f64")
        return e.op("multiply", upper, e.like(2.0 ** -kept, upper))

    def uniform(self, e: Expressions, instruction: Instruction) -> Instruction:
        """In [a, b)."""
        shape, (a, b) = instruction.shape, instruction.operands[:2]
        bits = ELEMENT_TYPES[shape.element_type].bits
        width = 64 if bits == 64 else 32
        if shape.kind == "float":
            return self.uniform_float(e, instruction, self.unit(e, shape.num_elements, width))
        raw = self.raw(e, shape.num_elements, width)
        if shape.kind == "pred":
            odd = e.compare(e.op("and", raw, e.like(1, raw)), "NE", e.like(0, raw))
            values = e.chosen(odd, e.spread(b, odd.shape), e.spread(a, odd.shape))
            return e.reshape(values, *shape.dimensions)
        low, high = (e.bits(e.convert(x, "s64"), "u64") for x in (a, b))
        reach = e.op("subtract", high, low)
        one = e.constant(1, "u64")
        reach = e.chosen(e.compare(e.bits(reach, "s64"), "LT", e.constant(1, "s64")), one, reach)
        wide = e.convert(raw, "u64")
        rest = e.op("remainder", wide, e.spread(reach, wide.shape))
        values = e.op("add", rest, e.spread(low, rest.shape))
        return e.reshape(e.convert(values, shape.element_type), *shape.dimensions)

    def uniform_float(self, e: Expressions, instruction: Instruction, unit: Instruction) -> Instruction:
        shape, (a, b) = instruction.shape, instruction.operands[:2]
        low, high = e.convert(a, "f64"), e.convert(b, "f64")
        width = e.spread(e.op("subtract", high, low), unit.shape)
        values = e.op("add", e.spread(low, unit.shape), e.op("multiply", width, unit))
        values = e.convert(values, shape.element_type)
        below = e.compare(values, "LT", e.spread(b, values.shape))              # rounding may reach b
        values = e.chosen(below, values, e.spread(a, values.shape))
        return e.reshape(values, *shape.dimensions)

    def normal(self, e: Expressions, instruction: Instruction) -> Instruction:
        """a + b * z, with z by Box and Muller's transform of pairs."""
        shape, (a, b) = instruction.shape, instruction.operands[:2]
        pairs = -(-shape.num_elements // 2)
        units = self.unit(e, 2 * pairs, 64)
        first, second = e.slice(units, {0: (0, pairs)}), e.slice(units, {0: (pairs, 2 * pairs)})
        log = e.op("log", e.op("subtract", e.like(1, first), first))
        radius = e.op("sqrt", e.op("multiply", e.like(-2, log), log))
        angle = e.op("multiply", e.like(2 * math.pi, second), second)
        waves = e.op("concatenate", *(e.op("multiply", radius, e.op(f, angle)) for f in ("cosine", "sine")),
                     dimensions=(0,))
        z = e.slice(waves, {0: (0, shape.num_elements)})
        mean, deviation = (e.spread(e.convert(x, "f64"), array("f64", shape.num_elements)) for x in (a, b))
        values = e.op("add", mean, e.op("multiply", deviation, z))
        return e.reshape(e.convert(values, shape.element_type), *shape.dimensions)


