"""Reads every HLO text of a folder, prints it, reads the print: are they the same? Prints counts and what failed.

    python tests/corpus_roundtrip.py FOLDER [--xla] [--names]

With --xla (needs jaxlib) XLA's parser reads both the file and our print of it; its own prints of the two must be equal,
and what XLA rejects is listed with our verdict. XLA aborts on some texts, so it runs in a process of its own.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from module_equality import difference  # noqa: E402

from hloc.errors import HlocError  # noqa: E402
from hloc.text import parse_modules  # noqa: E402

_WORKER = """
import json, os, sys
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
from jaxlib import _hlo
options = _hlo.HloPrintOptions()
options.print_large_constants = True
for line in sys.stdin:
    try:
        reply = {"print": _hlo.hlo_module_from_text(json.loads(line)).to_string(options)}
    except Exception as error:
        reply = {"error": str(error)[:2000]}
    print(json.dumps(reply), flush=True)
"""


class Xla:
    """XLA's parser in another process, started again when it dies."""

    def __init__(self):
        self.process = None

    def print_of(self, text: str) -> dict:
        """{"print": text} or {"error": message}."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen([sys.executable, "-c", _WORKER], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            self.process.stdin.write(json.dumps(text) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            self.process.wait()
            return {"error": "XLA's process ended"}
        return json.loads(line)

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None


def check(text: str, name: str, xla: Xla | None) -> list[tuple[str, str]]:
    """(verdict, detail) of a text; verdicts are what the counts are about."""
    try:
        modules = parse_modules(text, name)
    except HlocError as error:
        verdicts = [("rejected", str(error))]
        if xla:
            verdicts.append(("rejected, by XLA too" if "error" in xla.print_of(text) else "REJECTED, BUT NOT BY XLA",
                             error.message))
        return verdicts
    return [verdict for module in modules for verdict in _check_module(module, text, name, xla)]


def _check_module(module, text: str, name: str, xla: Xla | None) -> list[tuple[str, str]]:
    printed = str(module)
    verdicts = [("read", "")]
    try:
        again = parse_modules(printed, name + " (printed)")[0]
        found = difference(module, again) or (None if str(again) == printed else "prints differ")
    except HlocError as error:
        found = str(error)
    verdicts.append(("PRINT IS ANOTHER MODULE", found) if found else ("read, printed and read: equal", ""))
    if xla:
        verdicts.append(_compare_xla(xla, text, printed))
    return verdicts


def _compare_xla(xla: Xla, text: str, printed: str) -> tuple[str, str]:
    if "..." in printed:
        xla.close()           # XLA fills elided constants by counting on: begin with a new process for each text
    theirs = xla.print_of(text)
    if "..." in printed:
        xla.close()
    ours = xla.print_of(printed)
    if "error" in theirs:
        return "read by us, rejected by XLA", theirs["error"]
    if "error" in ours:
        return "XLA REJECTS OUR PRINT", ours["error"]
    if ours["print"] == theirs["print"]:
        return "XLA reads our print as the same", ""
    lines = zip(theirs["print"].splitlines(), ours["print"].splitlines())
    pair = next(((a, b) for a, b in lines if a != b), ("", "length"))
    return "XLA READS OUR PRINT AS ANOTHER", f"{pair[0][:700]}\n     {pair[1][:700]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--xla", action="store_true", help="compare with XLA's parser")
    parser.add_argument("--names", action="store_true", help="one line per file")
    options = parser.parse_args()
    xla = Xla() if options.xla else None
    counts: Counter[str] = Counter()
    start = time.perf_counter()
    paths = sorted(p for p in options.folder.rglob("*") if p.suffix in (".hlo", ".txt"))
    for path in paths:
        for verdict, detail in check(path.read_text(encoding="utf-8"), path.name, xla):
            counts[verdict] += 1
            if detail or options.names:
                print(f"{path.name}: {verdict}\n     {detail}")
    if xla:
        xla.close()
    print(f"{len(paths)} files in {time.perf_counter() - start:.1f} s")
    for verdict, count in sorted(counts.items()):
        print(f"{count:6d} {verdict}")
    return int(any(verdict.isupper() for verdict in counts))


if __name__ == "__main__":
    sys.exit(main())
