"""Inputs and outputs as files: .npy, .npz, 'random:SEED', 'sensible:SEED', 'zeros'.

In: what --inputs was given. Out: arrays in the order of the flattened entry parameters. Nothing is ever unpickled.
"""
from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hloc.errors import RunError, UsageError
from hloc.inputs.arrays import Named, random_arrays, zero_arrays

MADE_UP = frozenset(["random", "sensible", "zeros"])


def read_inputs(sources: Sequence[str], parameters: Sequence[Named],
                sensible: Callable[[int], list[np.ndarray]] | None = None) -> list[np.ndarray]:
    """Arrays for all parameters: several files are put one behind the other; what is made up stands alone.

    sensible  what 'sensible:SEED' stands for (hloc/inputs/sensible.py); None where there is no module to look at
    """
    if len(sources) == 1 and (rule := made_up_rule(sources[0])):
        return made_up(*rule, parameters, sensible)
    arrays: list[np.ndarray] = []
    for source in sources:
        if source.partition(":")[0] in MADE_UP:
            raise UsageError(f"'{source}' fills all inputs: it cannot stand beside files")
        arrays += _read(Path(source), parameters, len(arrays))
    return arrays


def made_up_rule(source: str) -> tuple[str, int] | None:
    """The kind and the seed of 'sensible:SEED', 'random:SEED' or 'zeros'; None for the name of a file."""
    kind, colon, seed = source.partition(":")
    if kind not in MADE_UP:
        return None
    if not (seed or "0").isdigit() or (kind == "zeros" and colon):
        raise UsageError(f"'{source}': the seed must be a whole number, as in random:7")
    return kind, int(seed or "0")


def made_up(kind: str, seed: int, wanted: Sequence[Named],
            sensible: Callable[[int], list[np.ndarray]] | None) -> list[np.ndarray]:
    """An array for each of `wanted`; `sensible` as in read_inputs."""
    if kind == "zeros":
        return zero_arrays(wanted)
    if kind == "random":
        return random_arrays(wanted, seed)
    if sensible is None:
        raise UsageError("'sensible' inputs are chosen by what a module does with them; a compiled file does not tell")
    return sensible(seed)


def _read(path: Path, parameters: Sequence[Named], first: int = 0) -> list[np.ndarray]:
    """The arrays of one file; `first`: how many stand before them.

    Raises RunError for a file that cannot be read or holds pickled objects.
    """
    try:
        with open(path, "rb") as file:
            if file.read(6) != b"\x93NUMPY" and not zipfile.is_zipfile(path):
                file.seek(0)
                damaged = file.read(2) == b"PK"
                raise RunError(f"{path} is a damaged .npz file" if damaged else f"{path} is not an .npy or .npz file",
                               hint=None if damaged else "numpy.save and numpy.savez write such files")
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return [loaded]
        with loaded:
            return [loaded[name] for name in _order(path, loaded.files, parameters, first)]
    except FileNotFoundError:
        hint = "made-up inputs are sensible:SEED, random:SEED or zeros" if ":" in path.name else None
        raise RunError(f"no such file: {path}", hint=hint) from None
    except IsADirectoryError:
        raise RunError(f"{path} is a folder, not an .npy or .npz file") from None
    except ValueError as error:
        if "pickle" in str(error):
            raise RunError(f"{path} holds pickled Python objects, which hloc never loads: "
                           "save plain arrays with numpy.save or numpy.savez") from None
        raise RunError(f"cannot read {path}: {error}") from None
    except MemoryError:
        raise RunError(f"cannot read {path}: not enough memory") from None
    except (OSError, EOFError, zipfile.BadZipFile, SyntaxError) as error:
        raise RunError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _order(path: Path, names: list[str], parameters: Sequence[Named], first: int) -> list[str]:
    """Names in the order of the parameters where they are the parameters' own, else as the file has them.

    Raises RunError where some are names of parameters, and the file's order would give them to others.
    """
    wanted = [p.name for p in parameters]
    if set(names) == set(wanted):
        return wanted
    for name, place in zip(names, wanted[first:]):
        if name in wanted and name != place:
            raise RunError(f"{path}: the order of its arrays gives {name} to parameter {place}, though there is a "
                           f"parameter {name}", hint="name all of its arrays like the parameters, or none: "
                           + ", ".join(wanted[:10]) + (" ..." if len(wanted) > 10 else ""))
    return list(names)


def read_arrays(path: Path) -> list[np.ndarray]:
    """All arrays of a file, in its order: what the host hands in while a program runs."""
    return _read(path, ())


def check_output(path: Path) -> None:
    """Before a long run: can results be written to `path` at all? UsageError, or RunError where there is no folder."""
    if path.suffix not in (".npy", ".npz"):
        raise UsageError(f"cannot write results to {path}: give a name that ends in .npz or .npy")
    if not path.resolve().parent.is_dir():
        raise RunError(f"cannot write {path}: no such folder")


def write_outputs(path: Path, arrays: Sequence[np.ndarray], names: Sequence[str] = ()) -> None:
    """One array to an .npy, any number to an .npz (out_0, out_1 ..., or `names`). UsageError for other endings."""
    check_output(path)
    if path.suffix == ".npy" and len(arrays) != 1:
        raise UsageError(f"{path} can hold one array, but there are {len(arrays)} results: use .npz")
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with open(temporary, "wb") as file:
            if path.suffix == ".npy":
                np.save(file, arrays[0], allow_pickle=False)
            else:
                np.savez(file, **dict(zip(names or [f"out_{i}" for i in range(len(arrays))], arrays)))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}") from None
