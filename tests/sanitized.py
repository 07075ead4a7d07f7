"""Generated C and library kernels under AddressSanitizer and UndefinedBehaviorSanitizer ($HLOC_SANITIZE, hloc/sanitize.py).

    python tests/sanitized.py --seconds 60 [--seed N] [--random COUNT]

Runs the op examples (testdata/ops), then random modules (random_modules.py) for --seconds of all processes together, in as
many processes as there are cores. The first finding ends a process: what it ran is named, with what the sanitizer said.
Results are not judged here, but by the tests that run the same modules without sanitizers.
"""
from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SANITIZERS = "address,undefined"
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


def library() -> str | None:
    """AddressSanitizer's, which a process must be started with; None where the compiler has none."""
    said = subprocess.run([os.environ.get("CC", "gcc"), "-print-file-name=libasan.so"], capture_output=True, text=True,
                          check=False).stdout.strip()
    return os.path.realpath(said) if os.path.isabs(said) and os.path.exists(said) else None


def environment(cache: str) -> dict[str, str]:
    """Of a process that is looked at."""
    return {**os.environ, **OPTIONS, "LD_PRELOAD": library() or "", "HLOC_SANITIZE": SANITIZERS,
            "HLOC_CACHE_DIR": cache, "HLOC_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}


# -- in a process that is looked at ------------------------------------------------------------------------------------

def work(part: int, parts: int, seed: int, seconds: float, most: int) -> None:
    """One part of everything. The last line printed names what runs."""
    from hloc.errors import UnsupportedError
    count = 0
    for name, text, inputs in examples(part, parts):
        print(name, flush=True)
        try:
            run(text, inputs)
        except UnsupportedError:                              # several devices, or what this target does not do
            continue
        count += 1
    print(f"{count} examples", file=sys.stderr)
    start, count = time.monotonic(), 0
    for number in range(part, most, parts):
        if time.monotonic() - start > seconds:
            break
        print(f"random module {number} of seed {seed}", flush=True)
        random_run(seed, number)
        count += 1
    print(f"{count} random modules in {time.monotonic() - start:.0f} s", file=sys.stderr)


def examples(part: int, parts: int) -> Iterator[tuple[str, str, list]]:
    import op_examples
    found = [e for path in sorted(op_examples.FOLDER.glob("*.hlo")) for e in op_examples.read_examples(path)]
    for example in found[part::parts]:
        for case in example.cases[:2]:
            if not case.devices:
                yield example.name, example.text, case.inputs.get(0, [])


def run(text: str, inputs: list) -> None:
    import hloc
    hloc.compile(text + "\n", "cpu")(*inputs)


def random_run(seed: int, number: int) -> None:
    from random_body import Seeded
    from random_modules import random_module

    import hloc
    from hloc.errors import HlocError
    from hloc.inputs import random_arrays
    text = random_module(Seeded(random.Random(seed * 1_000_003 + number).getrandbits(40)))
    try:
        exe = hloc.compile(text, "cpu")
        exe(*random_arrays(exe.parameters, number))
    except HlocError as error:
        print(f"  {type(error).__name__}", flush=True)


# -- around them -------------------------------------------------------------------------------------------------------

def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="for random modules, of all processes together")
    parser.add_argument("--random", type=int, default=1 << 30, help="random modules at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        work(*options.part, options.seed, options.seconds, options.random)
        return 0
    if library() is None:
        print("the C compiler has no libasan: nothing is looked at here", file=sys.stderr)
        return 1
    start, cores, failed = time.monotonic(), os.cpu_count() or 1, 0
    with tempfile.TemporaryDirectory() as cache:
        Path(cache).chmod(0o700)
        command = [sys.executable, __file__, "--seconds", str(options.seconds / cores), "--random", str(options.random),
                   "--seed", str(options.seed), "--part"]
        running = [subprocess.Popen([*command, str(part), str(cores)], env=environment(cache), stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, errors="replace") for part in range(cores)]
        for process in running:
            out, said = process.communicate()
            print(said[-6000:] if process.returncode else said.strip().replace("\n", ", "))
            if process.returncode:
                failed = 1
                print(f"exit code {process.returncode} in: {(out.strip().splitlines() or ['the start'])[-1]}")
    print(f"sanitized: {time.monotonic() - start:.0f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())
