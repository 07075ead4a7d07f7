"""The kernels of a module, and why they were not fused.

In: a parsed module and a target. Out: an Explanation: the kernels with what they do, and every array that one kernel
stores and another loads, with the reason why the two were not fused.

    told = explain(module, find("cpu"))
    told.edges[0]       the largest: Edge(producer=exponential.3, reader=dot.4, size=4096, reason="a matmul reads ...")
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hloc.analysis.aliasing import FORWARDING
from hloc.analysis.asynchronous import base_of
from hloc.analysis.control_flow import executed_computations, is_control_flow
from hloc.analysis.cost import bytes_accessed, flops
from hloc.api import Options, memory_aim, plan
from hloc.errors import HlocError
from hloc.ir import Instruction, Module
from hloc.ops.collectives import EXCHANGES
from hloc.passes.context import PassContext
from hloc.passes.fusion.edges import Edge
from hloc.passes.pipelines import pipeline_for
from hloc.passes.runner import run_passes
from hloc.targets.target import Target
from hloc.tools.formatting import time_text
from hloc.tools.loop_copies import CopyingLoop, loop_copies

if TYPE_CHECKING:
    from hloc.passes.hlo_rematerialization.recomputation import Saved
    from hloc.tools.gpu_times import Times
    from hloc.tools.overlap import Exposure
    from hloc.tools.sharding_causes import Causes

NO_KERNELS = FORWARDING | {"parameter", "constant", "after-all"}


class KernelFacts(NamedTuple):
    """One kernel (an instruction that runs): its members, and the bytes and operations of one run.

    kind      kLoop, kInput, kOutput, kCustom for fusions, else the opcode
    members   opcodes inside of a fusion, in order
    places    the positions of its members in the file: the starts of spans
    """

    computation: str
    instruction: Instruction
    kind: str
    members: tuple[str, ...]
    size: int
    flops: int
    places: frozenset[int]


class Reason(NamedTuple):
    """The number of edges with one reason, and their bytes."""

    reason: str
    edges: int
    size: int


class Explanation(NamedTuple):
    """instructions: before fusion, of the computations that run; kernels and edges: the largest first; written: the
    position of each instruction in the file, by name; loops: those that copy whole arrays in each iteration; times: of
    kernels on a GPU, if requested; not_planned: why loops and times are unknown, if the module could not be planned;
    collectives: of a module for several devices; saved: arrays that do not stay in memory (hlo_rematerialization)."""

    instructions: int
    kernels: tuple[KernelFacts, ...]
    edges: tuple[Edge, ...]
    written: Mapping[str, frozenset[int]]
    loops: tuple[CopyingLoop, ...] = ()
    times: Times | None = None
    not_planned: str = ""
    collectives: tuple[Exposure, ...] = ()
    saved: tuple[Saved, ...] = ()

    @property
    def reasons(self) -> list[Reason]:
        """The reasons, most bytes first."""
        return reasons_of(self.edges)

    def about(self, name: str) -> Explanation:
        """Only the kernels that are or hold one instruction, by its name in the file, before or after fusion, and their
        edges."""
        places = self.written.get(name, frozenset())
        kernels = tuple(k for k in self.kernels if k.instruction.name == name or places & k.places)
        names = {name, *(k.instruction.name for k in kernels)}
        edges = tuple(e for e in self.edges
                      if names & {e.producer.name, e.reader.name, e.producer_kernel, e.reader_kernel})
        return self._replace(kernels=kernels, edges=edges, loops=())


def reason_text(edge: Edge) -> str:
    """The reason of an edge; by cost with both costs."""
    if edge.costs is None:
        return edge.reason
    together, apart = map(time_text, (edge.costs.together, edge.costs.apart))
    return f"{edge.reason}: {together} together, {apart} apart"


def seconds_json(edge: Edge) -> dict[str, dict[str, float]]:
    """Both costs of an edge by cost."""
    return {} if edge.costs is None else {"seconds": edge.costs._asdict()}


def reasons_of(edges: Iterable[Edge]) -> list[Reason]:
    """The reasons of edges, those that cost most bytes first."""
    table: dict[str, list[int]] = {}
    for edge in edges:
        row = table.setdefault(edge.reason, [0, 0])
        row[0] += 1
        row[1] += edge.size
    return sorted((Reason(r, *row) for r, row in table.items()), key=lambda r: (-r.size, -r.edges, r.reason))


def aimed(module: Module, target: Target, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of passes with which the plan keeps the "memory_limit" among them. Raises RunError if none do."""
    return {**options, "memory_limit": memory_aim(module, target, Options(passes=dict(options)))}


def explain(module: Module, target: Target, options: Mapping[str, Any] | None = None, *,
            times: bool = False, causes: Causes | None = None) -> Explanation:
    """Optimize the module in place and explain the result. options: of passes (hloc/passes/context.py); times:
    predict the times of kernels, if the target is a GPU; causes: of its collectives (tools/sharding_causes.py)."""
    written: dict[str, frozenset[int]] = {}
    for i in module.instructions():
        written[i.name] = written.get(i.name, frozenset()) | _places([i])
    edges: list[Edge] = []
    counted: list[int] = []

    def count(name: str) -> None:
        if name == "fusion":
            counted.append(sum(_is_work(i) for c in executed_computations(module) for i in c.instructions))

    context = PassContext(target.machine, target.name, dict(options or {}), fusion_report=edges, saved=[])
    run_passes(module, pipeline_for(target.name), context, verify=False, progress=count)
    kernels = [_facts(c.name, i) for c in executed_computations(module) for i in c.instructions
               if _is_work(i) and not is_control_flow(i)]
    told = Explanation(counted[0], tuple(sorted(kernels, key=lambda k: -k.size)),
                       tuple(sorted(edges, key=lambda e: -e.size)), written,
                       saved=tuple(context.saved or ()))
    if any(base_of(i) in EXCHANGES for c in executed_computations(module) for i in c.instructions):
        from hloc.tools.overlap import exposures  # few modules have collectives
        told = told._replace(collectives=tuple(exposures(
            module, PassContext(target.machine, target.name), causes, context.joined)))
    times = times and target.machine.kind == "gpu"
    if not times and not any(i.opcode == "while" for c in executed_computations(module) for i in c.instructions):
        return told
    try:
        program = plan(module, target)
        told = told._replace(loops=loop_copies(module, program))
        if times:
            from hloc.tools.gpu_times import program_times  # a GPU's code is imported for GPUs
            told = told._replace(times=program_times(program, target.machine))
        return told
    except HlocError as error:
        return told._replace(not_planned=error.message)


def _places(instructions: Iterable[Instruction]) -> frozenset[int]:
    return frozenset(i.span.start for i in instructions if i.span is not None)


def _is_work(instruction: Instruction) -> bool:
    return instruction.opcode not in NO_KERNELS


def _facts(computation: str, instruction: Instruction) -> KernelFacts:
    fused = instruction.opcode == "fusion"
    inside = [i for i in instruction.get("calls").instructions if _is_work(i)] if fused else []
    kind = instruction.get("kind") if fused else instruction.opcode
    return KernelFacts(computation, instruction, kind, tuple(i.opcode for i in inside), bytes_accessed(instruction),
                       flops(instruction), _places([*inside, instruction]))
