"""Keeps f32 between the bf16 and f16 operations of a fusion: what a kernel computes is rounded where it is stored.

    f { x = bf16[8] parameter(0)               f { x = bf16[8] parameter(0);  w = f32[8] convert(x)
        e = bf16[8] exponential(x)       =>        e = f32[8] exponential(w)
        ROOT t = bf16[8] tanh(e) }                 t = f32[8] tanh(e);  ROOT r = bf16[8] convert(t) }

Each operation in bf16 stands for one in f32 between two conversions, and a conversion to bf16 with one back to f32
behind it is dropped. XLA's pass of this name does so for GPUs (xla_allow_excess_precision, on by default), also where a
program writes both conversions; `reduce-precision` is what keeps a rounding. Results are closer to those of exact
arithmetic, but they depend on what is fused. The option "excess_precision": "off" leaves every rounding as written.

Conversions to integers, sorts, updates, matmuls and convolutions read rounded values. The bodies of attention, whose
matmuls stand in the middle, and of sorts stay as they are.
"""
from __future__ import annotations

from hloc.analysis.fusible import DATA_MOVEMENT, HEROES, is_elemental, is_splat_constant
from hloc.ir import Computation, Instruction, Module, Shape, numpy_dtype, reachable_computations
from hloc.ir.clone import clone_computation
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Names, remove_dead

NARROW = frozenset(["bf16", "f16"])
KEPT = frozenset(["constant", "iota",                      # nothing is computed,
                  "bitcast-convert", "reduce-precision", "stochastic-convert"])   # bits count, or a rounding is meant
# Exact in either type: of arrays that lie in memory they need no f32.
EXACT = frozenset(["abs", "negate", "sign", "select", "maximum", "minimum", "clamp"])
INDEXED = frozenset(["dynamic-slice", "gather"])            # operands behind the first are places


def simplify_fp_conversions(module: Module, context: PassContext) -> bool:
    """True if a rounding within a fusion was dropped."""
    if context.option("excess_precision") == "off":
        return False
    fusions = {i.get("calls"): i for c in reachable_computations(module.entry) for i in c.instructions
               if i.opcode == "fusion"}
    reducers = Reducers(module)
    return sum([_Body(body, reducers).run() for body, fusion in fusions.items() if _is_taken(fusion)]) > 0


def _is_taken(fusion: Instruction) -> bool:
    opcodes = {i.opcode for i in fusion.get("calls").instructions}
    return not (fusion.get("kind") == "kCustom" and opcodes & (HEROES | {"sort"}))


def is_narrow(instruction: Instruction) -> bool:
    """An array of bf16 or f16."""
    return instruction.shape.is_array and instruction.shape.element_type in NARROW


class Reducers:
    """Copies of reducers that compute in f32, each made once."""

    def __init__(self, module: Module):
        self.module = module
        self.names = Names(c.name for c in module.computations)
        self.made: dict[Computation, Computation | None] = {}

    def wide(self, reducer: Computation) -> Computation | None:
        """The reducer in f32; None where it is more than elementwise operations."""
        if reducer not in self.made:
            self.made[reducer] = self._widened(reducer)
        return self.made[reducer]

    def _widened(self, reducer: Computation) -> Computation | None:
        plain = all(i.opcode in ("parameter", "constant") or i.opcode not in KEPT | {"convert"} and is_elemental(i)
                    for i in reducer.instructions)
        if not plain or not is_narrow(reducer.root):
            return None
        copy = clone_computation(reducer, self.names.fresh(reducer.name))
        for instruction in copy.instructions:
            if is_narrow(instruction):
                instruction.shape = instruction.shape.with_element_type("f32")
                if instruction.opcode == "constant":
                    instruction.literal = instruction.elements.astype(numpy_dtype("f32"))
        self.module.computations.insert(self.module.computations.index(reducer), copy)
        return copy


class _Body:
    """Rewrites one fused computation. wide: what holds a narrow value in f32; unrounded: the values that would be
    rounded if they were stored; stands: what stands for an instruction now, in its own type."""

    def __init__(self, body: Computation, reducers: Reducers):
        self.body, self.reducers = body, reducers
        self.names = Names(i.name for i in body.instructions)
        self.result: list[Instruction] = []
        self.wide: dict[Instruction, Instruction] = {}
        self.unrounded: set[Instruction] = set()
        self.stands: dict[Instruction, Instruction] = {}
        self.changed = False

    def run(self) -> bool:
        if not any(is_narrow(i) and i.opcode not in ("parameter", "constant") for i in self.body.instructions):
            return False
        for instruction in self.body.instructions:
            if not self.is_replaced(instruction):
                instruction.operands = [self.stored(o) for o in instruction.operands]
                self.stands[instruction] = instruction
                self.result.append(instruction)
        self.body.root = self.stored(self.body.root)
        self.body.instructions = self.result
        remove_dead(self.body)
        return self.changed

    def is_replaced(self, i: Instruction) -> bool:
        """Whether the instruction has become one that reads, or makes, f32."""
        if i.opcode == "convert":
            return self.is_convert_dropped(i)
        if i.opcode == "reduce":
            return self.is_reduce_replaced(i)
        if i.opcode in KEPT or not is_elemental(i) or not any(map(is_narrow, (i, *i.operands))):
            return False
        if i.opcode in DATA_MOVEMENT:
            return self.is_move_replaced(i)
        if (i.opcode in EXACT or not is_narrow(i)) and self.unrounded.isdisjoint(i.operands):
            return False
        self.replace(i, list(map(self.in_f32, i.operands)))
        return True

    def is_convert_dropped(self, i: Instruction) -> bool:
        """Whether the value in f32 stands for a conversion; one that rounds f32 stays for those who read what is
        stored."""
        operand = i.operands[0]
        if is_narrow(i) and operand.shape.element_type == "f32":
            self.wide[i] = self.stored(operand)
            self.unrounded.add(i)
            return False
        if operand not in self.wide or not is_narrow(operand):
            return False
        if is_narrow(i):                                        # from f16 to bf16, or back
            self.wide[i] = self.wide[operand]
            self.unrounded.add(i)
        elif i.shape.element_type == "f32":
            self.stands[i] = self.wide[operand]
        else:
            return False
        self.changed = True
        return True

    def is_move_replaced(self, i: Instruction) -> bool:
        count = 1 if i.opcode in INDEXED else len(i.operands)
        elements, places = i.operands[:count], i.operands[count:]
        types = {o.shape.element_type for o in (i, *elements)}
        if len(types) > 1 or self.unrounded.isdisjoint(elements):
            return False
        self.replace(i, [*map(self.in_f32, elements), *map(self.stored, places)])
        return True

    def is_reduce_replaced(self, i: Instruction) -> bool:
        if not is_narrow(i) or not all(map(is_narrow, i.operands)):
            return False
        if i.get("to_apply").root.opcode in EXACT and i.operands[0] not in self.unrounded:
            return False
        reducer = self.reducers.wide(i.get("to_apply"))
        if reducer is None:
            return False
        self.replace(i, list(map(self.in_f32, i.operands)), to_apply=reducer)
        return True

    def replace(self, i: Instruction, operands: list[Instruction], **attributes: Computation) -> None:
        new = i.copy(operands=operands, attributes={**i.attributes, **attributes})
        self.changed = True
        self.result.append(new)
        if is_narrow(i):
            new.shape, new.name = i.shape.with_element_type("f32"), self.names.fresh(i.opcode)
            self.wide[i] = new
            self.unrounded.add(i)
        else:
            self.stands[i] = new

    def in_f32(self, operand: Instruction) -> Instruction:
        """An operand of an operation in f32."""
        if not is_narrow(operand):
            return self.stored(operand)
        if operand not in self.wide:
            self.wide[operand] = self.widened(operand)
        return self.wide[operand]

    def widened(self, operand: Instruction) -> Instruction:
        """A value that stays narrow, in f32; constants, and what spreads them, are written anew."""
        shape = operand.shape.with_element_type("f32")
        if operand.opcode == "constant":
            new = operand.copy(shape=shape, literal=operand.elements.astype(numpy_dtype("f32")))
        elif operand.opcode in ("broadcast", "reshape") and is_splat_constant(operand):
            new = operand.copy(shape=shape, operands=[self.in_f32(operand.operands[0])])
        else:
            source = operand
            if operand.opcode == "convert" and operand.operands[0].shape.kind != "complex":
                source = operand.operands[0]                    # integers are rounded once, or not at all
            return self.convert(self.stored(source), shape)
        new.name = self.names.fresh(operand.opcode)
        self.result.append(new)
        return new

    def stored(self, operand: Instruction) -> Instruction:
        """What stands for an operand of an instruction that stays as it is: rounded values."""
        if operand not in self.stands:
            self.stands[operand] = self.convert(self.wide[operand], operand.shape)
        return self.stands[operand]

    def convert(self, operand: Instruction, shape: Shape) -> Instruction:
        new = Instruction(self.names.fresh("convert"), "convert", shape, [operand], span=operand.span)
        self.result.append(new)
        return new
