"""The cost model: the microseconds of a launch on a GPU, and its bottleneck.

In: a Work and the GPU's name. Out: an Estimate. Five resources work in parallel: memory (DRAM), L2, tensor cores,
instruction issue, and dependent loads (latency). The longest time bounds the launch. The times are combined by a
p-norm, p = "sharpness", since they do not overlap completely.

    estimate(work, "h200")  ->  Estimate(us=121.3, bound="DRAM", parts={"DRAM": 119.0, "L2": 80.1, ...})

Constants (gpus.json, "costs") were fitted to an H200 by benchmarks/fit_gpu_costs.py. They are clocks, bytes per clock
and fractions of data sheet figures. Other GPUs use them with their own data sheet figures; these were not measured.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hloc.machine import Machine
from hloc.targets.cuda.costs.work import WARP, Work, cut
from hloc.targets.cuda.gpus import COSTS, facts_of

ISSUED = 4                          # warp instructions of an SM per clock
SECTOR = 32                         # bytes of a request from L1 to L2
FULL_F32_LANES = 128                # of an SM that issues ISSUED f32 warp instructions per clock


class Estimate(NamedTuple):
    """us: of one launch in a graph; parts: microseconds by resource; bound: the longest of these, or "launch"."""

    us: float
    bound: str
    parts: Mapping[str, float]


def estimate(work: Work, gpu: Machine, costs: Mapping | None = None, unread: float = 0,
             early: float = 0) -> Estimate:
    """The time of one launch. costs: constants in place of those of gpus.json; unread: the share of its memory
    that was not read recently and so is not in L2; early: microseconds that it takes more because it starts early."""
    costs = costs or COSTS.get(facts_of(gpu)["name"], COSTS["h200"])
    parts = times(work, gpu, costs, unread)
    p = costs["sharpness"]
    longest = max(parts.values())
    body = longest * sum((t / longest) ** p for t in parts.values()) ** (1 / p) if longest else 0.0
    launch = costs["launch_us"] + early
    bound = max(parts, key=parts.__getitem__) if longest > launch else "launch"
    return Estimate(body + launch + work.after * costs["l2_us"], bound, parts)


def times(work: Work, gpu: Machine, costs: Mapping, unread: float = 0) -> dict[str, float]:
    """Microseconds of each of the five resources alone."""
    facts = facts_of(gpu)
    sms, clocks = gpu.cores, facts["mhz"]                           # clocks per microsecond
    resident = work.resident(gpu.shared_bytes, facts["registers"], facts["threads"])
    busiest = cut(work.blocks, sms) / work.blocks * work.uneven     # share of the work of the busiest SM
    warps = cut(work.threads, WARP) * min(resident, cut(work.blocks, sms))
    waves = cut(work.blocks, sms * resident)
    cold = min(1.0, max(unread, (work.memory / gpu.l2_bytes - costs["kept"]) / costs["kept_until"]))
    asked = work.counts.get("sector", 0) * WARP * SECTOR            # bytes; what is read again is nearer
    far = cold * min(1.0, work.memory / asked) if asked else cold
    latency = costs["l2_us"] * (1 - far) + costs["dram_us"] * far
    slots = sum(n * costs["clocks"].get(kind, 1.0) * (FULL_F32_LANES / facts["f32_lanes"] if kind == "fma" else 1)
                for kind, n in work.counts.items())
    rate = facts["bf16_tflops"] * 1e6 / sms                         # flops of an SM per microsecond
    return {
        "DRAM": work.memory * cold / (gpu.bandwidth / 1e6 * costs["dram_share"]),
        "L2": work.traffic * max(1 / sms / costs["l2_bytes"], busiest / costs["sm_bytes"]) / clocks,
        "tensor": work.flops * busiest / (rate * costs["tensor"][work.form]) if work.flops else 0.0,
        "issue": slots * busiest / (min(ISSUED, warps * costs["of_warp"]) * clocks),
        "latency": waves * (work.rounds * latency + work.syncs * costs["sync_us"]),
    }
