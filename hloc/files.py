"""Files on disk: only regular files of bounded size are read; a written file appears as a whole or not at all.

    data = read(path, most=1 << 20)
    with writing(path) as file: file.write(data)

A writer makes a temporary file with a random name beside its target, and renames it when it is complete. So concurrent
writers all succeed, and killed ones leave the target unchanged. Links are not followed: a target that is a link, a
folder, a pipe or a device is an error.
"""
from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from typing import BinaryIO

from hloc.errors import RunError

PIECE = 1 << 20
DRAFT = ".hloc-"                     # prefix of temporary files
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK       # if a pipe has replaced a file, it does not block
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
KINDS = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"),
         (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


# -- reading -----------------------------------------------------------------------------------------------------------

def opened(path: str | Path, more_flags: int = 0) -> BufferedReader:
    """Open a regular file for reading. Raises OSError, whose strerror says what else is there."""
    _refuse_unless_regular(os.stat(path, follow_symlinks=not more_flags & os.O_NOFOLLOW), path)
    file = open(path, "rb", opener=lambda name, _: os.open(name, READ | more_flags))
    try:
        _refuse_unless_regular(os.fstat(file.fileno()), path)
    except OSError:
        file.close()
        raise
    return file


def read(path: str | Path, most: int) -> bytes:
    """The bytes of a regular file. Raises OSError, also if it holds more than `most`."""
    with opened(path) as file:
        return read_at_most(file, most, str(path))


def read_at_most(file: BinaryIO, most: int, name: str) -> bytes:
    """The rest of a file. Raises OSError if it is more than `most` bytes."""
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {_size(most)}", name)
    return data


def private_copy(file: BufferedReader | BytesIO) -> BufferedReader:
    """A copy of a file in memory, with its name, that no other process can change."""
    handle = os.memfd_create("hloc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    copy = FileIO(handle, "r+")
    copy.name = file.name
    shutil.copyfileobj(file, copy, PIECE)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return BufferedReader(copy)


def _size(size: int) -> str:
    return next(f"{size >> bits} {unit}" for bits, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "bytes"))
                if size >> bits)


def _refuse_unless_regular(facts: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, f"it is {_kind(facts)}, not a regular file", str(path))


def _kind(facts: os.stat_result) -> str:
    return next((kind for is_kind, kind in KINDS if is_kind(facts.st_mode)), "something else")


# -- writing -----------------------------------------------------------------------------------------------------------

@contextmanager
def writing(path: Path, mode: int = 0o666, is_own: Callable[[BinaryIO], bool] | None = None) -> Iterator[BinaryIO]:
    """A new file, open for reading and writing, that replaces `path` if the block ends without an error.

    mode    of a new file, less the umask; a replaced file keeps its mode
    is_own  decides by the content of an existing file whether hloc may replace it; None: the user named the file
    Raises RunError if that fails, if possible before the block is entered.
    """
    folder = -1
    try:
        folder, before = _target(path, is_own)
        name = DRAFT + secrets.token_hex(16)
        handle = os.open(name, CREATE, mode, dir_fd=folder)
        try:
            with os.fdopen(handle, "w+b") as file:
                if before is not None:
                    os.fchmod(handle, stat.S_IMODE(before.st_mode) & 0o777)
                yield file
            os.rename(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        if folder >= 0:
            os.close(folder)


def write(path: Path, data: bytes | str, mode: int = 0o666) -> None:
    """Write a whole file; text as UTF-8; mode as in writing. Raises RunError if it cannot be written."""
    with writing(path, mode) as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)


def check_target(path: Path, is_own: Callable[[BinaryIO], bool] | None = None) -> None:
    """Check before long work that `writing` can begin. Raises RunError if not."""
    try:
        os.close(_target(path, is_own)[0])
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {error.strerror or error}")


def make_folder(path: Path) -> None:
    """Make a folder for output, and those above it. Raises RunError if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {path}: {error.strerror}") from None


def _target(path: Path, is_own: Callable[[BinaryIO], bool] | None) -> tuple[int, os.stat_result | None]:
    """Open the folder of `path`, and check an existing file there. OSError if it is no regular file, or not hloc's, and
    for '-', by which other outputs are printed."""
    if str(path) == "-":
        raise OSError(errno.EINVAL, "this output is not printed: name a file", str(path))
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name holds a null byte", str(path))
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent)) from None
    try:
        before = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        _refuse_unless_regular(before, path)
        if is_own is not None:
            _refuse_unless_own(path, is_own)
        return folder, before
    except FileNotFoundError:
        if path.name:
            return folder, None
        os.close(folder)
        raise
    except BaseException:
        os.close(folder)
        raise


def _refuse_unless_own(path: Path, is_own: Callable[[BinaryIO], bool]) -> None:
    with opened(path, os.O_NOFOLLOW) as file:
        if not is_own(file):
            raise OSError(errno.EEXIST, "the file exists, and hloc did not write it", str(path))
