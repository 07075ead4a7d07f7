"""The arrays of a module, those that must be sharded alike, and how shardings go from one to another.

In: a module without calls. Out: a Graph. A node is an array of an instruction's result; tuples and what takes them
apart only hand nodes on, and a loop's state is one node in its body, condition and result. An edge is a ShardingRule
between nodes: that of an op, or equality, as between what a loop starts from and its state.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hloc.ir import UNBOUNDED, Computation, Instruction, Module, Shape, parts_of, reachable_computations
from hloc.ops.checks import target_of
from hloc.ops.table import OPS
from hloc.sharding.rules import ShardingRule
from hloc.sharding.window_rules import rotated, rotation

Node = int
CALLERS = ("while", "conditional", "call")
HANDED_ON = frozenset(["opt-barrier", "add-dependency", "domain"])
SHARDING, TO_SHARD, TO_FULL = "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"
ANNOTATIONS = frozenset([SHARDING, TO_SHARD, TO_FULL])


class Edge(NamedTuple):
    """nodes of the operands and of the results, in the order of the rule's mappings. kind: the opcode, or "same"."""

    kind: str
    rule: ShardingRule
    operands: tuple[Node | None, ...]
    results: tuple[Node, ...]
    instruction: Instruction


def has_dynamic_size(shape: Shape) -> bool:
    """Such arrays are not divided: which part holds elements is known when the program runs."""
    return shape.is_dynamic or UNBOUNDED in shape.dimensions


def rule_of(instruction: Instruction) -> ShardingRule | None:
    """How an instruction works on parts; None where each device must do all of it."""
    shapes = [part for o in instruction.operands for part in parts_of(o.shape)] + parts_of(instruction.shape)
    if any(o.shape.is_tuple for o in instruction.operands) or any(map(has_dynamic_size, shapes)):
        return None
    return OPS[instruction.opcode].sharding_rule(instruction)


def part_range(shape: Shape, index: int) -> tuple[int, int]:
    """Which parts of a tuple's its element `index` has."""
    before = sum(len(parts_of(s)) for s in shape.tuple_shapes[:index])
    return before, before + len(parts_of(shape.tuple_shapes[index]))


def annotation_call(instruction: Instruction) -> str | None:
    """The target of a custom call that only speaks of shardings."""
    if instruction.opcode != "custom-call" or len(instruction.operands) != 1:
        return None
    target = target_of(instruction)
    return target if target in ANNOTATIONS else None


class Graph:
    """nodes: by instruction, one for each part; shape: of each node; edges: in the order of the instructions; states:
    loops and their parameters, which have the same sharding."""

    def __init__(self, module: Module):
        self.module = module
        self.nodes: dict[Instruction, tuple[Node, ...]] = {}
        self.shapes: list[Shape] = []
        self.parents: list[Node] = []
        self.edges: list[Edge] = []
        self.states: set[Instruction] = set()
        self.computations = reachable_computations(module.entry)
        called = {c for f in self.computations for i in f.instructions if i.opcode in CALLERS
                  for c in i.called_computations}
        self.computations = [c for c in self.computations if c in called or c is module.entry]
        for computation in self.computations:
            for instruction in computation.instructions:
                self._add(instruction)

    def find(self, node: Node) -> Node:
        """The node that stands for all that are sharded as this one."""
        while self.parents[node] != node:
            self.parents[node] = self.parents[self.parents[node]]
            node = self.parents[node]
        return node

    def of(self, instruction: Instruction) -> list[Node]:
        return [self.find(node) for node in self.nodes[instruction]]

    def _add(self, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode == "tuple":
            self.nodes[instruction] = tuple(n for o in instruction.operands for n in self.nodes[o])
            return
        if opcode == "get-tuple-element":
            low, high = part_range(instruction.operands[0].shape, instruction.get("index"))
            self.nodes[instruction] = self.nodes[instruction.operands[0]][low:high]
            return
        if opcode in HANDED_ON:
            self.nodes[instruction] = self.nodes[instruction.operands[0]]
            return
        self.nodes[instruction] = tuple(map(self._node, parts_of(instruction.shape)))
        if opcode in CALLERS:
            self._add_calls(instruction)
        elif annotation_call(instruction) == SHARDING:
            self._same(instruction, instruction.operands[0], instruction)
        else:
            self._add_rule(instruction)

    def _node(self, shape: Shape) -> Node:
        self.shapes.append(shape)
        self.parents.append(len(self.parents))
        return len(self.parents) - 1

    def _add_rule(self, instruction: Instruction) -> None:
        rule, sources = rule_of(instruction), instruction.operands
        if rule is None:
            return
        turned = rotation(instruction)
        if turned is not None:
            rule, sources = rotated(turned), [turned.source]
        operands = [next(iter(self.nodes[o]), None) if o.shape.is_array else None for o in sources]
        results = [n for n in self.nodes[instruction] if self.shapes[n].is_array]
        self.edges.append(Edge(instruction.opcode, rule, tuple(operands), tuple(results), instruction))

    def _add_calls(self, instruction: Instruction) -> None:
        for arguments, computation in calls_of(instruction):
            for argument, parameter in zip(arguments, computation.parameters):
                self._same(instruction, argument, parameter)
            if instruction.opcode == "while":
                self._join(instruction, computation.parameters[0])
                if computation is instruction.get("body"):
                    self._same(instruction, computation.root, instruction)
            else:
                self._same(instruction, computation.root, instruction)

    def _same(self, instruction: Instruction, source: Instruction, target: Instruction) -> None:
        for a, b in zip(self.nodes[source], self.nodes[target]):
            if self.shapes[a].is_array:
                self.edges.append(Edge("same", equal_rule(self.shapes[a]), (a,), (b,), instruction))

    def _join(self, one: Instruction, other: Instruction) -> None:
        self.states |= {one, other}
        for a, b in zip(self.nodes[one], self.nodes[other]):
            self.parents[self.find(b)] = self.find(a)


def calls_of(instruction: Instruction) -> Iterator[tuple[Sequence[Instruction], Computation]]:
    """What a while, conditional or call calls, with what it hands over."""
    if instruction.opcode == "while":
        for key in ("condition", "body"):
            yield instruction.operands, instruction.get(key)
    elif instruction.opcode == "conditional":
        for operand, computation in zip(instruction.operands[1:], instruction.called_computations):
            yield [operand], computation
    else:
        yield instruction.operands, instruction.get("to_apply")


def equal_rule(shape: Shape) -> ShardingRule:
    """Two arrays of one shape, sharded alike."""
    mapping = tuple((d,) for d in range(shape.rank))
    return ShardingRule(shape.dimensions, (mapping,), (mapping,))
