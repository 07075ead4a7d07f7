"""The cache of compiled programs on disk: recalled, damaged, shared by processes, within its bound."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from test_runtime import DOUBLE, compiled

import hloc
from hloc import cache
from hloc.api import load_compiled
from hloc.errors import RunError

AFFINE = ("HloModule affine\nENTRY e {\n  x = f32[3] parameter(0)\n  c = f32[3] constant({1, 2, %d})\n"
          "  ROOT y = (f32[3], f32[3]) tuple(f32[3] add(x, c), f32[3] multiply(x, c))\n}\n")
X = np.array([1, 2, 3], np.float32)


def check_affine(exe, last: int) -> None:
    total, product = exe(X)
    np.testing.assert_array_equal(total, X + [1, 2, last])
    np.testing.assert_array_equal(product, X * [1, 2, last])


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """An empty cache that holds library kernels, too: as where the installation has compiled none."""
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HLOC_PRECOMPILED", "0")
    return tmp_path / "cache"


def stages_of(text: str, **options) -> set[str]:
    """What a compilation goes through."""
    stages = set()
    exe = compiled(text, options=hloc.Options(progress=lambda stage, done, total: stages.add(stage), **options))
    check_affine(exe, 4)
    return stages


def test_a_program_is_recalled(cache_folder):
    assert {"plan", "compile"} <= stages_of(AFFINE % 4)
    assert stages_of(AFFINE % 4) == {"parse", "verify"}
    check_affine(compiled(AFFINE % 5), 5)
    assert "plan" in stages_of(AFFINE % 4, passes={"fusion": "off"})


def test_arrays_without_end_are_refused_even_if_they_are_not_kept():
    """A sum of 10^18 numbers takes no memory, but years."""
    text = """HloModule m
        add { a = s64[] parameter(0)  b = s64[] parameter(1)  ROOT c = s64[] add(a, b) }
        ENTRY e { i = s64[1000000000000000000] iota(), iota_dimension=0  z = s64[] constant(0)
                  ROOT r = s64[] reduce(i, z), dimensions={0}, to_apply=add }"""
    with pytest.raises(RunError, match="%i has 1,000,000,000,000,000,000 elements") as caught:
        hloc.compile(text, "cpu")
    assert caught.value.span is not None


def test_programs_of_other_constants_are_others(cache_folder):
    """The key of a program holds the values of its constants, not their text."""
    text = "HloModule m\nENTRY e { x = f32[40] parameter(0)  c = f32[40] constant({%s})  ROOT r = f32[40] add(x, c) }"
    x = np.zeros(40, np.float32)
    for last in (1.0, 2.0):
        exe = hloc.compile(text % ", ".join(["0"] * 39 + [str(last)]), "cpu")
        assert exe(x)[0][-1] == last


def test_a_recalled_program_shows_and_saves_itself(cache_folder, tmp_path):
    first, second = compiled(AFFINE % 4), compiled(AFFINE % 4)
    assert first.source == second.source and "hloc_execute" in second.source
    assert first.text(".hlo") == second.text(".hlo") and first.text(".c") == second.text(".c")
    assert [p.shape for p in first.parameters] == [p.shape for p in second.parameters]
    second.save(tmp_path / "affine.so")
    check_affine(load_compiled(tmp_path / "affine.so"), 4)


DAMAGE = {"replaced": lambda data: b"{}", "emptied": lambda data: b"", "cut": lambda data: data[:-1],
          "changed": lambda data: data[:-1] + bytes([data[-1] ^ 1])}


@pytest.mark.parametrize("suffix", [".json", ".bin", ".so", ".o", ".sha256"])
@pytest.mark.parametrize("damage", [*DAMAGE, "missing"])
def test_damaged_entries_are_made_anew(cache_folder, suffix, damage):
    check_affine(compiled(AFFINE % 4), 4)
    damaged = list(cache_folder.glob("*" + suffix))
    assert damaged
    for path in damaged:
        data = path.read_bytes()
        path.unlink()                                       # a new file: the old one is mapped by this process
        if damage in DAMAGE:
            path.write_bytes(DAMAGE[damage](data))
    check_affine(compiled(AFFINE % 4), 4)
    check_affine(compiled(AFFINE % 4), 4)


def test_processes_share_the_cache(cache_folder):
    script = ("import sys, hloc, numpy as np\n"
              "y, = hloc.compile(sys.argv[1], target='cpu')(np.arange(4, dtype=np.float32))\n"
              "assert y.tolist() == [0, 2, 4, 6]")
    root = Path(hloc.__file__).parent.parent
    processes = [subprocess.Popen([sys.executable, "-c", script, DOUBLE % (4, 4)],
                                  env={**os.environ, "PYTHONPATH": str(root)}) for _ in range(4)]
    assert [p.wait(timeout=120) for p in processes] == [0] * 4
    assert len(list(cache_folder.glob("*.so"))) == 1
    assert not list(cache_folder.glob(".hloc-*"))


def test_what_killed_processes_left_goes_after_a_day(cache_folder, tmp_path, monkeypatch):
    """Folders of work, entries half written and locks, when entries are next looked at; nothing that is young, or
    others'."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with cache.workspace() as used:
        killed, other = used.with_name("hloc-work-killed"), used.with_name("hloc-other")
        half, lock = cache.folder() / ".hloc-half", cache.folder() / "lock.123456"
        lock.write_text("")
        for path in (killed, other, cache_folder):
            path.mkdir(exist_ok=True)
            (path / ".hloc-half").write_text("")
        killed.with_name("hloc-work-link").symlink_to(other)
        for path in (killed, other, half, lock):
            os.utime(path, (0, 0))
        with cache.lock("f" * 40):
            cache.prune()
        assert not lock.exists() and (cache.folder() / "lock.ffffff").exists()
        assert used.is_dir() and other.is_dir() and not killed.exists() and not half.exists()
        assert (other / ".hloc-half").exists()


@pytest.mark.parametrize("room", [100, 8000])
def test_a_full_disk_is_an_error_and_no_broken_entry(cache_folder, tmp_path, room):
    """No file may grow beyond `room` bytes, as if that were what is left: in the cache or where the compiler works."""
    script = ("import resource, sys, hloc\n"
              f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
              "try: hloc.compile(sys.argv[1], target='cpu')\n"
              "except hloc.HlocError as error: sys.exit(3)")
    root = Path(hloc.__file__).parent.parent
    path = tmp_path / "double.hlo"
    path.write_text(DOUBLE % (4, 4), encoding="ascii")
    done = subprocess.run([sys.executable, "-c", script, str(path)], env={**os.environ, "PYTHONPATH": str(root)},
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (3, "")
    assert not list(cache_folder.glob(".hloc-*")) and not list(cache_folder.glob("*.so"))
    assert compiled(path)(np.arange(4, dtype=np.float32))[0].tolist() == [0, 2, 4, 6]


def test_the_cache_stays_within_its_bound(cache_folder, monkeypatch):
    monkeypatch.setenv("HLOC_CACHE_BYTES", "100000")
    for last in range(6):
        check_affine(compiled(AFFINE % last), last)
    assert sum(p.stat().st_size for p in cache_folder.iterdir()) < 110_000


def test_a_build_needs_no_room_in_the_cache(cache_folder, monkeypatch):
    """With a bound below everything, entries go as soon as they are made: a build keeps what it needs."""
    monkeypatch.setenv("HLOC_CACHE_BYTES", "1")
    for last in (1, 2, 1):
        check_affine(compiled(AFFINE % last), last)
    assert len([p for p in cache_folder.iterdir() if p.suffix in (".o", ".so", ".json", ".bin")]) == 1


def test_entries_that_go_while_they_are_looked_for(cache_folder, tmp_path, monkeypatch):
    """Another process makes room between the look and the use."""
    check_affine(compiled(AFFINE % 3), 3)
    found = cache.opened
    taken = []

    def gone(key: str, suffix: str):
        file = found(key, suffix)
        if file is not None and (suffix, "taken") not in taken:
            taken.append((suffix, "taken"))
            cache.remove(Path(file.name))
        return file
    monkeypatch.setattr(cache, "opened", gone)
    for _ in range(4):
        check_affine(compiled(AFFINE % 3), 3)
    assert {suffix for suffix, _ in taken} >= {".json", ".so", ".o"}
    assert cache.take("nothing", ".o", tmp_path) is None


def test_what_killed_builds_left_goes(cache_folder, tmp_path):
    cache.folder()
    old, new, built = cache_folder / ".hloc-old", cache_folder / ".hloc-new", tmp_path / "built"
    for path in (old, new, built):
        path.write_bytes(bytes(10))
    os.utime(old, (0, 0))
    cache.put("key", ".bin", built)
    assert not old.exists() and new.exists()
    cache.opened("key", ".bin").close()


def test_the_cache_is_looked_through_only_where_it_may_be_full(cache_folder, tmp_path, monkeypatch):
    built = tmp_path / "built"
    built.write_bytes(bytes(1000))
    with monkeypatch.context() as patched:
        cache.put("first", ".bin", built)
        patched.setattr(cache, "_entries", lambda: pytest.fail("looked at"))
        cache.put("second", ".bin", built)
    (cache_folder / cache.COUNT).write_text("not a count")
    monkeypatch.setenv("HLOC_CACHE_BYTES", "2500")
    cache.put("third", ".bin", built)
    assert len(list(cache_folder.glob("*.bin"))) == 2


def test_python_functions_are_not_recalled(cache_folder):
    text = ('HloModule m\nENTRY e {\n  x = f32[3] parameter(0)\n'
            '  ROOT y = f32[3] custom-call(x), custom_call_target="mine"\n}\n')
    for factor in (2, 3):
        exe = compiled(text, options=hloc.Options(custom_calls={"mine": lambda x, f=factor: f * x}))
        np.testing.assert_array_equal(exe(X)[0], factor * X)
