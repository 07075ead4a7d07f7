"""What the cache trusts: folders and entries that nobody else may write to, whose bytes are those that were stored."""
from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from test_runtime import DOUBLE, compiled

import hloc
from hloc import cache
from hloc.errors import RunError

X = np.arange(4, dtype=np.float32)
root = pytest.mark.skipif(os.getuid() != 0, reason="the tests do not run as root, who alone may give files to other users")
OTHER_USER = 4711


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path / "above" / "cache"))
    return cache.folder()


def check_doubles() -> None:
    assert compiled(DOUBLE % (4, 4))(X)[0].tolist() == [0, 2, 4, 6]


def test_folders_are_made_for_their_owner_alone(folder):
    old = os.umask(0)
    try:
        cache.remove(folder)
        assert cache.folder() == folder
    finally:
        os.umask(old)
    for path in (folder, folder.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777, 0o720])
@pytest.mark.parametrize("above", [False, True])
def test_folders_that_others_may_write_to(folder, mode, above):
    """As ssh has it; /tmp, where each may remove only what is his own, is no folder that others may change."""
    check_doubles()
    place = folder.parent if above else folder
    place.chmod(mode)
    if above and mode == 0o1777:
        return check_doubles()
    with pytest.raises(RunError) as caught:
        hloc.compile(DOUBLE % (4, 4), "cpu")
    assert f"others may write to {place} (mode {mode:o})" in caught.value.message and caught.value.code == 6
    mending = caught.value.hint.partition(";")[0]
    assert mending == f"chmod go-w {place}"
    subprocess.run(mending.split(), check=True)
    check_doubles()


def test_the_command_that_mends_it_is_quoted(tmp_path, monkeypatch):
    place = tmp_path / "my cache; rm"
    place.mkdir()
    place.chmod(0o777)
    monkeypatch.setenv("HLOC_CACHE_DIR", str(place))
    with pytest.raises(RunError) as caught:
        cache.folder()
    assert f"chmod go-w '{place}'" in caught.value.hint


def test_a_link_is_what_it_points_to(folder, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(folder)
    monkeypatch.setenv("HLOC_CACHE_DIR", str(link))
    assert cache.folder() == folder
    folder.parent.chmod(0o777)
    with pytest.raises(RunError, match="others may write to"):
        cache.folder()


@root
@pytest.mark.parametrize("above", [False, True])
def test_folders_of_others(folder, above):
    place = folder.parent if above else folder
    os.chown(place, OTHER_USER, -1)
    with pytest.raises(RunError, match=f"{place}.* belongs to another user .number {OTHER_USER}") as caught:
        hloc.compile(DOUBLE % (4, 4), "cpu")
    assert "HLOC_CACHE_DIR" in caught.value.hint


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
@pytest.mark.parametrize("suffix", [".json", ".bin", ".so", ".json.sha256", ".so.sha256"])
def test_entries_that_others_may_write_to(folder, suffix, mode):
    check_doubles()
    entries = [path for path in folder.iterdir() if path.name.endswith(suffix)]
    assert entries
    for path in entries:
        path.chmod(mode)
    with pytest.raises(RunError, match=f"others may write to .*{suffix} .mode {mode:o}") as caught:
        hloc.compile(DOUBLE % (4, 4), "cpu")
    assert "chmod go-w " in caught.value.hint
    for path in entries:
        path.chmod(0o600)
    check_doubles()


@root
@pytest.mark.parametrize("suffix", [".json", ".so", ".so.sha256"])
def test_entries_of_others(folder, suffix):
    check_doubles()
    entries = [path for path in folder.iterdir() if path.name.endswith(suffix)]
    for path in entries:
        os.chown(path, OTHER_USER, -1)
    with pytest.raises(RunError, match=f"{suffix}, in the cache, belongs to another user .number {OTHER_USER}") as caught:
        hloc.compile(DOUBLE % (4, 4), "cpu")
    assert "rm " in caught.value.hint
    for path in entries:
        path.unlink()
    check_doubles()


def as_link(path: Path) -> None:
    elsewhere = path.parent.parent / path.name
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def as_folder(path: Path) -> None:
    path.unlink()
    (path / "full").mkdir(parents=True)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def as_bytes(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"\xff\xfe" * 20)


def as_endless(path: Path) -> None:
    path.unlink()
    with open(path, "wb") as file:
        file.truncate(1 << 40 if path.suffix == ".sha256" else 1 << 20)


@pytest.mark.parametrize("suffix", [".json", ".bin", ".so", ".json.sha256", ".so.sha256", "count"])
@pytest.mark.parametrize("damage", [as_link, as_folder, as_pipe, as_device, as_bytes, as_endless])
def test_what_is_no_entry_is_a_miss_and_removed(folder, suffix, damage):
    check_doubles()
    damaged = [path for path in folder.iterdir() if path.name.endswith(suffix)]
    assert damaged
    for path in damaged:
        path.chmod(0o600)
        damage(path)
    for _ in range(2):
        check_doubles()
    if suffix != "count":
        assert all(stat.S_ISREG(path.lstat().st_mode) for path in folder.iterdir())


def test_seals_that_cannot_be_read(folder, monkeypatch):
    """Root reads all: the system refuses it here."""
    check_doubles()
    refused = {path for path in folder.glob("*.sha256")}
    opening = os.open

    def refusing(path, *more, **named):
        if Path(str(path)) in refused:
            raise PermissionError(13, "Permission denied", str(path))
        return opening(path, *more, **named)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refusing)
        assert all(cache.opened(path.name.partition(".")[0], Path(path.stem).suffix) is None for path in refused)
    assert not any(path.exists() for path in refused) and not list(folder.glob("*.so"))
    check_doubles()


def test_locks_that_are_none(folder):
    lock = folder / "lock.abcdef"
    for make in (lambda: lock.symlink_to("/dev/zero"), lock.mkdir, lambda: os.mkfifo(lock)):
        make()
        try:
            with cache.lock("abcdef"):
                pass
        except RunError as error:
            assert "cannot use the cache folder" in error.message
        lock.rmdir() if lock.is_dir() and not lock.is_symlink() else lock.unlink()


@pytest.mark.parametrize("place", ["/dev/null", "/dev/null/x", "/proc/1/hloc", "/etc/hostname", "x" * 300, "a\nb/\t"])
def test_odd_places(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HLOC_CACHE_DIR", place)
    if place.startswith("a"):
        return check_doubles()
    with pytest.raises(RunError, match="cannot use the cache folder|belongs to another user") as caught:
        hloc.compile(DOUBLE % (4, 4), "cpu")
    assert "HLOC_CACHE_DIR" in caught.value.hint


def test_a_user_without_a_home(monkeypatch):
    monkeypatch.delenv("HLOC_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def none():
        raise RuntimeError("Could not determine home directory.")
    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(RunError, match="there is no cache folder") as caught:
        cache.folder()
    assert "HLOC_CACHE_DIR" in caught.value.hint


def test_doctor_says_what_is_wrong_with_the_cache(folder):
    folder.chmod(0o777)
    done = subprocess.run([sys.executable, "-m", "hloc.cli.main", "doctor"], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(Path(hloc.__file__).parent.parent)})
    assert done.returncode == 0 and f"chmod go-w {folder}" in done.stdout


def test_what_was_checked_is_what_is_loaded(folder, monkeypatch):
    """An entry that is replaced, or removed, between the check and the use."""
    check_doubles()
    opened = cache.opened

    def swapped(key: str, suffix: str):
        file = opened(key, suffix)
        if file is not None:
            path = Path(file.name)
            path.unlink()
            if suffix != ".bin":
                path.write_bytes(b"\x7fELF of somebody else")
        return file
    monkeypatch.setattr(cache, "opened", swapped)
    check_doubles()


def test_library_kernels_are_taken_as_they_were_checked(folder, tmp_path):
    built, into = tmp_path / "built", tmp_path / "into"
    into.mkdir()
    built.write_bytes(b"right")
    cache.put("key", ".o", built)
    assert cache.take("key", ".o", into).read_bytes() == b"right"
    (folder / "key.o").write_bytes(b"wrong")
    assert cache.take("key", ".o", into) is None and not (folder / "key.o").exists()


def test_other_disks(folder, tmp_path, monkeypatch):
    """Where no link can be made, bytes are copied."""
    built = tmp_path / "built"
    built.write_bytes(b"right")
    cache.put("key", ".o", built)
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError(18, "another disk")))
    assert cache.take("key", ".o", tmp_path).read_bytes() == b"right"


def test_eight_threads_put_and_take(folder, tmp_path):
    def work(number: int) -> None:
        own = tmp_path / str(number)
        for turn in range(20):
            own.write_bytes(bytes([turn]) * 5000)
            cache.put("key", ".bin", own)
            if file := cache.opened("key", ".bin"):
                with file:
                    assert len(set(file.read())) == 1
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert not list(folder.glob(".hloc-*"))


def test_eight_processes_compile_at_once(folder, monkeypatch):
    script = ("import sys, hloc, numpy as np\n"
              "y, = hloc.compile(sys.argv[1], target='cpu')(np.arange(4, dtype=np.float32))\n"
              "assert y.tolist() == [0, 2, 4, 6]")
    environment = {**os.environ, "PYTHONPATH": str(Path(hloc.__file__).parent.parent), "HLOC_PRECOMPILED": "0"}
    processes = [subprocess.Popen([sys.executable, "-c", script, DOUBLE % (4, 4)], env=environment) for _ in range(8)]
    assert [p.wait(timeout=300) for p in processes] == [0] * 8


@root
@pytest.mark.parametrize("options", ["size=64k", "ro"])
def test_a_small_or_read_only_disk(tmp_path, monkeypatch, options):
    """The first is full before a program is stored; what a read-only one holds is used."""
    place = tmp_path / "disk"
    place.mkdir()
    first = "size=8m" if options == "ro" else options
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=700,{first}", "hloc", place], capture_output=True).returncode:
        pytest.skip("mount -t tmpfs is not permitted on this machine")
    try:
        monkeypatch.setenv("HLOC_CACHE_DIR", str(place))
        monkeypatch.setenv("HLOC_PRECOMPILED", "0")
        if options == "ro":
            check_doubles()
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
            check_doubles()
            text = DOUBLE % (5, 5)
        else:
            (place / "filler").write_bytes(bytes(60 << 10))
            text = DOUBLE % (4, 4)
        with pytest.raises(RunError, match="No space left|Read-only file system"):
            hloc.compile(text, "cpu")
        assert not list(place.glob(".hloc-*"))
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)         # programs are loaded from it


def test_loaded_programs_leave_nothing_in_the_temporary_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for _ in range(3):
        check_doubles()
    assert not list(tmp_path.glob("hloc-work-*"))


def test_programs_hold_no_files_open(folder):
    check_doubles()
    before = len(os.listdir("/proc/self/fd"))
    programs = [compiled(DOUBLE % (4, 4)) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) <= before + 1 and len(programs) == 20
