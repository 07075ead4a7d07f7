"""Groups instructions into kernels: fusion.

    m = f32[8] reduce(x, zero), dimensions={1}          s = (f32[8,64]) fusion(x), kind=kCustom, calls=f
    b = f32[8,64] broadcast(m), dimensions={0}     =>   f { the four instructions }
    d = f32[8,64] subtract(x, b)
    e = f32[8,64] exponential(d)

The walk goes from users to producers, so a producer meets groups that are complete downstream. It joins a group when
all its readers are inside: that can never close a cycle. With other readers outside it may still join as one more
result, if the group stands strictly above them (Group.height); cheap producers are computed again in every group that
reads them. Joining pays when computing an element as often as it is read costs less than a store, a load and a kernel
(hloc/analysis/cost.py). Two products with a softmax between them are a group from the start (fusion_attention.py),
which takes in what the scores read. Groups side by side that read the same arrays are merged at the end.

Every edge that stays is told, with its reason, to `context.fusion_report`, a list of Edge (fusion_edges.py),
where the caller puts one there. The option "fusion": "off" makes each instruction a kernel of its own. Linear in
instructions and edges; a group's size is bounded.
"""
from __future__ import annotations

import math

from hloc.analysis.control_flow import executed_computations
from hloc.analysis.cost import (
    bytes_read,
    operations,
    seconds_of_launch,
    seconds_of_operations,
    seconds_of_traffic,
)
from hloc.analysis.fusible import (
    RESHAPES,
    in_place_operands,
    is_elemental,
    is_elementwise,
    is_hero,
    is_reduction,
    is_splat_constant,
)
from hloc.analysis.prologues import NO_PROLOGUE
from hloc.analysis.reads import BASE
from hloc.analysis.strides import VIEWS
from hloc.ir import Computation, Instruction, Module, users
from hloc.machine import Machine
from hloc.passes.context import PassContext
from hloc.passes.fusion_attention import TARGETS as WITH_ATTENTION
from hloc.passes.fusion_attention import WITH_GRADIENTS, Attentions, find_attentions
from hloc.passes.fusion_edges import OFF, all_edges, finished, unfused_edges
from hloc.passes.fusion_emitter import emit_groups
from hloc.passes.fusion_group import (
    ATTENTION,
    LOOP,
    MOST_CODE,
    MOST_CONTEXTS,
    MOST_OUTPUTS,
    MOST_PARAMETERS,
    MOST_WORK,
    PRODUCT,
    REDUCTION,
    SINGLE,
    UPDATE,
    Group,
    Rows,
    depends_elementwise,
    is_free,
    kind_of,
    weight,
)
from hloc.passes.fusion_prologues import TARGETS as WITH_PROLOGUES
from hloc.passes.fusion_prologues import plan_prologue
from hloc.passes.rewriter import Names, control_dependent

MOST_RECOMPUTED = 8              # operations per element that are done again for the sake of one reader more
MOST_BRANCHES = 8                # operands of a concatenate inside a kernel
MOST_LOOKED_AT = 64              # producers of what an update writes
HEAVY = 10                       # operations for an element that are worth vectors of their own
SHORTEST_PIECE = 16              # elements side by side of a concatenate's operand
LONGEST_SHORT_ROW = 16           # elements of a row that is read with others,
FEWEST_SHORT_ROWS = 64           # if so many follow one another
LEAST_ROW_BYTES = 64 << 10       # rows up to this length always fit

Answer = tuple[int, ...] | str


def fusion(module: Module, context: PassContext) -> bool:
    """Fuse every computation that runs as a program. True if a fusion was made."""
    report = context.fusion_report
    names = Names(c.name for c in module.computations)
    changed = False
    for computation in executed_computations(module):
        if context.option("fusion") == "off":
            edges = all_edges(computation, OFF) if report is not None else []
        else:
            fuser = Fuser(computation, context.machine, attention=context.target in WITH_ATTENTION,
                          gradients=context.target in WITH_GRADIENTS, prologues=context.target in WITH_PROLOGUES)
            fuser.run()
            edges = unfused_edges(fuser) if report is not None else []
            changed |= emit_groups(module, computation, fuser.groups, names)
        if report is not None:
            report.extend(finished(edges))
    return changed


class Fuser:
    """Forms the groups of one computation."""

    def __init__(self, computation: Computation, machine: Machine, *, attention: bool = False, gradients: bool = False,
                 prologues: bool = False):
        self.computation = computation
        self.prologues = prologues
        self.machine = machine
        self.reasons: dict[Instruction, dict[Group, str]] = {}      # why a group did not take a producer in
        self.readers = users(computation)
        for instruction in computation.instructions:
            for before in instruction.control_predecessors:
                self.readers[before].append(instruction)
        self.pinned = control_dependent(computation)
        self.groups: list[Group] = []
        self.absorbed: set[Group] = set()
        self.homes: dict[Instruction, list[Group]] = {i: [] for i in computation.instructions}
        self.repeated: dict[Instruction, float] = {}        # operations done again below a duplicated producer
        self.epilogues = epilogue_chains(computation, self.readers)
        self.attentions = Attentions({}, {}, {}, computation.instructions)
        if attention:
            self.attentions = find_attentions(computation, self.readers, self.pinned, machine, gradients)
            computation.instructions = self.attentions.order

    def run(self) -> None:
        for producer in reversed(self.computation.instructions):
            self.place(producer)
        self.groups = merge_siblings([g for g in self.groups if g not in self.absorbed], self.machine)

    # -- where one producer goes -------------------------------------------------------------------------------------

    def place(self, producer: Instruction) -> None:
        readers = self.readers[producer]
        around = list(dict.fromkeys(g for r in readers for g in self.homes[r]))
        needed = producer is self.computation.root
        if producer in self.attentions.found:
            self.start_attention(producer)
        elif producer in self.attentions.shared:
            self.place_shared(producer)
        elif self.homes[producer]:
            return                                          # a member of an attention, which is placed as a whole
        elif producer in self.pinned or kind_of(producer) == SINGLE:
            self.start(producer, around)
        elif len(around) == 1 and not needed:
            self.join_only(producer, around[0], readers)
        elif not self.repeat(producer, around, readers, needed):
            self.join_as_result(producer, around, readers, needed)

    def start(self, producer: Instruction, around: list[Group]) -> None:
        """A group of its own, above all its readers."""
        group = Group(producer, 1 + max((g.height for g in around), default=-1))
        if producer in self.pinned:
            group.kind = SINGLE
        self.groups.append(group)
        self.homes[producer].append(group)

    def start_attention(self, last: Instruction) -> None:
        """A group that is complete but for what its scores read, above all readers of its results."""
        kernel = self.attentions.found[last]
        around = {g for o in (*kernel.outputs, *kernel.shared) for r in self.readers[o] for g in self.homes[r]}
        between = 1 if kernel.shared else 0
        group = Group.of_attention(kernel, 1 + between + max((g.height for g in around), default=-1))
        self.groups.append(group)
        for member in kernel.members:
            self.homes[member].append(group)

    def place_shared(self, member: Instruction) -> None:
        """What an attention computes of its rows for itself, and others of its outputs."""
        readers = [r for r in self.readers[member] if all(g.kind != ATTENTION for g in self.homes[r])]
        around = list(dict.fromkeys(g for r in readers for g in self.homes[r]))
        if len(around) == 1 and member is not self.computation.root:
            self.join_only(member, around[0], readers)
        else:
            self.start(member, around)

    def join_only(self, producer: Instruction, group: Group, readers: list[Instruction]) -> None:
        """All readers are in one group: join it or stay alone."""
        answer = self.accept(producer, group, readers)
        if isinstance(answer, str):
            self.refuse(producer, [group], answer)
            self.start(producer, [group])
        else:
            self.join(producer, group, answer, readers)

    def join(self, producer: Instruction, group: Group, contexts: tuple[int, ...], readers: list[Instruction],
             *, output: bool = False) -> None:
        if is_reduction(producer):
            group.become_reduction(group.rows_for(producer, contexts[0]))
        elif is_hero(producer):
            group.kind = PRODUCT
        group.add(producer, contexts, readers, output=output)
        self.homes[producer].append(group)

    def repeat(self, producer: Instruction, around: list[Group], readers: list[Instruction], needed: bool) -> bool:
        """Compute a cheap producer again in each group that reads it. True if nobody else is left who reads it."""
        if not around or not self.is_repeatable(producer, around, readers):
            return False
        answers = {group: self.accept(producer, group, readers) for group in around}
        stored = needed or any(isinstance(answer, str) for answer in answers.values())
        left: list[Group] = []
        for group, answer in answers.items():
            if isinstance(answer, str):
                self.refuse(producer, [group], answer)
                left.append(group)
            elif stored and not self.is_better_repeated(producer, group, readers):
                self.refuse(producer, [group], "it is in memory anyway, and no larger than what it is made of")
                left.append(group)
            else:
                self.join(producer, group, answer, readers)
        if len(left) == len(around):
            return False
        if left or needed:
            self.start(producer, left)
        return True

    @staticmethod
    def is_better_repeated(producer: Instruction, group: Group, readers: list[Instruction]) -> bool:
        """Whether a group that could as well read the stored result reads less by computing it again. Where it reads
        the result, the producer's own operands may have one reader less, and be the inside of one kernel."""
        inputs = sum(loaded_bytes(o) for o in producer.operands)
        return (not is_elementwise(producer) or inputs < producer.shape.num_bytes
                or reads_operands_of(producer, group, readers))

    def is_repeatable(self, producer: Instruction, around: list[Group], readers: list[Instruction]) -> bool:
        """Reading the producer's own operands several times costs no more than storing and reading its result."""
        if not is_elemental(producer):
            return False
        if is_splat_constant(producer):
            return True
        if producer.opcode in VIEWS and all(g.reads_for_product(producer, readers) for g in around):
            return True
        below = max((self.repeated.get(r, 0.0) for r in readers), default=0.0)
        again = below + operations(producer)
        inputs = [min(bytes_read(producer, n), loaded_bytes(o)) for n, o in enumerate(producer.operands)]
        result = producer.shape.num_bytes
        cheap = producer.opcode in RESHAPES or (len(around) - 1) * sum(inputs) < (len(around) + 1) * result
        wide = sum(1 for size in inputs if size > result // 4) > 1
        if again > MOST_RECOMPUTED or operations(producer) > 2 or producer.opcode == "transpose":
            return False
        if (wide or not cheap) and not all(reads_operands_of(producer, g, readers) for g in around):
            return False
        self.repeated[producer] = again
        return True

    def join_as_result(self, producer: Instruction, around: list[Group], readers: list[Instruction],
                       needed: bool) -> None:
        """Several groups read the producer: the topmost may compute it as one more result."""
        highest = max((g.height for g in around), default=0)
        tops = [g for g in around if g.height == highest]
        if len(tops) > 1 and self.merge_readers(producer, tops, readers):
            around, tops = [g for g in around if g not in tops[1:]], tops[:1]
            if len(around) == 1 and not needed:
                return self.join_only(producer, tops[0], readers)
        if len(tops) != 1:
            self.refuse(producer, around, "several kernels read it, none of them runs first")
            return self.start(producer, around)
        answer = self.accept_result(producer, tops[0], readers)
        if isinstance(answer, str):
            self.refuse(producer, around, answer)
            return self.start(producer, around)
        self.join(producer, tops[0], answer, readers, output=True)

    def merge_readers(self, producer: Instruction, groups: list[Group], readers: list[Instruction]) -> bool:
        """Make one of the groups of equal height that read the producer, so that it can join. True if all are one."""
        first = groups[0]
        if not self.is_mergeable(producer, first, readers):
            return False
        for group in groups[1:]:
            if not (self.is_mergeable(producer, group, readers) and sibling_key(group) == sibling_key(first)
                    and may_merge(first, group, self.machine, shared=True)):
                return False
            first.absorb(group)
            self.absorbed.add(group)
            for member in group.members:
                self.homes[member] = list(dict.fromkeys(first if g is group else g for g in self.homes[member]))
        return True

    def is_mergeable(self, producer: Instruction, group: Group, readers: list[Instruction]) -> bool:
        """Reads the producer at its own positions, and waits for no product whose epilogue it might become."""
        if sibling_key(group) is None or any(m in self.epilogues for m in group.members):
            return False
        return group.asked(producer, readers) in ((BASE,), (group.rows.full,) if group.rows else (BASE,))

    def refuse(self, producer: Instruction, groups: list[Group], reason: str) -> None:
        self.reasons.setdefault(producer, {}).update(dict.fromkeys(groups, reason))

    # -- may it join? ------------------------------------------------------------------------------------------------

    def accept_result(self, producer: Instruction, group: Group, readers: list[Instruction]) -> Answer:
        """Like accept, for a producer that others read too."""
        if group.kind not in (LOOP, REDUCTION) or group.first.shape.is_tuple:
            return f"a kernel of {group.first.opcode} has one result"
        if len(group.outputs) >= MOST_OUTPUTS:
            return f"the kernel has {MOST_OUTPUTS} results already"
        contexts = group.asked(producer, readers)
        own = {BASE} if group.rows is None else {BASE, group.rows.full, group.rows.row}
        if len(contexts) != 1 or contexts[0] not in own:
            return "others read it too, and this kernel reads it at other positions than its own"
        if producer in self.epilogues:
            return "it is better made as the epilogue of a product"
        return self.accept(producer, group, readers)

    def accept(self, producer: Instruction, group: Group, readers: list[Instruction]) -> Answer:
        """The contexts in which the group would ask for the producer, or the reason why it may not join."""
        reason = self.obstacle(producer, group, readers)
        if reason:
            return reason
        contexts = group.asked(producer, readers)
        if is_splat_constant(producer):
            return contexts
        if len(contexts) > MOST_CONTEXTS or group.code + len(contexts) * weight(producer) > MOST_CODE:
            return "too much code: it is read at too many different positions"
        if is_reduction(producer):
            return self.accept_reduction(producer, group, contexts, readers)
        if is_hero(producer):
            return self.accept_hero(producer, group, contexts)
        if producer in group.computed or group.reads_for_product(producer, readers):
            return contexts
        if group.kind == ATTENTION and is_function_of_place(producer):
            return contexts
        if not self.pays(producer, group, contexts, readers):
            return "computing it again costs more than storing it"
        return contexts

    def obstacle(self, producer: Instruction, group: Group, readers: list[Instruction]) -> str:
        """What rules the pair out before any cost is counted; empty if nothing does."""
        first = group.first
        if group.kind == SINGLE:
            return f"{first.opcode} takes no producers into its kernel"
        if kind_of(producer) == UPDATE:
            return f"{producer.opcode} works in place"
        if group.kind == ATTENTION and not is_elemental(producer):
            return "attention reads the arrays of its products from memory, by strides"
        if is_free(group) and producer.opcode not in RESHAPES:
            return "only a reshape follows, which is no kernel"
        if group.work + weight(producer) > MOST_WORK:
            return f"the kernel has {MOST_WORK} operations already"
        new = {o for o in producer.operands if not is_splat_constant(o)} - group.parameters - group.members.keys()
        if len(group.parameters) + len(new) - 1 > MOST_PARAMETERS:
            return f"the kernel would read more than {MOST_PARAMETERS} arrays"
        if producer.opcode == "concatenate" and len(producer.operands) > MOST_BRANCHES:
            return f"a concatenate of more than {MOST_BRANCHES} arrays is a kernel of its own"
        if self.machine.kind == "cpu" and is_slow_one_by_one(producer, group, readers):
            return "the kernel computes one element after the other: vectors of a kernel of its own are faster"
        if self.machine.kind == "cpu" and splits_rows_of_f16(producer, group):
            return "rows of a few f16 are widened by whole vectors, which need them one after the other in memory"
        if group.kind == REDUCTION and producer in self.epilogues:
            return "it is better made as the epilogue of a product"
        if group.reads_for_product(producer, readers) and producer not in group.computed and \
                group.view_of(producer, readers) is None:
            if not self.prologues:
                return NO_PROLOGUE
            if reason := plan_prologue(producer, group, readers, self):
                return reason
        return self.update_obstacle(producer, group) if group.kind == UPDATE else ""

    def update_obstacle(self, producer: Instruction, group: Group) -> str:
        """An update must not read the array that it overwrites."""
        root = group.first
        targets = [root.operands[slot] for _, slot in in_place_operands(root)]
        if producer in targets:
            return "the array that is updated in place must be in memory"
        if root.shape.is_tuple or any(o in targets for o in producer.operands):
            return "it reads the array that is updated in place"
        if bytes_made_of(targets, producer) > producer.shape.num_bytes:
            return "what it reads of the array that is updated in place is larger than itself"
        return ""

    def accept_reduction(self, producer: Instruction, group: Group, contexts: tuple[int, ...],
                         readers: list[Instruction]) -> Answer:
        if producer.shape.is_tuple:
            return "a reduce of several arrays is the root of its kernel"
        if group.kind not in (LOOP, REDUCTION) or len(contexts) != 1:
            return "the reduce is read at several positions"
        rows = group.rows_for(producer, contexts[0])
        if rows is None:
            return "the kernel does not run over the rows of this reduce"
        full = rows.full == BASE or group.reaches_full(contexts, readers)
        if full and not (rows.trailing and self.rows_fit(rows, producer)):
            return "a row is too long for one core's cache, or there are too few rows"
        return contexts

    def rows_fit(self, rows: Rows, reduce: Instruction) -> bool:
        """A row stays in a core's cache from one pass over it to the next, and there are rows enough for all cores."""
        size = rows.columns * max(4, reduce.shape.num_bytes // max(1, reduce.shape.num_elements))
        if size > max(LEAST_ROW_BYTES, self.machine.l2_bytes // 4):
            return False
        return rows.elements // max(1, rows.columns) >= self.machine.cores or rows.elements * 4 <= LEAST_ROW_BYTES * 4

    def accept_hero(self, producer: Instruction, group: Group, contexts: tuple[int, ...]) -> Answer:
        if group.kind != LOOP or contexts != (BASE,) or producer.shape.dimensions != group.dimensions:
            return "a product takes only an elementwise epilogue at its own positions"
        group.members[producer] = contexts
        fits = depends_elementwise(group, producer)
        del group.members[producer]
        return contexts if fits else "a product takes only an elementwise epilogue at its own positions"

    def pays(self, producer: Instruction, group: Group, contexts: tuple[int, ...], readers: list[Instruction]) -> bool:
        """Compare computing each element as often as it is asked for with storing it once.

        What is computed again adds up along a chain, so that a long one is cut where a store has become cheaper.
        """
        size = producer.shape.num_bytes
        extra = group.contexts.total(contexts) - producer.shape.num_elements
        if extra <= 0:
            return True
        loads = sum(0.5 for o in producer.operands if o.shape.num_elements > 1)
        own = seconds_of_operations(extra * (operations(producer) + loads), self.machine)
        again = own + max((group.again.get(r, 0.0) for r in readers), default=0.0)
        stored = seconds_of_traffic(2 * size, self.machine) + seconds_of_launch(size, self.machine)
        if again > stored:
            return False
        group.again[producer] = again
        return True


def is_slow_one_by_one(producer: Instruction, group: Group, readers: list[Instruction]) -> bool:
    """Whether a group has no vectors for what a producer computes: a reduce of several arrays compares one element with
    the next, a concatenate of short pieces takes a branch for each element, a scatter of short windows finds the place
    of each."""
    if group.rows is not None and group.rows.alone and operations(producer) >= HEAVY:
        return True
    if scatters_pieces(group.first) and is_elementwise(producer):
        return producer.shape.num_elements >= SHORTEST_PIECE and operations_before(producer, HEAVY) >= HEAVY
    reads = [r for r in readers if r.opcode == "concatenate" or r.opcode in RESHAPES]
    if not reads or not is_elementwise(producer):
        return False
    pieces = [math.prod(o.shape.dimensions[m.get("dimensions")[0]:]) for m in group.members
              if m.opcode == "concatenate" for o in m.operands if producer in (o, behind_reshape(o))]
    return 0 < max(pieces, default=0) < SHORTEST_PIECE and operations_before(producer, HEAVY) >= HEAVY


def splits_rows_of_f16(producer: Instruction, group: Group) -> bool:
    """Whether a group's short rows of f16 would be read row by row, where a broadcast lets not all of them follow one
    another."""
    if producer.opcode != "broadcast" or producer.shape.element_type != "f16" or is_splat_constant(producer):
        return False
    rows = group.rows
    if rows is None or not rows.trailing or rows.columns > LONGEST_SHORT_ROW or len(rows.dimensions) < 3:
        return False
    between = math.prod(rows.dimensions[1:]) // rows.columns
    return between < (FEWEST_SHORT_ROWS if rows.columns > 4 else SHORTEST_PIECE)


def scatters_pieces(root: Instruction) -> bool:
    """A scatter whose windows are a few elements each."""
    if root.opcode != "scatter":
        return False
    updates = root.operands[-1].shape.dimensions
    return math.prod(updates[d] for d in root.get("update_window_dims", ())) < SHORTEST_PIECE


def behind_reshape(operand: Instruction) -> Instruction:
    """What a reshape renames."""
    return operand.operands[0] if operand.opcode in RESHAPES else operand


def operations_before(producer: Instruction, most: int) -> float:
    """What an element of a producer takes, with all elementwise operations before it; counted up to `most`."""
    total, stack, seen = 0.0, [producer], {producer}
    while stack and total < most:
        node = stack.pop()
        total += operations(node)
        inside = [o for o in dict.fromkeys(node.operands) if o not in seen
                  and (is_elementwise(o) or o.opcode in RESHAPES or o.opcode == "broadcast")]
        seen.update(inside)
        stack.extend(inside)
    return total


def reads_operands_of(producer: Instruction, group: Group, readers: list[Instruction]) -> bool:
    """Whether the group reads all operands of an elementwise producer anyway, at its own positions: then to compute
    it again there takes no loads."""
    own = (BASE,) if group.rows is None else (group.rows.full,)
    if not is_elementwise(producer) or group.asked(producer, readers) != own:
        return False
    return all(is_splat_constant(o) or o in group.members or o in group.parameters for o in producer.operands)


def bytes_made_of(targets: list[Instruction], producer: Instruction) -> int:
    """Bytes of what is read of `targets` directly, to compute an elemental `producer`, within a few steps."""
    total, stack, seen = 0, [producer], {producer}
    while stack and len(seen) <= MOST_LOOKED_AT:
        node = stack.pop()
        if any(o in targets for o in node.operands):
            total += node.shape.num_bytes
            continue
        inside = [o for o in dict.fromkeys(node.operands) if is_elemental(o) and o not in seen]
        seen.update(inside)
        stack.extend(inside)
    return total


def is_function_of_place(producer: Instruction) -> bool:
    """Computed from iotas and constants by a few operations, as a causal mask is: the scores' kernel loads nothing for
    it, and a target sees what it means."""
    stack, seen = [producer], set()
    while stack and len(seen) <= MOST_RECOMPUTED:
        node = stack.pop()
        if node.opcode == "iota" or is_splat_constant(node) or node in seen:
            continue
        if not (is_elementwise(node) or node.opcode in VIEWS) or operations(node) > 2:
            return False
        seen.add(node)
        stack.extend(node.operands)
    return not stack


def loaded_bytes(operand: Instruction) -> int:
    """Bytes to load for all of an operand, seeing that broadcasts and iotas are computed on the way."""
    while operand.opcode in ("broadcast", "reshape"):
        operand = operand.operands[0]
    return 0 if operand.opcode == "iota" or operand.shape.num_elements == 1 else operand.shape.num_bytes


def epilogue_chains(computation: Computation, readers: dict[Instruction, list[Instruction]]) -> set[Instruction]:
    """Elementwise instructions at the end of a chain from a product, each link read by the next only."""
    found: set[Instruction] = set()
    for instruction in computation.instructions:
        if is_elementwise(instruction) and any(
                (is_hero(o) or o in found) and len(readers[o]) == 1
                and o.shape.dimensions == instruction.shape.dimensions for o in instruction.operands):
            found.add(instruction)
    return found


def merge_siblings(groups: list[Group], machine: Machine) -> list[Group]:
    """Merge groups of equal height that run over the same elements and share a large operand (or, on a GPU, are so
    small that the launch is their main cost). Equal height means that no path leads from one to the other."""
    buckets: dict[tuple, list[Group]] = {}
    kept: list[Group] = []
    for group in groups:
        key = sibling_key(group)
        mates = buckets.setdefault(key, []) if key else []
        mate = next((m for m in mates[-4:] if may_merge(m, group, machine)), None)
        if mate is None:
            mates.append(group)
            kept.append(group)
        else:
            mate.absorb(group)
    return kept


def sibling_key(group: Group) -> tuple | None:
    """What two groups must have in common to run in one kernel; None for those that stay alone."""
    if group.kind == LOOP and not is_free(group):
        return (group.height, LOOP, group.dimensions)
    if group.kind == REDUCTION and not group.rows.alone and not group.is_row_wise() and group.rows.row == BASE:
        return (group.height, REDUCTION, group.rows.dimensions, group.rows.reduced)
    return None


def may_merge(a: Group, b: Group, machine: Machine, shared: bool = False) -> bool:
    """Within the limits of size, and worth it; `shared`: that they read the same large array is known."""
    if a.work + b.work > MOST_WORK or a.code + b.code > MOST_CODE:
        return False
    if len(a.parameters | b.parameters) > MOST_PARAMETERS or len(a.outputs) + len(b.outputs) > MOST_OUTPUTS:
        return False
    if shared or (machine.kind == "gpu" and max(a.elements, b.elements) < machine.cores * 128):
        return True
    least = max(2, (a.rows.elements if a.rows else a.elements) // 2)
    common = (a.parameters | a.members.keys()) & (b.parameters | b.members.keys())
    return any(o.shape.num_elements >= least for o in common)
