"""StableHLO with unbounded dimensions, as jax.export writes it, once its dimensions have sizes."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import hloc
from hloc.cli.main import main
from hloc.errors import HlocError, UsageError

pytest.importorskip("jax", reason="jax is not installed, whose jaxlib reads StableHLO")
export = pytest.importorskip("jax.export", reason="this JAX has no jax.export")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def exported(function, *shapes: str) -> str:
    """MLIR of a function whose arguments have such shapes."""
    scope = export.SymbolicScope()
    arguments = [jax.ShapeDtypeStruct(export.symbolic_shape(s, scope=scope), jnp.float32) for s in shapes]
    return str(export.export(jax.jit(function))(*arguments).mlir_module())


def mean_and_sum(x, y):
    return x.mean(0)[:, None] + jnp.zeros((4, x.shape[0])), jnp.sin(y).sum() * x


TEXT = exported(mean_and_sum, "b, 4", "2*b, n")


@pytest.mark.parametrize("sizes", [{"b": 3, "n": 2}, {"arg0.0": 3, "b": 3, "arg1.1": 2}, {"arg0.0": 3, "arg1.0": 6, "n": 2}])
def test_sizes_are_carried_on(sizes):
    module = hloc.load(TEXT, name="f.mlir", sizes=sizes)
    x, y = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32), np.ones((6, 2), np.float32)
    for target in ("cpu", "reference"):
        for got, want in zip(hloc.compile(module, target)(x, y), mean_and_sum(x, y)):
            assert got.shape == want.shape and np.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("sizes, told", [
    ({"b": 3}, "f.mlir has dimensions without a size: n\nhint: give each: --size n=4"),
    ({"b": 3, "n": 1, "q": 1}, "--size q: f.mlir has no such unbounded dimension"),
    ({"b": 3, "n": 1 << 40}, "dimension arg1.1 cannot have 1099511627776 elements"),
    ({"b": 3, "n": 1, "arg1.0": 5}, "f.mlir, with the sizes that --size gives: Input shapes do not match"),
])
def test_wrong_sizes_are_one_error(sizes, told):
    with pytest.raises(HlocError) as error:
        hloc.load(TEXT, name="f.mlir", sizes=sizes)
    assert told in str(error.value)


def test_other_text_has_no_unbounded_sizes():
    with pytest.raises(UsageError, match="which m.hlo is not"):
        hloc.load("ENTRY e {\n ROOT p = f32[2] parameter(0) }", name="m.hlo", sizes={"b": 2})
    with pytest.raises(UsageError, match="without a size: b"):
        hloc.load(exported(lambda x: x + 1, "b"), name="f.mlir", sizes={"c": 2})


@pytest.mark.parametrize("more, code, told", [
    (["--size", "b=2", "--size", "n=3"], 0, "HloModule"), ([], 3, "hint: give unbounded dimensions sizes: --size arg0.0=4"),
    (["--size", "b=x"], 2, "write NAME=NUMBER"), (["--size", "b=²"], 2, "write NAME=NUMBER"),
])
def test_command_line(tmp_path, monkeypatch, capsys, more, code, told):
    monkeypatch.chdir(tmp_path)
    Path("f.mlir").write_text(TEXT)
    monkeypatch.setattr(sys, "argv", ["hloc", "convert", "f.mlir", "-o", "-", *more])
    try:
        main()
        ended = 0
    except SystemExit as end:
        ended = end.code
    said = capsys.readouterr()
    assert ended == code and told in said.out + said.err and "Traceback" not in said.err
