"""Damaged files, and modules at the edges of what is allowed.

Whatever stands in one, hloc answers with a result or with an HlocError, soon, in little memory.

    python tests/fuzz.py text --seconds 1800 [--seed N] [--count COUNT] [folder of .hlo files ...]
    python tests/fuzz.py proto ...      binary and text protos (fuzz_proto.py)
    python tests/fuzz.py npz ...        arrays for the parameters: .npz and .npy (fuzz_npz.py)
    python tests/fuzz.py modules ...    random modules at the edges of what is allowed (fuzz_modules.py)

Each file goes through in this process, with limits on time and memory; one that breaks a rule is named, and written to
`--save`. The same seed gives the same files. At the end, and every five minutes, stands how many were tried.
"""
from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

TESTDATA = Path(__file__).parent.parent / "testdata"
SLOWEST = 5.0                           # seconds for one file
MEMORY = 3 << 30                        # bytes of address space above what the process began with
FORMATS = ("text", "proto", "npz", "modules")
REPORT = 300.0                          # seconds between two lines on how many were tried


class Format(NamedTuple):
    """originals: what is damaged, from the .hlo files of folders; mutated: one of them (and the others) -> a damaged
    one; attempt: what hloc makes of it, where only an HlocError ends as it should; suffix: of a file's name."""

    originals: Callable[[Sequence[Path]], list]
    mutated: Callable[[Any, list, random.Random], Any]
    attempt: Callable[[Any], None]
    suffix: str


def format_named(name: str) -> Format:
    """Of the file fuzz_NAME.py."""
    file = import_module(f"fuzz_{name}")
    return Format(file.originals, file.mutated, file.attempt, file.SUFFIX)


def too_slow(number: int, frame) -> None:
    raise TimeoutError(f"took longer than {SLOWEST:.0f} s")


def problem_of(data: Any, attempt: Callable[[Any], None]) -> str:
    """What is wrong with hloc's answer to a file; empty where nothing is. CPU time counts, not time."""
    signal.signal(signal.SIGVTALRM, too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, SLOWEST)
    try:
        attempt(data)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-8:])[-3000:]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return ""


def limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def finds(format: Format, originals: list, seed: int, seconds: float,
          most: int | None = None) -> Iterator[tuple[int, Any, str]]:
    """(number, file, problem) for every damaged file with a problem, until the time is over or `most` were tried."""
    start, number = time.monotonic(), 0
    report = start + REPORT
    while (most is None or number < most) and time.monotonic() - start < seconds:
        choose = random.Random(seed * 1_000_003 + number)
        data = format.mutated(choose.choice(originals), originals, choose)
        problem = problem_of(data, format.attempt)
        if problem:
            yield number, data, problem
        number += 1
        if time.monotonic() > report:
            report += REPORT
            print_count(number, time.monotonic() - start)
    print_count(number, time.monotonic() - start)


def print_count(number: int, took: float) -> None:
    print(f"{number} files in {took:.0f} s, {number / max(took, 1e-3):.0f} a second", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("folders", nargs="*", type=Path, help="more .hlo files to start from")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, help="stop after so many, so that a faster machine tries no others")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--save", type=Path, help="folder for files with a problem")
    options = parser.parse_args()
    format = format_named(options.format)
    originals = format.originals([TESTDATA, *options.folders])
    limit_memory()
    gc.freeze()                         # the grammar's tables and the originals are not gone through again
    count = 0
    for number, data, problem in finds(format, originals, options.seed, options.seconds, options.count):
        count += 1
        print(f"--- seed {options.seed} {options.format} {number}\n{problem}", flush=True)
        if options.save:
            options.save.mkdir(parents=True, exist_ok=True)
            content = data if isinstance(data, bytes) else data.encode(errors="replace")
            (options.save / f"{options.seed}-{number}{format.suffix}").write_bytes(content)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
