"""CUDA C that is right: kernels of every kind and whole models, emulated on the CPU, against the evaluator and JAX."""
from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from cuda_emulation.cases import emulate, program_of, run
from kernel_harness import collect, compare
from op_examples import read_examples
from test_kernels import ELSEWHERE

from hloc import api
from hloc.errors import UnsupportedError
from hloc.inputs import check_arrays
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

DATA = Path(__file__).parent.parent / "testdata"
FILES = sorted([*(DATA / "cuda").glob("*.hlo"), *(DATA / "kernels").glob("*.hlo")])
SEPARATOR = re.compile(r"^// -----.*$", re.MULTILINE)
MODELS = ("digits", "lstm", "resnet_reduced_train", "decoder_reduced_train", "decoder_reduced_generate", "encoder_reduced",
          "unet_block", "control_flow", "linalg", "sort", "complex", "cumsum", "topk", "gather_scatter", "fft", "f64",
          "bf16", "f16", "integers", "random_threefry", "random_bit_generator")
H100 = GPUS["h100"]
SMALL = dataclasses.replace(H100, cores=1)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_kernels(path, monkeypatch):
    """Every instruction of the file, every access to memory looked at, with the last thread starting first."""
    texts = SEPARATOR.split(path.read_text(encoding="utf-8"))
    cases = [c for n, text in enumerate(texts) for c in collect(text, f"{path.stem}#{n}", machine=H100)]
    for case, results in zip(cases, run(cases, H100, monkeypatch, backwards=True, checked=True)):
        for actual, expected in zip(results, case.expected):
            compare(case.name, actual, expected)


def test_vectors(monkeypatch):
    """The same on a GPU of one SM, which small arrays fill, so that pointwise kernels read and write vectors."""
    texts = SEPARATOR.split((DATA / "cuda" / "vectors.hlo").read_text(encoding="utf-8"))
    cases = [c for n, text in enumerate(texts) for c in collect(text, f"vectors#{n}", machine=SMALL)]
    sources = make_sources(program_of(cases), SMALL)
    widths = [{int(n) for n in re.findall(r"\*\(hloc_pack<\w+, (\d+)>", text)} for text in sources.kernels]
    assert widths == [{4}, {8}, {4}, set(), {4}, {16}, {4}, set()]
    for case, results in zip(cases, run(cases, SMALL, monkeypatch, checked=True)):
        for actual, expected in zip(results, case.expected):
            compare(case.name, actual, expected)


def test_ops(monkeypatch):
    """The examples of the op table that have kernels of their own, on their own inputs, every access looked at."""
    cases = []
    for path in sorted((DATA / "ops").glob("*.hlo")):
        for example in read_examples(path):
            for number, case in enumerate(example.cases):
                if case.devices or ELSEWHERE.fullmatch(example.name.split(":")[0]):
                    continue
                with contextlib.suppress(UnsupportedError):
                    cases += collect(example.text, f"{example.name}:{number}", case.inputs.get(0, []), machine=H100)
    assert len(cases) > 250
    for case, results in zip(cases, run(cases, H100, monkeypatch, checked=True)):
        for actual, expected in zip(results, case.expected):
            compare(case.name, actual, expected)


SCATTER = """HloModule m
join {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT r = {t}[] {op}(a, b) }}
ENTRY e {{ x = {t}[{rows},{width}] parameter(0)  i = s32[{updates},{numbers}] parameter(1)
  u = {t}[{updates},{window}] parameter(2)
  ROOT s = {t}[{rows},{width}] scatter(x, i, u), update_window_dims={{{dims}}}, inserted_window_dims={{{inserted}}},
    scatter_dims_to_operand_dims={{{scattered}}}, index_vector_dim={vector}, to_apply=join }}
"""


class Scatter(NamedTuple):
    """Windows of an array of 7 x width; where: the dimensions in which indices say where they start. how: what its
    kernel must be made of."""

    how: str
    window: tuple[int, int]
    where: tuple[int, ...] = (0,)
    width: int = 24
    updates: tuple[int, ...] = (90,)
    type: str = "f32"
    op: str = "add"

    def text(self) -> str:
        n = len(self.updates)
        return SCATTER.format(t=self.type, op=self.op, rows=7, width=self.width, numbers=len(self.where), vector=n,
                              updates=",".join(map(str, self.updates)), window=",".join(map(str, self.window)),
                              dims=f"{n},{n + 1}", inserted="", scattered=",".join(map(str, self.where)))

    def inputs(self) -> list[np.ndarray]:
        random, dtype = np.random.default_rng(0), np.dtype({"f32": "f4"}.get(self.type) or np.dtype(
            {"s32": "i4", "u64": "u8", "s64": "i8"}[self.type]))
        shapes = (7, self.width), (*self.updates, *self.window)
        x, u = (random.normal(size=s).astype(dtype) if dtype.kind == "f" else random.integers(0, 1 << 40, s).astype(dtype)
                for s in shapes)
        return [x, random.integers(-1, 7, (*self.updates, len(self.where)), np.int32), u]

    def expected(self, x: np.ndarray, places: np.ndarray, updates: np.ndarray) -> np.ndarray:
        """One update after the other, in its own type."""
        join = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum, "xor": np.bitwise_xor}.get(self.op)
        x, rows, columns = x.copy(), *self.window
        for place, update in zip(places.reshape(-1, len(self.where)), updates.reshape(-1, *self.window)):
            at = dict(zip(self.where, place))
            row, column = at.get(0, 0), at.get(1, 0)
            if 0 <= row <= 7 - rows and 0 <= column <= self.width - columns:
                part = x[row:row + rows, column:column + columns]
                part[...] = join(part, update) if join else update
        return x


OWNED, SHARED, ATOMIC = "% 90 == owner", "own_from", "hloc_atomic_"
SCATTERS = [Scatter(OWNED, (1, 24)), Scatter(OWNED, (1, 1), (0, 1)), Scatter("% 528 == owner", (1, 160), width=160,
                                                                             updates=(6, 100)),
            Scatter(SHARED, (1, 5), (0, 1)), Scatter(SHARED, (3, 24)), Scatter(SHARED, (2, 5), (0, 1), updates=(3, 30)),
            Scatter(SHARED, (7, 6), (1,), updates=(5,)), Scatter(ATOMIC, (1, 5), (0, 1), type="s32"),
            Scatter(ATOMIC, (2, 24), type="f32", op="maximum"), Scatter(ATOMIC, (1, 24), type="u64", op="xor"),
            Scatter(ATOMIC, (2, 3), (0, 1), type="s64", op="minimum", updates=(4, 9))]


@pytest.mark.parametrize("scatter", SCATTERS, ids=lambda s: f"{s.how.strip('% ')}-{s.window}-{s.type}")
def test_scatters(scatter, monkeypatch):
    """Windows that lie apart have an owner each, of others an owner has a share of the array: each element sees its updates
    in order. Sums of integers, the least and the greatest have no order."""
    target = cuda_target(H100)
    sources = make_sources(api.plan(api.optimize(api.load(scatter.text()), target), target), H100)
    assert scatter.how in sources.readable()
    arrays = scatter.inputs()
    results = emulate(sources, check_arrays(sources.program.parameters, arrays), monkeypatch, backwards=True, checked=True)
    np.testing.assert_array_equal(results[0], scatter.expected(*arrays))


def _models():
    spec = importlib.util.spec_from_file_location("testdata_models", DATA / "models" / "models.py")
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MODELS)
def test_models(name, monkeypatch):
    """Whole programs: plan, control flow, arena; every access to memory looked at. JAX's results on a CPU are those of
    all bits of f32."""
    models = _models()
    model = models.find(name)
    if not models.is_ready(model):
        pytest.skip(f"the weights of {name} are not made: run {model['weights']}")
    target = cuda_target(H100)
    options = api.Options(passes={"f32": "exact"})
    program = api.plan(api.optimize(api.load(models.model_path(model)), target, options), target)
    arrays = check_arrays(program.parameters, models.inputs(model))
    results = emulate(make_sources(program, H100), arrays, monkeypatch, checked=True)
    assert models.differences(model, results) == []
