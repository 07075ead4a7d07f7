"""The build cache: compiled code on disk, found by the hash of everything that went into it.

    path = cache.find(key, ".so"); if it is None: build elsewhere, then path = cache.put(key, ".so", built_file)

Lies in $HLOC_CACHE_DIR, else $XDG_CACHE_HOME/hloc, else ~/.cache/hloc; readable by its owner only. Entries are written
to a temporary name and renamed, so that concurrent processes and killed builds never leave half of one; beside each
lies the hash of its bytes, and an entry that does not match its hash is not used. HLOC_CACHE_BYTES bounds the size
(default 2 GiB); the entries unused for longest go first.
"""
from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hloc.errors import RunError

DEFAULT_BYTES = 2 << 30
LOCK_DIGITS = 6
COUNT, COUNT_SECONDS = "count", 3600
WORK, WORK_SECONDS = "hloc-work-", 86400      # folders in the temporary one; no build takes so long
OWN_FILES = (".py", ".c", ".h", ".lark", ".cuh", ".json")


def folder() -> Path:
    """The cache folder, made if needed with mode 700. Raises RunError where it cannot be, or is not ours."""
    named = os.environ.get("HLOC_CACHE_DIR")
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hloc"
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        if base.stat().st_uid != os.getuid():
            raise RunError(f"the cache folder {base} belongs to another user; set HLOC_CACHE_DIR")
    except OSError as error:
        raise RunError(f"cannot use the cache folder {base}: {error.strerror}; set HLOC_CACHE_DIR") from None
    return base


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


def find(key: str, suffix: str) -> Path | None:
    """The file stored under `key`, or None; a damaged entry is removed."""
    path = folder() / (key + suffix)
    seal = path.with_name(path.name + ".sha256")
    try:
        if seal.read_text().strip() == _hash_file(path):
            os.utime(path)
            return path
    except OSError:
        return None
    remove(path)
    return None


def hold(path: Path, own: Path) -> Path | None:
    """The entry at `path` under another name, which no other process removes; None where it is gone."""
    with suppress(FileNotFoundError):
        try:
            os.link(path, own)
        except FileNotFoundError:
            raise
        except OSError:                                     # another disk
            shutil.copyfile(path, own)
        return own
    return None


@contextmanager
def lock(key: str) -> Iterator[None]:
    """Held by one thread of one process at a time, per key; freed by the system where its holder is killed. Keys that
    begin alike share a file and wait for each other: the digits keep the parts of a program apart."""
    with open(folder() / f"lock.{key[:LOCK_DIGITS]}", "a", encoding="ascii") as file:
        with suppress(OSError):                             # a file system without locks: the work may be done twice
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
    size = built.stat().st_size
    try:
        _write_atomically(path.with_name(path.name + ".sha256"), _hash_file(built).encode())
        _copy_atomically(built, path)
    except OSError as error:
        raise RunError(f"cannot write to the cache folder {path.parent}: {error.strerror}") from None
    prune(size, path)
    return path


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".sha256").unlink(missing_ok=True)


def prune(added: int = 0, made: Path | None = None) -> None:
    """Remove the entries unused for longest until the cache, with `added` bytes more in it, fits its bound. The entry
    that was just made stays. What killed processes left half written goes too, once it is COUNT_SECONDS old, and their
    workspaces.

    Beside the entries lies a count of their bytes. They are looked at only where it is over the bound, or COUNT_SECONDS
    old: two processes that add at the same time may count one of both, but to look at ten thousand takes 0.1 s.
    """
    asked = os.environ.get("HLOC_CACHE_BYTES", "")
    limit = int(asked) if asked.isdecimal() else DEFAULT_BYTES
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
            facts = path.stat()
        except FileNotFoundError:                           # another process pruned it
            continue
        if path.name.startswith("lock."):
            if facts.st_mtime < now - WORK_SECONDS:
                path.unlink(missing_ok=True)
        elif not path.name.startswith("tmp"):
            found.append((facts.st_mtime, facts.st_size, path))
        elif facts.st_mtime < old:
            path.unlink(missing_ok=True)
    return found


def _count() -> tuple[int, float]:
    """The bytes of all entries as far as they are counted, and when all of them were looked at; (0, 0) if never."""
    try:
        total, counted = (folder() / COUNT).read_text(encoding="ascii").split()
        return int(total), float(counted)
    except (OSError, ValueError):
        return 0, 0.0


def _write_count(total: int, counted: float) -> None:
    with suppress(OSError):                                 # without a count, all entries are looked at next time
        _write_atomically(folder() / COUNT, f"{total} {counted}".encode())


def _hash_file(path: Path) -> str:
    with open(path, "rb") as file:
        total = hashlib.sha256()
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()


def _write_atomically(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix="tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _copy_atomically(source: Path, path: Path) -> None:
    handle, name = tempfile.mkstemp(prefix="tmp", dir=path.parent)
    os.close(handle)
    try:
        shutil.copyfile(source, name)
        os.chmod(name, 0o700)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def put_bytes(key: str, suffix: str, data: bytes) -> Path:
    """Like put, for data in memory."""
    with workspace() as own:
        built = own / "entry"
        built.write_bytes(data)
        return put(key, suffix, built)
