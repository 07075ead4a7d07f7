"""The models of testdata/models, end to end: text in, the numbers that JAX gave out, on every target that is here."""
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import hloc
from hloc.inputs import check_arrays

FOLDER = Path(__file__).parent.parent / "testdata" / "models"
spec = importlib.util.spec_from_file_location("testdata_models", FOLDER / "models.py")
models = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = models
spec.loader.exec_module(models)

CATALOGUE = models.catalogue()
SMALL = [m for m in CATALOGUE if m["size"] == "small"]
# The evaluator takes a minute on these; `hloc check` compares them with it.
TOO_SLOW_FOR_EVALUATOR = {"resnet50_train", "gpt2_generate"}


def name_of(model: dict) -> str:
    return model["name"]


def inputs_of(model: dict, exe: hloc.Executable) -> list[np.ndarray]:
    if not models.is_ready(model):
        pytest.skip(f"the weights of {model['name']} are not made: run {model['weights']}")
    return check_arrays(exe.parameters, models.inputs(model))


@pytest.mark.parametrize("model", CATALOGUE, ids=name_of)
def test_cpu_gives_what_jax_gave(model):
    exe = hloc.compile(models.model_path(model), target="cpu")
    assert models.differences(model, exe(*inputs_of(model, exe))) == []


@pytest.mark.parametrize("model", [m for m in CATALOGUE if m["name"] not in TOO_SLOW_FOR_EVALUATOR], ids=name_of)
def test_reference_gives_what_jax_gave(model):
    exe = hloc.compile(models.model_path(model), target="reference")
    assert models.differences(model, exe(*inputs_of(model, exe))) == []


@pytest.mark.parametrize("model", CATALOGUE, ids=name_of)
def test_text_is_a_fixed_point(model):
    module = hloc.load(models.model_path(model))
    text = str(module)
    assert str(hloc.load(text)) == text


def test_digits_are_read():
    folder = FOLDER / "digits"
    exe = hloc.compile(folder / "model.hlo", target="cpu")
    _, digits = exe(np.load(folder / "images.npy"))
    assert np.mean(digits == np.load(folder / "labels.npy")) >= 0.97


def test_similar_sentences_come_out_similar():
    model = models.find("minilm")
    exe = hloc.compile(models.model_path(model), target="cpu")
    embeddings, *_ = exe(*inputs_of(model, exe))
    package = np.load(FOLDER / "minilm" / "package_embeddings.npy")
    assert np.abs(embeddings - package).max() <= 1e-4
    likeness = embeddings @ embeddings.T - 2 * np.eye(len(embeddings))
    wanted = package @ package.T - 2 * np.eye(len(package))
    assert (likeness.argmax(axis=1) == wanted.argmax(axis=1)).all()
