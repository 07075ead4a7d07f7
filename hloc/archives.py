"""Zip files of others, opened: nothing of them is unpacked, or believed, before it is looked at.

    archive = open_archive(file, {zipfile.ZIP_STORED})        raises ValueError, BadZipFile
"""
from __future__ import annotations

import io
import zipfile
from collections.abc import Collection

LARGEST_DIRECTORY = 16 << 20          # bytes: some 200,000 members
ENCRYPTED = 1                         # a flag of zip's
# What zipfile raises for files that are not as they should be, beside BadZipFile.
DAMAGED = (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, OverflowError, IndexError)


def open_archive(file: io.BufferedReader, methods: Collection[int]) -> zipfile.ZipFile:
    """A zip whose members have names of their own, are not encrypted, and are compressed by one of `methods`, if at
    all. `file` is for closing only from now on. Raises ValueError or BadZipFile where it is none."""
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
    """A file of which nothing is read in one piece that is longer than LARGEST_DIRECTORY: what zipfile reads so is the
    directory, of the length that the file says."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > LARGEST_DIRECTORY:
            raise ValueError("its directory is too long")
        return super().read(size)
