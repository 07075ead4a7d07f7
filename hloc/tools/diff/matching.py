"""The correspondence of the instructions of two modules, by structure; names, lines and metadata are ignored.

In: two FlatModules. Out: a Matching with the pairs of instructions and of computations. The entry is matched first,
then the computations that matched instructions call, then all others. Within two computations:

1. instructions with equal content, equal operands and equal users (numbers from the operands up and the users down);
2. with equal operands; with equal users;
3. with equal neighbourhoods of three, two, one steps, in which matched instructions have one number;
4. neighbours of matched instructions: same slot or same reader, and the same opcode, shape and attributes, then
   without layouts, then the opcode alone.

Of several equal ones the first is matched with the first.
"""
from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from hloc.ir import Computation, Instruction
from hloc.tools.diff.flat import FlatModule, Unit
from hloc.tools.diff.keys import EXACT, LEVELS, NO_LAYOUT, Keys

RADII = (3, 2, 1)
Numbers = Mapping[Instruction, Hashable]
Slots = Sequence[tuple[Instruction, int]]


class Matching:
    """The pairs.

    forward, backward                 of instructions, both ways
    computations, computations_back   of computations
    unit_numbers                      of both modules, equal for units that compute the same
    """

    def __init__(self, before: FlatModule, after: FlatModule):
        self.before, self.after = before, after
        self.keys = Keys()
        self.forward: dict[Instruction, Instruction] = {}
        self.backward: dict[Instruction, Instruction] = {}
        self.computations: dict[Computation, Computation] = {}
        self.computations_back: dict[Computation, Computation] = {}
        self._numbers: dict[int, tuple[list[Numbers], list[Numbers]]] = {}       # by level, computed when needed
        up, self.unit_numbers = zip(*(_from_operands(flat, self.keys, EXACT) for flat in (before, after)))
        self._numbers[EXACT] = list(up), [_from_users(flat, self.keys, EXACT) for flat in (before, after)]
        self._match_units()
        self._match_leftovers()
        self._match_inlined()
        self._match_transparent()

    # -- pairs ---------------------------------------------------------------------------------------------------------

    def pair(self, old: Instruction, new: Instruction) -> bool:
        """Match two instructions that are still free. True if they were."""
        if old in self.forward or new in self.backward:
            return False
        self.forward[old], self.backward[new] = new, old
        return True

    def pair_computations(self, old: Computation, new: Computation) -> bool:
        if old in self.computations or new in self.computations_back:
            return False
        self.computations[old], self.computations_back[new] = new, old
        return True

    # -- units ---------------------------------------------------------------------------------------------------------

    def _match_units(self) -> None:
        """Match units from the entries on, along calls of matched instructions."""
        entries = self.before.module.entry, self.after.module.entry
        self.pair_computations(*entries)
        waiting = deque([entries])
        while waiting:
            old, new = (flat.units[c] for flat, c in zip((self.before, self.after), waiting.popleft()))
            self._match_nodes(old.nodes, new.nodes, (old, new))
            for node in old.nodes:
                for callees in _shared_callees(node, self.forward.get(node)):
                    if callees[0] in self.before.units and callees[1] in self.after.units and \
                            self.pair_computations(*callees):
                        waiting.append(callees)

    def _match_leftovers(self) -> None:
        """Match unreached units by content; then nodes that moved from one unit to another."""
        free = [[c for c in flat.units if c not in known] for flat, known in (
            (self.before, self.computations), (self.after, self.computations_back))]
        numbers_before, numbers_after = self.unit_numbers
        for old, new in _alike(free[0], free[1], numbers_before.get, numbers_after.get):
            self.pair_computations(old, new)
            self._match_nodes(self.before.units[old].nodes, self.after.units[new].nodes)
        self._match_nodes(list(self.before.operands), list(self.after.operands))

    def _match_nodes(self, old: Sequence[Instruction], new: Sequence[Instruction],
                     units: tuple[Unit, Unit] | None = None) -> None:
        for level in (EXACT, NO_LAYOUT):
            old, new = self._free(old, new)
            if old and new:
                up, down = self._up_and_down(level)
                both = [{i: (u[i], d[i]) for i in side} for side, u, d in zip((old, new), up, down)]
                for first, second in (both, up, down):
                    self._match_alike(old, new, first, second)
        if units is not None and units[0].root.opcode == units[1].root.opcode:
            self.pair(units[0].root, units[1].root)
        for radius in RADII:
            old, new = self._free(old, new)
            if old and new:
                self._match_alike(old, new, *self._neighbourhoods(old, new, radius), equal_counts=True)
        for level in LEVELS:
            self._match_neighbours(old, level)

    def _up_and_down(self, level: int) -> tuple[list[Numbers], list[Numbers]]:
        """Numbers of nodes by everything they are computed from, and by everything that reads them, for both
        modules."""
        if level not in self._numbers:
            both = (self.before, self.after)
            self._numbers[level] = ([_from_operands(flat, self.keys, level)[0] for flat in both],
                                    [_from_users(flat, self.keys, level) for flat in both])
        return self._numbers[level]

    def _free(self, old: Iterable[Instruction], new: Iterable[Instruction]) -> tuple[list, list]:
        return [i for i in old if i not in self.forward], [i for i in new if i not in self.backward]

    def _match_alike(self, old: Iterable[Instruction], new: Iterable[Instruction], first: Numbers, second: Numbers,
                     equal_counts: bool = False) -> None:
        old, new = self._free(old, new)
        for pair in _alike(old, new, first.get, second.get, equal_counts):
            self.pair(*pair)

    # -- neighbours ----------------------------------------------------------------------------------------------------

    def _neighbourhoods(self, old: Iterable[Instruction], new: Iterable[Instruction],
                        radius: int) -> tuple[Numbers, Numbers]:
        """A number for each free node and its neighbourhood of `radius` steps; paths end at matched nodes."""
        found = []
        for flat, nodes, matched in ((self.before, old, None), (self.after, new, self.backward)):
            labels: dict[Instruction, int] = {i: self.keys.local(i, NO_LAYOUT) for i in nodes}
            for _ in range(radius):
                labels = {i: self.keys.number((label, *self._around(flat, i, labels, matched)))
                          for i, label in labels.items()}
            found.append(labels)
        return found[0], found[1]

    def _around(self, flat: FlatModule, node: Instruction, labels: Mapping[Instruction, int],
                matched: Mapping[Instruction, Instruction] | None) -> tuple:
        """matched: from nodes of the second module to those of the first, which stand for both; None: the first."""
        def label(other: Instruction) -> tuple[str, int]:
            if (found := labels.get(other)) is not None:
                return "free", found
            return "matched", id(other if matched is None else matched.get(other))

        operands = tuple(map(label, flat.operands[node]))
        return operands, tuple(sorted((*label(user), slot) for user, slot in flat.users[node]))

    def _match_neighbours(self, old: Iterable[Instruction], level: int) -> None:
        """Free neighbours of matched nodes, and theirs, from the borders of the `old` nodes that are free inwards."""
        border: dict[Instruction, None] = {}
        for node in old:
            if node not in self.forward:
                border.update((n, None) for n in self.before.operands[node] if n in self.forward)
                border.update((n, None) for n, _ in self.before.users[node] if n in self.forward)
        waiting = deque(border)
        while waiting:
            node = waiting.popleft()
            other = self.forward[node]
            operands = (_slots(self.before.operands[node]), _slots(self.after.operands[other]))
            for mine, theirs in (operands, (self.before.users[node], self.after.users[other])):
                waiting.extend(self._pair_slots(mine, theirs, level))

    def _pair_slots(self, mine: Slots, theirs: Slots, level: int) -> list[Instruction]:
        """Match free neighbours in the same slot, then those in any; the nodes of `mine` that were."""
        made = []
        for slot_counts in (True, False):
            old = [item for item in mine if item[0] not in self.forward]
            new = [item for item in theirs if item[0] not in self.backward]
            if not (old and new):
                break

            def key(item: tuple[Instruction, int], slot_counts: bool = slot_counts) -> Hashable:
                return self.keys.local(item[0], level), item[1] if slot_counts else 0

            made += [a for (a, _), (b, _) in _alike(old, new, key, key) if self.pair(a, b)]
        return made

    # -- what is no node -----------------------------------------------------------------------------------------------

    def _match_inlined(self) -> None:
        """Computations of fusions and calls, by how many matched nodes they share; then by what they compute."""
        votes: Counter[tuple[Computation, Computation]] = Counter()
        for old, new in self.forward.items():
            homes = self.before.home[old], self.after.home[new]
            if homes[0] in self.before.caller and homes[1] in self.after.caller:
                votes[homes] += 1
        for homes, _ in votes.most_common():
            self.pair_computations(*homes)
        free = [[c for c in flat.caller if c not in known] for flat, known in (
            (self.before, self.computations), (self.after, self.computations_back))]
        for old, new in _alike(free[0], free[1],
                               lambda c: self.forward.get(self.before.node(self.before.caller[c])),
                               lambda c: self.after.node(self.after.caller[c])):
            self.pair_computations(old, new)

    def _match_transparent(self) -> None:
        """Fusions and calls with their computations, parameters by number; the rest by what it stands for."""
        for old, new in self.computations.items():
            caller, new_caller = self.before.caller.get(old), self.after.caller.get(new)
            if caller is not None and new_caller is not None and caller.opcode == new_caller.opcode:
                self.pair(caller, new_caller)
            if caller is not None or new_caller is not None:
                numbers = {p.parameter_number: p for p in new.parameters}
                for parameter in old.parameters:
                    if parameter.parameter_number in numbers:
                        self.pair(parameter, numbers[parameter.parameter_number])
        unpaired = self._free(self.before.stands_for, self.after.stands_for)

        def key_of_old(i: Instruction) -> Hashable:
            return (self.keys.local(i, EXACT), self.computations.get(self.before.home[i]),
                    self.forward.get(self.before.node(i)))

        def key_of_new(i: Instruction) -> Hashable:
            return self.keys.local(i, EXACT), self.after.home[i], self.after.node(i)

        for pair in _alike(*unpaired, key_of_old, key_of_new):
            self.pair(*pair)
        self._match_by_operand()

    def _match_by_operand(self) -> None:
        """Elements of tuples where what they stand for is new: by the tuple."""
        old, new = self._free(self.before.stands_for, self.after.stands_for)
        readers: dict[Hashable, list[Instruction]] = defaultdict(list)
        for i in reversed([i for i in new if i.operands]):
            readers[self.keys.local(i, EXACT), i.operands[0]].append(i)
        for i in old:                                   # what is read stands before its reader
            others = readers.get((self.keys.local(i, EXACT), self.forward.get(i.operands[0]))) if i.operands else None
            if others:
                self.pair(i, others.pop())


def _alike(old: Iterable, new: Iterable, key_of_old: Callable, key_of_new: Callable,
           equal_counts: bool = False) -> Iterable[tuple]:
    """Pairs with equal keys, in order; None is no key. equal_counts: only where both sides have as many."""
    groups: dict[Hashable, list] = defaultdict(list)
    for item in new:
        if (key := key_of_new(item)) is not None:
            groups[key].append(item)
    mine: dict[Hashable, list] = defaultdict(list)
    for item in old:
        if (key := key_of_old(item)) is not None:
            mine[key].append(item)
    for key, items in mine.items():
        others = groups.get(key, ())
        if not equal_counts or len(items) == len(others):
            yield from zip(items, others)


def _shared_callees(old: Instruction, new: Instruction | None) -> Iterable[tuple[Computation, Computation]]:
    if new is None:
        return ()
    return zip(old.called_computations, new.called_computations)


def _slots(operands: Sequence[Instruction]) -> Slots:
    return [(operand, slot) for slot, operand in enumerate(operands)]


def _from_operands(flat: FlatModule, keys: Keys, level: int) -> tuple[Numbers, Mapping[Computation, int]]:
    """A number for each node and all that it is computed from, through the computations that it names; one for each
    unit."""
    numbers: dict[Instruction, int] = {}
    units: dict[Computation, int] = {}
    for computation, unit in flat.units.items():
        for node in unit.nodes:
            callees = tuple(units.get(c) for c in node.called_computations)
            operands = tuple(numbers[o] for o in flat.operands[node])
            numbers[node] = keys.number((keys.local(node, level), operands, callees))
        ends = sorted(numbers[n] for n in unit.nodes if not flat.users[n])
        units[computation] = keys.number(("unit", numbers[unit.root], tuple(ends)))
    return numbers, units


def _from_users(flat: FlatModule, keys: Keys, level: int) -> Numbers:
    """A number for each node and all that reads it, up to the end of its unit."""
    numbers: dict[Instruction, int] = {}
    for unit in flat.units.values():
        for node in reversed(unit.nodes):
            users = sorted((numbers[user], slot) for user, slot in flat.users[node])
            numbers[node] = keys.number((keys.local(node, level), tuple(users), node is unit.root))
    return numbers
