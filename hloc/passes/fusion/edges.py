"""The reason for each edge that remains: an array that one kernel stores and another loads.

In: the groups that fusion formed in one computation, and their reasons against producers that did not join. Out: an
Edge per pair of producer and reader in different kernels, each with one reason.

    dot -> exponential -> dot     Edge(exponential, the second dot, 4096, "a matmul reads its operands from memory")

Arrays that no kernel computes (parameters, constants) are no edges. Reshapes, tuples and their elements are skipped,
since they are no kernels.
"""
from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from hloc.analysis.aliasing import FORWARDING
from hloc.analysis.control_flow import is_control_flow
from hloc.analysis.cost import Costs
from hloc.analysis.fusible import RESHAPES
from hloc.ir import Computation, Instruction, leaves
from hloc.passes.fusion.group import SINGLE, Group, is_free, kind_of

if TYPE_CHECKING:
    from hloc.passes.fusion import Fuser

OFF = "fusion is off"
AGAIN = "fusing would compute it several times, or without vectors, which costs more than storing it once"
STORED = "it is in memory anyway, and reading it costs less than computing it again"
BY_COST = (AGAIN, STORED)


class Edge(NamedTuple):
    """An array of `size` bytes that one kernel stores and another loads, and why these were not fused.

    producer, reader              instructions before fusion
    producer_kernel, reader_kernel  the instructions that run them after fusion: a fusion, or the instruction itself
    costs                         the seconds of both ways, if these decided
    """

    computation: str
    producer: Instruction
    reader: Instruction
    producer_kernel: str
    reader_kernel: str
    size: int
    reason: str
    costs: Costs | None = None


class Draft(NamedTuple):
    """An edge before the groups have become instructions; the producer's group is None outside of groups."""

    computation: str
    producer: Instruction
    reader: Instruction
    home: Group | None
    group: Group | None
    reason: str
    costs: Costs | None = None

    def finished(self) -> Edge:
        size = sum(shape.num_bytes for shape in leaves(self.producer.shape))
        return Edge(self.computation, self.producer, self.reader, _kernel(self.home, self.producer),
                    _kernel(self.group, self.reader), size, self.reason, self.costs)


def _kernel(group: Group | None, instruction: Instruction) -> str:
    return group.kernel.name if group is not None and group.kernel is not None else instruction.name


def unfused_edges(fuser: Fuser) -> list[Draft]:
    """The edges between the groups of a computation; call it before the groups are emitted."""
    homes: dict[Instruction, Group] = {o: g for g in fuser.groups if not is_free(g) for o in g.outputs}
    found: dict[tuple[Instruction, Instruction, Group], Draft] = {}
    for group in fuser.groups:
        if is_free(group) or group.first.opcode in FORWARDING:
            continue
        for reader, operand in _reads(group):
            producer = _source(operand, homes)
            if not _is_kernel(producer, homes) or producer in group.members:
                continue
            reason = reason_of(operand, producer, group, fuser)
            costs = fuser.costs.get((operand, group)) if reason in BY_COST else None
            found.setdefault((producer, reader, group), Draft(fuser.computation.name, producer, reader,
                                                             homes.get(producer), group, reason, costs))
    return list(found.values())


def all_edges(computation: Computation, reason: str) -> list[Draft]:
    """Every edge of a computation without fusions."""
    return [Draft(computation.name, _source(operand), reader, None, None, reason)
            for reader in computation.instructions if reader.opcode not in FORWARDING
            for operand in dict.fromkeys(reader.operands) if _is_kernel(_source(operand))]


def _reads(group: Group) -> Iterator[tuple[Instruction, Instruction]]:
    for member in group.members:
        for operand in dict.fromkeys(member.operands):
            if operand not in group.members:
                yield member, operand


def _source(instruction: Instruction, made: Container[Instruction] = ()) -> Instruction:
    """The instruction that computes the array (one of `made`), before those that only pass it on."""
    while instruction.opcode in FORWARDING and len(instruction.operands) == 1 and not (
            instruction in made and instruction.opcode in RESHAPES):
        instruction = instruction.operands[0]
    return instruction


def _is_kernel(instruction: Instruction, made: Container[Instruction] = ()) -> bool:
    if instruction.opcode in ("parameter", "constant", "after-all"):
        return False
    return instruction.opcode not in FORWARDING or (instruction in made and instruction.opcode in RESHAPES)


def reason_of(operand: Instruction, source: Instruction, group: Group, fuser: Fuser) -> str:
    """Why `operand` is no member of `group`: the group's reason, or a general one."""
    why = fuser.attentions.reason(operand, group.members)
    if why is not None:
        return why
    answers = fuser.reasons.get(operand, {})
    answer = next((reason for asked, reason in answers.items() if asked.first in group.members), None)
    if answer is not None:
        return answer
    if is_control_flow(source) or is_control_flow(group.first):
        opcode = source.opcode if is_control_flow(source) else group.first.opcode
        return f"{opcode} runs kernels of its own"
    if operand in fuser.counted:
        return "no kernel computes it: a counter's value is known when the program is planned"
    if operand in fuser.pinned or group.first in fuser.pinned:
        return "a control dependency fixes its place in the schedule"
    if group.kind == SINGLE:
        return f"{group.first.opcode} is not fused with its producers"
    if kind_of(source) == SINGLE:
        return f"{source.opcode} is always a separate kernel"
    return "another kernel computes it as an additional result"


def finished(drafts: Iterable[Draft]) -> list[Edge]:
    """The edges, after every group has become an instruction."""
    return [draft.finished() for draft in drafts]
