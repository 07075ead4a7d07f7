"""Writes the parts of a dot, and how they go around, as a chain or as a loop.

    divided(window, module, channels, rewriter)       what stands for the dot, or for the reduce-scatter
"""
from __future__ import annotations

from hloc.ir import Instruction, Module, Shape, array
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Channels, Rewriter
from hloc.passes.windowed_einsum.windows import Window

MOST_UNROLLED = 8                   # devices


def divided(window: Window, module: Module, channels: Channels, rewriter: Rewriter) -> Instruction:
    """What stands for the dot, or for the reduce-scatter."""
    e = Expressions(rewriter, window.dot.span)
    by_partition = window.collective.get("channel_id") is not None
    device = e.convert(e.op("partition-id" if by_partition else "replica-id", shape=array("u32")), "s32")
    return (_Gathered if window.gathers else _Scattered)(window, module, channels).emit(e, device)


class _Parts:
    """What both directions share."""

    def __init__(self, window: Window, module: Module, channels: Channels):
        self.window, self.module, self.channels = window, module, channels
        self.own, self.other = window.dot.operands[window.side], window.dot.operands[1 - window.side]

    def start(self, e: Expressions, number: Instruction, device: Instruction, ahead: int) -> Instruction:
        """Where the part of a step begins."""
        table = e.constant(self.window.ring.blocks(ahead, self.window.size), "s32")
        return e.reshape(e.op("dynamic-slice", table, number, device, dynamic_slice_sizes=(1, 1)))

    def cut(self, e: Expressions, x: Instruction, start: Instruction, dimension: int | None) -> Instruction:
        """A part of an operand; all of it where it does not have the dimension."""
        if dimension is None:
            return x
        zero = e.constant(0, "s32")
        return e.op("dynamic-slice", x, *(start if d == dimension else zero for d in range(x.shape.rank)),
                    dynamic_slice_sizes=self.window.part(x.shape, dimension).dimensions)

    def product(self, e: Expressions, own: Instruction, other: Instruction) -> Instruction:
        window = self.window
        operands = [own, other][::1 if window.side == 0 else -1]
        attributes = {k: v for k, v in window.dot.attributes.items() if k != "sharding"}
        return e.op("dot", *operands, shape=window.part_of_result, **attributes)

    def moved(self, e: Expressions, x: Instruction) -> Instruction:
        """What the device behind has, on the one before it."""
        collective, attributes = self.window.collective, dict(self.window.ring.permute)
        if collective.get("channel_id") is not None:
            attributes["channel_id"] = self.channels.next()
        if "metadata" in collective.attributes:
            attributes["metadata"] = collective.get("metadata")
        return e.op("collective-permute", x, shape=x.shape, **attributes)

    @property
    def is_chain(self) -> bool:
        return self.window.ring.size <= MOST_UNROLLED


class _Gathered(_Parts):
    """Each step multiplies a part of the gathered operand, while the next one comes."""

    def emit(self, e: Expressions, device: Instruction) -> Instruction:
        part, result = self.window.collective.operands[0], e.full(0, self._shape)
        last = self.window.ring.size - 1
        if self.is_chain:
            for number in range(last):
                part, result = self.step(e, e.constant(number, "s32"), part, result, self.other, device)
        else:
            part, result = e.loop(self.module, last, [part, result], self.step, [self.other, device])
        return self.joined(e, e.constant(last, "s32"), part, result, self.other, device)

    @property
    def _shape(self) -> Shape:
        return array(self.window.dot.shape.element_type, *self.window.dot.shape.dimensions)

    def step(self, e: Expressions, number: Instruction, part: Instruction, result: Instruction, other: Instruction,
             device: Instruction) -> list[Instruction]:
        return [self.moved(e, part), self.joined(e, number, part, result, other, device)]

    def joined(self, e: Expressions, number: Instruction, part: Instruction, result: Instruction, other: Instruction,
               device: Instruction) -> Instruction:
        """The result with one part more."""
        start, window = self.start(e, number, device, 0), self.window
        product = self.product(e, part, self.cut(e, other, start, window.other_dimension))
        if window.result_dimension is None:
            return e.op("add", result, product)
        return e.put(result, product, start, window.result_dimension)


class _Scattered(_Parts):
    """Each step computes the part that the sums which come then are for, and adds it to them."""

    def emit(self, e: Expressions, device: Instruction) -> Instruction:
        constants = (self.own, self.other, device)
        sums = self.part(e, e.constant(0, "s32"), *constants)
        if not self.is_chain:
            (sums,) = e.loop(self.module, self.window.ring.size - 1, [sums], self._later, constants)
            return sums
        for number in range(1, self.window.ring.size):
            sums = self.step(e, e.constant(number, "s32"), sums, *constants)
        return sums

    def _later(self, e: Expressions, number: Instruction, sums: Instruction,
               *constants: Instruction) -> list[Instruction]:
        return [self.step(e, e.op("add", number, e.constant(1, "s32")), sums, *constants)]

    def step(self, e: Expressions, number: Instruction, sums: Instruction, *constants: Instruction) -> Instruction:
        return e.op("add", self.moved(e, sums), self.part(e, number, *constants))

    def part(self, e: Expressions, number: Instruction, own: Instruction, other: Instruction,
             device: Instruction) -> Instruction:
        start, window = self.start(e, number, device, 1), self.window
        return self.product(e, self.cut(e, own, start, window.dimension),
                            self.cut(e, other, start, window.other_dimension))
