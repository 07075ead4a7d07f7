"""The measured kernels that the GPU cost model is fitted to, each with the Work that hloc counts in it.

    python benchmarks/fit_gpu_costs.py --add benchmarks/results/gpu-nvidia-h200-2026-11-27.json

In: the results of a run of make gpu. Out: benchmarks/results/gpu-h200-kernels.json: "works", each once; "graphs":
program, kernel, microseconds in a graph of its own, uses in a run, work, and the share of its memory that L2 does not
hold in a run; "graph_programs": microseconds of a run, and of its kernels that are not in "graphs"; "cases": what was
measured by itself. The first measurements (2026-11-26, hloc 1332a71) stay: "kernels" and "programs", as "graphs", but
launched alone; "variants": convolution, variant, microseconds, works. Works of kernels that hloc no longer makes are as
counted when it did.
"""
from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

from gpu_sections import programs
from gpu_sections.bandwidth import MODULES
from gpu_sections.products import ATTENTION, DOT, GRADIENTS, SUMS

from hloc import api
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import Launch, Program, all_steps
from hloc.targets import find
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.costs.program import unread_share, works_of_kernel
from hloc.targets.cuda.costs.work import Work
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import kernel_code
from hloc.targets.cuda.tiles.source import variants
from hloc.targets.inlining import c_name

GPU = GPUS["h200"]
FULL_SIZE = SimpleNamespace(emulated=False, size=lambda full, _: full)
BANDWIDTH = (16384, 4096)
PRODUCTS = (("bf16", 8192, 8192, 8192), ("f16", 8192, 8192, 8192), ("s8", 8192, 8192, 8192), ("f32", 4096, 4096, 4096),
            ("bf16", 4096, 1024, 16384))
ATTENDED = (64, 2048, 128)          # heads, positions, size of a head
# Kernels whose code has changed since 2026-11-27, 16:18 UTC
CHANGED = ("hloc_attention_few", "hloc_gemm_thin<", "hloc_attention_group<", "hloc_attention_gradient_group<")
PACKING = "_lines"                  # ends the names of launches that pack operands: these have changed, too
ABOUT = "NVIDIA H200: microseconds by the device's clock, and what the kernels do (costs/work.py). " \
        "graphs, cases: 2026-11-27; the rest: 2026-11-26, hloc 1332a71. Written by fit_gpu_costs.py --add"


class Table:
    """Works, each once."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def place(self, work: Work) -> int:
        return self.rows.setdefault(json.dumps(work.to_json()), len(self.rows))


def add(data: dict, results: dict) -> str:
    """The text of the file with the kernels of a run of make gpu, in the place of those that it had from such a run.
    Without kernels whose code has changed since then: those that pack operands, attention."""
    table, found, runs = Table(), [], {}
    works = [Work.from_json(w) for w in data["works"]]
    kernels = [[*k[:4], table.place(works[k[4]]), k[5]] for k in data["kernels"]]
    of_variants = [[*v[:3], [table.place(works[w]) for w in v[3]]] for v in data["variants"]]
    cases = list(case_rows(results, table))
    with tempfile.TemporaryDirectory() as exports:
        os.environ.setdefault(programs.FOLDER, exports)
        programs.EXPORT_SECONDS = 600
        for row in results["rows"]:
            if row["section"] == "kernels" and "kernels" in row:
                own = graph_rows(row["what"], row["kernels"], table)
                names = {name for _, name, *_ in own}
                own += [[*r[:4], table.place(works[r[4]]), r[5]] for r in data["graphs"]
                        if r[0] == row["what"] and r[1] not in names]
                names = {name for _, name, *_ in own}
                left = sum(uses * us for name, _, _, _, uses, us, *_ in row["kernels"] if name not in names)
                found += own
                runs[row["what"]] = [round(row["value"], 1), round(left, 1)]
    return as_text({
        "about": ABOUT, "programs": data["programs"], "works": [json.loads(text) for text in table.rows],
        "kernels": kernels, "variants": of_variants, "cases": cases, "graph_programs": runs, "graphs": found})


def graph_rows(name: str, measured: list[list], table: Table) -> list:
    """Program, kernel, microseconds, uses, work, unread share of the kernels that hloc still makes."""
    planned, rows = plan(name), []
    unread = unread_shares(planned)
    known = {(k[0], tuple(k[1]), tuple(k[2]), k[3]): k for k in measured}
    for number, kernel in enumerate(planned.kernels):
        for start, work in as_measured(kernel, c_name(number, kernel.name), known):
            _, _, _, _, uses, us, *_ = known[start[:4]]
            rows.append([name, start.function, us, uses, table.place(work), unread[number]])
    return rows


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


def as_measured(kernel: Kernel | Tile, name: str, known: Mapping[tuple, list]) -> list[tuple[Geometry, Work]]:
    """The launches that were measured, and their work: in the variant that was measured, whichever the cost model
    takes now."""
    if any(word in kernel_code(kernel, name, GPU, "").text for word in CHANGED):
        return []
    for variant in variants(kernel, GPU) if isinstance(kernel, Tile) else [""]:
        code = kernel_code(kernel, name, GPU, variant)
        if all(g[:4] in known for g in code.launches):
            found = zip(code.launches, works_of_kernel(kernel, GPU, variant))
            return [(g, work) for g, work in found if not g.function.endswith(PACKING)]
    return []


def unread_shares(program: Program) -> list[float]:
    """By kernel: the mean share of its arguments that L2 does not hold."""
    found: list[list[float]] = [[0.0] for _ in program.kernels]
    for step in all_steps(program.steps):
        if isinstance(step, Launch):
            found[step.kernel].append(unread_share(program, step, GPU))
    return [round(sum(shares) / max(1, len(shares) - 1), 3) for shares in found]


def case_rows(results: dict, table: Table) -> Iterator[list]:
    """What a run measured by itself: name, microseconds, works. Memory-bound kernels, chains, products, attention."""
    values = {(r["section"], r["what"]): r["value"] for r in results["rows"] if "value" in r}
    (rows, columns), (h, s, d) = BANDWIDTH, ATTENDED
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
    found = [(f"{type} {m} x {n} x {k}", 2 * m * n * k,
              (DOT + "}}").format(t=type, o=SUMS[type], m=m, n=n, k=k, root="ROOT ")) for type, m, n, k in PRODUCTS]
    found += [(f"attention bf16 {h} heads, {s} positions of {d}", 4 * h * s * s * d, ATTENTION.format(h=h, s=s, d=d)),
              (f"attention bf16 with gradients, {h} heads, {s} positions of {d}", 14 * h * s * s * d,
               GRADIENTS.format(h=h, s=s, d=d))]
    for name, operations, text in found:
        yield [name, round(operations / values["products", name] / 1e6, 2), placed(plan_text(text), table)]


def placed(program: Program, table: Table) -> list[int]:
    """Of all its launches."""
    return [table.place(w) for step in program.steps if isinstance(step, Launch)
            for w in works_of_kernel(program.kernels[step.kernel], GPU)]
