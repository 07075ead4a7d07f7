"""Bundles: a module, its inputs, the flags it was run with, versions, and the log of a run in one file.

    write_bundle(file, Bundle("module.hlo", data, None, {"target": "cpu"}, arrays), versions, log)
    case = read_bundle(data, "case.zip")          case.module, case.arrays, case.flags

A zip with the members bundle.json (FORMAT, the module's name, flags, versions), module.*, inputs/0.npy ..., log.txt.
Everything is checked: nothing is unpacked to disk, sizes are bounded, and only the names above are allowed.
"""
from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from hloc.archives import DAMAGED, open_archive
from hloc.errors import HlocError
from hloc.files import private_copy
from hloc.inputs.npy import ArrayFile

FORMAT = 1
MAGIC = (b"PK\3\4", b"PK\5\6")                         # first bytes of zips
MANIFEST, LOG, INPUTS = "bundle.json", "log.txt", "inputs/"
MODULE_NAME = re.compile(r"module(?:\.[A-Za-z0-9_]{1,12}){0,3}")
METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
MOST_MANIFEST, MOST_MODULE, PIECE = 1 << 20, 2 << 30, 1 << 20
FLAGS = {"target": str, "fusion": str, "memory_limit": int, "exact": bool, "f32": str, "elided": str}
LONGEST_FLAG = 200


class Bundle(NamedTuple):
    """name: of the module's member, with the ending of its form; module: the file's content; choice:
    which of several modules in it; flags: some of FLAGS; arrays: one per flattened parameter, or none."""

    name: str
    module: bytes
    choice: str | None
    flags: Mapping[str, Any]
    arrays: tuple[np.ndarray, ...]


def is_bundle(data: bytes) -> bool:
    return data[:4] in MAGIC


def module_name(path: str) -> str:
    """The member's name for a module's file: the ending stays."""
    ending = "".join(Path(path).suffixes[-2:])
    return f"module{ending}" if MODULE_NAME.fullmatch(f"module{ending}") else "module"


def write_bundle(file: BinaryIO, bundle: Bundle, versions: Mapping[str, str], log: str) -> None:
    """Write all of it into an open file."""
    told = {"format": FORMAT, "module": bundle.name, "choice": bundle.choice, "flags": dict(bundle.flags),
            "versions": dict(versions)}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps(told, indent=1))
        archive.writestr(bundle.name, bundle.module)
        archive.writestr(LOG, log)
        for number, array in enumerate(bundle.arrays):
            with archive.open(f"{INPUTS}{number}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def read_bundle(data: bytes, name: str) -> Bundle:
    """Read a bundle. Raises HlocError if the content is not a bundle or damaged; RunError for its arrays."""
    with _opened(data, name) as archive:
        told = _manifest(archive)
        module = _member(archive, told["module"], MOST_MODULE)
        if is_bundle(module):
            raise ValueError("its module is an archive")
        count = sum(m.filename.startswith(INPUTS) for m in archive.infolist())
    with ArrayFile(Path(name), _in_memory(data, name), INPUTS) as file:
        arrays = tuple(file.array(number) for number in range(count))
    return Bundle(told["module"], module, told["choice"], told["flags"], arrays)


def read_flags(data: bytes, name: str) -> Mapping[str, Any]:
    """Read only the flags of a bundle."""
    with _opened(data, name) as archive:
        return _manifest(archive)["flags"]


@contextmanager
def _opened(data: bytes, name: str) -> Iterator[zipfile.ZipFile]:
    """Open the archive; errors of the block become HlocErrors about `name`."""
    try:
        with _in_memory(data, name) as file:
            yield open_archive(file, METHODS)
    except HlocError:
        raise
    except (*DAMAGED, zipfile.BadZipFile, zlib.error, UnicodeDecodeError) as error:
        raise HlocError(f"{name} is not a bundle: {error}", hint="hloc bundle MODULE -o case.zip makes one") from None


def _in_memory(data: bytes, name: str) -> io.BufferedReader:
    content = io.BytesIO(data)
    content.name = name
    copy = private_copy(content)
    copy.seek(0)
    return copy


def _manifest(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The checked content of bundle.json. Raises ValueError if write_bundle could not have written it."""
    told = json.loads(_member(archive, MANIFEST, MOST_MANIFEST))
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ValueError(f"{MANIFEST} is not of format {FORMAT}")
    name, choice, flags = told.get("module"), told.get("choice"), told.get("flags")
    if not isinstance(name, str) or not MODULE_NAME.fullmatch(name):
        raise ValueError(f"{MANIFEST} names no module")
    if not isinstance(choice, (str, type(None))) or not isinstance(flags, dict):
        raise ValueError(f"{MANIFEST} has a choice or flags of another type")
    for key, value in flags.items():
        if type(value) is not FLAGS.get(key) or len(str(value)) > LONGEST_FLAG:
            raise ValueError(f"{MANIFEST} has an invalid flag {str(key)[:40]!r}")
    return told


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """One member, unpacked. Raises ValueError if it is missing or larger than `most`."""
    if name not in archive.NameToInfo:
        raise ValueError(f"it holds no {name}")
    pieces, size = [], 0
    with archive.open(name) as stream:
        while piece := stream.read(PIECE):
            size += len(piece)
            if size > most:
                raise ValueError(f"{name} holds more than {most >> 20} MiB")
            pieces.append(piece)
    return b"".join(pieces)


def flag_words(flags: Mapping[str, Any]) -> Sequence[str]:
    """The flags as on a command line: --target cpu --memory-limit 4096 --exact."""
    return [word for key, value in flags.items() if value is not False
            for word in (f"--{key.replace('_', '-')}", *([] if value is True else [str(value)]))]
