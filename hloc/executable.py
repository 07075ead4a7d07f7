"""Executable: a compiled program that can be called with NumPy arrays, printed and saved.

    exe = hloc.compile("model.hlo"); results = exe(x, y); exe.save("model.so", name="encoder"); print(exe.source)

`exe(*arrays)` takes the flattened entry parameters and returns the flattened results. Arguments are NumPy arrays, or
arrays of PyTorch, JAX and others, which are read in place (hloc/inputs/dlpack.py). A backend (one
per target) runs the program: it takes checked, contiguous arrays and returns result arrays. Optional methods:

    quick(arrays)        checks arguments itself; returns None if it needs checked ones
    device_view(given)   the DeviceView of an argument on its GPU, else None
    on_device(arrays)    as a call, but the results stay on its GPU
    fixed(array)         a substitute for an array that is an argument of many calls
"""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hloc.binding import Arrays, BoundBackend, fixed_arrays
from hloc.errors import UsageError
from hloc.files import writing
from hloc.inputs import Named, check_arrays
from hloc.ir import Module
from hloc.ir.html import drawing, summary
from hloc.run_trace import RunTrace, StepTime

HEADER_MARK = "/* Compiled by hloc. */\n"               # first line of headers: no other file is overwritten
Backend = Callable[[Sequence[Any]], tuple[Any, ...]]    # arrays, DeviceViews, what `fixed` gave -> arrays


NAME = re.compile(r"[A-Za-z]\w{0,63}", re.ASCII)


def checked_name(name: str) -> str:
    """Check a prefix for C functions; "" for none. Raises UsageError for an invalid one."""
    if name and not NAME.fullmatch(name):
        raise UsageError(f"{name[:80]!r} is not a valid prefix for C functions",
                         hint="use up to 64 ASCII letters, digits and _, beginning with a letter")
    return name


def name_from(text: str) -> str:
    """A valid prefix from the name of a file or a module: my-model.v2 -> my_model_v2."""
    plain = re.sub(r"\W", "_", text, flags=re.ASCII).lstrip("_")[:60]
    return plain if NAME.fullmatch(plain) else f"m_{plain}".rstrip("_")


def is_own_header(file: BinaryIO) -> bool:
    return file.read(len(HEADER_MARK)) == HEADER_MARK.encode()


@dataclass(eq=False)
class Executable:
    """target      "cpu", "cuda", "sm_90a", "reference"
    parameters   names and shapes of the flattened entry parameters;  results: likewise
    start        makes the backend (builds and loads what it needs); called once, at the latest by the first call
    generated    makes `source`: the generated program, for reading
    texts        file ending -> maker of a text form (".c", ".cu", ".ptx", ".hlo"), from the prefix of its functions
    files        file ending -> writer of a binary form (".so", ".cubin") into an open file, with such a prefix
    headers      file ending -> maker of the C header beside such a file, from such a prefix
    hosts        file ending -> makers of the C program that runs the written file, and of its header
    profiled     times of the steps since the last call; None unless compiled with Options(profile=True)
    traced       when the steps ran since the last call; None unless compiled with Options(trace=N)
    optimized    the module after the passes, to be looked at; None where it is not known
    devices      that a saved program is for
    on_device    makes the executable of one of several devices (hloc/evaluate), from the same code
    recipe       returns a function and arguments that make this executable again: pickle writes these
    specialized  makes the executable for fixed parameters, by number, or returns None where that is this one; None:
                 fixing them has no effect
    bound_to     of a bound executable: the original one, and the fixed arrays
    """

    name: str
    target: str
    parameters: Sequence[Named]
    results: Sequence[Named]
    start: Callable[[], Backend]
    generated: Callable[[], str]
    texts: dict[str, Callable[[str], str]] = field(default_factory=dict)
    files: dict[str, Callable[[BinaryIO, str], None]] = field(default_factory=dict)
    headers: dict[str, Callable[[str], str]] = field(default_factory=dict)
    hosts: dict[str, tuple[Callable[[BinaryIO, str], str], Callable[[str], str]]] = field(default_factory=dict)
    profiled: Callable[[], tuple[StepTime, ...]] | None = None
    traced: Callable[[], RunTrace] | None = None
    optimized: Callable[[], Module] | None = None
    devices: int = 1
    on_device: Callable[[Any], Executable] | None = None
    recipe: Callable[[], tuple[Callable[..., Executable], tuple[Any, ...]]] | None = None
    specialized: Callable[[frozenset[int]], Executable | None] | None = None
    bound_to: tuple[Executable, dict[int, Any]] | None = None
    _backend: Backend | None = None
    _quick: Callable[[tuple[Any, ...]], tuple[np.ndarray, ...] | None] | None = None

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            self._backend = self.start()
            self._quick = getattr(self._backend, "quick", None)
        return self._backend

    def __call__(self, *arrays: Any, device: bool = False) -> tuple[Any, ...]:
        """Run. Returns a tuple of NumPy arrays; for a GPU and with `device`, of DeviceArrays, which stay on the
        GPU. Raises RunError, naming the parameter, if arrays are missing, surplus or of another type or shape.
        """
        backend, quick = self._backend or self.backend, self._quick
        results = quick(arrays) if quick is not None else None
        if results is not None:
            return results
        checked = tuple(check_arrays(self.parameters, arrays, getattr(backend, "device_view", None)))
        results = quick(checked) if quick is not None else None          # scalars are arrays now
        if results is not None:
            return results
        if device and (on_device := getattr(backend, "on_device", None)):
            return on_device(checked)
        return backend(checked)

    def bind(self, weights: Arrays) -> Executable:
        """Fix arguments: arrays by name or number, or a list for the first parameters. Returns an executable of the
        other parameters. The arrays are checked once; do not change them afterwards. A GPU keeps them. For a CPU the
        module is compiled again, so that the first call packs them for matmuls and computes what depends only on them.
        Raises the errors of a call, and UsageError for an unknown name."""
        def on_device(given: object) -> Any:
            return getattr(self.backend, "device_view", lambda _: None)(given)

        origin, before = self.bound_to or (self, {})
        unbound = [n for n in range(len(origin.parameters)) if n not in before]
        added = fixed_arrays(self.parameters, weights, on_device)
        fixed = {**before, **{unbound[n]: array for n, array in added.items()}}
        free = [n for n in unbound if n not in fixed]
        program = origin.specialized and origin.specialized(frozenset(fixed)) or origin
        return replace(program, parameters=[origin.parameters[n] for n in free], _backend=None, _quick=None,
                       start=lambda: BoundBackend(program.backend, fixed, free), texts={}, files={}, headers={},
                       specialized=None, bound_to=(origin, fixed),
                       recipe=lambda: (Executable.bind, (origin, {n: np.asarray(a) for n, a in fixed.items()})))

    def profile(self) -> tuple[StepTime, ...]:
        """The times of each step since the last call of this. Raises UsageError if steps are not timed."""
        if self.profiled is None:
            raise UsageError("this program does not time its steps", hint="compile it with hloc.Options(profile=True)")
        return self.profiled()

    def trace(self) -> RunTrace:
        """When each step of the program ran since this was asked last. Raises UsageError where there is no trace."""
        if self.traced is None:
            raise UsageError("this program makes no trace", hint="compile it with hloc.Options(trace=20)")
        return self.traced()

    @property
    def source(self) -> str:
        """The generated program: C, CUDA C, or HLO text for the reference target."""
        return self.generated()

    def text(self, suffix: str, name: str = "") -> str:
        """The program in one of its text forms; name: as for save, by default the module's. Raises UsageError for a
        form that the target does not have."""
        if suffix not in self.texts:
            raise self._unknown(suffix)
        return self.texts[suffix](checked_name(name) or name_from(self.name))

    def save(self, path: str | Path, *, name: str = "", host: str = "") -> None:
        """Write the program in the form of the file's ending. An incomplete file never appears. name: prefix of the C
        functions (encoder: encoder_run), by default the file's name. host: "c" also writes a C program with a header
        that runs a .cubin. Raises RunError if the file cannot be written, or if the header's place holds a file that
        hloc did not write; UsageError for an invalid name."""
        path, name = Path(path), checked_name(name)
        if path.suffix not in self.texts and path.suffix not in self.files:
            raise self._unknown(path.suffix)
        if host and (host != "c" or path.suffix not in self.hosts):
            raise UsageError(f"{path.name} has no host program in {host}", hint="--host c goes with -o FILE.cubin")
        if name and path.suffix not in self.headers and not host:
            raise UsageError(f"{path.name} has no C functions: --name {name} has no effect")
        name = name or name_from(path.stem)
        with ExitStack() as written:
            file = written.enter_context(writing(path, 0o777 if path.suffix in self.files else 0o666))
            if path.suffix in self.headers:
                header = written.enter_context(writing(path.with_suffix(".h"), is_own=is_own_header))
                header.write((HEADER_MARK + self.headers[path.suffix](name)).encode())
            if path.suffix in self.files:
                self.files[path.suffix](file, name)
                for suffix, text in self._host(file, path.suffix, name) if host else ():
                    written.enter_context(writing(path.with_suffix(suffix), is_own=is_own_header)).write(
                        (HEADER_MARK + text).encode())
            else:
                file.write(self.texts[path.suffix](name).encode())

    def _host(self, file: BinaryIO, suffix: str, name: str) -> list[tuple[str, str]]:
        program, header = self.hosts[suffix]
        return [(".c", program(file, name)), (".h", header(name))]

    def _unknown(self, suffix: str) -> UsageError:
        known = ", ".join([*self.files, *self.texts])
        if not known:
            return UsageError(f"{self.name} has no module to write: it was loaded from a compiled file, or has bound "
                              "arguments", hint="save the executable that hloc.compile returned")
        what = suffix or "a file without an ending"
        return UsageError(f"target {self.target} cannot write {what}; it writes {known}")

    def __reduce__(self) -> tuple[Callable[..., Executable], tuple[Any, ...]]:
        """Pickle the module and options: unpickling compiles again, or finds the program in the cache."""
        if self.recipe is None:
            raise UsageError(f"{self.name} does not pickle: it was loaded from a compiled file, or compiled with "
                             "consume=True", hint="pass the file on, or compile the module without consume=True")
        return self.recipe()

    def _repr_html_(self) -> str:
        """A summary and the graph of the optimized module, for notebooks."""
        return summary(f"executable {self.name} on {self.target}",
                       [("parameters", self.parameters), ("results", self.results)]) + drawing(
                           self.optimized() if self.optimized is not None else None)

    def __repr__(self) -> str:
        takes = ", ".join(v.shape.to_string(False) for v in self.parameters[:6])
        gives = ", ".join(v.shape.to_string(False) for v in self.results[:6])
        return f"<hloc executable {self.name} on {self.target}: ({takes}) -> ({gives})>"
