"""Programs of JAX over 2 to 16 devices, partitioned by hloc and by XLA: results, bytes sent, memory.

    python benchmarks/partitioner.py [--only NAME] [--json FILE]

benchmarks/sharded_programs has the programs: data, tensor, sequence, expert and pipeline parallel, FSDP, images by
rows; forward and training. Of each: whether the results of the partitioned text on all devices are those of the
evaluator on the whole text (of JAX where the text has regions for one device, which the evaluator cannot run); bytes
that a device sends, relative to XLA's partitioned text; the peak of memory that `hloc memory` finds in both, and that
of arrays alone: of such small programs the workspace of one kernel may be the largest part.
"""
from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

import hloc
from hloc.analysis.communication import bytes_sent
from hloc.api import Options, optimized_plan
from hloc.errors import HlocError
from hloc.evaluate import evaluate
from hloc.evaluate.simulate import evaluate_devices
from hloc.ir import Module
from hloc.kernels.memory import memory_use
from hloc.parallel import Partition, partition
from hloc.targets import find
from hloc.text import parse_module

PROGRAMS = Path(__file__).parent / "sharded_programs"
MOST_SENT, MOST_PEAK, LARGEST_ERROR = 1.05, 1.1, 2e-5
CASES: dict[int, Sequence[str]] = {
    2: ("tensor_parallel", "sequence_parallel", "layers_in_a_scan", "embedding", "odd_mesh", "matrices", "choices",
        "convolutions", "strides_and_holes", "routed_experts"),
    4: ("data_parallel", "transformer", "scan_training", "vocabulary_parallel", "convolution_features", "image_rows",
        "uneven", "uneven_on_two_axes", "moved", "cut_and_joined", "cache", "random_numbers", "counted", "scattered",
        "transformer_training", "image_and_features", "waves_around", "next_word", "divided_table", "gathered_keys",
        "adam_divided_state", "accumulated", "pipeline_by_rolls"),
    8: ("fsdp_and_tensor", "experts", "manual_collectives", "partly_manual", "pipeline", "transformer_training",
        "normalized_images", "pooled_rows_training", "residual_rows", "token_shift", "next_token_loss", "dropout",
        "fsdp_scan", "adam_fsdp_and_tensor", "experts_by_exchange", "gathered_keys", "moved", "waves_around"),
    16: ("fsdp", "adam_fsdp", "residual_rows_training", "heat", "ring_attention", "heads_by_exchange",
         "pipeline_training", "pipeline_by_rolls", "routed_experts_training", "divided_table", "cache_by_places",
         "causal_convolution"),
}


def export(folder: Path, count: int, names: Iterable[str]) -> None:
    """Texts and arrays of programs over so many devices, by a process of JAX."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, PROGRAMS, folder, str(count), *names], text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])


def far(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, relative to the largest magnitude."""
    a, b = (np.asarray(x, np.complex128 if x.dtype.kind == "c" else np.float64) for x in (got, want))
    return float(np.max(np.abs(a - b), initial=0) / max(np.max(np.abs(b), initial=0), 1e-30))


def error_of(divided: Partition, path: Path, arrays: np.lib.npyio.NpzFile) -> float:
    given = [arrays[f"in_{n}"] for n in range(len(divided.takes))]
    parts = [divided.parts(given, d) for d in range(divided.count)]
    results = divided.joined(evaluate_devices(divided.module, parts))
    if "GlobalToLocal" in path.read_text():
        wanted: Sequence[np.ndarray] = [arrays[f"out_{n}"] for n in range(len(results))]
    else:
        wanted = evaluate(hloc.load(path), given)
    return max(map(far, results, wanted))


def peaks_of(module: Module) -> tuple[int, int] | tuple[None, None]:
    """Bytes of a device's memory, and those of arrays alone; None where hloc has no plan for a text of XLA's."""
    target = find("cpu")
    try:
        optimized, _ = optimized_plan(module, target, Options())
        workspace, machine = target.workspace, target.machine
        return memory_use(optimized, machine, workspace).peak, memory_use(optimized, machine).peak
    except HlocError as error:
        print(f"{module.name}: {error}", file=sys.stderr)
        return None, None


def measured(folder: Path, name: str, count: int) -> dict:
    """One program, whose texts are in a folder."""
    path = folder / f"{name}.before.hlo"
    divided = partition(hloc.load(path))
    theirs = parse_module((folder / f"{name}.after.hlo").read_text(), name)
    with np.load(folder / f"{name}.npz") as arrays:
        error = error_of(divided, path, arrays)
    (peak, arrays_peak), (peak_xla, arrays_peak_xla) = peaks_of(divided.module), peaks_of(theirs)
    return {"program": name, "devices": count, "error": error, "sent": bytes_sent(divided.module),
            "sent_xla": bytes_sent(theirs), "peak": peak, "peak_xla": peak_xla, "arrays": arrays_peak,
            "arrays_xla": arrays_peak_xla}


def ratio(ours: float | None, theirs: float | None) -> float:
    """NaN where one of them is not known; 1 where nothing is sent by both."""
    if ours is None or theirs is None:
        return math.nan
    return ours / theirs if theirs else math.inf if ours else 1.0


def table(rows: Sequence[dict]) -> str:
    lines = ["| program | devices | equal | bytes sent | of XLA's | peak | of XLA's | arrays | of XLA's |",
             "|---|---:|---|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        equal = "yes" if row["error"] < LARGEST_ERROR else f"no, {row['error']:.1e}"
        sent, peak, arrays = (ratio(row[key], row[f"{key}_xla"]) for key in ("sent", "peak", "arrays"))
        lines.append(f"| {row['program']} | {row['devices']} | {equal} | {row['sent']:,.0f} | {sent:.2f} | "
                     f"{row['peak'] or 0:,} | {peak:.2f} | {row['arrays'] or 0:,} | {arrays:.2f} |")
    return "\n".join(lines)


def summary(rows: Sequence[dict]) -> str:
    """What is above the limits."""
    lines = [f"{len(rows)} programs, {sum(r['error'] < LARGEST_ERROR for r in rows)} equal"]
    for what, key, most in (("bytes sent", "sent", MOST_SENT), ("peak", "peak", MOST_PEAK),
                            ("arrays", "arrays", MOST_PEAK)):
        found = [(ratio(r[key], r[f"{key}_xla"]), r) for r in rows]
        above = [f"{r['program']} on {r['devices']} ({value:.2f})" for value, r in found if value > most]
        lines.append(f"{what}: {sum(v <= most for v, _ in found)} at most {most} of XLA's; above: "
                     f"{', '.join(above) or 'none'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this program; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for count, names in CASES.items():
            chosen = [n for n in names if not arguments.only or n in arguments.only]
            folder = Path(temporary) / str(count)
            if chosen:
                export(folder, count, chosen)
            for name in chosen:
                rows.append(measured(folder, name, count))
    print(table(rows), summary(rows), sep="\n\n")
    if arguments.json:
        arguments.json.write_text(json.dumps({"limits": [MOST_SENT, MOST_PEAK], "programs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
