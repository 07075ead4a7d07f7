"""Groups -> fusion instructions.

In: the groups that fusion formed over one computation. Out: the computation with one fusion in place of each group of
two or more instructions, and a new fused computation in the module for each. Several results become a tuple.

    e = f32[8] exponential(x); n = f32[8] negate(e)     =>   n = f32[8] fusion(x), kind=kLoop, calls=fused_computation
"""
from __future__ import annotations

from hloc.analysis.fusible import RESHAPES, is_scalar_constant
from hloc.ir import Computation, Instruction, Module, Shape, topological_order
from hloc.passes.fusion.group import PRODUCT, REDUCTION, SINGLE, Group
from hloc.passes.fusion.whole import ATTENTION, SORT
from hloc.passes.rewriter import Names, remove_dead

KINDS = {PRODUCT: "kOutput", REDUCTION: "kInput", ATTENTION: "kCustom", SORT: "kCustom"}


def emit_groups(module: Module, computation: Computation, groups: list[Group], names: Names) -> bool:
    """Rewrite `computation`; True if any fusion was made. `names` are those of the module's computations."""
    if not any(is_fused(g) for g in groups):
        return False
    emitter = Emitter(computation, groups, names)
    emitter.run()
    place = module.computations.index(computation)
    module.computations[place:place] = emitter.fused
    remove_dead(computation)
    return True


def is_fused(group: Group) -> bool:
    """Whether a group becomes a fusion: not one instruction, nor only reshapes."""
    return group.kind != SINGLE and len(group.members) > 1 and any(m.opcode not in RESHAPES for m in group.members)


def fusion_kind(group: Group) -> str:
    if group.kind == REDUCTION and group.is_row_wise():
        return "kCustom"
    return KINDS.get(group.kind, "kLoop")


class Emitter:
    """Rewrites one computation group by group, producers first."""

    def __init__(self, computation: Computation, groups: list[Group], names: Names):
        self.computation = computation
        self.names = names
        self.inner_names = Names(i.name for i in computation.instructions)
        self.position = {i: n for n, i in enumerate(computation.instructions)}
        self.owner: dict[Instruction, Group] = {o: g for g in groups for o in g.outputs}
        self.groups = groups
        self.result: list[Instruction] = []
        self.kept: set[Instruction] = set()
        self.replaced: dict[Instruction, Instruction] = {}
        self.fused: list[Computation] = []

    def run(self) -> None:
        order = self.in_order()                 # fusion bodies first: `keep` changes operands of shared instructions
        bodies = {g: Body(g, self.position, self.names) for g in order if is_fused(g)}
        for group in order:
            if group in bodies:
                self.emit(group, bodies[group])
            else:
                self.keep(group)
        computation = self.computation
        for instruction in self.result:
            instruction.control_predecessors = tuple(self.replaced.get(p, p) for p in instruction.control_predecessors)
        computation.root = self.replaced.get(computation.root, computation.root)
        computation.instructions = self.result

    def in_order(self) -> list[Group]:
        """The groups in an order where producers come first; otherwise as in the text."""
        return topological_order(sorted(self.groups, key=self.text_position), self.sources)

    def text_position(self, group: Group) -> int:
        return min(self.position[o] for o in group.outputs)

    def sources(self, group: Group) -> list[Group]:
        """The groups that produce this one's operands, as in the text."""
        reads = {o for m in group.members for o in m.operands if o not in group.members}
        reads.update(p for m in group.members for p in m.control_predecessors)
        found = {self.owner[o] for o in reads}
        return sorted(found, key=self.text_position)

    def keep(self, group: Group) -> None:
        """The instructions of a group that is no fusion, with replaced operands; groups may share some."""
        for instruction in sorted(group.members.keys() - self.kept, key=self.position.__getitem__):
            self.kept.add(instruction)
            instruction.operands = [self.replaced.get(o, o) for o in instruction.operands]
            self.result.append(instruction)

    def emit(self, group: Group, body: Body) -> None:
        root = max(group.outputs, key=self.position.__getitem__)
        attributes = {"kind": fusion_kind(group), "calls": body.computation}
        if "metadata" in root.attributes:
            attributes["metadata"] = root.attributes["metadata"]
        fusion = Instruction(self.inner_names.fresh("fusion"), "fusion", body.computation.root.shape,
                             [self.replaced.get(o, o) for o in body.arguments], attributes, span=root.span)
        group.kernel = fusion
        self.result.append(fusion)
        self.fused.append(body.computation)
        if len(body.outputs) == 1:
            self.replaced[body.outputs[0]] = fusion
            return
        for index, output in enumerate(body.outputs):
            element = Instruction(self.inner_names.fresh("get-tuple-element"), "get-tuple-element", output.shape,
                                  [fusion], {"index": index}, span=output.span)
            self.result.append(element)
            self.replaced[output] = element


class Body:
    """The fused computation of one group. `arguments` are the outer instructions of its parameters."""

    def __init__(self, group: Group, position: dict[Instruction, int], names: Names):
        members = sorted(group.members, key=position.__getitem__)
        self.outputs = sorted(group.outputs, key=position.__getitem__)
        self.arguments: list[Instruction] = []
        self.inner: dict[Instruction, Instruction] = {}
        self.head: list[Instruction] = []
        self.tail: list[Instruction] = []
        self.names = Names(())
        for member in members:
            operands = [self.inside(o, group) for o in member.operands]
            copy = member.copy(operands=operands, control_predecessors=(), name=self.names.fresh(member.opcode))
            self.inner[member] = copy
            self.tail.append(copy)
        root = self.inner[self.outputs[0]]
        if len(self.outputs) > 1:
            results = [self.inner[o] for o in self.outputs]
            root = Instruction(self.names.fresh("tuple"), "tuple", Shape.tuple(r.shape for r in results), results,
                               span=results[-1].span)
            self.tail.append(root)
        self.computation = Computation(names.fresh("fused_computation"), self.head + self.tail, root,
                                       span=self.outputs[-1].span)

    def inside(self, operand: Instruction, group: Group) -> Instruction:
        """An operand inside the computation: a member, a copy of a scalar constant, or a parameter."""
        if operand in self.inner:
            return self.inner[operand]
        if is_scalar_constant(operand):
            made = operand.copy(name=self.names.fresh("constant"), control_predecessors=())
            self.tail.append(made)
        else:
            number = len(self.arguments)
            made = Instruction(f"param_{number}", "parameter", operand.shape, parameter_number=number,
                               span=operand.span)
            self.names.taken.add(made.name)
            self.head.append(made)
            self.arguments.append(operand)
        self.inner[operand] = made
        return made
