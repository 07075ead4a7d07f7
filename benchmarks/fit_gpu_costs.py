"""The constants of the GPU cost model (hloc/targets/cuda/costs/model.py), fitted to measured kernels of an H200.

    python benchmarks/fit_gpu_costs.py [--write]              fit, print errors; --write: put them into gpus.json
    python benchmarks/fit_gpu_costs.py --without WORD         leave out programs with that word, and judge by these
    python benchmarks/fit_gpu_costs.py --add RESULTS.json     take the kernels of a run of make gpu

Fitted to benchmarks/results/gpu-h200-kernels.json (gpu_cost_data.py): kernels of seven programs, each in a graph of its
own, with warm caches; kernels of nine programs of an earlier hloc, each launched alone; 37 convolutions in all their
variants; and memory-bound kernels, products and attention by themselves. Needs SciPy.
"""
from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from hloc.targets.cuda.costs.model import estimate  # noqa: E402
from hloc.targets.cuda.costs.work import Work  # noqa: E402
from hloc.targets.cuda.gpus import GPUS  # noqa: E402

DATA = HERE / "results" / "gpu-h200-kernels.json"
CONSTANTS = ROOT / "hloc" / "targets" / "cuda" / "gpus.json"
GPU = GPUS["h200"]
SHORTEST = 8                        # us: below, the launch was measured
HOST_US, SHARPNESS = 7.0, 6         # of a launch from Python, which shorter kernels wait for
START = {"launch_us": 1.0, "alone_us": 1.5, "dram_share": 0.85, "l2_bytes": 30.0, "sm_bytes": 56.0, "l2_us": 0.2,
         "dram_us": 0.7, "sync_us": 0.05, "of_warp": 0.35, "sharpness": 3.0, "kept": 0.5, "kept_until": 0.7}
BOUNDS = {"launch_us": (0.6, 2.5), "alone_us": (0.1, 3), "dram_share": (0.8, 0.92), "l2_bytes": (15, 60),
          "sm_bytes": (50, 64), "l2_us": (0.15, 0.4), "dram_us": (0.5, 1.0), "sync_us": (0.02, 0.1),
          "of_warp": (0.1, 1), "atomic": (2, 200), "sharpness": (1.5, 6), "kept": (0.3, 0.9), "kept_until": (0.3, 2)}
CLOCKS = {"access": 1, "alu": 1, "async": 8, "async window": 20, "atomic": 8, "barrier": 20, "fetch": 20,
          "fetch window": 60, "fma": 1, "mma": 2, "sector": 1, "shared": 4, "shuffle": 2, "special": 2, "step": 20,
          "store": 4, "tile": 300}
TENSOR = {"attention": 0.5, "bulk": 0.7, "bulk window": 0.6, "groups": 0.5, "groups window": 0.4, "pipeline": 0.5,
          "pipeline window": 0.3, "steps": 0.3}
OF_PROGRAM = 3                      # weight of a whole program's run
PRIOR = 0.03                        # how much each constant is held near its start, in its logarithm


def read() -> dict[str, Any]:
    """The measured kernels; "works" as Work."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    data["works"] = [Work.from_json(w) for w in data["works"]]
    return data


def observations(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is compared: group, name, variant, us, alone (launched from Python), works."""
    found = [{"group": f"graphs: {p}", "name": k, "variant": "", "us": us, "alone": False, "works": [w]}
             for p, k, us, _, w, _ in data["graphs"]]
    found += [{"group": p, "name": k, "variant": "", "us": us, "alone": True, "works": [w]}
              for p, k, us, _, w, _ in data["kernels"] if us >= SHORTEST]
    found += [{"group": "variants", "name": k, "variant": variant, "us": us, "alone": True, "works": w}
              for k, variant, us, w in data["variants"] if us >= SHORTEST]
    return found + [{"group": "cases", "name": k, "variant": "", "us": us, "alone": False, "works": w}
                    for k, us, w in data["cases"]]


def measured_as(us: Sequence[float], alone: bool, alone_us: float) -> float:
    """What a measurement shows of launches that take so long in a graph."""
    total = sum(us)
    return ((total + alone_us * len(us)) ** SHARPNESS + HOST_US ** SHARPNESS) ** (1 / SHARPNESS) if alone else total


def predicted(data: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], costs: Mapping[str, Any]) -> list[float]:
    used = {w for r in rows for w in r["works"]}
    each = {w: estimate(data["works"][w], GPU, costs).us for w in used}
    return [measured_as([each[w] for w in r["works"]], r["alone"], costs["alone_us"]) for r in rows]


def errors(values: Sequence[float], rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The geometric error, and the share within a factor of two."""
    logs = [abs(math.log(v / r["us"])) for v, r in zip(values, rows)]
    return math.exp(sum(logs) / len(logs)), sum(e <= math.log(2) for e in logs) / len(logs)


def choices(values: Sequence[float], rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By kernel: the time of the variant that the model takes, against the best one."""
    variants: dict[str, list[tuple[float, float]]] = {}
    for value, row in zip(values, rows):
        if row["group"] == "variants":
            variants.setdefault(row["name"], []).append((value, row["us"]))
    return {name: min(found)[1] / min(us for _, us in found) for name, found in variants.items()}


def programs(data: Mapping[str, Any], costs: Mapping[str, Any] | None = None) -> dict[str, tuple[float, float]]:
    """By program: microseconds of a run, predicted (all launches in graphs) and measured."""
    found = {name: [0.0, us] for name, us in data["programs"].items()}
    for program, _, _, uses, work, unread in data["kernels"]:
        found[program][0] += uses * estimate(data["works"][work], GPU, costs, unread).us
    for name, (us, left) in data["graph_programs"].items():
        own = [row for row in data["graphs"] if row[0] == name]
        took = sum(uses * estimate(data["works"][work], GPU, costs, unread).us for *_, uses, work, unread in own)
        found[f"graphs: {name}"] = [took + left, us]
    return {name: tuple(pair) for name, pair in found.items()}


# -- the fit -----------------------------------------------------------------------------------------------------------

def named(values: Sequence[float]) -> dict[str, Any]:
    """Constants as gpus.json has them, from the logarithms that are fitted."""
    numbers = [float(f"{math.exp(v):.4g}") for v in values]
    first, second = len(START), len(START) + len(CLOCKS)
    return {**dict(zip(START, numbers)), "clocks": dict(zip(CLOCKS, numbers[first:second])),
            "tensor": dict(zip(TENSOR, numbers[second:]))}


def fit(data: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Constants with the least error: of logarithms, large ones counting less than their square."""
    import numpy as np
    from scipy.optimize import least_squares
    start = np.log([*START.values(), *CLOCKS.values(), *TENSOR.values()])
    limits = [BOUNDS.get(name, (value / 100, value * 100)) for name, value in {**START, **CLOCKS, **TENSOR}.items()]
    limits[-len(TENSOR):] = [(0.1, 0.85)] * len(TENSOR)
    measured, fitted = np.log([r["us"] for r in rows]), {r["group"] for r in rows}

    def apart(values):
        costs = named(values)
        full = {**costs, **{name: math.exp(v) for name, v in zip(START, values)},
                "clocks": {k: math.exp(v) for k, v in zip(CLOCKS, values[len(START):])},
                "tensor": {k: math.exp(v) for k, v in zip(TENSOR, values[len(START) + len(CLOCKS):])}}
        runs = [OF_PROGRAM * math.log(us / run) for name, (us, run) in programs(data, full).items() if name in fitted]
        return np.concatenate([np.log(predicted(data, rows, full)) - measured, runs, PRIOR * (values - start)])
    found = least_squares(apart, start, bounds=np.log(np.array(limits)).T, loss="soft_l1", f_scale=0.15, max_nfev=40)
    return named(found.x)


def report(data: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], costs: Mapping[str, Any], worst: int) -> None:
    values = predicted(data, rows, costs)
    for group in dict.fromkeys(r["group"] for r in rows):
        own = [(v, r) for v, r in zip(values, rows) if r["group"] == group]
        error, within = errors(*zip(*own))
        print(f"{group[:52]:52} {len(own):5} geometric error {error:.3f}, within 2: {within:.3f}")
    kernels = [(v, r) for v, r in zip(values, rows) if r["group"] not in ("variants", "cases")]
    if kernels:
        error, within = errors(*zip(*kernels))
        print(f"{'all kernels of programs':52} {len(kernels):5} geometric error {error:.3f}, within 2: {within:.3f}")
    if found := sorted(choices(values, rows).values()):
        print(f"the variant taken is within 1.15 of the best for {sum(c <= 1.15 for c in found)} of {len(found)}; "
              f"the worst: {', '.join(f'{c:.2f}' for c in found[-6:])}")
    for name, (us, run) in programs(data, costs).items():
        print(f"{name[:52]:52} predicted {us:9.0f} us, a run took {run:9.0f}: {us / run:.2f}")
    for value, row in sorted(zip(values, rows), key=lambda p: -abs(math.log(p[0] / p[1]["us"])))[:worst]:
        parts = estimate(data["works"][row["works"][0]], GPU, costs).parts
        print(f"  {value:9.1f} for {row['us']:9.1f} {row['group'][:24]} {row['name'][:44]} {row['variant']} "
              f"{ {k: round(v, 1) for k, v in parts.items()} }")


def written(text: str, costs: Mapping[str, Any]) -> str:
    """gpus.json with these constants."""
    place = re.compile(r'"costs": \{.*\}\n\}\s*$', re.DOTALL)
    return place.sub(lambda _: f'"costs": {{\n  "h200": {json.dumps(costs)}\n }}\n}}\n', text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--add", type=Path, metavar="RESULTS", help="of a later run of make gpu")
    parser.add_argument("--without", metavar="WORD", help="programs that are judged, not fitted")
    parser.add_argument("--write", action="store_true", help="put the constants into gpus.json")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="list the N worst predictions")
    asked = parser.parse_args()
    if asked.add:
        from gpu_cost_data import add
        results = json.loads(asked.add.read_text(encoding="utf-8"))
        DATA.write_text(add(json.loads(DATA.read_text(encoding="utf-8")), results), encoding="utf-8")
        return 0
    data = read()
    rows = observations(data)
    judged = [r for r in rows if asked.without and asked.without in f"{r['group']} {r['name']}"]
    costs = fit(data, [r for r in rows if r not in judged])
    report(data, judged or rows, costs, asked.worst)
    print(json.dumps(costs))
    if asked.write:
        CONSTANTS.write_text(written(CONSTANTS.read_text(encoding="utf-8"), costs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
