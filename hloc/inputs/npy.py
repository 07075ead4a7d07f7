"""Arrays in .npy and .npz files: all headers are read and checked before any array.

    with ArrayFile(path) as file:
        file.headers          [Header(name="x", dtype=float32, sizes=(2, 3), ...)]: no array has been read
        file.array(0)         the array

Nothing is unpickled. Everything that a file states is checked: headers are short, arrays fit into memory, and a member
of an .npz must end where its array ends.
"""
from __future__ import annotations

import io
import math
import os
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from hloc.archives import DAMAGED, open_archive
from hloc.errors import RunError
from hloc.files import opened
from hloc.limits import available_memory

MAGIC, ZIPPED = b"\x93NUMPY", (b"PK\3\4", b"PK\5\6")
LENGTH_BYTES = {1: 2, 2: 4, 3: 4}     # of a header's length, by the format's version
LONGEST_HEADER = 10_000               # bytes, NumPy's limit
KINDS = "biufcV"                      # of NumPy's types: those that HLO has, and raw bytes
METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
PIECE = 1 << 20
WRONG_HEADER = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, tokenize.TokenError)


class Header(NamedTuple):
    """name: in an .npz, "" in an .npy; by_columns: elements are in Fortran order."""

    name: str
    dtype: np.dtype
    sizes: tuple[int, ...]
    by_columns: bool

    @property
    def bytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.itemsize


class ArrayFile:
    """An .npy or .npz, open, as a context manager. Raises RunError for a damaged file.

    file    the same, open already, to be closed here;  folder: the part of a zip that holds the arrays
    """

    def __init__(self, path: Path, file: io.BufferedReader | None = None, folder: str = ""):
        self.path, self.folder = path, folder
        self._given = file

    def __enter__(self) -> ArrayFile:
        with self._named():
            self._file = self._given or opened(self.path)
        try:
            with self._named():
                self._members = self._find_members()
            self.headers = [self._header(number) for number in range(len(self._members))]
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def array(self, number: int) -> np.ndarray:
        """One of the arrays, in C order. Raises RunError if it does not fit into memory, or the file is too short."""
        header, free = self.headers[number], available_memory()
        with self._named(header.name), self._stream(number) as stream:
            if free is not None and header.bytes > free:
                raise ValueError(f"it takes {header.bytes / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free")
            if _header_of(stream, header.name) != header:
                raise ValueError("it changed while it was read")
            array = np.empty(header.sizes[::-1] if header.by_columns else header.sizes, header.dtype)
            _fill(array, stream)
            if header.name:
                stream.read(1)                                    # nothing: at the end zipfile compares the checksum
            if header.dtype.kind == "b":
                array = array.view(np.uint8) != 0                 # bytes above 1 are true
            return np.ascontiguousarray(array.T) if header.by_columns else array

    def _find_members(self) -> list[zipfile.ZipInfo | None]:
        """The members of an .npz; [None] for an .npy."""
        start = self._file.read(len(MAGIC))
        if start == MAGIC:
            return [None]
        if not start.startswith(ZIPPED):
            raise RunError(f"{self.path} is not an .npy or .npz file",
                           hint="numpy.save and numpy.savez write such files")
        self._archive = open_archive(self._file, METHODS)
        members = [m for m in self._archive.infolist() if m.filename.startswith(self.folder)]
        for member in members:
            if not member.filename.endswith(".npy"):
                raise ValueError(f"{member.filename} is no .npy array")
        return [*members]

    @contextmanager
    def _stream(self, number: int) -> Iterator[IO[bytes]]:
        """The bytes of an array, from its header on."""
        member = self._members[number]
        if member is None:
            self._file.seek(0)
            yield self._file
        else:
            with self._archive.open(member) as stream:
                yield stream

    def _header(self, number: int) -> Header:
        """The header of an array. Raises RunError if the file is too short for it."""
        member = self._members[number]
        name = member.filename.removesuffix(".npy") if member else ""
        with self._named(name), self._stream(number) as stream:
            header = _header_of(stream, name)
            whole = member.file_size if member else os.fstat(self._file.fileno()).st_size
            there = max(0, whole - stream.tell())
            if there < header.bytes:
                raise ValueError(f"it ends early: its header says {header.bytes:,} bytes, {there:,} follow")
            if member and there > header.bytes:
                raise ValueError(f"it holds {there:,} bytes, its header says {header.bytes:,}")
            return header

    @contextmanager
    def _named(self, member: str = "") -> Iterator[None]:
        """Errors of Python's and NumPy's own as a RunError that names the file and its member."""
        what = f"{member} of {self.path}" if member else str(self.path)
        try:
            yield
        except FileNotFoundError:
            hint = "generated inputs are sensible:SEED, random:SEED or zeros" if ":" in self.path.name else None
            raise RunError(f"no such file: {self.path}", hint=hint) from None
        except zipfile.BadZipFile as error:
            damaged = str(error)[:1].lower() + str(error)[1:]
            raise RunError(f"{self.path} is a damaged .npz file: {damaged}") from None
        except MemoryError:
            raise RunError(f"cannot read {what}: not enough memory") from None
        except (*DAMAGED, zlib.error) as error:
            raise RunError(f"cannot read {what}: {getattr(error, 'strerror', None) or error}") from None


def _header_of(stream: IO[bytes], name: str) -> Header:
    """The header at the beginning of a stream, which then stands at the array's first byte. Raises ValueError."""
    start = _exactly(stream, len(MAGIC) + 2)
    if not start.startswith(MAGIC) or start[-2] not in LENGTH_BYTES:
        raise ValueError("it is no .npy array")
    length = int.from_bytes(_exactly(stream, LENGTH_BYTES[start[-2]]), "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"its header of {length:,} bytes is too long")
    text = _exactly(stream, length)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")          # a file of Python 2 is accepted
            sizes, by_columns, dtype = np.lib.format.read_array_header_1_0(
                io.BytesIO(length.to_bytes(2, "little") + text), max_header_size=LONGEST_HEADER)
    except WRONG_HEADER:
        raise ValueError("its header is damaged") from None
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, which hloc never loads: "
                         "save plain arrays with numpy.save or numpy.savez")
    if dtype.kind not in KINDS or dtype.names or dtype.subdtype or not dtype.itemsize:
        raise ValueError(f"it holds elements of type {str(dtype)[:100]}, which HLO does not have")
    if min(sizes, default=0) < 0:
        raise ValueError(f"it has a size below zero: {sizes}")
    return Header(name, dtype, sizes, by_columns)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError("it ends early")
    return data


def _fill(array: np.ndarray, stream: Any) -> None:
    """Read the bytes of a contiguous array, a piece at a time."""
    left = array.reshape(-1).view(np.uint8).data
    while left:
        count = stream.readinto(left[:PIECE])
        if not count:
            raise EOFError("it ends early")
        left = left[count:]
