"""Partitions a computation, instruction by instruction."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Computation, Instruction, Module, Shape, Verbatim, parts_of, users
from hloc.ir.clone import clone_computation, translated
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Channels, Names
from hloc.passes.sharding_propagation import own_annotation
from hloc.passes.sharding_propagation.graph import (
    CALLERS,
    HANDED_ON,
    SHARDING,
    TO_FULL,
    TO_SHARD,
    annotation_call,
    calls_of,
    part_range,
    rule_of,
)
from hloc.passes.spmd_partitioner.choice import choose, joined, operand_axes, partial_axes
from hloc.passes.spmd_partitioner.emitter import Emitter
from hloc.passes.spmd_partitioner.local_ops import DROPPED, LocalOp
from hloc.passes.spmd_partitioner.sides import Producers, Side, redistribution
from hloc.sharding.factors import FactorAxes, dimension_axes
from hloc.sharding.meshes import Axes, AxisSharding, DeviceMesh, replicated
from hloc.sharding.rules import ShardingRule
from hloc.sharding.window_rules import rotated, rotation

Shardings = list[AxisSharding]
# What talks to the host, of which there is one.
OF_THE_HOST = frozenset(["infeed", "outfeed", "send", "recv", "send-done", "recv-done"])
# Of one device's number, or the same everywhere, whatever the sharding.
NOT_TOLD = frozenset(["rng-bit-generator", "rng", "rng-get-and-update-state", "partition-id", "constant"])


class Partitioner:
    """made: the computations of one device, by those of all; giving: copies of them, by the sharding of the result."""

    def __init__(self, module: Module, mesh: DeviceMesh, context: PassContext, channels: Channels):
        self.module, self.mesh, self.context, self.channels = module, mesh, context, channels
        self.made: dict[Computation, Computation] = {}
        self.giving: dict[tuple[Computation, tuple[tuple[Axes, ...], ...]], Computation] = {}
        self.names = Names(c.name for c in module.computations)
        self._annotations: dict[Instruction, Shardings] = {}
        self.producers = Producers(self.shardings)

    def partition(self, computation: Computation) -> None:
        """Callees come before their callers."""
        walk, used_by = _Walk(self, computation), users(computation)
        for instruction in computation.instructions:
            readers = used_by[instruction]
            if not (instruction.opcode == "slice" and readers and all(map(rotation, readers))):
                walk.add(instruction)
        self.made[computation] = walk.finish()

    def annotate(self, instruction: Instruction, shardings: Shardings) -> None:
        self._annotations[instruction] = shardings

    def shardings(self, instruction: Instruction) -> Shardings:
        """One for each part of the result."""
        if instruction not in self._annotations:
            found = own_annotation(instruction, self.mesh)
            self._annotations[instruction] = found if found is not None else [
                replicated(part.rank) for part in parts_of(instruction.shape)]
        return self._annotations[instruction]


class _Walk:
    def __init__(self, partitioner: Partitioner, computation: Computation):
        self.partitioner, self.computation = partitioner, computation
        self.mesh = partitioner.mesh
        self.emitter = Emitter(partitioner.module, self.mesh, partitioner.channels, computation,
                               partitioner.context.made_for)
        self.values: dict[Instruction, Instruction] = {}
        self._recomputed: dict[tuple[Instruction, tuple[Axes, ...]], Instruction] = {}
        self.of = partitioner.shardings

    def add(self, instruction: Instruction) -> None:
        self.emitter.like = instruction
        if instruction.opcode in OF_THE_HOST:
            raise UnsupportedError(f"{instruction.opcode} in a program that is divided over {self.mesh.size} devices",
                                   instruction.span)
        special = _SPECIAL.get(annotation_call(instruction) or instruction.opcode)
        self.values[instruction] = special(self, instruction) if special else self._op(instruction)

    def finish(self) -> Computation:
        old, root = self.computation, self.values[self.computation.root]
        if old is self.partitioner.module.entry:
            root = self._annotated(root, old.root)
        return Computation(old.name, self.emitter.instructions, root, dict(old.attributes), old.span)

    def _annotated(self, root: Instruction, old: Instruction) -> Instruction:
        """The root with the sharding of the results, by which they are put together again."""
        if root.opcode == "parameter" or root in [self.values[i] for i in self.computation.instructions
                                                  if i.opcode == "parameter"]:
            root = self.emitter.add("copy", root.shape, [root])
        root.attributes["sharding"] = Verbatim(str(old.get("sharding")))
        return root

    # -- values --------------------------------------------------------------------------------------------------------

    def whole(self, instruction: Instruction, rank: int) -> AxisSharding:
        """Its array on every device."""
        return replicated(rank, self.of(instruction)[0].manual)

    def part(self, instruction: Instruction, target: AxisSharding) -> Instruction:
        """An array operand in the sharding `target`."""
        return self.tree(instruction, [target])

    def tree(self, instruction: Instruction, target: Sequence[AxisSharding]) -> Instruction:
        """An operand, which may be a tuple, with its parts in such shardings."""
        if instruction.shape.is_array and self.of(instruction)[0].dimensions != target[0].dimensions:
            side = self.partitioner.producers.side((), instruction)
            known = redistribution(side, target[0].dimensions, self.mesh).known
            if known is not None:
                return self._rematerialized(instruction, target[0], known)
        self.emitter.moved = instruction
        moved = self._tree(self.values[instruction], instruction.shape, self.of(instruction), target)
        self.emitter.moved = None
        return moved

    def _rematerialized(self, instruction: Instruction, target: AxisSharding, known: FactorAxes) -> Instruction:
        """An array computed once more, of its operands as the factors of its op divide them."""
        key = instruction, target.dimensions
        if key not in self._recomputed:
            rule = rule_of(instruction)
            assert rule is not None
            sources = [AxisSharding(dimension_axes(known, mapping, rule, self.mesh), target.manual)
                       for mapping in rule.operands]
            values = [self.part(o, source) for o, source in zip(instruction.operands, sources)]
            local = LocalOp(self.emitter, instruction, rule, known, sources, [target], ())
            self._recomputed[key] = local.write(values, None)
        return self._recomputed[key]

    def _tree(self, value: Instruction, shape: Shape, source: Sequence[AxisSharding],
              target: Sequence[AxisSharding]) -> Instruction:
        if all(a.dimensions == b.dimensions for a, b in zip(source, target)):
            return value
        if not shape.is_tuple:
            return self.emitter.reshard(value, shape.dimensions, source[0], target[0])
        parts, low = [], 0
        for index, part in enumerate(shape.tuple_shapes):
            high = low + len(parts_of(part))
            parts.append(self._tree(self._element(value, index), part, source[low:high], target[low:high]))
            low = high
        return self.emitter.add("tuple", Shape.tuple(p.shape for p in parts), parts)

    def _element(self, value: Instruction, index: int) -> Instruction:
        if value.opcode == "tuple":
            return value.operands[index]
        return self.emitter.add("get-tuple-element", value.shape.tuple_shapes[index], [value], {"index": index})

    def local(self, shape: Shape, shardings: Sequence[AxisSharding]) -> Shape:
        return self._local(shape, iter(shardings))

    def _local(self, shape: Shape, shardings: Iterator[AxisSharding]) -> Shape:
        if shape.is_aggregate:
            return Shape.tuple(self._local(s, shardings) for s in shape.tuple_shapes)
        return self.emitter.local(shape, next(shardings))

    def copied(self, instruction: Instruction, shape: Shape, operands: Sequence[Instruction],
               **attributes: Any) -> Instruction:
        """The instruction on other operands."""
        kept = {k: v for k, v in instruction.attributes.items() if k not in DROPPED} | attributes
        new = self.emitter.add(instruction.opcode, shape, operands, kept, literal=instruction.literal)
        new.parameter_number = instruction.parameter_number
        return new

    # -- structure -----------------------------------------------------------------------------------------------------

    def parameter(self, instruction: Instruction) -> Instruction:
        new = self.copied(instruction, self.local(instruction.shape, self.of(instruction)), ())
        new.name = self.emitter.names.unique(instruction.name)
        if self.computation is self.partitioner.module.entry:
            new.attributes["sharding"] = instruction.get("sharding")
        return new

    def constant(self, instruction: Instruction) -> Instruction:
        whole = self.copied(instruction, instruction.shape, ())
        source = [replicated(part.rank) for part in parts_of(instruction.shape)]
        return self._tree(whole, instruction.shape, source, self.of(instruction))

    def tuple_(self, instruction: Instruction) -> Instruction:
        parts, low = [], 0
        for operand in instruction.operands:
            high = low + len(parts_of(operand.shape))
            parts.append(self.tree(operand, self.of(instruction)[low:high]))
            low = high
        return self.emitter.add("tuple", Shape.tuple(p.shape for p in parts), parts)

    def element(self, instruction: Instruction) -> Instruction:
        operand = instruction.operands[0]
        low, high = part_range(operand.shape, instruction.get("index"))
        found = self._element(self.values[operand], instruction.get("index"))
        return self._tree(found, instruction.shape, self.of(operand)[low:high], self.of(instruction))

    def handed_on(self, instruction: Instruction) -> Instruction:
        first, *rest = instruction.operands
        value = self.tree(first, self.of(instruction))
        return self.copied(instruction, value.shape, [value, *(self.values[o] for o in rest)])

    def caller(self, instruction: Instruction) -> Instruction:
        """Operands and results as the callees have them: these have been partitioned."""
        operands: list[Instruction] = []
        if instruction.opcode == "conditional":
            selector = instruction.operands[0]
            operands.append(self.part(selector, self.whole(selector, 0)))
        calls = list(calls_of(instruction))
        for arguments, computation in calls[-1:] if instruction.opcode == "while" else calls:
            operands += [self.tree(a, self.of(p)) for a, p in zip(arguments, computation.parameters)]
        shardings = self.of(instruction)
        giving = {computation: self._giving(computation, shardings) for _, computation in calls
                  if instruction.opcode != "while" or computation is instruction.get("body")}
        attributes = {k: translated(v, self.partitioner.made | giving) for k, v in instruction.attributes.items()}
        return self.copied(instruction, self.local(instruction.shape, shardings), operands, **{
            k: v for k, v in attributes.items() if k not in DROPPED})

    def _giving(self, computation: Computation, shardings: Shardings) -> Computation:
        """A callee whose result is what this caller takes it for: its own, or a copy, because others may take it
        divided otherwise."""
        own, made = self.of(computation.root), self.partitioner.made[computation]
        if all(a.dimensions == b.dimensions for a, b in zip(own, shardings)):
            return made
        key = computation, tuple(s.dimensions for s in shardings)
        if key not in self.partitioner.giving:
            copy = clone_computation(made, self.partitioner.names.unique(made.name))
            walk = _Walk(self.partitioner, computation)
            walk.emitter.instructions, walk.emitter.like = copy.instructions, computation.root
            for instruction in copy.instructions:
                walk.emitter.names.unique(instruction.name)
            copy.root = walk._tree(copy.root, computation.root.shape, own, shardings)
            self.partitioner.giving[key] = copy
        return self.partitioner.giving[key]

    # -- annotations ---------------------------------------------------------------------------------------------------

    def constraint(self, instruction: Instruction) -> Instruction:
        return self.tree(instruction.operands[0], self.of(instruction))

    def to_shard(self, instruction: Instruction) -> Instruction:
        """Into a manual region: the part along the manual axes is all that the region knows."""
        (operand,), (inside,) = instruction.operands, self.of(instruction)
        return self.part(operand, self._outside(self.of(operand)[0], inside))

    def to_full(self, instruction: Instruction) -> Instruction:
        (operand,), (outside,) = instruction.operands, self.of(instruction)
        inside = self.of(operand)[0]
        source = self._outside(outside, inside)
        return self.emitter.reshard(self.values[operand], instruction.shape.dimensions, source, outside)

    def _outside(self, outside: AxisSharding, inside: AxisSharding) -> AxisSharding:
        """The sharding of the whole array that is one of `inside` in the region: its manual axes come first."""
        return AxisSharding(tuple(tuple(a for a in out if a in inside.manual) + own
                                  for out, own in zip(outside.dimensions, inside.dimensions)))

    # -- ops -----------------------------------------------------------------------------------------------------------

    def _op(self, instruction: Instruction) -> Instruction:
        rule = rule_of(instruction)
        if rule is None:
            return self._whole_op(instruction)
        turned = rotation(instruction)
        if turned is None:
            return self._divided(instruction, rule)
        work = Instruction(instruction.name, "copy", instruction.shape, [turned.source], span=instruction.span)
        self.partitioner.annotate(work, self.of(instruction))
        return self._divided(work, rotated(turned))

    def _divided(self, instruction: Instruction, rule: ShardingRule) -> Instruction:
        manual = frozenset().union(*(s.manual for s in self.of(instruction)),
                                   *(self.of(o)[0].manual for o in instruction.operands if o.shape.is_array))
        wanted = [s for s, part in zip(self.of(instruction), parts_of(instruction.shape)) if part.is_array]
        arrays = [part for part in parts_of(instruction.shape) if part.is_array]
        rule, operands, results, known = self._chosen(instruction, rule, wanted, manual)
        sources = [side and AxisSharding(operand_axes(rule, known, number, side, self.mesh), manual)
                   for number, side in enumerate(operands)]
        self._tell_gathers(instruction, rule, operands, sources)
        values = [self.part(o, s) if s is not None else self.values[o] for o, s in zip(instruction.operands, sources)]
        made = [AxisSharding(dimension_axes(known, side.mapping, rule, self.mesh), manual) for side in results]
        partial = partial_axes(rule, known)
        joining = joined(arrays[0].dimensions, made[0].dimensions, partial, wanted[0].dimensions,
                         self.mesh) if partial and not rule.again else None
        local = LocalOp(self.emitter, instruction, rule, known, sources, made, partial).write(values, joining)
        after = [AxisSharding(joining.axes, manual)] if joining else made
        return self._tree(local, instruction.shape, self._with_tokens(instruction.shape, after), self.of(instruction))

    def _chosen(self, instruction: Instruction, rule: ShardingRule, wanted: Sequence[AxisSharding],
                manual: frozenset[int]) -> tuple[ShardingRule, list[Side | None], list[Side], FactorAxes]:
        """The rule and the axes of its factors that cost least, with what operands and results are by that rule."""
        arrays = [part for part in parts_of(instruction.shape) if part.is_array]
        best, least = None, 0.0
        one: ShardingRule | None = rule
        while one is not None:
            operands = [self.partitioner.producers.side(m, o) if o.shape.is_array else None
                        for m, o in zip(one.operands, instruction.operands)]
            results = [Side(m, shape.dimensions, ELEMENT_TYPES[shape.element_type].bytes, s.dimensions)
                       for m, shape, s in zip(one.results, arrays, wanted)]
            cost, known = choose(one, tuple(operands), tuple(results), self.mesh, manual)
            if best is None or cost < least:
                best, least = (one, operands, results, known), cost
            one = one.other
        assert best is not None
        return best

    def _with_tokens(self, shape: Shape, arrays: Sequence[AxisSharding]) -> Shardings:
        rest = iter(arrays)
        return [next(rest) if part.is_array else replicated(0) for part in parts_of(shape)]

    def _tell_gathers(self, instruction: Instruction, rule: ShardingRule, operands: Sequence[Side | None],
                      sources: Sequence[AxisSharding | None]) -> None:
        """Operands that are divided along what must be whole, or what windows reach over almost all of."""
        reached = {(reach.operand, reach.dimension) for reach in rule.reaches}
        for number, (side, source) in enumerate(zip(operands, sources)):
            if side is None or source is None:
                continue
            for d, axes in enumerate(side.axes):
                is_whole = any(f in rule.whole for f in side.mapping[d]) or (
                    (number, d) in reached and not source.dimensions[d] and rule.sizes[side.mapping[d][0]] > 1)
                if axes and side.sizes[d] > 1 and is_whole:
                    self.partitioner.context.tell(
                        f"{instruction.opcode} %{instruction.name} reaches over all of dimension {d} of "
                        f"%{instruction.operands[number].name}, which is divided along {self.mesh.named(axes)}: each "
                        "device gets all of it", instruction.span)
                    return

    def _whole_op(self, instruction: Instruction) -> Instruction:
        """Each device does all of it."""
        divided = [o for o in instruction.operands if any(s.used for s in self.of(o))]
        if divided and instruction.opcode not in NOT_TOLD:
            self.partitioner.context.tell(
                f"{instruction.opcode} %{instruction.name} cannot be divided over devices: each does all of it",
                instruction.span)
        operands = [self.tree(o, [replicated(len(s.dimensions), s.manual) for s in self.of(o)])
                    for o in instruction.operands]
        if instruction.opcode == "bitcast" and operands[0].shape != instruction.operands[0].shape:
            operands = [self.emitter.add("copy", instruction.operands[0].shape, operands)]       # it reads the layout
        made = self.copied(instruction, instruction.shape, operands)
        source = [replicated(len(s.dimensions), s.manual) for s in self.of(instruction)]
        return self._tree(made, instruction.shape, source, self.of(instruction))


_SPECIAL: dict[str, Callable[[_Walk, Instruction], Instruction]] = {
    "parameter": _Walk.parameter, "constant": _Walk.constant, "tuple": _Walk.tuple_,
    "get-tuple-element": _Walk.element, SHARDING: _Walk.constraint, TO_SHARD: _Walk.to_shard, TO_FULL: _Walk.to_full,
    **dict.fromkeys(HANDED_ON, _Walk.handed_on), **dict.fromkeys(CALLERS, _Walk.caller),
}
