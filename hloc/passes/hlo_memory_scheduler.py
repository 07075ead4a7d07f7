"""Orders the instructions of every computation so that a run needs little memory and updates stay in place.

    a = f32[1000] ...; b = f32[1000] ...; x = f32[] reduce(a); y = f32[] reduce(b)
    =>  a, x, b, y: only one of the large arrays is live at a time

Three orders are tried: the text's own, depth first from the root with the largest operands first, and a list schedule
that prefers instructions that free most; in each, instructions of parameters and constants move to their first reader.
The order with the smallest peak is used, the text's own on a tie. An op that overwrites its operand
(dynamic-update-slice, while, conditional, the next value of a carried leaf) runs after the other readers of that
operand if that closes no cycle; hloc/passes/copy_insertion.py then needs no copy. O(n log n).
"""
from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hloc.analysis.aliasing import FORWARDING, Values, branch_origins, in_place, leaf_values, module_invariants
from hloc.analysis.control_flow import executed_computations, is_control_flow
from hloc.analysis.effects import has_side_effect
from hloc.analysis.liveness import ALWAYS_THERE, made_bytes, peak_bytes, reads
from hloc.ir import Computation, Instruction, Module, topological_order
from hloc.passes.context import PassContext

Predecessors = dict[Instruction, list[Instruction]]
NO_SOURCES = ALWAYS_THERE | FORWARDING


def hlo_memory_scheduler(module: Module, context: PassContext) -> bool:
    """Schedule every computation that runs as a program; sets is_scheduled. True if an order changed."""
    changed = not module.is_scheduled
    invariants = module_invariants(module)
    origins = branch_origins(module, invariants)
    bodies = {i.get("body") for c in executed_computations(module) for i in c.instructions if i.opcode == "while"}
    peaks: dict[Computation, int] = {}
    for computation in executed_computations(module):
        scheduler = Scheduler(computation, leaf_values(computation, invariants), (invariants, origins),
                              computation in bodies, computation is module.entry)
        scheduler.inner = {i: max((peaks.get(c, 0) for c in i.called_computations), default=0)
                           for i in computation.instructions if i.called_computations}
        order, peaks[computation] = scheduler.best()
        changed |= order != computation.instructions
        computation.instructions = order
    module.is_scheduled = True
    return changed


class Scheduler:
    """Orders one computation."""

    def __init__(self, computation: Computation, values: Values, callees: tuple[Mapping, Mapping], is_body: bool,
                 is_entry: bool):
        self.computation, self.is_entry = computation, is_entry
        self.values = values
        self.callees = callees              # how bodies and branches use their parameters
        self.position = {i: n for n, i in enumerate(computation.instructions)}
        self.inner: dict[Instruction, int] = {}
        self.sources = self.find_sources()
        wanted = self.overwriting(is_body)
        self.predecessors = self.acyclic(wanted)

    def best(self) -> tuple[list[Instruction], int]:
        """The order with the smallest peak, and that peak in bytes."""
        orders = (self.with_late_sources(candidate())
                  for candidate in (self.as_written, self.depth_first, self.list_schedule))
        peaks = ((order, peak_bytes(order, self.computation.root, self.values, self.inner, is_entry=self.is_entry))
                 for order in orders)
        return min(peaks, key=lambda found: found[1])

    # -- constraints --------------------------------------------------------------------------------------------------

    def overwriting(self, is_body: bool) -> Predecessors:
        """For ops that overwrite an array: the other readers of that array, which should run before."""
        readers: dict = {}
        for instruction in self.computation.instructions:
            for value in reads(instruction, self.values):
                readers.setdefault(value, {})[instruction] = None
        writers: dict = {}
        for instruction in self.computation.instructions:
            for _, slot, leaf in in_place(instruction, self.values, *self.callees):
                writers[self.values[instruction.operands[slot]][leaf]] = instruction
        if is_body:
            self.add_carried(writers)
        wanted: Predecessors = {}
        for value, writer in writers.items():
            wanted.setdefault(writer, []).extend(r for r in readers.get(value, ()) if r is not writer)
        return wanted

    def add_carried(self, writers: dict) -> None:
        """For the next value of a carried leaf: the readers of the present one, which it overwrites."""
        before = self.values[self.computation.parameters[0]]
        after = self.values[self.computation.root]
        for old, new in zip(before, after):
            if old is not new and new.instruction.opcode not in ALWAYS_THERE:
                writers.setdefault(old, new.instruction)

    def acyclic(self, wanted: Predecessors) -> Predecessors:
        """Operands and control predecessors, and those of the wanted edges that close no cycle."""
        hard = {i: list(dict.fromkeys((*i.operands, *i.control_predecessors))) for i in self.computation.instructions}
        hard_left = {i: len(p) for i, p in hard.items()}
        soft_left = {i: len(p) for i, p in wanted.items()}
        followers: dict[Instruction, list[tuple[Instruction, bool]]] = {i: [] for i in hard}
        for table, is_hard in ((hard, True), (wanted, False)):
            for instruction, before in table.items():
                for other in before:
                    followers[other].append((instruction, is_hard))
        ready = [i for i in hard if not hard_left[i] and not soft_left.get(i)]
        held = [i for i in hard if not hard_left[i] and soft_left.get(i)]
        done: set[Instruction] = set()
        kept: Predecessors = {}
        while ready or held:
            instruction = ready.pop() if ready else held.pop()
            if instruction in done:
                continue
            kept[instruction] = [other for other in wanted.get(instruction, ()) if other in done]
            done.add(instruction)
            for other, is_hard in followers[instruction]:
                left = hard_left if is_hard else soft_left
                left[other] -= 1
                if not hard_left[other] and other not in done:
                    (held if soft_left.get(other) else ready).append(other)
        return {i: list(dict.fromkeys((*before, *kept[i]))) for i, before in hard.items()}

    def with_late_sources(self, order: list[Instruction]) -> list[Instruction]:
        """The order, but zeros to add to, converted weights and the like are made right before their first reader.

        Their operands are always live, so no other live range grows."""
        position = {instruction: n for n, instruction in enumerate(order)}
        place = dict(position)
        wanted: dict[Instruction, int] = {}                 # the position of the first user
        for instruction in reversed(order):
            if instruction in self.sources:
                place[instruction] = wanted.get(instruction, position[instruction])
            for other in self.predecessors[instruction]:
                wanted[other] = min(place[instruction], wanted.get(other, len(order)))
        return sorted(order, key=lambda i: (place[i], position[i]))

    def find_sources(self) -> set[Instruction]:
        """Instructions that read only parameters and constants, and ops that return such arrays."""
        sources: set[Instruction] = set()
        for instruction in self.computation.instructions:
            forwards = instruction.opcode in FORWARDING and any(o in sources for o in instruction.operands)
            if forwards or self.is_source(instruction):
                sources.add(instruction)
        return sources

    def is_source(self, instruction: Instruction) -> bool:
        """Whether it reads parameters and constants only; loops, which need memory of their own, stay."""
        return (instruction.opcode not in NO_SOURCES and not is_control_flow(instruction)
                and all(v.instruction.opcode in ALWAYS_THERE for v in reads(instruction, self.values))
                and not has_side_effect(instruction))

    # -- three orders ------------------------------------------------------------------------------------------------

    def as_written(self) -> list[Instruction]:
        """The text's order, changed only where an extra edge requires it."""
        return self.post_order(self.computation.instructions, lambda p: -self.position[p])

    def depth_first(self) -> list[Instruction]:
        """Operands right before their reader, the one with most memory below it first."""
        weight: dict[Instruction, int] = {}
        for instruction in self.as_written():
            below = max((weight[o] for o in self.predecessors[instruction]), default=0)
            weight[instruction] = max(below, made_bytes(instruction, self.values))
        parameters = [i for i in self.computation.instructions if i.opcode == "parameter"]
        starts = [*parameters, self.computation.root, *self.computation.instructions]
        return self.post_order(starts, lambda p: (weight[p], -self.position[p]))

    def post_order(self, starts: Iterable[Instruction], rank: Callable[[Instruction], Any]) -> list[Instruction]:
        """Everything reachable from `starts`, predecessors first, those with the highest rank first of all."""
        return topological_order(starts, lambda i: sorted(self.predecessors[i], key=rank)[::-1])

    def list_schedule(self) -> list[Instruction]:
        """Always the ready instruction that frees most bytes minus those it allocates; the text's order on a tie."""
        read = {i: set(reads(i, self.values)) for i in self.computation.instructions}
        unread: dict = {}
        for instruction, those in read.items():
            for value in those:
                unread.setdefault(value, set()).add(instruction)
        for value in self.values[self.computation.root]:
            unread.setdefault(value, set()).add(self.computation)
        followers: dict[Instruction, list[Instruction]] = {i: [] for i in self.predecessors}
        for instruction, before in self.predecessors.items():
            for other in before:
                followers[other].append(instruction)
        left = {i: len(p) for i, p in self.predecessors.items()}

        def entry(instruction: Instruction) -> tuple[int, int]:
            freed = sum(v.size for v in read[instruction]
                        if len(unread[v]) == 1 and v.instruction.opcode not in ALWAYS_THERE)
            return made_bytes(instruction, self.values) - freed, self.position[instruction]

        heap = [entry(i) for i, count in left.items() if not count]
        heapq.heapify(heap)
        done: set[Instruction] = set()
        order: list[Instruction] = []
        while heap:
            instruction = self.computation.instructions[heapq.heappop(heap)[1]]
            if instruction in done:
                continue
            done.add(instruction)
            order.append(instruction)
            for other in followers[instruction]:
                left[other] -= 1
                if not left[other]:
                    heapq.heappush(heap, entry(other))
            for value in read[instruction]:
                unread[value].discard(instruction)
                last = next(iter(unread[value])) if len(unread[value]) == 1 else None
                if isinstance(last, Instruction) and not left[last] and last not in done:
                    heapq.heappush(heap, entry(last))
        return order
