"""The build cache: compiled code on disk, found by the hash of everything that went into it.

    file = cache.opened(key, ".so"); if it is None: build elsewhere, then cache.put(key, ".so", built_file)

Lies in $HLOC_CACHE_DIR, else $XDG_CACHE_HOME/hloc, else ~/.cache/hloc; readable by its owner only, and refused where
others may write to it. Entries appear as a whole (files.writing), so that concurrent processes and killed builds never
leave half of one; beside each lies the hash of its bytes, and an entry that does not match its hash is not used.
HLOC_CACHE_BYTES bounds the size (default 2 GiB); the entries unused for longest go first.
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
from pathlib import Path
from typing import BinaryIO

from hloc import files
from hloc.errors import RunError

DEFAULT_BYTES = 2 << 30
LOCK_DIGITS, LOCK_SECONDS = 6, 0.005
COUNT, COUNT_SECONDS = "count", 3600
WORK, WORK_SECONDS = "hloc-work-", 86400      # folders in the temporary one; no build takes so long
LONGEST_SEAL = 100                            # bytes, of small files beside the entries
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
ELSEWHERE = "set HLOC_CACHE_DIR to a folder of your own"
OWN_FILES = (".py", ".c", ".h", ".lark", ".cuh", ".json")


def folder() -> Path:
    """The cache folder, made if needed with mode 700. Raises RunError where it cannot be, or others may write to it."""
    try:
        named = os.environ.get("HLOC_CACHE_DIR")
        base = Path(os.path.realpath(named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hloc")))
    except (RuntimeError, ValueError) as error:             # no home
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
    """As ssh looks at its files: what lies in the cache runs as this user's code, so that nobody else, but root, may
    change it, or a folder above it. Raises RunError."""
    system = {0, os.stat("/").st_uid}                       # root, or whoever it is seen as in a container
    for place in (base, *base.parents):
        facts = os.lstat(place)
        if facts.st_uid != os.getuid() and (place == base or facts.st_uid not in system):
            above = "" if place == base else f", above the cache folder {base},"
            raise RunError(f"{place}{above} belongs to another user (number {facts.st_uid}): what lies in the cache is "
                           "run", hint=ELSEWHERE)
        kept_apart = place != base and facts.st_mode & stat.S_ISVTX       # as in /tmp: each to his own
        if facts.st_mode & OTHERS_WRITE and not kept_apart:
            raise _open_to_others(place, facts)


def _open_to_others(place: Path, facts: os.stat_result) -> RunError:
    mode = f"{stat.S_IMODE(facts.st_mode):o}"
    return RunError(f"others may write to {place} (mode {mode}): what lies in the cache is run",
                    hint=f"chmod go-w {shlex.quote(str(place))}; or {ELSEWHERE}")


def digest(*parts: str | bytes) -> str:
    """One hash over all parts; their borders count."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()[:40]


def package_identity() -> str:
    """What tells this hloc from every other: names, sizes and times of its own files."""
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
    """The file stored under `key`, open; what was opened is what is checked, whatever its place holds by then. None
    where there is none: what is damaged, unreadable or no file is removed. Raises RunError for what others may write
    to, or have written."""
    path = folder() / (key + suffix)
    try:
        file = _own(path)
    except FileNotFoundError:
        return None
    except OSError:
        remove(path)
        return None
    if _is_sealed(file, path):
        with suppress(OSError):                             # a folder that is only read
            os.utime(file.fileno())
        file.seek(0)
        return file
    file.close()
    remove(path)
    return None


def find(key: str, suffix: str) -> Path | None:
    """The place of what `opened` would open."""
    file = opened(key, suffix)
    if file is None:
        return None
    with file:
        return Path(file.name)


def take(key: str, suffix: str, into: Path) -> Path | None:
    """What `opened` would open, in a folder of the caller's, where no other process removes it."""
    file = opened(key, suffix)
    if file is None:
        return None
    own = into / (key + suffix)
    with file:
        try:                                                # an absolute path needs no folder, but says: follow links
            os.link(f"/proc/self/fd/{file.fileno()}", own, src_dir_fd=file.fileno())
        except OSError:                                     # another disk, or the entry is gone by now
            with open(own, "xb") as copy:
                shutil.copyfileobj(file, copy)
    return own


def _own(path: Path) -> BinaryIO:
    """A file of this user's, open. Raises RunError where others may write to it, OSError where it is none."""
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
    """Whether a file's bytes are those that were stored."""
    try:
        with _own(_seal_of(path)) as seal:
            return files.read_at_most(seal, LONGEST_SEAL, seal.name).strip() == hash_of(file).encode()
    except OSError:
        return False


def _seal_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


@contextmanager
def lock(key: str, stop: threading.Event | None = None) -> Iterator[None]:
    """Held by one thread of one process at a time, per key; freed by the system where its holder is killed. Keys that
    begin alike share a file and wait for each other: the digits keep the parts of a program apart. stop: set where
    nobody waits for the holder any more, which then goes on without."""
    path = folder() / f"lock.{key[:LOCK_DIGITS]}"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunError(f"cannot use the cache folder: {path}: {error.strerror}", hint=ELSEWHERE) from None
    with os.fdopen(handle, "rb"):
        with suppress(OSError):                             # a file system without locks: the work may be done twice
            while not (_locked(handle) or (stop is not None and stop.is_set())):
                time.sleep(LOCK_SECONDS)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)          # a process forked meanwhile has the file open, too


def _locked(handle: int) -> bool:
    """Try to take it. Raises OSError where files have no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def workspace() -> Iterator[Path]:
    """A folder for files on their way, gone afterwards. Raises RunError where its disk is full."""
    try:
        with tempfile.TemporaryDirectory(prefix=WORK) as name:
            yield Path(name)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot work in the temporary folder {tempfile.gettempdir()}: {reason}; set TMPDIR") from None


def put(key: str, suffix: str, built: Path) -> Path:
    """Store a file under `key`; returns its place. Raises RunError where the disk is full."""
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
    """An entry and its seal, whatever stands there."""
    for place in (path, _seal_of(path)):
        try:
            place.unlink(missing_ok=True)
        except OSError:
            shutil.rmtree(place, ignore_errors=True)


def forget(key: str, suffix: str) -> None:
    """Remove what is stored under `key`."""
    remove(folder() / (key + suffix))


def prune(added: int = 0, made: Path | None = None) -> None:
    """Remove the entries unused for longest until the cache, with `added` bytes more in it, fits its bound. The entry
    that was just made stays. What killed processes left half written goes too, once it is COUNT_SECONDS old, and their
    workspaces.

    Beside the entries lies a count of their bytes. They are looked at only where it is over the bound, or COUNT_SECONDS
    old: two processes that add at the same time may count one of both, but to look at ten thousand takes 0.1 s.
    """
    asked = os.environ.get("HLOC_CACHE_BYTES", "")
    limit = int(asked) if asked.isdecimal() and len(asked) < 20 else DEFAULT_BYTES
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
    """Remove the folders that killed processes left."""
    old = time.time() - WORK_SECONDS
    for path in Path(tempfile.gettempdir()).glob(f"{WORK}*"):
        with suppress(OSError):                             # another process sweeps too
            facts = path.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and facts.st_mtime < old:
                shutil.rmtree(path)


def _entries() -> list[tuple[float, int, Path]]:
    """When each entry was last used, its bytes, its file. Removes what has long been half written, and old locks: where
    one is still held, the work may be done twice."""
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
    """The bytes of all entries as far as they are counted, and when all of them were looked at; (0, 0) if never."""
    try:
        total, counted = files.read(folder() / COUNT, LONGEST_SEAL).split()
        return int(total), float(counted)
    except (OSError, ValueError):
        return 0, 0.0


def _write_count(total: int, counted: float) -> None:
    with suppress(RunError):                                # without a count, all entries are looked at next time
        files.write(folder() / COUNT, f"{total} {counted}", 0o600)


def hash_of(file: BinaryIO) -> str:
    """The SHA-256 of what is left in a file."""
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
