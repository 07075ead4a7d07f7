"""Inputs and outputs as files: .npy, .npz, 'random:SEED', 'sensible:SEED', 'zeros'.

In: the arguments of --inputs. Out: arrays in the order of the flattened entry parameters. Nothing is unpickled.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hloc.errors import RunError, UsageError
from hloc.files import check_target, writing
from hloc.inputs.arrays import Named, check_forms, random_arrays, zero_arrays
from hloc.inputs.npy import ArrayFile, Header

LONGEST_SEED = 100                     # digits
MADE_UP = frozenset(["random", "sensible", "zeros"])


def read_inputs(sources: Sequence[str], parameters: Sequence[Named],
                sensible: Callable[[int], list[np.ndarray]] | None = None) -> list[np.ndarray]:
    """Arrays for all parameters: those of several files in order, or generated ones.

    sensible  the generator of 'sensible:SEED' (hloc/inputs/sensible.py); None without a module
    """
    if len(sources) == 1 and (rule := generator_rule(sources[0])):
        return generated(*rule, parameters, sensible)
    for source in sources:
        if source.partition(":")[0] in MADE_UP:
            raise UsageError(f"'{source}' fills all inputs: it cannot be combined with files")
    return _read_all([Path(source) for source in sources], parameters)


def generator_rule(source: str) -> tuple[str, int] | None:
    """The kind and the seed of 'sensible:SEED', 'random:SEED' or 'zeros'; None for the name of a file."""
    kind, colon, seed = source.partition(":")
    if kind not in MADE_UP:
        return None
    if not (seed or "0").isdecimal() or len(seed) > LONGEST_SEED or (kind == "zeros" and colon):
        raise UsageError(f"'{source}': the seed must be a whole number, as in random:7")
    return kind, int(seed or "0")


def generated(kind: str, seed: int, wanted: Sequence[Named],
            sensible: Callable[[int], list[np.ndarray]] | None) -> list[np.ndarray]:
    """An array for each of `wanted`; `sensible` as in read_inputs."""
    if kind == "zeros":
        return zero_arrays(wanted)
    if kind == "random":
        return random_arrays(wanted, seed)
    if sensible is None:
        raise UsageError("'sensible' inputs depend on the use of each parameter, which a compiled file lacks")
    return sensible(seed)


def _read_all(paths: Sequence[Path], parameters: Sequence[Named]) -> list[np.ndarray]:
    """The arrays of all files for the parameters: all headers are checked before any array is read.

    Raises RunError for files that cannot be read, and for arrays of another number, type or shape.
    """
    places: list[tuple[Path, Header]] = []
    for path in paths:
        with ArrayFile(path) as file:
            order = _order(path, file.headers, parameters, len(places))
            places += [(path, header) for header in order]
    check_forms(parameters, [(header.dtype, header.sizes) for _, header in places])
    return [array for path, own in groupby(places, lambda place: place[0])
            for array in _arrays(path, [header for _, header in own])]


def _arrays(path: Path, headers: Sequence[Header]) -> Iterator[np.ndarray]:
    """The chosen arrays of a file; RunError if the file changed since its headers were read."""
    with ArrayFile(path) as file:
        for header in headers:
            if header not in file.headers:
                raise RunError(f"cannot read {path}: it changed while it was read")
            yield file.array(file.headers.index(header))


def _order(path: Path, headers: Sequence[Header], parameters: Sequence[Named], first: int) -> list[Header]:
    """Arrays in the order of the parameters if their names are parameters' names, else in the file's order;
    `first`: number of arrays before them.

    Raises RunError if some have names of parameters, and the file's order would give them to others.
    """
    wanted, named = [p.name for p in parameters], {header.name: header for header in headers}
    if named.keys() == set(wanted):
        return [named[name] for name in wanted]
    for name, place in zip(named, wanted[first:]):
        if name in wanted and name != place:
            raise RunError(f"{path}: the order of its arrays gives {name} to parameter {place}, though there is a "
                           f"parameter {name}", hint="name all of its arrays like the parameters, or none: "
                           + ", ".join(wanted[:10]) + (" ..." if len(wanted) > 10 else ""))
    return list(headers)


def read_bound(paths: Sequence[Path], parameters: Sequence[Named]) -> dict[int, np.ndarray]:
    """Arrays for some parameters, by their numbers: by name if all names in the files are parameters' names, else for
    the first ones. Raises RunError for files that cannot be read, and for arrays that do not fit."""
    numbers = {p.name: n for n, p in enumerate(parameters)}
    headers: list[Header] = []
    for path in paths:
        with ArrayFile(path) as file:
            headers += file.headers
    by_name = bool(headers) and all(header.name in numbers for header in headers)
    if not by_name and len(headers) > len(parameters):
        raise RunError(f"{len(headers)} arrays are to be bound, but there are {len(parameters)} parameters")
    if not by_name and any(header.name in numbers for header in headers):
        unknown = next(header.name for header in headers if header.name not in numbers)
        raise RunError(f"there is no parameter {unknown!r} to bind", hint="name all arrays like parameters, or none: "
                       + ", ".join(p.name for p in parameters[:10]))
    places = [numbers[h.name] for h in headers] if by_name else list(range(len(headers)))
    if len(set(places)) < len(places):
        raise RunError("a parameter is bound twice: " + ", ".join(map(str, paths)))
    wanted = [parameters[n] for n in places]
    check_forms(wanted, [(header.dtype, header.sizes) for header in headers])
    return dict(zip(places, (array for path in paths for array in read_arrays(path))))


def read_arrays(path: Path) -> list[np.ndarray]:
    """All arrays of a file, in order: for infeed and recv."""
    with ArrayFile(path) as file:
        return [file.array(number) for number in range(len(file.headers))]


def check_output(path: Path) -> None:
    """Before a long run: can results be written to `path` at all? Raises UsageError or RunError."""
    _check_ending(path)
    check_target(path)


def write_outputs(path: Path, arrays: Sequence[np.ndarray], names: Sequence[str] = (),
                  is_own: Callable[[BinaryIO], bool] | None = None) -> None:
    """One array to an .npy, any number to an .npz (out_0, out_1 ..., or `names`); is_own as in files.writing.
    UsageError for other endings."""
    _check_ending(path)
    if path.suffix == ".npy" and len(arrays) != 1:
        raise UsageError(f"{path} can hold one array, but there are {len(arrays)} results: use .npz")
    with writing(path, is_own=is_own) as file:
        if path.suffix == ".npy":
            np.save(file, arrays[0], allow_pickle=False)
        else:
            members: dict[str, Any] = dict(zip(names or [f"out_{i}" for i in range(len(arrays))], arrays))
            np.savez(file, **members)


def _check_ending(path: Path) -> None:
    if path.suffix not in (".npy", ".npz"):
        raise UsageError(f"cannot write results to {path}: give a name that ends in .npz or .npy")
