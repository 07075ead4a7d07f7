"""What instructions will take on a device of a cluster, before they are optimized: for passes that choose by it.

    seconds = expected_seconds(find_cluster("dgx-h100"), counts)
    seconds(dot)                as a program of its own
    seconds(all_gather)         on the cluster's links

The rest takes what its operations and bytes do (hloc/analysis/cost.py).
"""
from __future__ import annotations

from hloc.analysis.asynchronous import base_of, started
from hloc.analysis.communication import Counts, exchange_of
from hloc.analysis.cost import predicted_seconds
from hloc.analysis.timeline import Seconds
from hloc.api import optimized_plan
from hloc.ir import Computation, Instruction, Module
from hloc.ops.collectives import EXCHANGES
from hloc.tools.report.times import seconds_by_instruction
from hloc.tools.simulate.cluster import Cluster


def expected_seconds(cluster: Cluster, counts: Counts) -> Seconds:
    """Of one run of an instruction."""
    dots: dict[tuple, float] = {}

    def seconds(instruction: Instruction) -> float:
        if base_of(instruction) in EXCHANGES:
            return exchange_of(started(instruction), cluster.levels, counts).seconds
        if instruction.opcode != "dot":
            return predicted_seconds(instruction, cluster.target.machine) * cluster.time_factor
        key = (*(str(i.shape) for i in (instruction, *instruction.operands)), *sorted(
            (name, str(value)) for name, value in instruction.attributes.items() if name != "metadata"))
        if key not in dots:
            dots[key] = _alone(instruction, cluster) * cluster.time_factor
        return dots[key]
    return seconds


def _alone(dot: Instruction, cluster: Cluster) -> float:
    """Of a program that computes nothing else."""
    parameters = [Instruction(f"p{n}", "parameter", o.shape) for n, o in enumerate(dot.operands)]
    for number, parameter in enumerate(parameters):
        parameter.parameter_number = number
    own = Instruction("product", "dot", dot.shape, parameters, dict(dot.attributes))
    entry = Computation("entry", [*parameters, own], own)
    _, program = optimized_plan(Module("product", [entry], entry), cluster.target)
    return sum(seconds_by_instruction(program, cluster.target.machine).values())
