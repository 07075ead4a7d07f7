"""Module -> Program: kernels, steps and memory.

In: a module after the target-dependent passes (fused, row-major, scheduled, copies inserted). Out: a plan.Program.

The planner walks the schedule of the entry once; control flow is walked in place (control_flow.py), so that every
instruction of the program has one time on a single timeline. Steps of all others are made in launches.py. After the
walk the assignment places the values and the drafts become steps.

    program = plan_module(module, machine)
"""
from __future__ import annotations

from math import prod

import numpy as np

from hloc.analysis.aliasing import element_leaves
from hloc.analysis.counters import counted_loops
from hloc.devices import device_counts
from hloc.errors import UnsupportedError, elided_constant
from hloc.inputs import Parameter, entry_parameters, entry_results
from hloc.ir import Computation, Instruction, Module, leaves
from hloc.kernels.buffer_assignment import Home
from hloc.kernels.control_flow import ControlFlow
from hloc.kernels.launches import collective, host_call, launch, transfer
from hloc.kernels.overlap import with_late_ends
from hloc.kernels.plan import NO_WORKSPACE, Program, Workspace
from hloc.kernels.plan_state import Draft, Leaves, finish
from hloc.machine import Machine
from hloc.ops.collectives import meets_devices

DEEPEST_NESTING = 200
FORWARDING = frozenset(["bitcast", "reshape", "opt-barrier", "domain", "copy-start", "copy-done", "add-dependency"])
CONTROL_FLOW = {"while": ControlFlow.while_loop, "conditional": ControlFlow.conditional, "call": ControlFlow.call}
TRANSFERS = frozenset(["infeed", "outfeed", "send", "recv"])


class Planner(ControlFlow):
    """The walk of a module's instructions."""

    def computation(self, computation: Computation, arguments: list[Leaves]) -> tuple[list[Draft], Leaves]:
        """Drafts for all instructions of a computation, and the leaves of its root."""
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise UnsupportedError(f"control flow nested deeper than {DEEPEST_NESTING} levels", computation.span)
        table: dict[Instruction, Leaves] = {}
        steps: list[Draft] = []
        if self.machine.kind == "gpu":
            loops = counted_loops(computation)
            self.counted.update(loops)
            self.uncomputed.update((c.first, self.made_by(c.first, c.values.itemsize))
                                   for found in loops.values() for c in found if c.first is not None)
        for instruction in computation.instructions:
            self.time += 1
            self.schedule.append((self.time, instruction))
            table[instruction] = self.instruction(instruction, table, arguments, steps)
        self.depth -= 1
        return steps, table[computation.root]

    def instruction(self, instruction: Instruction, table: dict, arguments: list[Leaves], steps: list[Draft]) -> Leaves:
        """The leaves of one instruction; its steps are added to `steps`."""
        opcode = instruction.opcode
        if opcode == "parameter":
            return arguments[instruction.number]
        if instruction in self.uncomputed:
            return [self.uncomputed[instruction]]
        operands = [table[o] for o in instruction.operands]
        if opcode in FORWARDING:
            return operands[0]
        if opcode == "copy" and instruction.shape.on_host != self.assignment.root(operands[0][0]).on_host:
            return transfer(self, instruction, operands[0][0], steps)
        if opcode == "tuple":
            return [leaf for operand in operands for leaf in operand]
        if opcode == "get-tuple-element":
            first, count = element_leaves(instruction)
            return operands[0][first:first + count]
        if opcode in ("after-all", "partition-id", "replica-id") and not list(leaves(instruction.shape)):
            return []
        if opcode == "constant":
            literals = zip(_literal_leaves(instruction), leaves(instruction.shape))
            return [self.constant(np.asarray(a), s) for a, s in literals]
        self.land([v for o in operands for v in o])
        if opcode in CONTROL_FLOW:
            return CONTROL_FLOW[opcode](self, instruction, operands, steps)
        if meets_devices(instruction):
            return collective(self, instruction, operands, steps)
        if opcode == "custom-call" or opcode in TRANSFERS:
            return host_call(self, instruction, operands, steps)
        return launch(self, instruction, operands, steps)


def _literal_leaves(instruction: Instruction) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    stack = [instruction.literal]
    while stack:
        top = stack.pop()
        if top is None:
            raise elided_constant(instruction.span)
        if isinstance(top, tuple):
            stack.extend(reversed(top))
        else:
            found.append(top)
    return found


def plan_module(module: Module, machine: Machine, workspace: Workspace = NO_WORKSPACE,
                bound: frozenset[int] = frozenset()) -> Program:
    """Plan a whole module. workspace: what the target's library kernels take, else they bring memory of their own;
    bound: numbers of parameters whose arrays are the same in all runs. Raises UnsupportedError, located, for
    what no kernel can do."""
    return planned(Planner(module, machine, workspace=workspace, bound=bound))


def planned(planner: Planner) -> Program:
    """The program of a new planner, which afterwards knows the purpose of each piece of memory."""
    module, assignment = planner.module, planner.assignment
    parameters = tuple(entry_parameters(module))
    inputs = [assignment.new(v.shape.num_bytes, Home("parameter", i), v.shape.on_host)
              for i, v in enumerate(parameters)]
    rest = iter(inputs)
    drafts, root = planner.computation(module.entry, [[next(rest) for _ in leaves(p.shape)]
                                                      for p in module.entry.parameters])
    planner.time += 1
    results = tuple(entry_results(module))
    drafts += _results(planner, root, results)
    for result, operand, time in planner.sharing:
        assignment.share_if_dead(result, operand, time)
    apart = planner.machine.kind == "gpu"
    assignment.place(apart)
    kernels = tuple(planner.kernels.kernels)
    steps = finish(drafts, assignment.ref)
    if planner.collective_numbers:
        steps = with_late_ends(steps, kernels)
    return Program(module.name, kernels, steps, parameters, results, tuple(planner.constants), assignment.arena_size,
                   kept=planner.workspace.kept(kernels, planner.machine),
                   gaps=assignment.gaps, setup=finish(planner.setup, assignment.ref),
                   held=tuple(planner.held), devices=prod(device_counts(module)),
                   host_arena_size=assignment.host_arena_size, host_apart=apart)


def _results(planner: Planner, root: Leaves, results: tuple[Parameter, ...]) -> list[Draft]:
    """Give each result leaf its own memory: the value is computed there, or copied at the end."""
    steps: list[Draft] = []
    for index, value in enumerate(root):
        home = planner.assignment.new(value.size, Home("result", index), results[index].shape.on_host)
        if planner.assignment.can_join(home, value) and not planner.is_fixed(value):
            planner.assignment.join(home, value)
            planner.assignment.use(value, planner.time)
        else:
            planner.copy(home, value, steps)
    return steps
