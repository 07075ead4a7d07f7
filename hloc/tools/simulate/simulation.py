"""Replays one device of many: its kernels by the cost model of its machine, its collectives by the cluster's links.

In: a module, a mesh, a Cluster. Out: a Simulation. All devices run one program at the same time, so one tells of all.

    told = simulate(module, {"data": 32, "model": 8}, find_cluster("dgx-h100"))
    told.timeline.total, told.peak, told.traffic
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from hloc.analysis.aliasing import leaf_values, module_invariants
from hloc.analysis.asynchronous import base_of, started
from hloc.analysis.communication import Counts, axes_between, counts_of, exchange_of, largest_group
from hloc.analysis.links import Exchange
from hloc.analysis.liveness import peak_bytes
from hloc.analysis.timeline import Timeline, replay
from hloc.api import Options, optimized_plan
from hloc.devices import PARTITIONED, device_counts, needs_partitioner, with_device_counts
from hloc.errors import UsageError
from hloc.ir import Instruction, Module
from hloc.kernels.plan import HostCall, Program, all_steps
from hloc.ops.collectives import EXCHANGES, counts_of_run, named_devices
from hloc.parallel import Partition, Warn, partition
from hloc.passes.context import PassContext
from hloc.passes.pipelines import OVERLAP
from hloc.passes.runner import run_passes
from hloc.sharding.meshes import DeviceMesh
from hloc.tools.mesh_axes import axis_sizes, with_names
from hloc.tools.report.times import seconds_by_instruction
from hloc.tools.simulate.cluster import Cluster
from hloc.tools.simulate.expected import expected_seconds

NO_AXES = ""                      # of groups that follow no axis of the mesh


class Traffic(NamedTuple):
    """Collectives along the same axes of the mesh, in one step of one device.

    axes     their names; "" where the devices follow none, or the module came partitioned
    groups   how many devices work together; of permutes two
    sent     bytes that a device sends, over the links of each level
    seconds  that they take; exposed: of those, how long the device only waits
    """

    axes: str
    groups: int
    runs: int
    sent: tuple[float, ...]
    seconds: float
    exposed: float


@dataclass(frozen=True)
class Simulation:
    """One step. mesh: axes and their sizes, {} where the module came partitioned; peak: bytes of a device; exchanges,
    axes: of each collective (the start of a pair); unknown: operations whose time nobody knows, which count as
    nothing."""

    title: str
    cluster: Cluster
    mesh: Mapping[str, int]
    devices: int
    module: Module
    timeline: Timeline
    peak: int
    traffic: tuple[Traffic, ...]
    exchanges: Mapping[Instruction, Exchange]
    axes: Mapping[Instruction, str]
    unknown: tuple[str, ...]

    @property
    def fits(self) -> bool | None:
        """Whether a device has the memory; None: the cluster does not say how much it has."""
        return None if self.cluster.memory is None else self.peak <= self.cluster.memory

    @property
    def mesh_text(self) -> str:
        """data=32, model=8; "" where the module came partitioned."""
        return ", ".join(f"{name}={size}" for name, size in self.mesh.items())

    @property
    def sent(self) -> float:
        """Bytes by one device."""
        return sum(sum(one.sent) for one in self.traffic)


def simulate(module: Module, mesh: Mapping[str, int] | None, cluster: Cluster, *, title: str = "",
             options: Options | None = None, overlap: bool = True, strict: bool = False,
             warn: Warn | None = None) -> Simulation:
    """A step of the module, which is left as it is, on the cluster.

    mesh     sizes of the axes that its annotations name; None: those that they have
    overlap  whether collectives run beside kernels
    Raises HlocError, UsageError where mesh, annotations and cluster do not fit.
    """
    divided = one_device(module, mesh, strict=strict, warn=warn)
    sizes = axis_sizes(module, divided, mesh)
    named = with_names(divided.mesh, sizes)
    if divided.count > cluster.devices:
        raise UsageError(f"the mesh has {divided.count:,} devices, {cluster.name} {cluster.devices:,}: its levels join "
                         f"{' x '.join(str(level.joins) for level in cluster.levels)}")
    own = with_device_counts(divided.module, *counts_of_run(divided.module, divided.count))
    options = options or Options()
    if overlap:
        options = replace(options, passes={"pipelined": "on", **options.passes},
                          seconds=expected_seconds(cluster, counts_of(own)))
    own, program = optimized_plan(own, cluster.target, options)
    counts, exchanges = counts_of(own), {}
    kernels = seconds_by_instruction(program, cluster.target.machine)

    def seconds(instruction: Instruction) -> float:
        if base_of(instruction) not in EXCHANGES:
            return kernels.get(instruction, 0.0) * cluster.time_factor
        begun = started(instruction)
        if begun not in exchanges:
            exchanges[begun] = exchange_of(begun, cluster.levels, counts)
        return exchanges[begun].seconds
    before = _arena(own)
    if overlap:
        run_passes(own, OVERLAP, PassContext(cluster.target.machine, cluster.target.name, seconds=seconds),
                   verify=False)
    timeline = replay(own.entry, seconds)
    axes = {i: axes_of(i, counts, named) for i in timeline.transfers}
    peak = program.peak + max(0, _arena(own) - before)
    return Simulation(title or module.name, cluster, sizes, divided.count, own, timeline, peak,
                      tuple(_traffic(timeline, exchanges, axes, counts)), exchanges, axes, _unknown(program))


def one_device(module: Module, mesh: Mapping[str, int] | None = None, *, strict: bool = False,
               warn: Warn | None = None) -> Partition:
    """The program of one device: partitioned here, or as it came."""
    written = prod(device_counts(module))
    came = not mesh and needs_partitioner(module) is None and not module.entry.name.endswith(PARTITIONED)
    if came and (written > 1 or mesh is None and not has_shardings(module)):
        return Partition(module, written if written > 1 else prod(named_devices(module.instructions())), (), None)
    return partition(module, mesh, strict=strict, warn=warn)


def has_shardings(module: Module) -> bool:
    """Whether an array is annotated: else the module is for one device, or says how many there are in its header."""
    return any("sharding" in i.attributes or "xla.sdy" in str(i.get("frontend_attributes", ""))
               for i in module.instructions())


def _arena(module: Module) -> int:
    """Bytes of the arrays in use at once in the entry."""
    values = leaf_values(module.entry, module_invariants(module))
    return peak_bytes(module.entry.instructions, module.entry.root, values, is_entry=True)


def _unknown(program: Program) -> tuple[str, ...]:
    return tuple(sorted({step.target for step in all_steps(program.steps) if isinstance(step, HostCall)
                         and (step.instruction is None or step.instruction.opcode not in EXCHANGES)
                         and step.target not in ("partition-id", "replica-id")}))


def axes_of(instruction: Instruction, counts: Counts, mesh: DeviceMesh | None) -> str:
    """The axes of the mesh along which the devices of a collective differ: "data, model"; "" without a mesh."""
    axes = axes_between(instruction, counts, mesh)
    return mesh.named(axes) if mesh is not None and axes else NO_AXES


def _traffic(timeline: Timeline, exchanges: Mapping[Instruction, Exchange], axes: Mapping[Instruction, str],
             counts: Counts) -> Sequence[Traffic]:
    found: dict[tuple[str, int], list] = {}
    for instruction, one in timeline.transfers.items():
        size = len(largest_group(instruction, counts))
        sent = exchanges[instruction].sent
        row = found.setdefault((axes[instruction], size), [0, [0.0] * len(sent), 0.0, 0.0])
        row[0] += one.runs
        row[1] = [a + b * one.runs for a, b in zip(row[1], sent)]
        row[2] += one.seconds
        row[3] += one.exposed
    rows = [Traffic(*key, row[0], tuple(row[1]), row[2], row[3]) for key, row in found.items()]
    return sorted(rows, key=lambda r: -r.seconds)
