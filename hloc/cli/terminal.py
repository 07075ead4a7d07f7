"""What the commands share: reading modules, progress on a terminal, tables of results.

Data goes to stdout, everything else to stderr; progress appears only on a terminal, after one
second.
"""
from __future__ import annotations

import errno
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np

from hloc.cli.color import is_colored, tell
from hloc.cli.options import Reading
from hloc.errors import Span, UsageError, printable
from hloc.files import read_at_most
from hloc.inputs import Named
from hloc.tools.formatting import array_cells

PROGRESS_AFTER_SECONDS = 1.0


class Progress:
    """A context manager that shows the current stage on one line of stderr, after one second.

    The compiler calls `report(stage, done, total)`; a thread draws, so that the seconds of a long stage are shown.
    In a pipe, or within the first second, nothing is drawn and rich is not imported.
    """

    def __init__(self) -> None:
        self.stage, self.done, self.total = "", 0, 0
        self.start = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def report(self, stage: str, done: int = 0, total: int = 0) -> None:
        self.stage, self.done, self.total = stage, done, total

    def _draw(self) -> None:
        if self._stop.wait(PROGRESS_AFTER_SECONDS):
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
        console = Console(stderr=True, color_system="standard" if is_colored(sys.stderr) else None, highlight=False)
        with Live(console=console, transient=True, auto_refresh=False, redirect_stdout=False) as line:
            while not self._stop.wait(0.1):
                count = f" {self.done} of {self.total}" if self.total else ""
                seconds = time.monotonic() - self.start
                line.update(Text(f"{printable(self.stage or 'start')}{count} ... {seconds:.0f} s", style="cyan"),
                            refresh=True)


def warn(message: str, span: Span | None = None) -> None:
    """A warning on stderr, with its place in the user's text."""
    tell((f"{span}: " if span else "") + f"warning: {printable(message)}")


def read_module(path: str, reading: Reading, progress: Progress | None = None, inputs: Sequence[str] = ()):
    """The module at `path`, parsed and verified. '-' is standard input. JAX lowers script.py:function on the examples
    of the script or of `inputs` (hloc/cli/scripts.py)."""
    from hloc.api import Options, load
    options = Options(progress=progress.report if progress else None)
    if ".py" in path:
        from hloc.cli.scripts import is_script, module_of_script
        if is_script(path):
            return module_of_script(path, inputs, lambda content, name: load(
                content, name=name, **reading._asdict(), warn=warn, options=options))
    if path != "-":
        return load(Path(path), **reading._asdict(), warn=warn, options=options)
    return load(standard_input(), name="<stdin>", **reading._asdict(), warn=warn, options=options)


def read_program(path: str, reading: Reading, progress: Progress | None = None, inputs: Sequence[str] = ()):
    """The module at `path`, or the executable that `compile` wrote there."""
    from hloc.api import load_compiled
    if Path(path).suffix in (".so", ".cubin"):
        return load_compiled(Path(path))
    return read_module(path, reading, progress, inputs)


def standard_input() -> bytes:
    """Read standard input. Raises UsageError if it is closed or cannot be read."""
    from hloc.sources import MOST_BYTES
    try:
        if sys.stdin is None:
            raise OSError(errno.EBADF, "it is closed")
        return read_at_most(sys.stdin.buffer, MOST_BYTES, "<stdin>")
    except OSError as error:
        raise UsageError(f"cannot read standard input: {error.strerror}") from None


def tell_of_gpu(asked: str, taken: str) -> None:
    """Print a note if target auto chose the CPU on a machine with an NVIDIA driver."""
    from hloc.targets import gpu_left_out
    if why := gpu_left_out(asked, taken):
        tell(f"note: running on the CPU: {why.splitlines()[0]}; see hloc doctor")


def input_reader(inputs: Sequence[str], module) -> Callable[[Sequence[Named]], list[np.ndarray]]:
    """A function from parameters to arrays: those of --inputs, else the arguments in the module's file, else sensible:0
    (for a compiled file random:0), with a note. Call this before the module is compiled in place."""
    from hloc.inputs.files import read_inputs
    from hloc.inputs.sensible import sensible_inputs
    from hloc.ir import Module
    default = getattr(module, "default_inputs", None)
    wants_sensible = isinstance(module, Module) and (not inputs or inputs[0].startswith("sensible"))
    sensible = sensible_inputs(module) if wants_sensible else None
    generated = "sensible:0" if sensible else "random:0"

    def read(parameters: Sequence[Named]) -> list[np.ndarray]:
        if inputs or not parameters:
            return read_inputs(inputs or ("zeros",), parameters, sensible)
        if default is not None:
            tell("note: no --inputs given: using the arguments in the file")
            return list(default)
        tell(f"note: no --inputs given: using {generated}")
        return read_inputs((generated,), parameters, sensible)

    return read


def results_table(results: Sequence[Named], arrays: Sequence[np.ndarray]) -> None:
    """Print one row per result: shape, dtype, min, mean, max, first values."""
    print_table(["result", "type", "shape", "min", "mean", "max", "first values"],
                [[v.name, v.shape.element_type, *array_cells(a)] for v, a in zip(results, arrays)], right=(3, 4, 5))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> None:
    """An aligned table on stdout. In a pipe each row is one line, for grep; on a terminal long cells are
    wrapped within its width. Empty columns are omitted."""
    cells = [list(titles)] + [[printable(str(c)) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) if any(row[i] for row in cells[1:]) or not rows else 0
              for i in range(len(titles))]
    if sys.stdout.isatty():
        _wrapped_table([[row[i] for i, w in enumerate(widths) if w] for row in cells],
                       [i in right for i, w in enumerate(widths) if w])
        return
    for row in cells:
        padded = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths)) if w]
        click.echo("  ".join(padded).rstrip())


def _wrapped_table(cells: list[list[str]], is_right: list[bool]) -> None:
    """The table for rich: the first row holds the titles; numbers are aligned right and not wrapped."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    colored = is_colored(sys.stdout)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold" if colored else "")
    for title, right in zip(cells[0], is_right):
        table.add_column(Text(title), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in cells[1:]:
        table.add_row(*map(Text, row))
    Console(color_system="standard" if colored else None, highlight=False, soft_wrap=False).print(table)


def counted(count: int, noun: str) -> str:
    """'1 step', '2 steps'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def line_of(instruction) -> int | str | None:
    """The instruction's line in its text; None for no instruction, and for one that a pass made."""
    return instruction.line if instruction is not None else None


def source_of(instruction) -> str:
    """The line of the user's program that made an instruction, as loss.py:7 (loss); "" if unknown."""
    return next(map(str, instruction.written_at()), "") if instruction is not None else ""


def source_json(instruction) -> list[dict]:
    """The same for JSON: the frames, the innermost first."""
    frames = instruction.written_at() if instruction is not None else ()
    return [{"file": f.file, "line": f.line, "function": f.function} for f in frames]
