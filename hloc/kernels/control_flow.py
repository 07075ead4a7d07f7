"""Steps of loops, branches and calls, whose computations are walked in place.

In: the state of a plan (plan_state.py), an instruction, the leaves of its operands. Out: the leaves of its results; its
steps are added to a list.
"""
from __future__ import annotations

from hloc.analysis.aliasing import branch_operands, leaf_count
from hloc.analysis.control_flow import branches
from hloc.analysis.counters import Counted
from hloc.analysis.loop_annotations import known_trip_count
from hloc.errors import HlocError, UnsupportedError
from hloc.ir import Computation, Instruction
from hloc.ir.shapes import array
from hloc.kernels.buffer_assignment import Value
from hloc.kernels.plan import Branch, Counter, WhileLoop
from hloc.kernels.plan_state import Draft, Leaves, PlanState, finish

MOST_CALLED = 100_000            # instructions planned again for calls: nested calls can be exponentially many


class ControlFlow(PlanState):
    """The part of a walk that walks called computations."""

    def computation(self, computation: Computation, arguments: list[Leaves]) -> tuple[list[Draft], Leaves]:
        """The drafts of a computation, and the leaves of its root, for the leaves of its parameters."""
        raise NotImplementedError

    def call(self, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
        """The steps of the called computation, in place."""
        callee = instruction.get("to_apply")
        self.called += len(callee.instructions)
        if self.called > MOST_CALLED:
            raise UnsupportedError(f"calls of more than {MOST_CALLED:,} instructions in all", instruction.span)
        inner, result = self.computation(callee, operands)
        steps.extend(inner)
        return result

    def while_loop(self, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
        """Initial value, parameter, root and result of each carried leaf share one piece of memory."""
        carried = self._own(instruction, operands[0], steps)
        self.access(carried)
        trips = known_trip_count(instruction)
        condition, flag = ([], None) if self.machine.kind == "gpu" and trips is not None else self._condition(
            instruction, carried)
        counted = self.counted.get(instruction, ())
        counters = self._count(instruction, counted, carried)
        self.counting += [place for place, _ in counters]
        body, results = self.computation(instruction.get("body"), [carried])
        del self.counting[len(self.counting) - len(counters):]
        self.time += 1
        results = [carried[n] if n in self._leaves(instruction, counted) else leaf for n, leaf in enumerate(results)]
        body += self._carry(carried, results)
        self.access(carried + [place for place, _ in counters])
        steps.append(lambda ref: WhileLoop(
            finish(condition, ref), ref(flag) if flag else None, finish(body, ref), trips, instruction,
            tuple(Counter(ref(place), ref(values).part(0, place.size)) for place, values in counters)))
        for leaf, one in zip(self._leaves(instruction, counted), counted):
            self.uncomputed.pop(one.stepped, None)
            self.uncomputed.pop(one.returned, None)
            if one.is_read:
                self.copy(carried[leaf], self.constant(one.values[-1], one.stepped.shape), steps)
        return carried

    def _leaves(self, loop: Instruction, counted: tuple[Counted, ...]) -> list[int]:
        """The leaves of a loop's state that are counters."""
        return [sum(map(leaf_count, loop.shape.tuple_shapes[:one.element])) for one in counted]

    def _count(self, loop: Instruction, counted: tuple[Counted, ...], carried: Leaves) -> list[tuple[Value, Value]]:
        """The memory of counters, also of the next values that the body reads, and the constants with their values."""
        found = []
        for leaf, one in zip(self._leaves(loop, counted), counted):
            places = {carried[leaf]: one.values[:-1]}
            self.uncomputed[one.stepped] = self.uncomputed[one.returned] = carried[leaf]
            if one.steps_read:
                self.uncomputed[one.stepped] = self.made_by(one.stepped, one.values.itemsize)
                places[self.uncomputed[one.stepped]] = one.values[1:]
            for place, values in places.items():
                self.assignment.define(place, self.time)
                found.append((place, self.constant(values, array(one.stepped.shape.element_type, len(values)))))
        return found

    def _condition(self, loop: Instruction, carried: Leaves) -> tuple[list[Draft], Value]:
        """The steps of a loop's condition, and the flag that they write."""
        condition, flag = self.computation(loop.get("condition"), [carried])
        self.time += 1
        self.access(flag)
        return condition, flag[0]

    def _own(self, loop: Instruction, carried: Leaves, steps: list[Draft]) -> Leaves:
        """Copies of the leaves that the loop changes and that the program does not own: copy_insertion trusts donated
        parameters.

        A donated parameter is still the caller's array (input_output_alias allows sharing, it does not require it), so
        a run never changes the caller's arrays.
        """
        if not any(self.is_fixed(value) for value in carried):
            return carried
        owned = list(carried)
        kept = self.invariants[loop.get("body")]
        for leaf, value in enumerate(carried):
            if leaf not in kept and self.is_fixed(value):
                owned[leaf] = self.made_by(loop, value.size, self.assignment.root(value).on_host)
                self.copy(owned[leaf], value, steps)
        return owned

    def _carry(self, carried: Leaves, results: Leaves) -> list[Draft]:
        """Join each root leaf of a loop body to its carried leaf; a leaf that cannot share is copied at the end."""
        moves: list[tuple[Value, Value]] = []
        for value, result in zip(carried, results):
            if self.assignment.root(value) is self.assignment.root(result):
                continue
            if self.is_fixed(value):
                raise HlocError("internal: a loop would overwrite an entry parameter or a constant; "
                                "copy_insertion missed a copy of its initial value")
            if self.assignment.can_join(value, result):
                self.assignment.join(value, result)
            else:
                moves.append((value, result))
        steps: list[Draft] = []
        for value, result in moves:
            self.copy(value, result, steps)
        return steps

    def conditional(self, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
        """Every branch writes the same result memory: that of an array that a branch passes through or updates, if
        copy_insertion left it so."""
        selector = operands[0][0]
        self.access([selector])
        results = self.fresh(instruction)
        operands = self._given_to_branches(instruction, operands, results, steps)
        drafts: list[list[Draft]] = []
        self.access(v for o in operands[1:] for v in o)
        start = self.time
        for number, branch in enumerate(branches(instruction)):
            inner, root = self.computation(branch, [operands[1 + number]])
            self.time += 1
            for value, result in zip(root, results):
                if self.assignment.root(value) is self.assignment.root(result):
                    continue
                is_own = not self.is_fixed(value) and self.assignment.root(value).first > start
                if is_own and self.assignment.can_join(value, result):
                    self.assignment.join(result, value)
                else:
                    self.copy(result, value, inner)
            drafts.append(inner)
        self.access(results + [v for o in operands[1:] for v in o])
        kind = instruction.operands[0].shape.element_type
        steps.append(lambda ref: Branch(ref(selector), kind, tuple(finish(d, ref) for d in drafts), instruction))
        return results

    def _given_to_branches(self, conditional: Instruction, operands: list[Leaves], results: Leaves,
                           steps: list[Draft]) -> list[Leaves]:
        """Give results the memory of the arrays that branches hand through or update. The operands: a copy stands for a
        donated parameter, which is the caller's array all the same."""
        for result, slot, leaf in branch_operands(conditional, operands.__getitem__, self.origins):
            value = operands[slot][leaf]
            if not self.is_fixed(value):
                self.assignment.join(value, results[result])
                continue
            self.copy(results[result], value, steps)
            operands = [[results[result] if v is value else v for v in given] for given in operands]
        return operands
