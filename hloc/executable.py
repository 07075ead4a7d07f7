"""Executable: a compiled program that can be called with NumPy arrays, looked at and saved.

    exe = hloc.compile("model.hlo"); results = exe(x, y); exe.save("model.so"); print(exe.source)

`exe(*arrays)` takes the flattened entry parameters and returns the flattened results. A backend (one per target) is
what runs: it is given checked, contiguous arrays and returns result arrays. It may also have a method `quick(arrays)`
that checks them itself, and returns None where it would rather be given checked ones.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from hloc.errors import UsageError
from hloc.files import writing
from hloc.inputs import Named, check_arrays
from hloc.ir import Instruction

HEADER_MARK = "/* Compiled by hloc. */\n"               # how headers begin, so that no other is overwritten
Backend = Callable[[Sequence[np.ndarray]], "tuple[np.ndarray, ...]"]


def is_own_header(file: BinaryIO) -> bool:
    return file.read(len(HEADER_MARK)) == HEADER_MARK.encode()


class StepTime(NamedTuple):
    """What one step of a program took, in all its runs.

    kernel        the generated function (kernels of the same structure share one), "copy", or a Python function's name
    instruction   what the step computes, of the optimized module
    bytes, flops  of one run, as the cost model counts them: what the kernel's loops read, write and compute
    """

    kernel: str
    instruction: Instruction
    bytes: int
    flops: int
    runs: int
    seconds: float


@dataclass
class Executable:
    """target      "cpu", "cuda", "sm_90a", "reference"
    parameters   names and shapes of the flattened entry parameters;  results: likewise
    start        makes the backend (builds and loads what it needs); called once, at the latest by the first call
    generated    makes `source`: the generated program as a reader wants it
    texts        file ending -> the program as text (".c", ".cu", ".ptx", ".hlo")
    files        file ending -> writer of a binary form (".so", ".cubin") into an open file
    headers      file ending -> maker of the C header that stands beside such a file, from its name without the ending
    profiled     what the steps took since it was asked last; None unless compiled with Options(profile=True)
    """

    name: str
    target: str
    parameters: Sequence[Named]
    results: Sequence[Named]
    start: Callable[[], Backend]
    generated: Callable[[], str]
    texts: dict[str, Callable[[], str]] = field(default_factory=dict)
    files: dict[str, Callable[[BinaryIO], None]] = field(default_factory=dict)
    headers: dict[str, Callable[[str], str]] = field(default_factory=dict)
    profiled: Callable[[], tuple[StepTime, ...]] | None = None
    _backend: Backend | None = None
    _quick: Callable[[tuple], tuple[np.ndarray, ...] | None] | None = None

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            self._backend = self.start()
            self._quick = getattr(self._backend, "quick", None)
        return self._backend

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Run. Raises RunError, naming the parameter, where arrays are missing, surplus or of another type or shape."""
        backend, quick = self._backend or self.backend, self._quick
        results = quick(arrays) if quick is not None else None
        if results is None:
            checked = tuple(check_arrays(self.parameters, arrays))
            results = quick(checked) if quick is not None else None      # scalars, for one, are arrays now
            if results is None:
                results = backend(checked)
        return results

    def profile(self) -> tuple[StepTime, ...]:
        """What each step of the program took since this was asked last. Raises UsageError where steps are not timed."""
        if self.profiled is None:
            raise UsageError("this program does not time its steps", hint="compile it with hloc.Options(profile=True)")
        return self.profiled()

    @property
    def source(self) -> str:
        """The generated program: C, CUDA C, or HLO text for the reference target."""
        return self.generated()

    def text(self, suffix: str) -> str:
        """The program in one of its text forms. Raises UsageError for one that the target has not."""
        if suffix not in self.texts:
            raise self._unknown(suffix)
        return self.texts[suffix]()

    def save(self, path: str | Path) -> None:
        """Write the program in the form that the file's ending names, whole or not at all. Raises RunError where the
        file cannot be written, or where another's header stands in the place of its own."""
        path = Path(path)
        if path.suffix not in self.texts and path.suffix not in self.files:
            raise self._unknown(path.suffix)
        with ExitStack() as written:
            file = written.enter_context(writing(path, 0o777 if path.suffix in self.headers else 0o666))
            if path.suffix in self.headers:
                header = written.enter_context(writing(path.with_suffix(".h"), is_own=is_own_header))
                header.write((HEADER_MARK + self.headers[path.suffix](path.stem)).encode())
            if path.suffix in self.files:
                self.files[path.suffix](file)
            else:
                file.write(self.texts[path.suffix]().encode())

    def _unknown(self, suffix: str) -> UsageError:
        known = ", ".join([*self.files, *self.texts])
        what = suffix or "a file without an ending"
        return UsageError(f"target {self.target} cannot write {what}; it writes {known}")

    def __repr__(self) -> str:
        takes = ", ".join(v.shape.to_string(False) for v in self.parameters[:6])
        gives = ", ".join(v.shape.to_string(False) for v in self.results[:6])
        return f"<hloc executable {self.name} on {self.target}: ({takes}) -> ({gives})>"
