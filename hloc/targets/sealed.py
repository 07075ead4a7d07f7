"""Native code and what belongs to it in one file: model.so, model.cubin.

The ELF image comes first, so that linkers, drivers and tools read the file as such; a zip follows it, so that zipfile
reads it too: plan.json, its hash, and members, stored, not deflated. plan.json notes the image's length and the hash of
every other part. All are checked before anything is used; nothing is ever unpickled.

    write(file, image, {"hloc_container": 6, ...}, {"constant_0": b"..."})
    with reading(path, "hloc_container", 6) as sealed: sealed.plan, sealed.image(), sealed.member("constant_0", hash)
"""
from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hloc.archives import DAMAGED, open_archive
from hloc.errors import RunError
from hloc.files import opened
from hloc.targets.manifest import MOST_BYTES, whole

PLAN, SEAL = "plan.json", "plan.sha256"
PIECE = 1 << 20


def seal(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(file: BinaryIO, image: BinaryIO, plan: dict, members: Mapping[str, bytes] | None = None) -> None:
    """Write an image, a plan and members into an empty file that can be read as well."""
    shutil.copyfileobj(image, file, PIECE)
    length = file.tell()
    file.seek(0)
    text = json.dumps({**plan, "image_bytes": length, "image_sha256": _hash(file, length)}).encode()
    with zipfile.ZipFile(file, "a", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, data in {PLAN: text, SEAL: seal(text).encode(), **(members or {})}.items():
            archive.writestr(zipfile.ZipInfo(name), data)


@contextmanager
def reading(path: Path, mark: str, version: int) -> Iterator[Sealed]:
    """A file that `write` made. Raises RunError where it is another, is not whole or was changed, and for whatever is
    found to be wrong with its plan in the block."""
    try:
        with opened(path) as file, open_archive(file, {zipfile.ZIP_STORED}) as archive:
            yield Sealed(path, archive, mark, version)
    except zipfile.BadZipFile:
        raise RunError(f"{path} is not a whole file that hloc wrote: its end is missing, or it is of another kind or "
                       "version") from None
    except (*DAMAGED, KeyError, TypeError, AttributeError) as error:
        said = getattr(error, "strerror", None) or str(error)[:200]
        raise RunError(f"{path} is not a whole file that hloc wrote ({type(error).__name__}: {said})") from None


class Sealed:
    """Such a file, open. file: what was checked, whatever stands at its path by now. plan: checked by its hash."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, mark: str, version: int):
        self.path, self.archive, self.file = path, archive, archive.fp
        text = archive.read(PLAN)
        self.plan = json.loads(text)
        if self.plan[mark] != version:
            raise RunError(f"{path} has version {str(self.plan[mark])[:40]} of its kind, this hloc reads {version}")
        if archive.read(SEAL).decode() != seal(text):
            raise RunError(f"{path} is damaged: its plan does not match its hash")

    def member(self, name: str, hash: str) -> bytes:
        """Raises RunError where it is not as it was written."""
        data = self.archive.read(name)
        if seal(data) != hash:
            raise RunError(f"{self.path} is damaged: {name} does not match its hash")
        return data

    def check_image(self) -> int:
        """The length of the image. Raises RunError where it is not as it was written."""
        length = whole(self.plan["image_bytes"], MOST_BYTES)
        self.file.seek(0)
        if _hash(self.file, length) != self.plan["image_sha256"]:
            raise RunError(f"{self.path} is damaged: its code does not match its hash")
        return length

    def image(self) -> bytes:
        """The image, checked."""
        left = self.check_image()
        self.file.seek(0)
        return b"".join(_pieces(self.file, left))


def _hash(file: BinaryIO, length: int) -> str:
    total = hashlib.sha256()
    for piece in _pieces(file, length):
        total.update(piece)
    return total.hexdigest()


def _pieces(file: BinaryIO, length: int) -> Iterator[bytes]:
    """The next `length` bytes of a file. Raises EOFError where it is shorter."""
    while length:
        piece = file.read(min(PIECE, length))
        if not piece:
            raise EOFError("it ends early")
        yield piece
        length -= len(piece)
