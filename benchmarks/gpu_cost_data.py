"""The measured kernels that the GPU cost model is fitted to, each with the Work that hloc counts in it now.

    python benchmarks/fit_gpu_costs.py --collect FOLDER

In: the files that a run on an H200 left in FOLDER. Out: benchmarks/results/gpu-h200-kernels.json: "works", each once;
"kernels": program, kernel, microseconds, uses in a run, work, and the share
of its memory that L2 does not hold in a run; "variants": convolution, variant, microseconds, works; "cases":
what was measured by itself, in a graph; "programs": microseconds of a run.
"""
from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

from gpu_sections import programs

from hloc import api
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import Launch, Program, all_steps
from hloc.targets import find
from hloc.targets.cuda.costs.program import unread_share, works_of_kernel
from hloc.targets.cuda.costs.work import Work
from hloc.targets.cuda.execution.measured import describe
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.loops.kernels import kernel_source
from hloc.targets.cuda.tiles.source import tile_source, variants
from hloc.targets.inlining import c_name

GPU = GPUS["h200"]
FULL_SIZE = SimpleNamespace(emulated=False, size=lambda full, _: full)
SAME = 0.25                         # how far two measurements of one kernel may lie apart
BANDWIDTH = (16384, 4096)


class Table:
    """Works, each once."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def place(self, work: Work) -> int:
        return self.rows.setdefault(json.dumps(work.to_json()), len(self.rows))


def collect(folder: Path) -> str:
    """The text of the file."""
    measured, all_variants, made = (json.loads((folder / f"{n}.json").read_text(encoding="utf-8"))
                                for n in ("hloc_kernels", "resnet50_bf16_ways", "make_gpu"))
    table, kernels, of_variants = Table(), [], []
    with tempfile.TemporaryDirectory() as exports:
        os.environ.setdefault(programs.FOLDER, exports)
        programs.EXPORT_SECONDS = 600
        for name, facts in measured.items():
            planned = plan(name)
            unread = unread_shares(planned)
            known = {(k["kernel"], tuple(k["grid"]), tuple(k["block"]), k["shared"]): k for k in facts["kernels"]}
            for number, kernel in enumerate(planned.kernels):
                starts, works, rows = as_measured(kernel, c_name(number, kernel.name), known)
                kernels += [[name, g.function, round(k["us"], 2), k["uses"], table.place(w), unread[number]]
                            for g, k, w in zip(starts, rows, works) if k]
                if "bf16" in name and isinstance(kernel, Tile) and rows:
                    us = sum(k["us"] for k in rows)
                    of_variants += variant_rows(kernel, us, rows[0]["uses"], all_variants, table)
    cases = list(case_rows(made, table))
    return as_text({
        "about": "NVIDIA H200, 2026-11-26, hloc 1332a71: microseconds by the device's clock, and what the kernels do "
                 "(hloc/targets/cuda/costs/work.py); written by benchmarks/fit_gpu_costs.py --collect",
        "programs": {name: round(facts["run_us"], 1) for name, facts in measured.items()},
        "works": [json.loads(text) for text in table.rows], "kernels": kernels, "variants": of_variants,
        "cases": cases})


def as_text(data: dict) -> str:
    """JSON with a row a line."""
    parts = []
    for key, value in data.items():
        if isinstance(value, list):
            rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in value)
            parts.append(f'"{key}": [\n  {rows}\n ]')
        else:
            parts.append(f'"{key}": {json.dumps(value)}')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def plan(name: str) -> Program:
    case = programs.find(name, FULL_SIZE)
    if case.made:
        return plan_text(programs.exported(case, False) / "model.hlo")
    models = programs.helpers()
    return plan_text(models.model_path(models.find(name)))


def plan_text(source: str | Path) -> Program:
    return api.optimized_plan(api.load(source), find("h200"))[1]


def as_measured(kernel: Kernel | Tile, name: str, known: Mapping[tuple, dict]) -> tuple[list, list, list]:
    """Launches, their work, and the measured rows, None where there is none: in the variant that was measured,
    whichever the cost model takes now."""
    for variant in variants(kernel, GPU) if isinstance(kernel, Tile) else [""]:
        starts = tile_source(kernel, name, GPU, variant).launches if isinstance(kernel, Tile) else \
            (kernel_source(kernel, name, GPU)[1],)
        rows = [known.get(g[:4]) for g in starts]
        if all(rows):
            return starts, works_of_kernel(kernel, GPU, variant), rows
    return [], [], []


def unread_shares(program: Program) -> list[float]:
    """By kernel: the mean share of its arguments that L2 does not hold."""
    found: list[list[float]] = [[0.0] for _ in program.kernels]
    for step in all_steps(program.steps):
        if isinstance(step, Launch):
            found[step.kernel].append(unread_share(program, step, GPU))
    return [round(sum(shares) / max(1, len(shares) - 1), 3) for shares in found]


def variant_rows(tile: Tile, us: float, uses: int, measured: list[dict], table: Table) -> list:
    """Of the convolution among the measured ones that this is."""
    near = [m for m in measured if m["kernel"] == describe(tile) and m["uses"] == uses and not m.get("found")
            and m["default"] in m["us"] and abs(math.log(m["us"][m["default"]] / us)) < SAME]
    if not near:
        return []
    own = min(near, key=lambda m: abs(math.log(m["us"][m["default"]] / us)))
    own["found"] = True
    label = f"{own['kernel']}, {measured.index(own)}"
    known = set(variants(tile, GPU))
    return [[label, variant, round(t, 2), [table.place(w) for w in works_of_kernel(tile, GPU, variant)]]
            for variant, t in own["us"].items() if variant in known and variant != "cuDNN"]


def case_rows(made: dict, table: Table) -> Iterator[list]:
    """Kernels that make gpu measured by themselves: memory-bound ones, chains, products."""
    from gpu_sections.bandwidth import MODULES
    from gpu_sections.products import DOT
    values = {(row["section"], row["what"]): row["value"] for row in made["rows"] if "value" in row}
    rows, columns = BANDWIDTH
    for type in ("f32", "bf16"):
        for name, (_, text) in MODULES.items():
            what = f"{name} {type}[{rows},{columns}]"
            program = plan_text(f"HloModule m\n{text}".format(t=type, r=rows, c=columns))
            size = sum(v.shape.num_bytes for v in (*program.parameters, *program.results))
            yield [what, round(size / values["bandwidth", what] / 1e3, 2), placed(program, table)]
    for case in programs.cases(FULL_SIZE):
        if case.text:
            milliseconds = values["end_to_end", case.name]
            yield [case.name, round(milliseconds * 1e3, 2), placed(plan_text(case.text), table)]
    for type in ("bf16", "f16"):
        program = plan_text((DOT + "}}").format(t=type, o=type, m=8192, n=8192, k=8192, root="ROOT "))
        rate = values["products", f"{type} 8192 x 8192 x 8192"]
        yield [f"{type} product of 8192 cubed", round(2 * 8192 ** 3 / rate / 1e6, 2), placed(program, table)]


def placed(program: Program, table: Table) -> list[int]:
    """Of all its launches."""
    return [table.place(w) for step in program.steps if isinstance(step, Launch)
            for w in works_of_kernel(program.kernels[step.kernel], GPU)]
