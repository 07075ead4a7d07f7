"""The walk of dynamic_padder through a computation with dynamic arrays."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import UNBOUNDED, Computation, Instruction, Module, Shape, array, leaves
from hloc.ops.checks import dynamic_of
from hloc.passes.dynamic_padder.padded import Padded, Sizes, has_dynamic, static
from hloc.passes.dynamic_padder.rules import RULES
from hloc.passes.rewriter import Names, inherit_annotations, remove_dead

CALLERS = {"while": ("condition", "body"), "call": ("to_apply",), "async-start": ("calls",), "fusion": ("calls",),
           "conditional": ("true_computation", "false_computation", "branch_computations")}
HANDED_ON = frozenset(["opt-barrier", "domain", "copy"])


def pad_computations(computations: Sequence[Computation], module: Module) -> None:
    """Rewrite computations, of which some have dynamic arrays; callees before callers."""
    interfaces = {c: Interface([p.shape for p in c.parameters], c.root.shape) for c in computations}
    for computation in computations:
        Walk(module, computation, interfaces).run()


def without_sizes(computation: Computation, have: Shape, want: Shape) -> None:
    """Remove from the root, of shape `have`, the sizes of the arrays that are static in `want`."""
    names, made = Names(i.name for i in computation.instructions), computation.instructions

    def add(opcode: str, shape: Shape, operands: list[Instruction], **attributes: Any) -> Instruction:
        made.append(Instruction(names.fresh(opcode), opcode, shape, operands, attributes, span=computation.root.span))
        return made[-1]

    def part(value: Instruction, number: int) -> Instruction:
        return add("get-tuple-element", value.shape.tuple_shapes[number], [value], index=number)

    def taken(value: Instruction, have: Shape, want: Shape) -> Instruction:
        if have.is_aggregate:
            parts = [taken(part(value, n), *pair) for n, pair in enumerate(zip(have.tuple_shapes, want.tuple_shapes))]
            return add("tuple", Shape.tuple(p.shape for p in parts), parts)
        sizes = [w for h, w in zip(dynamic_of(have), dynamic_of(want)) if h]
        if all(sizes):
            return value
        kept = [part(value, 0), *(part(value, 1 + n) for n, wanted in enumerate(sizes) if wanted)]
        return kept[0] if len(kept) == 1 else add("tuple", Shape.tuple(k.shape for k in kept), kept)

    computation.root = taken(computation.root, have, want)


@dataclass
class Interface:
    """The original shapes of a computation's parameters and result; `agreed` once a caller relies on its new result."""

    parameters: list[Shape]
    root: Shape
    agreed: bool = False


def padded_shape(shape: Shape) -> Shape:
    """The shape with each dynamic array as a tuple of the array at its bounds and its sizes."""
    if not has_dynamic(shape):
        return shape
    if shape.is_aggregate:
        return replace(shape, tuple_shapes=tuple(padded_shape(s) for s in shape.tuple_shapes))
    return Shape.tuple([static(shape), *[array("s32")] * sum(shape.dynamic_dimensions)])


class Walk:
    """One computation. `whole` maps an old instruction to its replacement; `split` to the parts of a dynamic array."""

    def __init__(self, module: Module, computation: Computation, interfaces: dict[Computation, Interface]):
        self.module = module
        self.computation = computation
        self.interfaces = interfaces
        self.names = Names(i.name for i in computation.instructions)
        self.made: list[Instruction] = []
        self.whole: dict[Instruction, Instruction] = {}
        self.split: dict[Instruction, Padded] = {}
        self.packed: dict[Instruction, Instruction] = {}
        self.like = computation.root
        self.e = Sizes(self)

    def add(self, opcode: str, shape: Shape, operands: Iterable[Instruction] = (),
            attributes: Mapping[str, Any] | None = None, *, literal: np.ndarray | tuple | None = None) -> Instruction:
        merged = dict(attributes or {})
        inherit_annotations(merged, self.like, shape)
        new = Instruction(self.names.fresh(opcode), opcode, shape, operands, merged, literal=literal,
                          span=self.like.span)
        self.made.append(new)
        return new

    def run(self) -> None:
        computation = self.computation
        for instruction in computation.instructions:
            self.like = instruction
            self.step(instruction)
        root = self.pack(computation.root)
        computation.instructions, computation.root = self.made, root
        for instruction in self.made:
            instruction.control_predecessors = tuple(
                self.whole[p] for p in instruction.control_predecessors if p in self.whole)
        remove_dead(computation)

    def step(self, i: Instruction) -> None:
        self.e.span = i.span
        shapes = [i.shape, *(o.shape for o in i.operands)]
        if i.opcode in CALLERS:
            called = [self.interfaces[c] for c in i.called_computations]
            shapes += [s for c in called for s in (c.root, *c.parameters)]
        if not any(map(has_dynamic, shapes)):
            return self.keep(i)
        if any(UNBOUNDED in leaf.dimensions for leaf in leaves(i.shape)):
            raise UnsupportedError(f"'{i.opcode}' of unbounded dimensions cannot be compiled", i.span,
                                   hint="give them a bound: f32[<=8] instead of f32[?]")
        if i.opcode == "tuple" or i.opcode == "parameter" or i.opcode in CALLERS or (
                i.opcode in HANDED_ON and i.shape.is_tuple):
            return self.restructure(i)
        if i.opcode == "get-tuple-element":
            whole = self.whole[i.operands[0]]
            element = i.operands[0].shape.tuple_shapes[i.get("index")]
            if not padded_shape(element).compatible(padded_shape(i.shape)):
                raise self.refuse(i, "from a tuple that says something else about dynamic dimensions")
            part = whole.operands[i.get("index")] if whole.opcode == "tuple" else self.e.op(
                "get-tuple-element", whole, index=i.get("index"))
            return self.set_whole(i, part)
        rule = RULES.get(i.opcode)
        if rule is None:
            raise UnsupportedError(f"'{i.opcode}' of dynamic dimensions cannot be compiled", i.span)
        result = rule(self, i)
        if isinstance(result, Padded):
            self.split[i] = result
        elif i.shape.is_dynamic:
            self.split[i] = self.padded(i, result, {})
        else:
            self.whole[i] = result

    def keep(self, i: Instruction) -> None:
        """An instruction without dynamic dimensions, with its new operands."""
        i.operands = [self.whole[o] for o in i.operands]
        self.whole[i] = i
        self.made.append(i)

    def restructure(self, i: Instruction) -> None:
        """Tuples and calls: dynamic arrays are passed as tuples."""
        operands = [self.pack(o) for o in i.operands]
        if i.opcode in CALLERS:
            operands = self.call_operands(i, operands)
        shape = padded_shape(i.shape)
        if i.opcode == "tuple":
            shape = Shape.tuple(o.shape for o in operands)
        new = i.copy(operands=operands, shape=shape)
        new.attributes.pop("sharding", None)
        self.made.append(new)
        self.set_whole(i, new)

    def call_operands(self, i: Instruction, operands: list[Instruction]) -> list[Instruction]:
        """The operands in the form of the callees' parameters; the callees' results get the shape of the caller. If an
        array is dynamic for one and static for the other, its size is its bound."""
        named = i.get("branch_computations") or [i.get(k) for k in CALLERS[i.opcode]]
        callees = [c for c in named if isinstance(c, Computation)]
        shapes = [o.shape for o in i.operands]
        for n, callee in enumerate(callees):
            taken = [1 + n] if i.opcode == "conditional" else range(len(operands))
            for k, wanted in zip(taken, self.interfaces[callee].parameters):
                operands[k], shapes[k] = self.adapted(i, operands[k], shapes[k], wanted), wanted
            if i.opcode != "while" or callee is not i.get("condition"):
                self.adapt_root(i, callee)
        if i.opcode == "while" and not padded_shape(shapes[0]).compatible(padded_shape(i.shape)):
            raise self.disagreement(i)
        return operands

    def adapt_root(self, i: Instruction, callee: Computation) -> None:
        """Gives a callee's result the shape in its caller, unless another caller relies on the current one."""
        interface = self.interfaces[callee]
        if interface.agreed and not padded_shape(interface.root).compatible(padded_shape(i.shape)):
            raise self.disagreement(i)
        interface.agreed = True
        end = Walk(self.module, callee, self.interfaces)
        end.made, end.like, end.e.span = callee.instructions, callee.root, i.span
        callee.root = end.adapted(i, callee.root, interface.root, i.shape)
        interface.root = i.shape

    def adapted(self, i: Instruction, value: Instruction, have: Shape, want: Shape) -> Instruction:
        """A value of shape `have`, padded, as one of shape `want`."""
        if padded_shape(have).compatible(padded_shape(want)):
            return value
        if have.is_tuple and want.is_tuple and len(have.tuple_shapes) == len(want.tuple_shapes):
            parts = [self.adapted(i, self.e.op("get-tuple-element", value, index=n), *shapes)
                     for n, shapes in enumerate(zip(have.tuple_shapes, want.tuple_shapes))]
            return self.e.op("tuple", *parts)
        sizes = [dynamic_of(have), dynamic_of(want)]
        if have.is_tuple or want.is_tuple or not static(have).compatible(static(want)) or any(
                had and not wanted for had, wanted in zip(*sizes)):
            raise self.disagreement(i)
        parts = [self.e.op("get-tuple-element", value, index=n) for n in range(1 + sum(sizes[0]))] if any(
            sizes[0]) else [value]
        known = iter(parts[1:])
        return self.e.op("tuple", parts[0], *(next(known) if had else self.e.number(bound) for had, wanted, bound in
                                              zip(*sizes, want.dimensions) if wanted))

    def disagreement(self, i: Instruction) -> UnsupportedError:
        return UnsupportedError(f"'{i.opcode}' where caller and callee disagree about dynamic dimensions", i.span)

    def set_whole(self, i: Instruction, new: Instruction) -> None:
        self.whole[i] = new
        if not i.shape.is_dynamic:
            return
        parts = list(new.operands) if new.opcode == "tuple" else [
            self.e.op("get-tuple-element", new, index=n) for n in range(len(new.shape.tuple_shapes))]
        sizes = iter(parts[1:])
        self.split[i] = Padded(parts[0], tuple(next(sizes) if flag else None for flag in i.shape.dynamic_dimensions))
        self.packed[i] = new

    # -- for rules -----------------------------------------------------------------------------------------------------

    def pack(self, i: Instruction) -> Instruction:
        """One instruction that replaces an old one where the whole value is needed."""
        if i not in self.split:
            return self.whole[i]
        if i not in self.packed:
            x = self.split[i]
            self.packed[i] = self.e.op("tuple", x.array, *(s for s in x.sizes if s is not None))
        return self.packed[i]

    def operand(self, i: Instruction, number: int) -> Padded:
        """An array operand with its sizes."""
        old = i.operands[number]
        return self.split.get(old) or Padded(self.whole[old], (None,) * old.shape.rank)

    def operands(self, i: Instruction) -> list[Padded]:
        return [self.operand(i, n) for n in range(len(i.operands))]

    def again(self, i: Instruction, operands: Iterable[Instruction], shape: Shape | None = None) -> Instruction:
        """The same op at the bounds."""
        attributes = {k: v for k, v in i.attributes.items() if k != "sharding"}
        return self.add(i.opcode, shape or static(i.shape), operands, attributes, literal=i.literal)

    def sized(self, i: Instruction, new: Instruction, sizes: Mapping[int, Instruction | None]) -> Padded | Instruction:
        """`new` with sizes for the dimensions that are dynamic in `i`, if any; the bound if no size is known."""
        return self.padded(i, new, sizes) if i.shape.is_dynamic else new

    def padded(self, i: Instruction, new: Instruction, sizes: Mapping[int, Instruction | None]) -> Padded:
        return Padded(new, tuple(
            (sizes.get(d) or self.e.number(i.shape.dimensions[d])) if flag else None
            for d, flag in enumerate(i.shape.dynamic_dimensions)))

    def of_bounds(self, i: Instruction, new: Instruction) -> Padded | Instruction:
        return self.sized(i, new, {})

    def refuse(self, i: Instruction, what: str) -> UnsupportedError:
        return UnsupportedError(f"'{i.opcode}' {what} cannot be compiled", i.span)
