"""A module with its fusions and calls looked through, so that an instruction has the same operands inside and outside.

    f { p = parameter(0)  n = negate(p) }                 unit e: x, exponential(x), negate(exponential)
    e { x = parameter(0)  a = exponential(x)         =>   home of negate: f
        r = fusion(a), calls=f }

A unit is a computation that is not looked through (the entry, bodies of loops, branches, reducers), with the
computations that one fusion or call of it alone names. Some instructions represent others: a fusion represents the root
of its computation, a parameter there the operand, a get-tuple-element of a tuple the tuple's operand.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from hloc.ir import Computation, Instruction, Module

TRANSPARENT_CALLERS = frozenset(["fusion", "call"])


class Unit:
    """nodes: in the order of execution; root: the node that is the result."""

    def __init__(self, computation: Computation, root: Instruction, nodes: list[Instruction]):
        self.computation = computation
        self.root = root
        self.nodes = nodes


class FlatModule:
    """The nodes of a module by unit.

    units      by computation, callees first
    caller     the instruction that calls an inlined computation
    home       the computation that holds an instruction, for all of them
    operands   of each node, as nodes
    users      of each node: (user, slot)
    stands_for the node that each other instruction represents
    """

    def __init__(self, module: Module):
        self.module = module
        self.caller = _only_callers(module)
        self.home: dict[Instruction, Computation] = {i: c for c in module.computations for i in c.instructions}
        self.operands: dict[Instruction, tuple[Instruction, ...]] = {}
        self.stands_for: dict[Instruction, Instruction] = {}
        self.units = {c: self._unit(c) for c in module.computations if c not in self.caller}
        self.users: dict[Instruction, list[tuple[Instruction, int]]] = {node: [] for node in self.operands}
        for node, operands in self.operands.items():
            for slot, operand in enumerate(operands):
                self.users[operand].append((node, slot))

    def node(self, instruction: Instruction) -> Instruction:
        """The node that an instruction is or represents."""
        return self.stands_for.get(instruction, instruction)

    def _unit(self, computation: Computation) -> Unit:
        nodes: list[Instruction] = []
        open_calls: list[tuple[Instruction | None, Iterator[Instruction]]] = [(None, iter(computation.instructions))]
        while open_calls:
            call, rest = open_calls[-1]
            instruction = next(rest, None)
            if instruction is None:
                open_calls.pop()
                if call is not None:
                    self.stands_for[call] = self.node(call.called_computations[0].root)
            elif instruction.opcode in TRANSPARENT_CALLERS and self._enter(instruction):
                open_calls.append((instruction, iter(instruction.called_computations[0].instructions)))
            elif not (instruction in self.stands_for or self._is_element_of_tuple(instruction)):
                self.operands[instruction] = tuple(map(self.node, instruction.operands))
                nodes.append(instruction)
        return Unit(computation, self.node(computation.root), nodes)

    def _enter(self, call: Instruction) -> bool:
        """Bind the parameters of the computation that `call` alone calls. False if others call it, too."""
        callee = call.called_computations[0]
        if self.caller.get(callee) is not call:
            return False
        for parameter in callee.parameters:
            self.stands_for[parameter] = self.node(call.operands[parameter.number])
        return True

    def _is_element_of_tuple(self, instruction: Instruction) -> bool:
        if instruction.opcode != "get-tuple-element":
            return False
        whole, index = self.node(instruction.operands[0]), instruction.get("index")
        if whole.opcode != "tuple" or index >= len(self.operands[whole]):
            return False
        self.stands_for[instruction] = self.operands[whole][index]
        return True


def _only_callers(module: Module) -> Mapping[Computation, Instruction]:
    """The computations that exactly one fusion or call names."""
    callers: dict[Computation, Instruction] = {}
    times: Counter[Computation] = Counter()
    for instruction in module.instructions():
        for callee in instruction.called_computations:
            times[callee] += 1
            callers[callee] = instruction
    return {c: i for c, i in callers.items() if times[c] == 1 and i.opcode in TRANSPARENT_CALLERS
            and c is not module.entry and len(i.called_computations) == 1 and _takes(c, i)}


def _takes(computation: Computation, call: Instruction) -> bool:
    """Whether there is an operand for each parameter: modules that break rules are compared, too."""
    return [p.parameter_number for p in computation.parameters] == list(range(len(call.operands)))
