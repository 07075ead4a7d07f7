"""The build cache: compiled code on disk, found by the hash of everything that went into it.

    file = cache.opened(key, ".so"); if it is None: build elsewhere, then cache.put(key, ".so", built_file)

The folder is $HLOC_CACHE_DIR, else $XDG_CACHE_HOME/hloc, else ~/.cache/hloc. Only its owner may read it; it is refused
if others may write to it. Entries appear as a whole (files.writing), so that concurrent processes and killed builds
never leave incomplete ones. Beside each entry is the hash of its bytes; an entry that does not match is not used.
HLOC_CACHE_BYTES bounds the size (default 2 GiB); the least recently used entries are removed first.
"""
from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache as once
from pathlib import Path
from typing import BinaryIO

from hloc import files, settings
from hloc.errors import RunError

DEFAULT_BYTES = 2 << 30
LOCK_DIGITS, LOCK_SECONDS = 6, 0.005
COUNT, COUNT_SECONDS = "count", 3600
WORK, WORK_SECONDS = "hloc-work-", 86400      # temporary folders; no build takes so long
REMOVALS, REMOVAL_SECONDS = 50, 0.02
LONGEST_SEAL = 100                            # bytes, of small files beside the entries
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
ELSEWHERE = "set HLOC_CACHE_DIR to a folder of your own"
OWN_FILES = (".py", ".c", ".h", ".lark", ".cuh", ".json")


def folder() -> Path:
    """The cache folder, made with mode 700 if needed. Raises RunError if that fails, or if others may write to it."""
    try:
        named = os.environ.get("HLOC_CACHE_DIR")
        base = Path(os.path.realpath(named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hloc")))
    except (RuntimeError, ValueError) as error:             # no home folder
        raise RunError(f"there is no cache folder: {error}", hint=ELSEWHERE) from None
    try:
        if not base.is_dir():
            for part in reversed([base, *base.parents]):
                part.mkdir(mode=0o700, exist_ok=True)
        _refuse_if_others_may_write(base)
    except OSError as error:
        raise RunError(f"cannot use the cache folder {base}: {error.strerror}", hint=ELSEWHERE) from None
    return base


def _refuse_if_others_may_write(base: Path) -> None:
    """Check the folder as ssh checks its files: code in the cache runs as this user, so nobody else but root may
    change it or a folder above it. Raises RunError."""
    system = {0, os.stat("/").st_uid}                       # root, or its user number in a container
    for place in (base, *base.parents):
        facts = os.lstat(place)
        if facts.st_uid != os.getuid() and (place == base or facts.st_uid not in system):
            above = "" if place == base else f", above the cache folder {base},"
            raise RunError(f"{place}{above} belongs to another user (number {facts.st_uid}): code in the cache is "
                           "run", hint=ELSEWHERE)
        kept_apart = place != base and facts.st_mode & stat.S_ISVTX       # as in /tmp
        if facts.st_mode & OTHERS_WRITE and not kept_apart:
            raise _open_to_others(place, facts)


def _open_to_others(place: Path, facts: os.stat_result) -> RunError:
    mode = f"{stat.S_IMODE(facts.st_mode):o}"
    return RunError(f"others may write to {place} (mode {mode}): code in the cache is run",
                    hint=f"chmod go-w {shlex.quote(str(place))}; or {ELSEWHERE}")


def digest(*parts: str | bytes) -> str:
    """One hash over all parts and their lengths."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()[:40]


@once
def package_identity() -> str:
    """Identify this version of hloc: names, sizes and times of its own files. They are looked at once in a process: it
    runs what it has imported, also if they change later."""
    package = os.path.dirname(__file__)
    found, folders = [], [package]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                elif entry.name.endswith(OWN_FILES):
                    facts = entry.stat()
                    found.append(f"{entry.path[len(package):]} {facts.st_size} {facts.st_mtime_ns}")
    return digest(*sorted(found))


def opened(key: str, suffix: str) -> BinaryIO | None:
    """Open the file stored under `key`. The opened file itself is checked, not its path. Returns None if there is none;
    a damaged or unreadable entry is removed. Raises RunError for one that others may write to or have written."""
    path = folder() / (key + suffix)
    try:
        file = _own(path)
    except FileNotFoundError:
        return None
    except OSError:
        remove(path)
        return None
    if _is_sealed(file, path):
        with suppress(OSError):                             # a read-only folder
            os.utime(file.fileno())
        file.seek(0)
        return file
    file.close()
    remove(path)
    return None


def take(key: str, suffix: str, into: Path) -> Path | None:
    """Link or copy the file that `opened` would open into the caller's folder, where no other process removes it."""
    file = opened(key, suffix)
    if file is None:
        return None
    own = into / (key + suffix)
    with file:
        try:                                                # dir_fd, which is not used, makes os.link follow links
            os.link(f"/proc/self/fd/{file.fileno()}", own, src_dir_fd=file.fileno())
        except OSError:                                     # another disk, or the entry was removed
            with open(own, "xb") as copy:
                shutil.copyfileobj(file, copy)
    return own


def _own(path: Path) -> BinaryIO:
    """Open a file of this user. Raises RunError if others may write to it, OSError if it is not a regular file."""
    file = files.opened(path, os.O_NOFOLLOW)
    facts = os.fstat(file.fileno())
    if facts.st_uid == os.getuid() and not facts.st_mode & OTHERS_WRITE:
        return file
    file.close()
    if facts.st_uid == os.getuid():
        raise _open_to_others(path, facts)
    raise RunError(f"{path}, in the cache, belongs to another user (number {facts.st_uid})",
                   hint=f"rm {shlex.quote(str(path))}; or {ELSEWHERE}")


def _is_sealed(file: BinaryIO, path: Path) -> bool:
    """Whether a file's bytes match the stored hash."""
    try:
        with _own(_seal_of(path)) as seal:
            return files.read_at_most(seal, LONGEST_SEAL, seal.name).strip() == hash_of(file).encode()
    except OSError:
        return False


def _seal_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


@contextmanager
def lock(key: str, stop: threading.Event | None = None) -> Iterator[None]:
    """A lock per key, for one thread of one process at a time; the system frees it if its holder is killed. Keys with
    the same first digits share a lock file and wait for each other. stop: set if nobody needs the result any more; the
    caller then continues without the lock."""
    path = folder() / f"lock.{key[:LOCK_DIGITS]}"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunError(f"cannot use the cache folder: {path}: {error.strerror}", hint=ELSEWHERE) from None
    with os.fdopen(handle, "rb"):
        with suppress(OSError):                             # no locks: two processes may do the same work
            while not (_locked(handle) or (stop is not None and stop.is_set())):
                time.sleep(LOCK_SECONDS)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)          # a forked process has the file open, too


def _locked(handle: int) -> bool:
    """Try to take it. Raises OSError if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def workspace() -> Iterator[Path]:
    """A temporary folder, removed afterwards. Raises RunError if the disk is full."""
    try:
        made = Path(tempfile.mkdtemp(prefix=WORK))
        try:
            yield made
        finally:
            _remove_workspace(made)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot work in the temporary folder {tempfile.gettempdir()}: {reason}; set TMPDIR") from None


def _remove_workspace(path: Path) -> None:
    """Remove a folder into which a compiler that has just been killed may write for another moment."""
    for _ in range(REMOVALS):
        with suppress(OSError):
            return shutil.rmtree(path)
        time.sleep(REMOVAL_SECONDS)
    shutil.rmtree(path)


def put(key: str, suffix: str, built: Path) -> Path:
    """Store a file under `key`; returns its path. Raises RunError if the disk is full."""
    path = folder() / (key + suffix)
    with open(built, "rb") as file:
        files.write(_seal_of(path), hash_of(file), 0o600)
        file.seek(0)
        with files.writing(path, 0o700) as entry:
            shutil.copyfileobj(file, entry)
        size = file.tell()
    prune(size, path)
    return path


def remove(path: Path) -> None:
    """Remove an entry and its hash file, whatever is there."""
    for place in (path, _seal_of(path)):
        try:
            place.unlink(missing_ok=True)
        except OSError:
            shutil.rmtree(place, ignore_errors=True)


def forget(key: str, suffix: str) -> None:
    """Remove what is stored under `key`."""
    remove(folder() / (key + suffix))


def prune(added: int = 0, made: Path | None = None) -> None:
    """Remove the least recently used entries until the cache, with `added` more bytes, fits its bound. The newest entry
    stays. Incomplete files and temporary folders of killed processes are removed once they are COUNT_SECONDS old.

    A file in the folder counts their bytes. The entries are listed only if the count exceeds the bound or is
    COUNT_SECONDS old, because listing ten thousand takes 0.1 s. Two processes that add at the same time may count one
    entry less.
    """
    asked = settings.whole_number("HLOC_CACHE_BYTES", least=0)
    limit = DEFAULT_BYTES if asked is None else asked
    total, counted = _count()
    if total + added <= limit and 0 <= time.time() - counted < COUNT_SECONDS:
        _write_count(total + added, counted)
        return
    _sweep_workspaces()
    entries = _entries()
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries, key=lambda e: e[0]):
        if total <= limit:
            break
        if path != made:
            remove(path)
            total -= size
    _write_count(total, time.time())


def _sweep_workspaces() -> None:
    """Remove temporary folders of killed processes."""
    old = time.time() - WORK_SECONDS
    for path in Path(tempfile.gettempdir()).glob(f"{WORK}*"):
        with suppress(OSError):                             # another process removes it, too
            facts = path.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and facts.st_mtime < old:
                shutil.rmtree(path)


def _entries() -> list[tuple[float, int, Path]]:
    """Each entry's time of last use, bytes and file. Removes old incomplete files and old locks: if one is still held,
    two processes may do the same work."""
    now = time.time()
    found, old = [], now - COUNT_SECONDS
    for path in folder().iterdir():
        if path.suffix == ".sha256" or path.name.startswith(COUNT):
            continue
        try:
            facts = path.lstat()
        except FileNotFoundError:                           # another process pruned it
            continue
        if path.name.startswith("lock."):
            if facts.st_mtime < now - WORK_SECONDS:
                path.unlink(missing_ok=True)
        elif not path.name.startswith(files.DRAFT):
            found.append((facts.st_mtime, facts.st_size, path))
        elif facts.st_mtime < old:
            path.unlink(missing_ok=True)
    return found


def _count() -> tuple[int, float]:
    """The counted bytes of all entries, and when they were last listed; (0, 0) if never."""
    try:
        total, counted = files.read(folder() / COUNT, LONGEST_SEAL).split()
        return int(total), float(counted)
    except (OSError, ValueError):
        return 0, 0.0


def _write_count(total: int, counted: float) -> None:
    with suppress(RunError):                                # without a count, all entries are listed next time
        files.write(folder() / COUNT, f"{total} {counted}", 0o600)


def hash_of(file: BinaryIO) -> str:
    """The SHA-256 of the rest of a file."""
    total = hashlib.sha256()
    while piece := file.read(1 << 20):
        total.update(piece)
    return total.hexdigest()


def put_bytes(key: str, suffix: str, data: bytes) -> Path:
    """Like put, for data in memory."""
    with workspace() as own:
        built = own / "entry"
        built.write_bytes(data)
        return put(key, suffix, built)
