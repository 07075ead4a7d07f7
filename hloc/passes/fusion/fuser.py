"""The walk over one computation that forms groups: which group each producer joins, and the rules for it."""
from __future__ import annotations

from collections.abc import Iterable

from hloc.analysis.cost import Costs, operations
from hloc.analysis.fusible import (
    PIECES_TOGETHER,
    is_elemental,
    is_hero,
    is_in_pieces,
    is_reduction,
    is_splat_constant,
)
from hloc.analysis.reads import BASE
from hloc.analysis.strides import VIEWS
from hloc.ir import Computation, Instruction, users
from hloc.machine import Machine
from hloc.passes.fusion import costs
from hloc.passes.fusion.attention import Attentions, find_attentions
from hloc.passes.fusion.edges import AGAIN, STORED
from hloc.passes.fusion.group import (
    LOOP,
    MOST_CODE,
    MOST_CONTEXTS,
    MOST_OUTPUTS,
    PRODUCT,
    REDUCTION,
    SINGLE,
    Group,
    Rows,
    depends_elementwise,
    kind_of,
    weight,
)
from hloc.passes.fusion.obstacles import obstacle_of
from hloc.passes.fusion.producers import epilogue_chains
from hloc.passes.fusion.prologues import EPILOGUE
from hloc.passes.fusion.row_uses import merge_row_uses
from hloc.passes.fusion.siblings import may_merge, merge_siblings, sibling_key
from hloc.passes.fusion.sorts import sort_kernels
from hloc.passes.fusion.update_hazards import Overwritten
from hloc.passes.fusion.whole import ATTENTION
from hloc.passes.rewriter import control_dependent

MOST_PIECES = 8                  # kernels of a concatenate, each of which adds to the limits of a group
MOST_FUNCTIONS = 16              # of an epilogue, whose code contains each ...
COSTLY = 10                      # ... of as many operations
ONLY_EPILOGUE = "a matmul or convolution is fused only with an elementwise epilogue at its own positions"
LEAST_ROW_BYTES = 64 << 10       # rows up to this length always fit

Answer = tuple[int, ...] | str
Readers = costs.Readers


class Fuser:
    """Forms the groups of one computation."""

    def __init__(self, computation: Computation, machine: Machine, overwritten: Overwritten, *, attention: bool = False,
                 gradients: bool = False, prologues: bool = False, ends_wide: bool = True, overlaps: bool = False,
                 counted: frozenset[Instruction] = frozenset()):
        self.computation = computation
        self.overwritten = overwritten
        self.prologues = prologues
        self.overlaps = overlaps                            # whether collectives run beside kernels
        self.machine = machine
        self.reasons: dict[Instruction, dict[Group, str]] = {}      # why a producer did not join a group
        self.costs: dict[tuple[Instruction, Group], Costs] = {}     # where cost decided against it
        self.readers = users(computation)
        for instruction in computation.instructions:
            for before in instruction.control_predecessors:
                self.readers[before].append(instruction)
        self.counted = counted                              # what no kernel computes: steps of counters
        self.pinned = control_dependent(computation) | counted
        self.groups: list[Group] = []
        self.absorbed: set[Group] = set()
        self.homes: dict[Instruction, list[Group]] = {i: [] for i in computation.instructions}
        overwritten.homes = self.homes
        self.repeated: dict[Instruction, float] = {}        # recomputed operations below a duplicated producer
        self.epilogues = epilogue_chains(computation, self.readers, ends_wide)
        self.attentions = Attentions({}, {}, {}, computation.instructions)
        if attention:
            self.attentions = find_attentions(computation, self.readers, self.pinned, machine, gradients,
                                              sort_kernels(computation, self.readers, self.pinned))
            computation.instructions = self.attentions.order

    def run(self) -> None:
        for producer in reversed(self.computation.instructions):
            self.place(producer)
        groups = merge_row_uses([g for g in self.groups if g not in self.absorbed], self.machine, self.rows_fit)
        self.groups = merge_siblings(groups, self.machine)

    # -- placing one producer ------------------------------------------------------------------------------------------

    def place(self, producer: Instruction) -> None:
        around = self.by_group(self.readers[producer])
        needed = producer is self.computation.root
        if producer in self.attentions.found:
            self.start_whole(producer)
        elif producer in self.attentions.shared:
            self.place_shared(producer)
        elif self.homes[producer]:
            return                                          # a member of a kernel that is placed as a whole
        elif producer in self.pinned or kind_of(producer) == SINGLE:
            self.start(producer, around)
        elif len(around) == 1 and not needed:
            self.join_only(producer, *around.popitem())
        elif not self.repeat(producer, around, needed):
            self.join_as_result(producer, around, needed)

    def by_group(self, readers: Iterable[Instruction]) -> Readers:
        """The readers by their groups: thousands of groups may read one array, and each looks only at its own
        readers."""
        around: Readers = {}
        for reader in dict.fromkeys(readers):
            for group in self.homes[reader]:
                around.setdefault(group, []).append(reader)
        return around

    def start(self, producer: Instruction, around: Iterable[Group]) -> None:
        """Make a group of its own, above all its readers."""
        group = Group(producer, 1 + max((g.height for g in around), default=-1))
        if producer in self.pinned:
            group.kind = SINGLE
        self.groups.append(group)
        self.homes[producer].append(group)

    def start_whole(self, last: Instruction) -> None:
        """Make the group of a whole kernel, above all readers of its results; only producers of scores may join it."""
        kernel = self.attentions.found[last]
        around = {g for o in (*kernel.outputs, *kernel.shared) for r in self.readers[o] for g in self.homes[r]}
        between = 1 if kernel.shared else 0
        group = Group.of_whole(kernel, 1 + between + max((g.height for g in around), default=-1))
        self.groups.append(group)
        for member in kernel.members:
            self.homes[member].append(group)

    def place_shared(self, member: Instruction) -> None:
        """Record the members that an attention and kernels of its outputs both compute."""
        readers = [r for r in self.readers[member] if all(g.kind != ATTENTION for g in self.homes[r])]
        around = self.by_group(readers)
        if len(around) == 1 and member is not self.computation.root:
            self.join_only(member, *around.popitem())
        else:
            self.start(member, around)

    def join_only(self, producer: Instruction, group: Group, readers: list[Instruction]) -> None:
        """All readers are in one group: join it or make a new group."""
        answer = self.accept(producer, group, readers)
        if isinstance(answer, str):
            self.refuse(producer, [group], answer)
            self.start(producer, [group])
        else:
            self.join(producer, group, answer, readers)

    def join(self, producer: Instruction, group: Group, contexts: tuple[int, ...], readers: list[Instruction],
             *, output: bool = False) -> None:
        if is_reduction(producer):
            rows = group.rows_for(producer, contexts[0])
            assert rows is not None                     # `accept` has checked it
            group.become_reduction(rows)
        elif is_hero(producer):
            group.kind = PRODUCT
        group.add(producer, contexts, readers, output=output)
        self.homes[producer].append(group)

    def repeat(self, producer: Instruction, around: Readers, needed: bool) -> bool:
        """Recompute a cheap producer in each group that reads it. True if no other reader is left."""
        if not around or not self.is_repeatable(producer, around):
            return False
        answers = {group: self.accept(producer, group, readers) for group, readers in around.items()}
        stored = needed or any(isinstance(answer, str) for answer in answers.values())
        left: list[Group] = []
        for group, answer in answers.items():
            if isinstance(answer, str):
                self.refuse(producer, [group], answer)
                left.append(group)
            elif stored and not self.is_better_repeated(producer, group, around[group]):
                self.refuse(producer, [group], STORED)
                left.append(group)
            else:
                self.join(producer, group, answer, around[group])
        if len(left) == len(around):
            return False
        if left or needed:
            self.start(producer, left)
        return True

    def is_better_repeated(self, producer: Instruction, group: Group, readers: list[Instruction]) -> bool:
        """Whether computing a result again that is stored anyway costs no more than reading it."""
        return self.is_cheaper(producer, group, costs.of_stored(producer, group, readers, self.machine))

    def is_repeatable(self, producer: Instruction, around: Readers) -> bool:
        """Whether computing the producer in each group that reads it costs no more than storing and reading its
        result."""
        if not is_elemental(producer):
            return False
        if is_splat_constant(producer):
            return True
        if producer.opcode in VIEWS and all(g.reads_for_product(producer, own) for g, own in around.items()):
            return True
        below = max((self.repeated.get(r, 0.0) for r in self.readers[producer]), default=0.0)
        found = costs.of_groups(producer, around, self.first_of(producer, around), below, self.machine)
        if found.together > found.apart:
            return False
        self.repeated[producer] = below + costs.own_operations(producer)
        return True

    def first_of(self, producer: Instruction, around: Readers) -> Group | None:
        """The group that may compute the producer as an additional result: one that runs before the others."""
        highest = max(g.height for g in around)
        first, *others = (g for g in around if g.height == highest)
        return None if others or isinstance(self.accept_result(producer, first, around[first]), str) else first

    def join_as_result(self, producer: Instruction, around: Readers, needed: bool) -> None:
        """Several groups read the producer: the topmost may compute it as an additional result."""
        highest = max((g.height for g in around), default=0)
        tops = [g for g in around if g.height == highest]
        if len(tops) > 1 and self.merge_readers(producer, tops, around):
            around, tops = self.by_group(self.readers[producer]), tops[:1]
            if len(around) == 1 and not needed:
                return self.join_only(producer, *around.popitem())
        if len(tops) != 1:
            self.refuse(producer, around, "several kernels read it, none of them runs first")
            return self.start(producer, around)
        answer = self.accept_result(producer, tops[0], around[tops[0]])
        if isinstance(answer, str):
            self.refuse(producer, around, answer)
            return self.start(producer, around)
        self.join(producer, tops[0], answer, around[tops[0]], output=True)

    def merge_readers(self, producer: Instruction, groups: list[Group], around: Readers) -> bool:
        """Merge the groups of equal height that read the producer, so that it can join. True if all are merged."""
        first = groups[0]
        if not self.is_mergeable(producer, first, around[first]):
            return False
        for group in groups[1:]:
            if not (self.is_mergeable(producer, group, around[group]) and sibling_key(group) == sibling_key(first)
                    and may_merge(first, group, self.machine, shared=True)):
                return False
            first.absorb(group)
            self.absorbed.add(group)
            for member in group.members:
                self.homes[member] = list(dict.fromkeys(first if g is group else g for g in self.homes[member]))
        return True

    def is_mergeable(self, producer: Instruction, group: Group, readers: list[Instruction]) -> bool:
        """Whether a group reads the producer at its own positions, and cannot become the epilogue of a matmul."""
        if sibling_key(group) is None or any(m in self.epilogues for m in group.members):
            return False
        return group.asked(producer, readers) in ((BASE,), (group.rows.full,) if group.rows else (BASE,))

    def refuse(self, producer: Instruction, groups: Iterable[Group], reason: str) -> None:
        self.reasons.setdefault(producer, {}).update(dict.fromkeys(groups, reason))

    # -- may it join? ------------------------------------------------------------------------------------------------

    def accept_result(self, producer: Instruction, group: Group, readers: list[Instruction]) -> Answer:
        """Like accept, for a producer with other users."""
        if group.kind not in (LOOP, REDUCTION) or group.first.shape.is_tuple or self.pieces(group) > 1:
            return f"{group.first.opcode} is not fused with an instruction whose result is also used elsewhere"
        if len(group.outputs) >= MOST_OUTPUTS:
            return f"the kernel would have more than {MOST_OUTPUTS} results"
        contexts = group.asked(producer, readers)
        own = {BASE} if group.rows is None else {BASE, group.rows.full, group.rows.row}
        if len(contexts) != 1 or contexts[0] not in own:
            return "it has other users, and this kernel reads it at shifted positions, so fusing would compute it twice"
        if producer in self.epilogues and not self.ends_in_epilogue(producer, group, contexts):
            return EPILOGUE
        return self.accept(producer, group, readers)

    def ends_in_epilogue(self, producer: Instruction, group: Group, contexts: tuple[int, ...]) -> bool:
        """Whether the whole group is an epilogue of the producer, which otherwise is only a result of the program. A
        producer with later readers might better be recomputed, which an additional result cannot be."""
        alone = all(r in group.members or r is self.computation.root for r in self.readers[producer])
        return alone and group.kind == LOOP and contexts == (BASE,) and depends_elementwise(group, producer)

    def accept(self, producer: Instruction, group: Group, readers: list[Instruction]) -> Answer:
        """The contexts in which the group would read the producer, or the reason why it may not join."""
        reason = obstacle_of(producer, group, readers, self)
        if reason:
            return reason
        contexts, pieces = group.asked(producer, readers), self.pieces(group)
        if is_splat_constant(producer):
            return contexts
        if len(contexts) > MOST_CONTEXTS or group.code + len(contexts) * weight(producer) > MOST_CODE * pieces:
            return "the kernel would read it at too many different positions, which takes too much code"
        if is_reduction(producer):
            return self.accept_reduction(producer, group, contexts, readers)
        if is_hero(producer):
            return self.accept_hero(producer, group, contexts)
        if producer in group.computed or group.reads_for_product(producer, readers):
            return contexts
        if not self.pays(producer, group, contexts, readers):
            return AGAIN
        return contexts

    def pieces(self, group: Group) -> int:
        """The least number of kernels that a group becomes; its limits are those of one kernel times this number."""
        if self.machine.kind == "cpu" and is_in_pieces(group.first):
            return min(MOST_PIECES, len(group.first.operands))
        return -(-len(group.first.operands) // PIECES_TOGETHER) if group.first.opcode == "concatenate" else 1

    def accept_reduction(self, producer: Instruction, group: Group, contexts: tuple[int, ...],
                         readers: list[Instruction]) -> Answer:
        if producer.shape.is_tuple:
            return "a reduce of several arrays must be the root of its kernel"
        if group.kind not in (LOOP, REDUCTION) or len(contexts) != 1:
            return "the kernel reads the reduce at several positions"
        rows = group.rows_for(producer, contexts[0])
        if rows is None:
            return "the kernel's loop does not iterate over the rows of this reduce"
        full = rows.full == BASE or group.reaches_full(contexts, readers)
        if full and not (rows.trailing and self.rows_fit(rows, producer)):
            return "a row of the reduce does not fit in one core's cache, or there are fewer rows than cores"
        return contexts

    def rows_fit(self, rows: Rows, reduce: Instruction) -> bool:
        """Whether a row stays in a core's cache between passes, and there are enough rows for all cores."""
        size = rows.columns * max(4, reduce.shape.num_bytes // max(1, reduce.shape.num_elements))
        if size > max(LEAST_ROW_BYTES, self.machine.l2_bytes // 4):
            return False
        return rows.elements // max(1, rows.columns) >= self.machine.cores or rows.elements * 4 <= LEAST_ROW_BYTES * 4

    def accept_hero(self, producer: Instruction, group: Group, contexts: tuple[int, ...]) -> Answer:
        if group.kind != LOOP or contexts != (BASE,) or producer.shape.dimensions != group.dimensions:
            return ONLY_EPILOGUE
        if sum(operations(m) >= COSTLY for m in group.members) > MOST_FUNCTIONS:
            return f"an epilogue has at most {MOST_FUNCTIONS} transcendental functions; more are a separate kernel"
        group.members[producer] = contexts
        fits = depends_elementwise(group, producer)
        del group.members[producer]
        return contexts if fits else ONLY_EPILOGUE

    def pays(self, producer: Instruction, group: Group, contexts: tuple[int, ...], readers: list[Instruction]) -> bool:
        """Compare computing each element as often as it is read with storing it once."""
        return self.is_cheaper(producer, group, costs.of_positions(producer, group, readers, contexts, self.machine))

    def is_cheaper(self, producer: Instruction, group: Group, found: Costs) -> bool:
        """Whether computing the producer in the group costs no more; otherwise the costs are recorded."""
        if found.together <= found.apart:
            return True
        self.costs[producer, group] = found
        return False
