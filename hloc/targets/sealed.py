"""Native code with its plan and constants in one file: model.so, model.cubin.

The ELF image of a .so comes first, so that linkers and tools read the file as such; a zip follows it, so that zipfile
reads it too: plan.json, which holds the image's length, and members, stored, not deflated. A .cubin has no image in
front, its cubins are members. The zip's comment, at the
end of the file, is the hash of every byte before it. It is checked before anything is used; nothing is unpickled.

    write(file, image, {"hloc_container": 7, ...}, {"constant_0": b"..."})
    with reading(path, "hloc_container", 7) as sealed: sealed.plan, sealed.image(), sealed.member("constant_0")
"""
from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from hloc.archives import DAMAGED, open_archive
from hloc.errors import RunError
from hloc.files import PIECE, opened, private_copy
from hloc.limits import available_memory
from hloc.targets.manifest import whole

PLAN, SEAL_BYTES = "plan.json", 64
HEX = frozenset(b"0123456789abcdef")


def write(file: BinaryIO, image: BinaryIO, plan: dict, members: Mapping[str, bytes] | None = None) -> None:
    """Write an image, a plan and members into an empty file that is open for reading and writing."""
    shutil.copyfileobj(image, file, PIECE)
    text = json.dumps({**plan, "image_bytes": file.tell()}).encode()
    with zipfile.ZipFile(file, "a", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, data in {PLAN: text, **(members or {})}.items():
            archive.writestr(zipfile.ZipInfo(name), data)
        archive.comment = bytes(SEAL_BYTES)
    file.write(_hash(file, file.seek(-SEAL_BYTES, os.SEEK_END)))


@contextmanager
def reading(path: Path, mark: str, version: int) -> Iterator[Sealed]:
    """Open a file of `write`: a copy in memory is checked and used. Raises RunError if it is another file, truncated or
    changed, and for errors of its plan in the block."""
    try:
        with opened(path) as given:
            size, free = os.fstat(given.fileno()).st_size, available_memory()
            if free is not None and size > free:
                raise RunError(f"{path} takes {size / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free")
            file = private_copy(given)
        with file:
            _check(path, file)
            with open_archive(file, {zipfile.ZIP_STORED}) as archive:
                yield Sealed(path, archive, mark, version)
    except (*DAMAGED, zipfile.BadZipFile, KeyError, TypeError, AttributeError) as error:
        said = getattr(error, "strerror", None) or str(error)[:200]
        raise RunError(f"{path} is not a complete file that hloc wrote ({type(error).__name__}: {said})") from None


class Sealed:
    """Such a file. file: the copy that was checked."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, mark: str, version: int):
        assert archive.fp is not None
        self.file, self.archive = archive.fp, archive
        self.plan = json.loads(archive.read(PLAN))
        if self.plan[mark] != version:
            raise RunError(f"{path} has version {str(self.plan[mark])[:40]} of its kind, this hloc reads {version}")
        self.image_bytes = whole(self.plan["image_bytes"], archive.start_dir)
        if self.image_bytes != archive.getinfo(PLAN).header_offset:
            raise ValueError("its image has another length than its plan says")

    def member(self, name: str) -> bytes:
        return self.archive.read(name)

    def image(self) -> bytes:
        self.file.seek(0)
        return b"".join(_pieces(self.file, self.image_bytes))


def _check(path: Path, file: BinaryIO) -> None:
    """Raises RunError if a file does not end with the hash of its other bytes."""
    end = max(0, file.seek(0, os.SEEK_END) - SEAL_BYTES)
    file.seek(end)
    seal = file.read(SEAL_BYTES)
    if len(seal) != SEAL_BYTES or not HEX.issuperset(seal):
        raise RunError(f"{path} is not a complete file that hloc wrote: its end is missing, or it is of "
                       "another kind or version", hint="compile it again with hloc compile")
    if _hash(file, end) != seal:
        raise RunError(f"{path} is damaged: it does not match its hash")


def _hash(file: BinaryIO, length: int) -> bytes:
    """The hash of the first `length` bytes; the file's position is then after them."""
    file.seek(0)
    total = hashlib.sha256()
    for piece in _pieces(file, length):
        total.update(piece)
    return total.hexdigest().encode()


def _pieces(file: IO[bytes], length: int) -> Iterator[bytes]:
    """The next `length` bytes of a file. Raises EOFError if it is shorter."""
    while length:
        piece = file.read(min(PIECE, length))
        if not piece:
            raise EOFError("it ends early")
        yield piece
        length -= len(piece)
