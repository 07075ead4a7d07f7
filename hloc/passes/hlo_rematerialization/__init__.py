"""Recomputes arrays instead of storing them, if that is nearly free or if a run would exceed the memory limit.

    a = f32[1000] broadcast(x)          a = f32[1000] broadcast(x)
    b = f32[1000] exponential(a)   =>   b = f32[1000] exponential(a)
    ... the peak ...                    ... the peak, without a ...
    c = f32[1000] add(b, a)             a.1 = f32[1000] broadcast(x)
                                        c = f32[1000] add(b, a.1)

Runs on a scheduled module. Candidates are arrays that are live at the peak but not used there; they are recomputed
before their next reader. Their operands must be live at the peak anyway, or are recomputed, too (recomputation.py). A
change that makes the peak larger is undone.

Without options, those large arrays of the entry are recomputed that free most bytes per second of recomputation, as
long as all recomputation takes at most SPARE_TIME of the estimated run: a normalized row, a softmax whose exponentials
are stored.

On a GPU an array may instead wait in its host's memory (offloading.py): what takes less time for a byte is chosen.

The option "memory_limit" gives a number of bytes: parameters, results, constants and live arrays at the peak. While
that is exceeded, the best candidate is recomputed, at any cost. At the end, copies of the same array that one copy can
replace are merged. Loops and branches count with their own peaks, and arrays inside of them are candidates as well.
Each step costs time in proportion to the module.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hloc.analysis.aliasing import branch_origins, leaf_values, module_invariants
from hloc.analysis.control_flow import executed_computations, is_control_flow
from hloc.analysis.cost import bytes_accessed, flops, operations_per_second, seconds_of_launch, seconds_of_traffic
from hloc.analysis.fusible import is_transfer
from hloc.ir import Computation, Instruction, Module, leaves
from hloc.ir.clone import clone_computation
from hloc.machine import Machine
from hloc.passes.context import PassContext
from hloc.passes.hlo_rematerialization.offloading import Offloading, offloading
from hloc.passes.hlo_rematerialization.profile import NOT_OURS, Profile
from hloc.passes.hlo_rematerialization.recomputation import Clones, Recomputation, Saved, recomputation
from hloc.passes.rewriter import Names, remove_dead

MOST_STEPS = 20_000
SPARE_TIME = 1 / 300             # of a run, for recomputation without a limit
SPARE_ROUNDS = 4                 # each looks at one peak
LEAST_STEP = 1 / 1000            # of what is missing, that one change must save
LEAST_PEAK = 4 << 20             # bytes: a smaller peak is not reduced
LEAST_SHARE = 1 / 200            # of the peak, that an array must take


def hlo_rematerialization(module: Module, context: PassContext) -> bool:
    """Lower the peak to the limit, or as far as possible; without a limit, as far as it is nearly free.

    True if anything is computed again or kept on the host."""
    limit = context.option("memory_limit")
    if limit is None:
        rematerializer = Rematerializer(module, context.machine, 0)
        changed = rematerializer.recompute_in_gaps()
    else:
        outside = bytes_outside(module, not context.machine.host_bandwidth)
        rematerializer = Rematerializer(module, context.machine, limit - outside)
        changed = rematerializer.run()
    if context.saved is not None:
        context.saved += rematerializer.saved
    return changed


def bytes_outside(module: Module, counts_host: bool = True) -> int:
    """Parameters, results and constants: what a run needs whatever the schedule. counts_host: those in S(5) too."""
    signature = [*(p.shape for p in module.entry.parameters), module.entry.root.shape]
    constants = [i.shape for c in executed_computations(module) for i in c.instructions if i.opcode == "constant"]
    return sum(leaf.num_bytes for shape in signature + constants for leaf in leaves(shape)
               if counts_host or not leaf.on_host)


class Rematerializer:
    """Lowers the peak of a module step by step."""

    def __init__(self, module: Module, machine: Machine, budget: int):
        self.module, self.machine, self.budget = module, machine, budget
        self.refused: set[tuple[object, ...]] = set()
        self.has_host = machine.host_bandwidth > 0          # whose memory is another than the device's
        self.clones = Clones()
        self.saved: list[Saved] = []
        self.known: dict[Profile, list[Recomputation | Offloading]] = {}
        self.invariants = module_invariants(module)
        self.callees = self.invariants, branch_origins(module, self.invariants)
        self.names = {c: Names(i.name for i in c.instructions) for c in executed_computations(module)}

    def run(self) -> bool:
        changed = False
        profiles = self.profiles({}, None)
        for _ in range(MOST_STEPS):
            if profiles[self.module.entry].peak <= self.budget:
                break
            candidate = self.best(profiles)
            if candidate is None:
                break
            saved = candidate.saved_memory
            undo = candidate.apply(self.names[candidate.computation], self.clones)
            after = self.profiles(profiles, candidate.computation)
            if self.worse(after, profiles):
                undo()
                self.refused.add(candidate.key)
            else:
                changed, profiles = True, after
                self.known.clear()                          # copies that other chains may read
                self.saved.append(saved)
        if changed:
            self.merge(profiles)
            for computation in profiles:
                remove_dead(computation)
            self.give_bodies(profiles)
        return changed

    def merge(self, profiles: dict[Computation, Profile]) -> None:
        """Let one copy of an array stand for the next one, too, where the peak stays within the limit."""
        entry = self.module.entry
        most = max(self.budget, profiles[entry].peak)
        for computation in list(profiles):
            for copies in self.clones.groups(profiles[computation]):
                first = copies[0]
                for second in copies[1:]:
                    if any(v in profiles[computation].overwritten for v in profiles[computation].values[first]):
                        first = second
                        continue
                    undo = _replace(computation, second, first)
                    after = self.profiles(profiles, computation)
                    if after[entry].peak <= most:
                        profiles = after
                    else:
                        undo()
                        first = second

    def give_bodies(self, computations: Iterable[Computation]) -> None:
        """Give each copy of a fusion a computation of its own."""
        names, taken = Names(c.name for c in self.module.computations), set()
        for fusion in [i for c in computations for i in c.instructions if i.opcode == "fusion"]:
            body = fusion.get("calls")
            if body in taken:
                fusion.attributes["calls"] = clone_computation(body, names.fresh(f"{body.name}.remat"))
                self.module.computations.insert(self.module.computations.index(body) + 1, fusion.get("calls"))
            taken.add(body)

    def recompute_in_gaps(self) -> bool:
        """Recompute cheap large arrays of the entry, several at each peak."""
        entry, changed = self.module.entry, False
        profiles = self.profiles({}, None)
        if profiles[entry].peak < LEAST_PEAK:
            return False
        left = SPARE_TIME * sum(self.seconds(i) for i in entry.instructions if i.opcode not in NOT_OURS)
        for _ in range(SPARE_ROUNDS):
            chosen = self.cheapest(profiles[entry], left)
            chosen.sort(key=lambda c: -c.before)            # places before stay the same
            saved = [c.saved_memory for c in chosen]
            undos = [c.apply(self.names[entry], self.clones) for c in chosen]
            after = self.profiles(profiles, entry) if chosen else profiles
            if after[entry].peak >= profiles[entry].peak:
                for undo in reversed(undos):
                    undo()
                break
            self.saved += saved
            changed, profiles, left = True, after, left - sum(c.seconds for c in chosen)
        if changed:
            remove_dead(entry)
            self.give_bodies([entry])
        return changed

    def cheapest(self, profile: Profile, seconds: float) -> list[Recomputation]:
        """The best large candidates within a number of seconds, none of which is an operand of another."""
        chosen: list[Recomputation] = []
        copied: set[Instruction] = set()
        needed: set[Instruction] = set()
        for candidate in sorted(self.recomputations(profile), key=lambda c: c.seconds / c.saved):
            used = {o for i in candidate.chain for o in i.operands}
            if (candidate.saved >= LEAST_SHARE * profile.peak and candidate.seconds <= seconds
                    and needed.isdisjoint(candidate.chain) and copied.isdisjoint((*used, candidate.wanted))):
                chosen.append(candidate)
                copied.update(candidate.chain)
                needed |= used
                seconds -= candidate.seconds
        return chosen

    def worse(self, after: dict, before: dict) -> bool:
        """Whether the peak grew, or is the same at as many places."""
        new, old = after[self.module.entry], before[self.module.entry]
        return new.peak > old.peak or (new.peak == old.peak and new.total.count(new.peak) >= old.total.count(old.peak)
                                       and not any(after[c].peak < before[c].peak for c in after))

    def profiles(self, known: dict[Computation, Profile], changed: Computation | None) -> dict[Computation, Profile]:
        """A profile per computation, callees first; known ones are recomputed only if a change affects them."""
        found: dict[Computation, Profile] = {}
        peaks: dict[Computation, int] = {}
        moved = {changed}
        for computation in executed_computations(self.module):
            profile = known.get(computation)
            if profile is None or moved & {computation, *profile.callees}:
                values = leaf_values(computation, self.invariants)
                profile = Profile(computation, values, self.callees, peaks, computation is self.module.entry,
                                  not self.has_host)
                moved.add(computation)
            found[computation], peaks[computation] = profile, profile.peak
        return found

    def best(self, profiles: dict[Computation, Profile]) -> Recomputation | Offloading | None:
        """The candidate that frees most bytes per second, at the peak of the entry and of the computations running
        there."""
        found: list[Recomputation | Offloading] = []
        least = LEAST_STEP * (profiles[self.module.entry].peak - self.budget)
        computation: Computation | None = self.module.entry
        while computation is not None:
            profile = profiles[computation]
            if profile not in self.known:                   # a refused change leaves a profile as it was
                self.known[profile] = list(self.candidates(profile))
            found.extend(c for c in self.known[profile] if c.saved >= least and c.key not in self.refused)
            busy = profile.computation.instructions[profile.busiest]
            called = busy.called_computations if is_control_flow(busy) else ()
            computation = max(called, key=lambda c: profiles[c].peak, default=None)
        return max(found, key=lambda c: c.saved / c.seconds, default=None)

    def candidates(self, profile: Profile) -> Iterator[Recomputation | Offloading]:
        """What frees memory at the peak of a computation."""
        yield from self.recomputations(profile)
        for value, after in profile.idle(profile.busiest) if self.has_host else ():
            moved = offloading(profile, value, after, self.machine)
            if moved is not None:
                yield moved

    def recomputations(self, profile: Profile) -> Iterator[Recomputation]:
        place = profile.busiest
        waiting: dict[Instruction, dict[int, int]] = {}         # kernel -> its idle leaves, with their next readers
        for value, after in profile.idle(place):
            waiting.setdefault(value.instruction, {})[value.leaf] = after
        for instruction, readers in waiting.items():
            for before in sorted(set(readers.values())):
                wanted = frozenset(leaf for leaf, after in readers.items() if after >= before)
                found = recomputation(profile, instruction, wanted, place, before, self.seconds, self.clones)
                if found is not None:
                    yield found

    def seconds(self, instruction: Instruction) -> float:
        size = bytes_accessed(instruction)
        if self.has_host and is_transfer(instruction):
            return instruction.shape.num_bytes / self.machine.host_bandwidth + self.machine.launch_seconds
        return (flops(instruction) / operations_per_second(self.machine) + seconds_of_traffic(size, self.machine)
                + seconds_of_launch(size, self.machine))


def _replace(computation: Computation, old: Instruction, new: Instruction) -> Callable[[], None]:
    """Let all readers of one instruction read another. Returns what undoes it."""
    readers = {i: i.operands for i in computation.instructions if old in i.operands}
    for reader, operands in readers.items():
        reader.operands = [new if o is old else o for o in operands]

    def undo() -> None:
        for reader, operands in readers.items():
            reader.operands = operands
    return undo
