"""Zip files from strangers: everything is checked before anything is unpacked.

    archive = open_archive(file, {zipfile.ZIP_STORED})        raises ValueError, BadZipFile
"""
from __future__ import annotations

import io
import zipfile
from collections.abc import Collection

LARGEST_DIRECTORY = 16 << 20          # bytes: some 200,000 members
ENCRYPTED = 1                         # a flag in a zip's directory
# What zipfile raises for damaged files, besides BadZipFile.
DAMAGED = (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, OverflowError, IndexError)


def open_archive(file: io.BufferedReader, methods: Collection[int]) -> zipfile.ZipFile:
    """Open a zip whose members have different names, are not encrypted, and are stored or compressed by one of
    `methods`. The caller may only close `file` afterwards. Raises ValueError or BadZipFile if it is not such a zip."""
    archive = zipfile.ZipFile(_Bounded(file.raw))
    names = set()
    for member in archive.infolist():
        if member.flag_bits & ENCRYPTED:
            raise ValueError(f"{member.filename} is encrypted")
        if member.compress_type not in methods:
            raise ValueError(f"{member.filename} is compressed by method {member.compress_type}, "
                             f"not by {' or '.join(map(str, sorted(methods)))}")
        if member.filename in names:
            raise ValueError(f"it holds two members {member.filename}")
        names.add(member.filename)
    return archive


class _Bounded(io.BufferedReader):
    """A file that refuses to read more than LARGEST_DIRECTORY at once: zipfile reads the whole directory, of the
    length that the file states."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > LARGEST_DIRECTORY:
            raise ValueError("its directory is too long")
        return super().read(size)
