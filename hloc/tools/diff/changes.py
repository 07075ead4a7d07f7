"""The differences of matched pairs: what came, went, moved and changed.

    Change(kinds=("shape",), before=%a in e, after=%a in e, details=(Detail("shape", "f32[4]", "f32[8]"),))

Names are not compared. The order of instructions counts if both modules are scheduled. Metadata is compared
with stack frames resolved, so that the numbers in tables do not count.
"""
from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from hloc.analysis.structure import ANNOTATIONS
from hloc.ir import Computation, Instruction, Module
from hloc.ir.literal_printer import print_literal
from hloc.ir.printer import ELIDED_FROM, print_attribute
from hloc.source_lines import op_name
from hloc.tools.diff.flat import FlatModule
from hloc.tools.diff.keys import attributes, value
from hloc.tools.diff.matching import Matching

# In the order in which they are listed.
KINDS = ("came", "went", "moved", "shape", "layout", "attributes", "value", "operands", "calls", "metadata")


class Detail(NamedTuple):
    """One difference of a pair: its kind (with the attribute's key), and the text on both sides, "" if there is
    none."""

    what: str
    before: str
    after: str


class Change(NamedTuple):
    """One instruction that differs. before or after is None if it came or went."""

    kinds: tuple[str, ...]
    before: Instruction | None
    after: Instruction | None
    details: tuple[Detail, ...] = ()


class Difference:
    """The differences of two modules.

    changes   in the order of the second module; removed ones before their old successor
    header    of the modules' own attributes
    matching  the pairs
    home_before, home_after   the computation of each instruction
    """

    def __init__(self, matching: Matching, ignored: frozenset[str] = frozenset()):
        self.before, self.after = matching.before.module, matching.after.module
        self.matching = matching
        self.home_before, self.home_after = matching.before.home, matching.after.home
        self.header = () if "header" in ignored else tuple(_header(self.before, self.after))
        self.changes = tuple(_in_order(_Comparison(matching, ignored).changes(), matching))

    @property
    def equal(self) -> bool:
        return not (self.changes or self.header)

    @property
    def counts(self) -> dict[str, int]:
        """How many instructions came, went, changed their shape ...; kinds that do not occur are omitted."""
        found = Counter(kind for change in self.changes for kind in change.kinds)
        return {kind: found[kind] for kind in KINDS if found[kind]}

    @property
    def matched(self) -> int:
        """Instructions that are in both."""
        return len(self.matching.forward)


def diff(before: Module, after: Module, ignored: Iterable[str] = ()) -> Difference:
    """Compare two modules. ignored: kinds of change (KINDS, "header") to ignore."""
    return Difference(Matching(FlatModule(before), FlatModule(after)), frozenset(ignored))


class _Comparison:
    """Compares matched instructions."""

    def __init__(self, matching: Matching, ignored: frozenset[str]):
        self.matching = matching
        self.ignored = ignored
        self.old, self.new = matching.before, matching.after
        modules = self.old.module, self.new.module
        self.places: dict[Instruction, int] = {}              # in the schedules, if both have one
        if all(m.is_scheduled for m in modules):
            self.places = {i: n for m in modules for c in m.computations for n, i in enumerate(c.instructions)}

    def changes(self) -> Iterator[Change]:
        matching, kept = self.matching, self.matching.forward
        if "went" not in self.ignored:
            yield from (Change(("went",), i, None) for i in self.old.home if i not in kept)
        if "came" not in self.ignored:
            yield from (Change(("came",), None, i) for i in self.new.home if i not in matching.backward)
        late = _out_of_order(matching, self.places) if self.places else frozenset()
        for old, new in kept.items():
            details = [d for d in self._details(old, new, new in late) if kind_of(d) not in self.ignored]
            if details:
                found = {kind_of(d) for d in details}
                yield Change(tuple(k for k in KINDS if k in found), old, new, tuple(details))

    def _details(self, old: Instruction, new: Instruction, late: bool) -> Iterator[Detail]:
        homes = self.old.home[old], self.new.home[new]
        if self.matching.computations.get(homes[0]) is not homes[1]:
            yield Detail("moved", homes[0].name, homes[1].name)
        elif late:
            yield Detail("moved", *(f"place {self.places[i]} of {home.name}" for home, i in zip(homes, (old, new))))
        yield from self._shapes(old, new)
        yield from _attributes(old, new)
        if old.opcode == "constant" and value(old) != value(new):
            yield Detail("value", *_values(old, new))
        yield from self._references(old, new)
        yield from _metadata(old, new)

    def _shapes(self, old: Instruction, new: Instruction) -> Iterator[Detail]:
        if old.shape is new.shape:
            return
        (exact, loose), (new_exact, new_loose) = map(self.matching.keys.shape, (old.shape, new.shape))
        if loose != new_loose:
            yield Detail("shape", loose, new_loose)
        elif exact != new_exact:
            yield Detail("layout", str(old.shape), str(new.shape))

    def _references(self, old: Instruction, new: Instruction) -> Iterator[Detail]:
        """Compare operands, computations and control predecessors: they are the same if they are matched."""
        kept, old_node, new_node = self.matching.forward, self.old.node, self.new.node
        if old in self.old.operands and new in self.new.operands:
            mine, theirs = self.old.operands[old], self.new.operands[new]
        else:
            mine, theirs = tuple(old.operands), tuple(new.operands)
        if [kept.get(o) for o in mine] != list(theirs):
            yield Detail("operands", _names(mine), _names(theirs))
        called = self._called(old, new)
        if called is not None:
            yield called
        before, after = old.control_predecessors, new.control_predecessors
        if {kept.get(old_node(o)) for o in before} != {new_node(o) for o in after}:
            yield Detail("attributes control-predecessors", _names(before), _names(after))

    def _called(self, old: Instruction, new: Instruction) -> Detail | None:
        """Compare called computations: they differ if they are neither matched nor of the same content."""
        mine, theirs = old.called_computations, new.called_computations
        up_old, up_new = self.matching.unit_numbers
        same = len(mine) == len(theirs) and all(
            self.matching.computations.get(a) is b or (a in up_old and up_old[a] == up_new.get(b))
            for a, b in zip(mine, theirs))
        return None if same else Detail("calls", _names(mine), _names(theirs))


def kind_of(detail: Detail) -> str:
    """attributes of "attributes window"."""
    return detail.what.split(" ")[0]


def _attributes(old: Instruction, new: Instruction) -> Iterator[Detail]:
    mine, theirs = attributes(old), attributes(new)
    for key in dict.fromkeys((*mine, *theirs)):
        if mine.get(key) != theirs.get(key):
            yield Detail(f"attributes {key}", _text(key, mine), _text(key, theirs))
    if old.parameter_number != new.parameter_number:
        yield Detail("attributes parameter number", str(old.parameter_number), str(new.parameter_number))


def _text(key: str, among: Mapping[str, Any]) -> str:
    return print_attribute(among[key]) if key in among else ""


def _metadata(old: Instruction, new: Instruction) -> Iterator[Detail]:
    for key in sorted(ANNOTATIONS):
        mine, theirs = old.attributes.get(key), new.attributes.get(key)
        if mine is None and theirs is None:
            continue
        before, after = (_annotation(i, key) for i in (old, new))
        if before != after:
            yield Detail(f"metadata {key}" if key != "metadata" else "metadata", before, after)


def _annotation(instruction: Instruction, key: str) -> str:
    text = str(instruction.attributes.get(key, ""))
    if key != "metadata" or "stack_frame_id" not in text:
        return text
    places = list(map(str, instruction.written_at()))
    place = ", called at ".join(filter(None, ("".join(places[:1]), ", ".join(places[1:]))))
    return " ".join(filter(None, (op_name(text), place)))


def _values(old: Instruction, new: Instruction) -> tuple[str, str]:
    """Both values; of large arrays the first element that differs."""
    mine, theirs = old.literal, new.literal
    if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray) and mine.shape == theirs.shape \
            and mine.dtype == theirs.dtype and mine.size >= ELIDED_FROM:
        apart = np.frombuffer(mine.tobytes(), np.uint8) != np.frombuffer(theirs.tobytes(), np.uint8)
        elements = apart.reshape(mine.size, -1).any(axis=1)
        first = int(elements.argmax())
        index = ",".join(map(str, np.unravel_index(first, mine.shape)))
        return (f"{mine.reshape(-1)[first]} at [{index}]",
                f"{theirs.reshape(-1)[first]}, {int(elements.sum())} of {mine.size} differ")
    before, after = (print_literal(i.shape, i.literal, ELIDED_FROM) for i in (old, new))
    return before, after


def _names(things: Iterable[Instruction | Computation]) -> str:
    return ", ".join(f"%{t.name}" for t in things)


def _header(before: Module, after: Module) -> Iterator[Detail]:
    if before.is_scheduled != after.is_scheduled:
        yield Detail("is_scheduled", *(str(m.is_scheduled).lower() for m in (before, after)))
    for key in dict.fromkeys((*before.attributes, *after.attributes)):
        texts = [str(m.attributes.get(key, "")) for m in (before, after)]
        if texts[0] != texts[1]:
            yield Detail(key, *texts)


# -- order -------------------------------------------------------------------------------------------------------------

def _out_of_order(matching: Matching, place: Mapping[Instruction, int]) -> frozenset[Instruction]:
    """A smallest set of instructions of the second module that explains the change of the schedule."""
    late: set[Instruction] = set()
    for old, new in matching.computations.items():
        kept = [i for i in new.instructions if i in matching.backward
                and matching.before.home[matching.backward[i]] is old]
        places = [place[matching.backward[i]] for i in kept]
        stay = _longest_increasing(places)
        late.update(i for n, i in enumerate(kept) if n not in stay)
    return frozenset(late)


def _longest_increasing(numbers: list[int]) -> set[int]:
    """Positions of a longest increasing subsequence."""
    ends: list[int] = []              # the smallest last number of a sequence of each length
    at: list[int] = []                # its position
    before: list[int] = []            # of each position, the one before it in its sequence
    for n, number in enumerate(numbers):
        length = bisect_left(ends, number)
        before.append(at[length - 1] if length else -1)
        ends[length:length + 1], at[length:length + 1] = [number], [n]
    found: set[int] = set()
    n = at[-1] if at else -1
    while n >= 0:
        found.add(n)
        n = before[n]
    return found


def _in_order(changes: Iterable[Change], matching: Matching) -> list[Change]:
    """Sort by the second module's text; removed instructions after their old predecessor."""
    place = {i: (n, 0) for n, i in enumerate(matching.after.home)}
    last = (-1, 0)
    for n, i in enumerate(matching.before.home):
        if i in matching.forward:
            last = place[matching.forward[i]]
        else:
            place[i] = last[0], n + 1

    def place_of(change: Change) -> tuple[int, int]:
        changed = change.after or change.before
        assert changed is not None
        return place[changed]
    return sorted(changes, key=place_of)
