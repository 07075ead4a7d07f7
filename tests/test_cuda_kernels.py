"""CUDA C that is right: kernels of every kind and whole models, emulated on the CPU, against the evaluator and JAX."""
from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import re
import shutil
import sys
from pathlib import Path

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

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation needs g++")


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
    widths = [re.findall(r"\*\(hloc_pack<\w+, (\d+)>", text) for text in make_sources(program_of(cases), SMALL).kernels]
    assert widths == [["4"], ["8"], ["4", "4"], ["2"], ["4"], ["16"], ["4"], []]
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
add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }}
ENTRY e {{ x = f32[{rows},{width}] parameter(0)  i = s32[90,{numbers}] parameter(1)  u = f32[90,{window}] parameter(2)
  ROOT s = f32[{rows},{width}] scatter(x, i, u), update_window_dims={{1}}, inserted_window_dims={{0}},
    scatter_dims_to_operand_dims={{{dimensions}}}, index_vector_dim=1, to_apply=add }}
"""


@pytest.mark.parametrize("window, numbers, dimensions, owned", [(24, 1, "0", True), (5, 2, "0,1", False)])
def test_scatters(window, numbers, dimensions, owned, monkeypatch):
    """Updates are dealt out to the owners of windows, if these lie apart; each window sees its own in order."""
    text = SCATTER.format(rows=7, width=24, window=window, numbers=numbers, dimensions=dimensions)
    target = cuda_target(H100)
    sources = make_sources(api.plan(api.optimize(api.load(text), target), target), H100)
    assert ("owner" in sources.readable()) == owned
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(7, 24)).astype(np.float32), random.integers(-1, 9, (90, numbers), np.int32),
              random.normal(size=(90, window)).astype(np.float32)]
    results = emulate(sources, check_arrays(sources.program.parameters, arrays), monkeypatch, backwards=True, checked=True)
    expected = arrays[0].copy()
    for (row, *start), update in zip(arrays[1], arrays[2]):
        column = start[0] if start else 0
        if 0 <= row < 7 and 0 <= column <= 24 - window:
            expected[row, column:column + window] += update         # one after the other, in f32
    np.testing.assert_array_equal(results[0], expected)


def _models():
    spec = importlib.util.spec_from_file_location("testdata_models", DATA / "models" / "models.py")
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MODELS)
def test_models(name, monkeypatch):
    """Whole programs: plan, control flow, arena; every access to memory looked at."""
    models = _models()
    model = models.find(name)
    if not models.is_ready(model):
        pytest.skip(f"the weights of {name} are not made: run {model['weights']}")
    target = cuda_target(H100)
    program = api.plan(api.optimize(api.load(models.model_path(model)), target), target)
    arrays = check_arrays(program.parameters, models.inputs(model))
    results = emulate(make_sources(program, H100), arrays, monkeypatch, checked=True)
    assert models.differences(model, results) == []
