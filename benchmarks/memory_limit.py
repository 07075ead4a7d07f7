"""A transformer's training step within a memory limit, against the same step without one, run by run in turn.

    python benchmarks/memory_limit.py [--share 0.6] [--layers 8] [--width 128] [--batch 16] [--seconds 60] [MODULE ...]

Without a MODULE, the step of testdata/models/decoder_training.py at that size is exported with JAX. For each module:
the peak without a limit and with one of --share of it, the medians of the CPU and wall seconds of a run, their ratios,
and whether all results are equal bit for bit. Both programs run in this process, in turn.
"""
from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent / "testdata" / "models"
FEWEST_ROUNDS = 5


def exported(arguments: argparse.Namespace, folder: str) -> Path:
    """The training step as HLO text."""
    sys.path.insert(0, str(MODELS))
    from common import hlo_text
    from decoder import Config
    from decoder_training import training_model
    config = Config(arguments.layers, arguments.width, heads=4, vocabulary=256, positions=128)
    path = Path(folder) / "training_step.hlo"
    path.write_text(hlo_text(training_model(config, arguments.batch), "training_step"))
    return path


def compare(path: Path, share: float, seconds: float) -> None:
    """Compile with and without the limit, run in turn, print."""
    import hloc
    from hloc.api import optimized_plan
    from hloc.inputs.sensible import sensible_arrays
    from hloc.targets import find
    _, program = optimized_plan(hloc.load(path), find("cpu"))
    limit = int(share * program.peak)
    module, limited = optimized_plan(hloc.load(path), find("cpu"), hloc.Options(passes={"memory_limit": limit}))
    print(f"{path.name}: peak {program.peak:,} bytes, with a limit of {limit:,} it is {limited.peak:,} "
          f"({limited.peak / program.peak:.3f})")
    sides = [hloc.compile(path, target="cpu"),
             hloc.compile(path, target="cpu", options=hloc.Options(passes={"memory_limit": limit}))]
    arrays = sensible_arrays(hloc.load(path))
    whole, within = (side(*arrays) for side in sides)
    equal = sum(a.tobytes() == b.tobytes() for a, b in zip(whole, within))
    print(f"  {equal} of {len(whole)} results are equal bit for bit")
    cpu: tuple[list[float], list[float]] = ([], [])
    wall: tuple[list[float], list[float]] = ([], [])
    start, rounds = time.perf_counter(), 0
    while rounds < FEWEST_ROUNDS or time.perf_counter() - start < seconds:
        for n in (0, 1) if rounds % 2 else (1, 0):
            begun = time.process_time(), time.perf_counter()
            sides[n](*arrays)
            cpu[n].append(time.process_time() - begun[0])
            wall[n].append(time.perf_counter() - begun[1])
        rounds += 1
    for name, (plain, small) in (("CPU", map(statistics.median, cpu)), ("wall", map(statistics.median, wall))):
        print(f"  {name}: {plain * 1e3:.1f} ms, limited {small * 1e3:.1f} ms: {small / plain:.3f} times; {rounds} runs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", type=Path)
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for path in arguments.modules or [exported(arguments, folder)]:
            compare(path, arguments.share, arguments.seconds)


if __name__ == "__main__":
    main()
