"""`hloc run script.py:function` and `--bind`: functions of JAX from the command line, and arguments that are fixed."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_cli import run

pytest.importorskip("jax", reason="jax is not installed: pip install 'hloc[jax]'")
TRAIN = """import jax, jax.numpy as jnp, numpy as np
import hloc
params = {"w": np.eye(3, dtype=np.float32), "b": np.zeros(3, np.float32)}
example_arguments = (params, np.float32([[0, 1, 2]]))

def predict(params, x):
    return jax.nn.softmax(x @ params["w"] + params["b"])

@jax.jit
def loss(params, x):
    return jnp.log(predict(params, x) - 0.5).sum()
lowered = jax.jit(predict).lower(*example_arguments)
traced = jax.jit(predict).trace(*example_arguments)
compiled = hloc.jit(predict)
number = 3
def wrong(params, x):
    return x @ x
def asks(params, x):
    return jax.pure_callback(np.sin, x, x)
"""
PREDICTED = np.exp(np.arange(3)) / np.exp(np.arange(3)).sum()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    np.savez("p.npz", b=np.zeros(3, "f4"), w=np.eye(3, dtype="f4"))
    np.save("x.npy", np.float32([[0, 1, 2]]))
    return tmp_path


def result(capsys, *arguments: str) -> np.ndarray:
    code, out, err = run(capsys, "run", *arguments, "-o", "out.npz", "--target", "cpu")
    assert code == 0, err
    return np.load("out.npz")["out_0"]


@pytest.mark.parametrize("name", ["predict", "compiled"])
def test_functions_run_on_their_examples(here, capsys, name):
    np.testing.assert_allclose(result(capsys, f"train.py:{name}")[0], PREDICTED, rtol=1e-5)
    np.testing.assert_allclose(result(capsys, f"train.py:{name}", "-i", "p.npz", "x.npy")[0], PREDICTED, rtol=1e-5)
    assert result(capsys, f"train.py:{name}", "-i", "random:2").shape == (1, 3)


@pytest.mark.parametrize("name", ["lowered", "traced"])
def test_what_is_lowered_has_no_examples(here, capsys, name):
    np.testing.assert_allclose(result(capsys, f"train.py:{name}", "-i", "p.npz", "x.npy")[0], PREDICTED, rtol=1e-5)


def test_all_commands_take_functions(here, capsys):
    code, out, _ = run(capsys, "nans", "train.py:loss", "--json")
    found = json.loads(out)
    assert code == 1 and "train.py" in out and '"line": 11' in out and '"function": "loss"' in out, found
    for command in (("check", "train.py:predict"), ("explain", "train.py:predict"), ("memory", "train.py:predict"),
                    ("opt", "train.py:predict"), ("convert", "train.py:predict", "-o", "p.hlo"),
                    ("compile", "train.py:predict", "-o", "p.so", "-t", "cpu")):
        code, _, err = run(capsys, *command)
        assert code == 0, err
    np.testing.assert_allclose(result(capsys, "p.so", "-i", "p.npz", "x.npy")[0], PREDICTED, rtol=1e-5)


EXAMPLES = {"a function": "def example_arguments(): return (np.ones(2, np.float32),)",
            "by name": "example_arguments = {'f': [np.ones(2, np.float32)], 'g': ()}"}


@pytest.mark.parametrize("form", EXAMPLES)
def test_forms_of_examples(here, capsys, form):
    Path("s.py").write_text(f"import numpy as np\ndef f(x): return x * 3\n{EXAMPLES[form]}\n")
    assert result(capsys, "s.py:f").tolist() == [3, 3]


def test_examples_may_be_shapes_or_static(here, capsys):
    Path("s.py").write_text("import jax, numpy as np\ndef f(x, unused, n): return x * n\ng = jax.jit(f, static_argnums=2)\n"
                            "example_arguments = (jax.ShapeDtypeStruct((2,), np.float32), 1.0, 4)\n")
    np.save("two.npy", np.float32([1, 2]))
    np.save("n.npy", np.int32(4))
    np.save("u.npy", np.float32(0))
    assert result(capsys, "s.py:f", "-i", "two.npy", "u.npy", "n.npy").tolist() == [4, 8]
    assert result(capsys, "s.py:g", "-i", "two.npy").tolist() == [4, 8]
    Path("t.py").write_text("def f(x, unused, n): return x * n\n")
    assert result(capsys, "t.py:f", "-i", "two.npy", "u.npy", "n.npy").tolist() == [4, 8]


def test_a_script_imports_what_lies_beside_it(here, capsys, monkeypatch):
    Path("sub").mkdir()
    Path("sub/hloc_test_helper.py").write_text("SCALE = 5\n")
    Path("sub/s.py").write_text("from dataclasses import dataclass\nimport hloc_test_helper as h, numpy as np\n"
                                "@dataclass\nclass A: x: int = 1\ndef f(x): return x * h.SCALE\nexample_arguments = (np.float32(2),)\n")
    assert result(capsys, "sub/s.py:f") == 10


def test_errors_are_one_each_and_name_the_line(here, capsys):
    Path("syntax.py").write_text("x = (\n")
    Path("ends.py").write_text("import sys\nsys.exit(3)\n")
    Path("raises.py").write_text("def g():\n    raise ValueError('of the\\nuser')\ng()\n")
    Path("plain.py").write_text("def f(x): return x\n")
    Path("list.py").write_text("def f(x): return x\nexample_arguments = 3\n")
    Path("folder.py").mkdir()
    for module, words in (("train.py", "train.py is a script: name a function of it\nhint: hloc run train.py:function"),
                          ("train.py:nope", "train.py has no function nope\nhint: it has predict"),
                          ("train.py:number", "train.py has no function number"), ("none.py:f", "cannot read none.py: No such file"),
                          ("folder.py:f", "cannot read folder.py"), ("syntax.py:f", "syntax.py:1: SyntaxError: "),
                          ("ends.py:f", "ends.py:2 (<module>): SystemExit: 3"), ("raises.py:f", "raises.py:2 (g): ValueError: of the"),
                          ("plain.py:f", "plain.py:f needs examples of its arguments"), ("list.py:f", "is a tuple of arguments, not int"),
                          ("train.py:wrong", "train.py:17 (wrong): TypeError: dot_general requires"),
                          ("train.py:asks", "written at train.py:19 (asks)")):
        code, out, err = run(capsys, "run", module, "--target", "cpu")
        assert code in (2, 4) and words in err and "Traceback" not in err and out == "", err
    code, _, err = run(capsys, "run", "plain.py:f", "-i", "nothing.npy")
    assert code == 6 and "nothing.npy" in err


# -- --bind ------------------------------------------------------------------------------------------------------------

SUM = "HloModule sums\nENTRY e {\n  w = f32[2] parameter(0)\n  x = f32[2] parameter(1)\n  b = f32[2] parameter(2)\n" \
      "  s = f32[2] subtract(w, x)\n  ROOT r = f32[2] multiply(s, b)\n}\n"


@pytest.fixture
def sums(here):
    Path("sum.hlo").write_text(SUM)
    for name, values in {"w": [5, 6], "x": [1, 2], "b": [10, 20], "long": [1, 2, 3]}.items():
        np.save(f"{name}.npy", np.float32(values))
    np.savez("wb.npz", b=np.float32([10, 20]), w=np.float32([5, 6]))
    np.savez("first.npz", np.float32([5, 6]), np.float32([1, 2]))


def test_bound_arguments(sums, capsys):
    expected = [40, 80]
    assert result(capsys, "sum.hlo", "--bind", "wb.npz", "-i", "x.npy", "--repeat", "3").tolist() == expected
    assert result(capsys, "sum.hlo", "--bind", "w.npy", "-i", "x.npy", "b.npy").tolist() == expected
    assert result(capsys, "sum.hlo", "--bind", "first.npz", "-i", "b.npy").tolist() == expected
    assert result(capsys, "sum.hlo", "--bind", "first.npz", "--bind", "b.npy").tolist() == expected
    plain, fixed = result(capsys, "sum.hlo", "-i", "random:4"), result(capsys, "sum.hlo", "-i", "random:4", "--bind", "w.npy")
    assert plain.tolist() != fixed.tolist()
    code, *_ = run(capsys, "compile", "sum.hlo", "-o", "sum.so", "-t", "cpu")
    assert code == 0 and result(capsys, "sum.so", "--bind", "wb.npz", "-i", "x.npy").tolist() == expected


def test_bindings_that_are_refused(sums, capsys):
    np.savez("half.npz", w=np.float32([1, 2]), other=np.float32([1, 2]))
    Path("bad.npy").write_bytes(b"no array")
    for arguments, words in ((("long.npy",), "must be f32[2], but f32[3] was given"), (("none.npy",), "none.npy"),
                             (("half.npz",), "no parameter 'other' to bind"), (("wb.npz", "wb.npz"), "a parameter is bound twice"),
                             (("w.npy",) * 4, "4 arrays are to be bound, but there are 3 parameters"), (("bad.npy",), "bad.npy")):
        code, out, err = run(capsys, "run", "sum.hlo", *(a for name in arguments for a in ("--bind", name)))
        assert code in (2, 6) and words in err and "Traceback" not in err and out == "", err
    code, _, err = run(capsys, "run", "sum.hlo", "--bind", "w.npy", "-i", "x.npy")
    assert code == 6 and "missing" in err and "b f32[2]" in err, err
