"""Inputs and XLA's results as an .npz file: types that NumPy's format does not know are stored as bytes.

    save_arrays(path, Arrays(inputs, outputs, moved)); load_arrays(path)
"""
from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hloc.ir import element_type_of, numpy_dtype

SIZES_OF_NAMES = 26         # where an entry of a zip file says how long its name and what follows it are


class Arrays(NamedTuple):
    """moved: how far each output goes, relative to its largest magnitude, when the inputs move by one ulp."""

    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    moved: list[float]


def save_arrays(path: Path, data: Arrays) -> None:
    stored: dict[str, Any] = {}
    types = {}
    for kind, arrays in (("in", data.inputs), ("out", data.outputs)):
        for i, array in enumerate(arrays):
            array = np.ascontiguousarray(array).reshape(array.shape)
            stored[f"{kind}{i}"] = np.frombuffer(array.tobytes(), np.uint8)
            types[f"{kind}{i}"] = (element_type_of(array.dtype), array.shape)
    facts = json.dumps({"types": types, "moved": data.moved}).encode()
    temporary = path.with_suffix(".partial.npz")
    np.savez(temporary, facts=np.frombuffer(facts, np.uint8), **stored)
    temporary.replace(path)


def load_arrays(path: Path) -> Arrays:
    """What save_arrays stored."""
    stored = _stored(path)
    facts = json.loads(bytes(stored["facts"]))
    inputs = _arrays(stored, facts["types"], "in")
    return Arrays(inputs, _arrays(stored, facts["types"], "out"), facts["moved"])


def _stored(path: Path) -> dict[str, np.ndarray]:
    """The bytes of each array, as np.load gives them in four times the time: it looks for damage as it reads."""
    found = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            file.seek(entry.header_offset + SIZES_OF_NAMES)
            file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
            np.lib.format.read_magic(file)
            (size,), _, _ = np.lib.format.read_array_header_1_0(file)
            found[entry.filename.removesuffix(".npy")] = np.fromfile(file, np.uint8, size)
    return found


def _arrays(stored: Mapping[str, np.ndarray], types: dict[str, Sequence], kind: str) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    while (key := f"{kind}{len(found)}") in types:
        element_type, shape = types[key]
        found.append(stored[key].view(numpy_dtype(element_type)).reshape(shape))
    return found
