"""Files of others: inputs of every kind of wrong, outputs beside links and pipes, full disks, several writers at once."""
from __future__ import annotations

import io
import json
import os
import random
import socket
import stat
import struct
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest

import hloc
from hloc import files
from hloc.cli.main import main
from hloc.errors import RunError, UsageError
from hloc.inputs import entry_parameters, npy
from hloc.inputs.files import read_arrays, read_inputs, write_outputs
from hloc.targets.cpu.execution.executable import MARK, VERSION

ADD = ("HloModule add\nENTRY e {\n  x = f32[2,3] parameter(0)\n  y = f32[2,3] parameter(1)\n"
       "  ROOT s = f32[2,3] add(x, y)\n}\n")
X = np.arange(6, dtype=np.float32).reshape(2, 3)
DATA = X.tobytes()
HLOC = [sys.executable, "-m", "hloc.cli.main"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(hloc.__file__).parent.parent)}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("add.hlo").write_text(ADD)
    np.save("x.npy", X)
    return tmp_path


def array_file(descr="'<f4'", shape="(2, 3)", data=DATA, order="False", version=1, more="") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}{more}\n".encode("latin-1")
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + data


def archive(members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", how) as opened:
        for name, member in members.items():
            opened.writestr(name, member)
    return data.getvalue()


def changed(data: bytes, where: bytes, offset: int, new: bytes) -> bytes:
    """With other bytes `offset` behind where `where` stands."""
    at = data.index(where) + offset
    return data[:at] + new + data[at + len(new):]


def read_add(name: str) -> list[np.ndarray]:
    parameters = entry_parameters(hloc.load(ADD))
    return read_inputs([name] if name.endswith(".npz") else ["x.npy", name], parameters)


# -- inputs ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("data", [array_file(), array_file(version=2), array_file(version=3),
                                  array_file(order="True", data=X.tobytes("F")), array_file(data=X.tobytes() + b"more"),
                                  array_file(descr="'|V4'")])
def test_arrays_that_are_read(here, data):
    Path("y.npy").write_bytes(data)
    np.testing.assert_array_equal(read_add("y.npy")[1].view(np.float32), X)


NOT_ARRAYS = {
    "other_type": (array_file("'<f8'", data=bytes(48)), "must be f32[2,3], but f64[2,3] was given"),
    "other_shape": (array_file(shape="(3, 2)"), "must be f32[2,3], but f32[3,2] was given"),
    "other_rank": (array_file(shape="(6,)"), "must be f32[2,3], but f32[6] was given"),
    "other_byte_order": (array_file("'>f4'"), "must be f32[2,3], but >f4[2,3] was given"),
    "structured": (array_file("[('a', '<f4')]"), "which HLO does not have"),
    "subarray": (array_file("('<f4', (2,))"), "which HLO does not have"),
    "text": (array_file("'<U1'"), "which HLO does not have"),
    "dates": (array_file("'<M8[s]'"), "which HLO does not have"),
    "nothing": (array_file("'|V0'"), "which HLO does not have"),
    "objects": (array_file("'|O'"), "pickled Python objects"),
    "no_type": (array_file("'zz'"), "its header is damaged"),
    "code": (array_file(shape="__import__('os').getpid()"), "its header is damaged"),
    "nested": (array_file("(" * 4000), "its header is damaged"),
    "nested_lists": (array_file("[" * 4000 + "]" * 4000), "its header is damaged"),
    "unbalanced": (array_file("'<f4"), "its header is damaged"),
    "zero_bytes": (array_file(more="\0"), "its header is damaged"),
    "not_utf8": (array_file("'\xff\xfe'", version=3), "its header is damaged"),
    "negative": (array_file(shape="(-2, -3)"), "a size below zero"),
    "one_negative": (array_file(shape="(-1, 3)"), "a size below zero"),
    "fractions": (array_file(shape="(2.0, 3)"), "its header is damaged"),
    "overflow": (array_file(shape=f"({1 << 61}, 8)"), "it ends early"),
    "endless_size": (array_file(shape="(1" + "0" * 40 + ", 0)"), "was given"),
    "version": (array_file(version=9), "it is no .npy array"),
    "long_header": (b"\x93NUMPY\2\0" + struct.pack("<I", 1 << 30) + b" " * 99, "its header of 1,073,741,824 bytes is too"),
    "cut_header": (array_file()[:20], "it ends early"),
    "cut": (array_file()[:-1], "it ends early: its header says 24 bytes, 23 follow"),
    "magic": (b"\x93NUMPY", "it ends early"),
    "empty": (b"", "is not an .npy or .npz file"),
}


@pytest.mark.parametrize("name", NOT_ARRAYS)
def test_arrays_that_are_refused_unread(here, monkeypatch, name):
    data, words = NOT_ARRAYS[name]
    Path("y.npy").write_bytes(data)
    monkeypatch.setattr(npy, "_fill", lambda *_: pytest.fail("read"))
    with pytest.raises(RunError) as caught:
        read_add("y.npy")
    assert words in str(caught.value) and caught.value.code == 6 and len(str(caught.value)) < 500


GOOD = {"x.npy": array_file(), "y.npy": array_file()}
ZIP = archive(GOOD)
NOT_ARCHIVES = {
    "encrypted": (changed(changed(ZIP, b"PK\1\2", 8, b"\1"), b"PK\3\4", 6, b"\1"), "is encrypted"),
    "unknown_method": (changed(changed(ZIP, b"PK\1\2", 10, b"\x63"), b"PK\3\4", 8, b"\x63"), "compressed by method 99"),
    "bzip2": (archive(GOOD, zipfile.ZIP_BZIP2), "compressed by method 12"),
    "lzma": (archive(GOOD, zipfile.ZIP_LZMA), "compressed by method 14"),
    "changed": (changed(ZIP, b"PK\3\4", 60, b"\xff\xff"), "damaged .npz|cannot read x"),
    "checksum": (changed(changed(ZIP, b"PK\1\2", 16, b"\0\0"), b"PK\3\4", 14, b"\0\0"), "damaged .npz file: bad CRC"),
    "other_size": (changed(ZIP, b"PK\1\2", 24, b"\xff\xff\xff\x7f"), "its header says 24"),
    "offset": (changed(ZIP, b"PK\1\2", 42, b"\x4d"), "damaged .npz file: bad magic"),
    "directory": (changed(ZIP, b"PK\5\6", 12, b"\xff\xff\xff\x7f"), "damaged .npz file"),
    "cut": (ZIP[:-30], "a damaged .npz file"),
    "zeros": (b"PK\3\4" + bytes(100), "a damaged .npz file"),
    "no_array": (archive({"a.txt": b"hi", **GOOD}), "a.txt is no .npy array"),
    "a_folder": (archive({"x/": b"", **GOOD}), "x/ is no .npy array"),
    "text_inside": (archive({**GOOD, "y.npy": b"hi"}), "cannot read y of .*: it ends early"),
    "objects": (archive({**GOOD, "y.npy": array_file("'|O'")}), "cannot read y of .*: it holds pickled"),
    "none": (archive({}), "2 inputs, but 0 were given"),
    "too_many": (archive({f"a{n}.npy": array_file() for n in range(3)}), "2 inputs, but 3 were given"),
    "bomb": (archive({**GOOD, "y.npy": array_file(data=bytes(1 << 26))}), "its header says 24"),
    "large": (archive({**GOOD, "y.npy": array_file(shape="(16777216,)", data=bytes(1 << 26))}), "must be f32.2,3., but f32.16777216"),
}


@pytest.mark.parametrize("name", NOT_ARCHIVES)
def test_archives_that_are_refused(here, monkeypatch, name):
    data, words = NOT_ARCHIVES[name]
    Path("in.npz").write_bytes(data)
    if name not in ("changed", "checksum"):
        monkeypatch.setattr(npy, "_fill", lambda *_: pytest.fail("read"))
    with pytest.raises(RunError, match=words) as caught:
        read_add("in.npz")
    assert caught.value.code == 6


def test_an_archive_with_two_members_of_a_name(here):
    data = archive({"x.npy": array_file(), "z.npy": array_file()}, zipfile.ZIP_STORED).replace(b"z.npy", b"x.npy")
    Path("in.npz").write_bytes(data)
    with pytest.raises(RunError, match="two members x.npy"):
        read_add("in.npz")


def test_a_directory_of_an_archive_has_a_bound(here, monkeypatch):
    monkeypatch.setattr("hloc.archives.LARGEST_DIRECTORY", 1000)
    Path("in.npz").write_bytes(archive({f"a{n}.npy": b"" for n in range(100)}))
    with pytest.raises(RunError, match="its directory is too long"):
        read_add("in.npz")


def test_what_is_no_file(here):
    os.mkfifo("pipe.npy")
    Path("folder.npy").mkdir()
    Path("zero.npy").symlink_to("/dev/zero")
    Path("loop.npy").symlink_to("loop.npy")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.npy")
        for name, words in {"pipe.npy": "a pipe", "folder.npy": "a folder", "zero.npy": "a device", "loop.npy": "links",
                            "socket.npy": "a socket", "/dev/zero": "a device", "no\0name": "null byte", "x" * 300: "long",
                            "missing": "no such file"}.items():
            with pytest.raises(RunError, match=words):
                read_add(name)
            with pytest.raises(RunError, match=words):
                read_arrays(Path(name))
            with pytest.raises(UsageError, match=words if name != "missing" else "No such file"):
                hloc.load(Path(name))


def test_headers_of_python_2(here, recwarn):
    """Sizes that Python 2 wrote (2L) are read, without NumPy's advice to save the file again."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }".ljust(117) + b"\n"
    Path("x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(24))
    with npy.ArrayFile(Path("x.npy")) as file:
        assert file.array(0).shape == (2, 3)
    assert not recwarn.list



def test_arrays_that_memory_does_not_hold(here, monkeypatch):
    with open("large.npy", "wb") as file:
        file.write(array_file(shape=f"({1 << 40},)", data=b""))
        file.truncate((1 << 42) + 200)
    with pytest.raises(RunError, match=r"takes 4096.0 GiB, but .* GiB are free"):
        read_arrays(Path("large.npy"))


def test_a_pred_is_zero_or_one(here):
    Path("p.npy").write_bytes(array_file("'|b1'", data=b"\0\1\2\7\xff\0"))
    Path("v.npy").write_bytes(array_file("'|V1'", data=b"\0\1\2\7\xff\0"))
    exe = hloc.compile("ENTRY e {\n p = pred[2,3] parameter(0)  ROOT r = u8[2,3] convert(p) }", "reference")
    for name in ("p.npy", "v.npy"):
        given = read_inputs([name], exe.parameters)
        assert exe(*given)[0].tolist() == [[0, 1, 1], [1, 1, 0]]


def test_a_file_that_changes_between_looks(here, monkeypatch):
    np.save("y.npy", X)
    checked = npy.ArrayFile.array

    def swapped(self, number):
        np.save("y.npy", X.astype(np.float64))
        return checked(self, number)
    monkeypatch.setattr(npy.ArrayFile, "array", swapped)
    with pytest.raises(RunError, match="changed while it was read"):
        read_add("y.npy")


def test_standard_input_that_does_not_end(here):
    code = ("import sys\nfrom hloc import sources\nfrom hloc.cli.main import main\nsources.MOST_BYTES = 1 << 20\n"
            "sys.argv = ['hloc', 'opt', '-']\nmain()")
    for given, words in (("< /dev/zero", "larger than 1 MiB"), ("<&-", "it is closed")):
        done = subprocess.run(["sh", "-c", f'"{sys.executable}" -c "{code}" {given}'], capture_output=True, text=True,
                              env=ENVIRONMENT, timeout=60)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def mutated(data: bytes, chance: random.Random) -> bytes:
    """With bits turned, bytes replaced, removed and added, or its end cut off."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        at, kind = chance.randrange(len(changed) or 1), chance.randrange(5)
        if kind == 0 and changed:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del changed[at:at + chance.randrange(1, 20)]
        elif kind == 2:
            changed[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif kind == 3:
            changed[at:at + 4] = chance.choice([b"\xff" * 4, b"\xff\xff\xff\x7f", bytes(4), b"PK\1\2"])
        elif chance.randrange(4) == 0:
            del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize("ending, data", [("npy", array_file()), ("npz", ZIP), ("npz", archive(GOOD, zipfile.ZIP_STORED))])
@pytest.mark.parametrize("seed", range(3))
def test_mutated_files_are_read_or_refused(here, ending, data, seed):
    chance, name = random.Random(seed), f"y.{ending}"
    refused = 0
    for _ in range(200):
        Path(name).write_bytes(mutated(data, chance))
        try:
            assert all(array.shape == (2, 3) for array in read_add(name))
        except RunError as error:
            refused += len(str(error)) < 1000
    assert refused > 100


# -- outputs -----------------------------------------------------------------------------------------------------------

def command(*arguments: str) -> tuple[int, str]:
    said = io.StringIO()
    sys.argv = ["hloc", *arguments]
    with redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main()
        raise SystemExit(0)
    return ended.value.code or 0, said.getvalue()


WRITERS = {
    "run": (["run", "add.hlo", "-i", "zeros", "-t", "reference", "-o"], ".npz"),
    "run_npy": (["run", "add.hlo", "-i", "zeros", "-t", "reference", "-o"], ".npy"),
    "outfeed": (["run", "add.hlo", "-i", "zeros", "-t", "reference", "--outfeed"], ".npz"),
    "opt": (["opt", "add.hlo", "--passes=dce", "-o"], ".hlo"),
    "convert": (["convert", "add.hlo", "-o"], ".pb"),
    "compile": (["compile", "add.hlo", "-o"], ".so"),
    "compile_c": (["compile", "add.hlo", "-o"], ".c"),
    "reduce": (["reduce", "add.hlo", "-t", "cpu", "--tolerance", "0", "-o"], ".hlo"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_no_file_is_not_written(here, name):
    """Nothing is read, compiled or run before."""
    arguments, ending = WRITERS[name]
    victim, target = Path("victim"), Path("out" + ending)
    victim.write_text("precious")
    for make in (lambda: target.symlink_to(victim), lambda: target.symlink_to("nowhere"), target.mkdir,
                 lambda: os.mkfifo(target), lambda: target.symlink_to("/dev/full")):
        make()
        code, said = command(*arguments, str(target))
        assert code == 6 and f"cannot write {target}: it is a" in said and said.count("\n") == 1
        assert victim.read_text() == "precious" and not Path("nowhere").exists()
        target.rmdir() if target.is_dir() else target.unlink()
    assert command(*arguments, f"missing/out{ending}") == (6, f"error: cannot write missing/out{ending}: no such folder\n")
    assert {p.name for p in here.iterdir()} == {"add.hlo", "x.npy", "victim"}


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("outfeed", "reduce")])
def test_a_file_is_replaced_and_not_written_into(here, name):
    """Other names of it keep what they had; its permissions stay, where they are narrower than usual."""
    arguments, ending = WRITERS[name]
    target, other = Path("out" + ending), Path("other")
    target.write_text("before")
    target.chmod(0o600)
    os.link(target, other)
    assert command(*arguments, str(target))[0] == 0
    assert other.read_text() == "before" and target.stat().st_size > 6
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert not list(here.glob(".hloc-*"))


@pytest.mark.parametrize("name", ["run", "opt", "convert", "compile"])
def test_a_full_disk(here, name):
    """No file may grow: what stood there before stays, and no half of the new one."""
    arguments, ending = WRITERS[name]
    target = Path("out" + ending)
    target.write_text("before")
    limited = ("import resource, sys\nfrom hloc.cli.main import main\n"
               "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\nsys.argv = ['hloc', *sys.argv[1:]]\nmain()")
    done = subprocess.run([sys.executable, "-c", limited, *arguments, str(target)], env=ENVIRONMENT, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode in (5, 6) and "Traceback" not in done.stderr and done.stderr.count("error:") == 1
    assert target.read_text() == "before" and not list(here.glob(".hloc-*"))


def test_eight_writers_at_once(here):
    Path("t.npz").write_bytes(b"")
    commands = [[*HLOC, *arguments, f"t{ending}"] for name in ("run", "opt", "convert", "compile")
                for arguments, ending in [WRITERS[name]] for _ in range(2)]
    running = [subprocess.Popen(c, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
               for c in commands]
    assert [(p.communicate(timeout=300)[1].count("error"), p.returncode) for p in running] == [(0, 0)] * 8
    assert np.load("t.npz")["out_0"].shape == (2, 3) and command("run", "t.so", "-i", "zeros")[0] == 0
    assert hloc.load(Path("t.pb")) and hloc.load(Path("t.hlo")) and not list(here.glob(".hloc-*"))


def test_many_threads_write_one_file(here):
    path = here / "out.npz"

    def write(number: int) -> None:
        for _ in range(20):
            write_outputs(path, [np.full(1000, number)])
            assert len(set(np.load(path)["out_0"])) == 1
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))
    assert [p.name for p in here.glob("*out*")] == ["out.npz"] and not list(here.glob(".hloc-*"))


def test_a_writer_that_fails_leaves_what_was_there(here):
    path = here / "out"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), files.writing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "before" and {p.name for p in here.iterdir()} == {"add.hlo", "x.npy", "out"}


def test_drafts_have_names_that_nobody_guesses(here):
    names = set()
    for _ in range(50):
        with files.writing(here / "out"):
            names |= {p.name for p in here.glob(".hloc-*")}
    assert len(names) == 50 and all(len(name) == len(".hloc-") + 32 for name in names)


@pytest.mark.parametrize("place", ["", ".", "..", "/", "x" * 300, "a\0b"])
def test_names_that_are_none(here, place):
    with pytest.raises(RunError, match="cannot write"):
        files.write(Path(place), "x")


def test_headers_of_others_stay(here):
    header = Path("m.h")
    for content in ("#pragma once\n", "", "/* m: compiled by hand */\n"):
        header.write_text(content)
        code, said = command("compile", "add.hlo", "-o", "m.so")
        assert code == 6 and "cannot write m.h: the file exists, and hloc did not write it" in said
        assert header.read_text() == content and not Path("m.so").exists()
    header.unlink()
    victim = Path("victim")
    victim.write_text("precious")
    header.symlink_to(victim)
    assert command("compile", "add.hlo", "-o", "m.so")[0] == 6 and victim.read_text() == "precious"
    header.unlink()
    for _ in range(2):
        assert command("compile", "add.hlo", "-o", "m.so")[0] == 0
    assert "m_run" in header.read_text()


def test_inputs_that_reduce_did_not_write_stay(here):
    for make in (lambda: np.savez("small.npz", x=X), lambda: Path("small.npz").write_text("text")):
        make()
        before = Path("small.npz").read_bytes()
        code, said = command("reduce", "add.hlo", "-o", "small.hlo")
        assert code == 6 and "small.npz: the file exists" in said and Path("small.npz").read_bytes() == before
    np.savez("small.npz", input_0=X)
    assert "nothing to reduce" in command("reduce", "add.hlo", "-t", "cpu", "-o", "small.hlo")[1]


def test_dumps_follow_no_links(here):
    victim = Path("victim")
    victim.write_text("precious")
    Path("dumps").mkdir()
    Path("dumps/000.input.hlo").symlink_to("../victim")
    assert command("opt", "add.hlo", "--passes=dce", "--dump-after", "dce", "--dump-dir", "dumps")[0] == 6
    assert victim.read_text() == "precious"


# -- compiled files ----------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def shared_object(tmp_path_factory):
    path = tmp_path_factory.mktemp("so") / "add.so"
    hloc.compile(ADD, "cpu", run=False).save(path)
    return path


def test_a_shared_object_of_one_changed_byte(shared_object, here, monkeypatch):
    """The system's loader does not see it."""
    data = shared_object.read_bytes()
    monkeypatch.setattr("ctypes.CDLL", lambda *_: pytest.fail("loaded"))
    for place in (0, 4, 18, 100, len(data) // 3, len(data) // 2, -3000, -500, -200, -100, -66, -30, -1):
        wrong = bytearray(data)
        wrong[place] ^= 1
        Path("m.so").write_bytes(wrong)
        with pytest.raises(RunError, match="does not match its hash|not a whole file"):
            hloc.api.load_compiled(Path("m.so"))


@pytest.mark.parametrize("change", [
    lambda data: b"", lambda data: data[:100], lambda data: data[:len(data) // 2], lambda data: data[:-1],
    lambda data: data + b"0", lambda data: data * 2, lambda data: b"\x7fELF junk", lambda data: b"a" * 64,
    lambda data: bytes(1 << 20)], ids=range(9))
def test_a_shared_object_that_is_not_whole(shared_object, here, monkeypatch, change):
    monkeypatch.setattr("ctypes.CDLL", lambda *_: pytest.fail("loaded"))
    Path("m.so").write_bytes(change(shared_object.read_bytes()))
    with pytest.raises(RunError) as caught:
        hloc.api.load_compiled(Path("m.so"))
    assert caught.value.code == 6


def reseal(source: Path, target: Path, change) -> None:
    """With another plan, and the right hash: what a stranger may have made."""
    from hloc.targets import sealed
    with sealed.reading(source, MARK, VERSION) as found:
        plan, image = found.plan, found.image()
    change(plan)
    with open(target, "w+b") as file:
        length = plan.pop("image_bytes")
        sealed.write(file, io.BytesIO(image), plan)
        if length != len(image):
            pytest.fail("sealed.write notes the length itself")


@pytest.mark.parametrize("change", [
    lambda plan: plan.update(hloc_shared_object=1), lambda plan: plan.pop("hloc_shared_object"),
    lambda plan: plan.pop("manifest"), lambda plan: plan.update(manifest=[]), lambda plan: plan.update(manifest=None),
    lambda plan: plan["manifest"].update(arena=-1), lambda plan: plan["manifest"].update(arena=1 << 60),
    lambda plan: plan["manifest"].update(arena=1.5), lambda plan: plan["manifest"].update(arena=float("nan")),
    lambda plan: plan["manifest"].update(arena="8"), lambda plan: plan["manifest"].update(constants=[64]),
    lambda plan: plan["manifest"].update(constants=[-64]), lambda plan: plan["manifest"].update(constants=7),
    lambda plan: plan["manifest"].update(constants=[1], constant_bytes=64),
    lambda plan: plan["manifest"].update(constant_bytes=1 << 40), lambda plan: plan["manifest"].update(byte_order="big"),
    lambda plan: plan["manifest"].update(machine="pdp11"), lambda plan: plan["manifest"].update(parameters=None),
    lambda plan: plan["manifest"]["parameters"].pop(), lambda plan: plan["manifest"].update(results=[["r"]]),
    lambda plan: plan["manifest"]["results"][0].__setitem__(1, "nothing"),
    lambda plan: plan["manifest"]["results"][0].__setitem__(2, [-2, 3]),
    lambda plan: plan["manifest"]["results"][0].__setitem__(2, [2, 2]),
    lambda plan: plan["manifest"]["results"][0].__setitem__(2, [1 << 40, 1 << 40]),
    lambda plan: plan["manifest"]["results"][0].__setitem__(2, "23"),
    lambda plan: plan["manifest"].update(devices=-1), lambda plan: plan["manifest"].update(devices="2"),
    lambda plan: plan["manifest"].pop("devices"), lambda plan: plan["manifest"].update(devices=1),
    lambda plan: plan.update(nested=json.loads("[" * 900 + "]" * 900)),
], ids=range(30))
def test_hostile_manifests(shared_object, here, change):
    reseal(shared_object, Path("same.so"), lambda plan: None)
    assert hloc.api.load_compiled(Path("same.so"))(X, X)[0][1, 2] == 10
    reseal(shared_object, Path("m.so"), change)
    if change.__code__.co_names[-1] == "loads":               # deep, but no deeper than Python reads: not looked at
        return
    with pytest.raises(RunError) as caught:
        hloc.api.load_compiled(Path("m.so"))
    assert caught.value.code == 6 and len(str(caught.value)) < 600


def test_a_manifest_that_makes_up_devices(shared_object, here):
    from hloc.evaluate.simulate import thread_devices
    reseal(shared_object, Path("m.so"), lambda plan: plan["manifest"].update(devices=2))
    exe = hloc.api.load_compiled(Path("m.so"))
    with pytest.raises(RunError, match="its code has another manifest"):
        _ = exe.on_device(thread_devices(2, 1)[0]).backend


def test_code_of_others_in_a_whole_file(shared_object, here):
    """Sealed, but no program: the loader refuses it, or it has not what a program has."""
    from hloc.targets import sealed
    with sealed.reading(shared_object, MARK, VERSION) as found:
        plan = {k: v for k, v in found.plan.items() if k != "image_bytes"}
    Path("m.c").write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", "m.c", "-o", "plain.so"], check=True)
    for image in (b"\x7fELF", Path("plain.so").read_bytes(), b""):
        with open("m.so", "w+b") as file:
            sealed.write(file, io.BytesIO(image), plan)
        with pytest.raises(RunError, match="cannot be loaded|is not a program of hloc"):
            hloc.api.load_compiled(Path("m.so"))


def test_what_was_checked_is_what_is_loaded(shared_object, here, monkeypatch):
    """Another file takes its place after the check."""
    from hloc.targets.cpu.execution import executable
    path, loading = Path("m.so"), executable._load
    path.write_bytes(shared_object.read_bytes())

    def swapped(file):
        path.unlink()
        path.write_bytes(b"\x7fELF of somebody else")
        monkeypatch.setattr(executable, "_load", loading)
        return loading(file)
    monkeypatch.setattr(executable, "_load", swapped)
    assert hloc.api.load_compiled(path)(X, X)[0][1, 2] == 10


def test_a_loaded_file_that_is_written_into(shared_object, here):
    """Not replaced, but changed in place, while its program is in use."""
    path, data = Path("m.so"), shared_object.read_bytes()
    path.write_bytes(data)
    for _ in range(3):
        exe = hloc.api.load_compiled(path)
        path.write_bytes(bytes(len(data)))
        assert exe(X, X)[0][1, 2] == 10
        path.write_bytes(data)


def test_a_file_that_memory_does_not_hold(here):
    with open("m.so", "wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(RunError, match="m.so takes 4096.0 GiB"):
        hloc.api.load_compiled(Path("m.so"))


def test_compiled_files_that_are_none(here):
    os.mkfifo("pipe.so")
    Path("folder.cubin").mkdir()
    Path("zero.so").symlink_to("/dev/zero")
    for name, words in (("pipe.so", "a pipe"), ("folder.cubin", "a folder"), ("zero.so", "a device")):
        with pytest.raises(RunError, match=words):
            hloc.api.load_compiled(Path(name))
