"""`hloc bundle`: one file that runs as the case it was made of; strangers' bundles are one clear error."""
from __future__ import annotations

import io
import json
import random
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hloc
from hloc.bundles import Bundle, read_bundle, write_bundle

MODULE = """HloModule case
ENTRY e { x = f32[2,3] parameter(0)  y = bf16[3] parameter(1)  z = f32[3] convert(y)
  w = f32[2,3] broadcast(z), dimensions={1}  ROOT r = f32[2,3] add(x, w) }
"""
ARRAYS = (np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, ml_dtypes.bfloat16))


def packed(**changes) -> bytes:
    """A bundle; `changes` of what bundle.json says."""
    file = io.BytesIO()
    write_bundle(file, Bundle("module.hlo", MODULE.encode(), None, {"fusion": "off", "exact": True}, ARRAYS), {"hloc": "1"}, "log")
    if not changes:
        return file.getvalue()
    again = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(again, "w") as new:
        for member in old.namelist():
            data = old.read(member)
            new.writestr(member, json.dumps(json.loads(data) | changes) if member == "bundle.json" else data)
    return again.getvalue()


def test_what_is_packed_comes_back():
    case = read_bundle(packed(), "case.zip")
    assert case.module == MODULE.encode() and case.flags == {"fusion": "off", "exact": True}
    module = hloc.load(packed())
    assert module.name == "case" and module.default_inputs[0].tolist() == ARRAYS[0].tolist()
    (result,) = hloc.compile(module, "reference")(*module.default_inputs)
    assert np.array_equal(result, ARRAYS[0] + 1)


@pytest.mark.parametrize("changes, words", [
    ({"format": 2}, "not of format 1"), ({"module": "../module.hlo"}, "names no module"), ({"module": 7}, "names no"),
    ({"module": "module.pb"}, "it holds no module.pb"), ({"flags": {"tuning": "/etc/passwd"}}, "flag 'tuning'"),
    ({"flags": {"target": ["cpu"]}}, "flag 'target'"), ({"flags": 1}, "another type"), ({"choice": 1}, "another type"),
    ({"flags": {"memory_limit": True}}, "flag 'memory_limit'")])
def test_hostile_manifests(changes, words):
    with pytest.raises(hloc.HlocError, match="case.zip is not a bundle: .*" + words):
        read_bundle(packed(**changes), "case.zip")


def test_damaged_bundles_are_one_error():
    whole, generator = packed(), random.Random(0)
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        cut = data[:generator.randrange(len(data))] if generator.random() < 0.2 else data
        try:
            hloc.load(bytes(cut), name="case.zip")
        except hloc.HlocError as error:
            assert "Traceback" not in str(error)


def test_an_archive_that_unpacks_to_much_is_refused(monkeypatch):
    monkeypatch.setattr("hloc.bundles.MOST_MODULE", 100)
    with pytest.raises(hloc.HlocError, match="module.hlo holds more than"):
        read_bundle(packed(), "case.zip")


def test_commands(monkeypatch, tmp_path, hloc_run):
    monkeypatch.chdir(tmp_path)
    Path("m.hlo").write_text(MODULE)
    code, out, _ = hloc_run("bundle", "m.hlo", "-o", "case.zip", "-t", "reference", "-i", "random:3", "--json")
    told = json.loads(out)
    assert code == 0 and told["exit_code"] == 0 and told["inputs"] == 2 and told["flags"] == {"target": "reference"}
    log = zipfile.ZipFile("case.zip").read("log.txt").decode()
    assert log.startswith("$ hloc run module.hlo --target reference --inputs inputs.npz\n") and "[exit code 0]" in log
    assert str(tmp_path) not in log
    code, out, err = hloc_run("run", "case.zip")
    assert code == 0 and "flags of the bundle: --target reference" in err and out.splitlines()[1] in log
    code, out, _ = hloc_run("check", "case.zip", "-t", "cpu")
    assert code == 0 and "yes" in out


def test_a_module_that_cannot_be_read_is_packed_with_its_error(monkeypatch, tmp_path, hloc_run):
    monkeypatch.chdir(tmp_path)
    Path("bad.hlo").write_text(MODULE.replace("add(", "frob("))
    code, out, err = hloc_run("bundle", "bad.hlo", "-o", "bad.zip")
    assert code == 0 and "exit code 3" in out and "packed without inputs: unknown opcode" in err
    assert "unknown opcode 'frob'" in zipfile.ZipFile("bad.zip").read("log.txt").decode()
    code, _, err = hloc_run("run", "bad.zip")
    assert code == 3 and "bad.zip/module.hlo:3:" in err


@pytest.mark.parametrize("arguments, code, words", [
    (["bundle", "none.hlo", "-o", "c.zip"], 2, "none.hlo"), (["bundle", "m.hlo", "-o", "no/c.zip"], 6, "no such folder"),
    (["bundle", "m.hlo", "-o", "c.zip", "-i", "none.npy"], 6, "none.npy"), (["run", "junk.zip"], 3, "junk.zip is not a bundle"),
    (["run", "none.zip"], 2, "none.zip"), (["bundle", "m.hlo"], 2, "--output")])
def test_bad_calls(monkeypatch, tmp_path, arguments, code, words, hloc_run):
    monkeypatch.chdir(tmp_path)
    Path("m.hlo").write_text(MODULE)
    Path("junk.zip").write_bytes(b"PK\3\4junk")
    got, out, err = hloc_run(*arguments)
    assert got == code and words in err and out == "" and "Traceback" not in err and not Path("c.zip").exists()
