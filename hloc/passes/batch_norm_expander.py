"""Expands batch normalization into arithmetic.

    b = f32[8,3] batch-norm-inference(x, scale, offset, mean, variance), epsilon=1e-5, feature_index=1
    =>  (x - mean) * rsqrt(variance + 1e-5) * scale + offset, vectors of 3 broadcast over f32[8,3]

Half-precision operands are computed in f32. Training also gives the mean and the biased variance; grad gives the
gradients with respect to the operand, the scale and the offset.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module


def batch_norm_expander(module: Module, context: PassContext) -> bool:
    """True if there was a batch norm."""
    expanders = {"batch-norm-training": expand_training, "batch-norm-inference": expand_inference,
                 "batch-norm-grad": expand_grad}

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        expand = expanders.get(instruction.opcode)
        return expand(Norm(module, instruction, rewriter)) if expand else None
    return rewrite_module(module, visit, revisit=False, expands=True)


class Norm:
    """The expansion of one batch norm: operands in the type of the arithmetic, and code shared by all three forms."""

    def __init__(self, module: Module, instruction: Instruction, rewriter: Rewriter):
        self.module, self.instruction = module, instruction
        self.e = Expressions(rewriter, instruction.span)
        x = instruction.operands[0].shape
        self.feature = instruction.get("feature_index")
        self.dimensions = x.dimensions
        self.others = tuple(d for d in range(x.rank) if d != self.feature)
        self.type = "f64" if x.element_type == "f64" else "f32"
        self.operands = [self.e.convert(o, self.type) for o in instruction.operands]
        self.count = x.num_elements // max(1, x.dimensions[self.feature])

    def along(self, vector: Instruction) -> Instruction:
        """A vector of features, broadcast to the operand's shape."""
        return self.e.broadcast(vector, (self.feature,), self.dimensions)

    def total(self, x: Instruction) -> Instruction:
        """The sum of each feature."""
        return self.e.reduce(self.module, x, "add", self.others, 0)

    def mean(self, x: Instruction) -> Instruction:
        total = self.total(x)
        return self.e.op("divide", total, self.e.like(self.count, total))

    def inverse_deviation(self, variance: Instruction) -> Instruction:
        epsilon = self.e.like(self.instruction.get("epsilon"), variance)
        return self.e.op("rsqrt", self.e.op("add", variance, epsilon))

    def normal(self, x: Instruction, scale: Instruction, offset: Instruction, mean: Instruction,
               variance: Instruction) -> Instruction:
        op = self.e.op
        centered = op("subtract", x, self.along(mean))
        scaled = op("multiply", centered, self.along(op("multiply", self.inverse_deviation(variance), scale)))
        return op("add", scaled, self.along(offset))

    def results(self, *values: Instruction) -> Instruction:
        """A tuple of the values in the types that the instruction has."""
        shapes = self.instruction.shape.tuple_shapes
        return self.e.op("tuple", *(self.e.convert(v, s.element_type) for v, s in zip(values, shapes)))


def expand_inference(norm: Norm) -> Instruction:
    return norm.e.convert(norm.normal(*norm.operands), norm.instruction.shape.element_type)


def expand_training(norm: Norm) -> Instruction:
    """The variance is the mean square of the differences from the mean: two passes, no cancellation."""
    x, scale, offset = norm.operands
    mean = norm.mean(x)
    centered = norm.e.op("subtract", x, norm.along(mean))
    variance = norm.mean(norm.e.op("multiply", centered, centered))
    return norm.results(norm.normal(x, scale, offset, mean, variance), mean, variance)


def expand_grad(norm: Norm) -> Instruction:
    """With n = (x - mean) / deviation:  d_offset = sum(g),  d_scale = sum(g n),
    d_x = scale / deviation * (g - (d_offset + n d_scale) / count)."""
    x, scale, mean, variance, grad = norm.operands
    op, along = norm.e.op, norm.along
    inverse = norm.inverse_deviation(variance)
    normal = op("multiply", op("subtract", x, along(mean)), along(inverse))
    grad_offset, grad_scale = norm.total(grad), norm.total(op("multiply", grad, normal))
    count = norm.e.like(norm.count, grad_offset)
    spread = op("add", along(op("divide", grad_offset, count)),
                op("multiply", normal, along(op("divide", grad_scale, count))))
    grad_x = op("multiply", along(op("multiply", scale, inverse)), op("subtract", grad, spread))
    return norm.results(grad_x, grad_scale, grad_offset)
