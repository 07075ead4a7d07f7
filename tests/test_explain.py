"""`hloc explain` and `--fusion=off`: every edge between two kernels has one reason; unfused programs compute the same."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from test_models import inputs_of, models

import hloc
from hloc.analysis.aliasing import FORWARDING
from hloc.analysis.control_flow import executed_computations
from hloc.cli.main import main
from hloc.targets import find
from hloc.tools.explain import explain

MODELS = Path(__file__).parent.parent / "testdata" / "models"


def told(name: str, target: str = "cpu", **options):
    module = hloc.load(MODELS / name / "model.hlo")
    return module, explain(module, find(target), options)


def edges_of(module: hloc.Module) -> set[tuple[str, str]]:
    """(producer, reader) by name, of all arrays that go from one kernel of an optimized module to another."""
    found = set()
    for computation in executed_computations(module):
        for reader in computation.instructions:
            if reader.opcode in FORWARDING:
                continue
            for producer in reader.operands:
                while producer.opcode in FORWARDING and len(producer.operands) == 1:
                    producer = producer.operands[0]
                if producer.opcode not in {*FORWARDING, "parameter", "constant", "copy"}:
                    found.add((producer.name, reader.name))
    return found


@pytest.mark.parametrize("target", ["cpu", "h100"])
@pytest.mark.parametrize("name", ["digits", "minilm", "sort", "gather_scatter", "random_threefry", "linalg"])
def test_every_edge_has_a_reason(name, target):
    module, explanation = told(name, target)
    reported = {(e.producer_kernel, e.reader_kernel) for e in explanation.edges}
    missing = {(p, r) for p, r in edges_of(module) if not r.startswith("copy")} - reported
    assert not missing
    assert all(e.reason for e in explanation.edges)


def test_reasons_add_up():
    _, explanation = told("minilm")
    assert sum(r.edges for r in explanation.reasons) == len(explanation.edges)
    assert sum(r.size for r in explanation.reasons) == sum(e.size for e in explanation.edges)


def test_one_instruction():
    _, explanation = told("digits")
    kernel = explanation.kernels[0].instruction.name
    about = explanation.about(kernel)
    assert [k.instruction.name for k in about.kernels] == [kernel]
    assert about.edges and all(kernel in (e.producer_kernel, e.reader_kernel) for e in about.edges)


def test_without_fusion_nothing_is_fused():
    module, explanation = told("digits", fusion="off")
    assert not any(i.opcode == "fusion" for c in module.computations for i in c.instructions)
    assert {e.reason for e in explanation.edges} == {"fusion is off"}


@pytest.mark.parametrize("name", ["digits", "control_flow", "gather_scatter", "cumsum", "linalg", "lstm"])
def test_models_without_fusion(name):
    model = models.find(name)
    exe = hloc.compile(models.model_path(model), target="cpu", options=hloc.Options(passes={"fusion": "off"}))
    assert models.differences(model, exe(*inputs_of(model, exe))) == []


@pytest.mark.parametrize("options, words", [({"fusion": "maybe"}, "'on' or 'off'"), ({"fusoin": "off"}, "fusion?")])
def test_unknown_options_are_named(options, words):
    with pytest.raises(hloc.UsageError, match="option") as caught:
        hloc.compile(MODELS / "digits" / "model.hlo", target="cpu", options=hloc.Options(passes=options), run=False)
    assert words in str(caught.value)


def test_command(capsys):
    sys.argv = ["hloc", "explain", str(MODELS / "digits" / "model.hlo")]
    main()
    out = capsys.readouterr().out
    assert "kernels:" in out and "reduce-window is not fused with its producers" in out
    sys.argv += ["--json"]
    main()
    found = json.loads(capsys.readouterr().out)
    assert found["edges"] and found["kernels"][0]["holds"] and np.sum([r["edges"] for r in found["reasons"]]) == len(
        found["edges"])


@pytest.mark.parametrize("name, words", [
    ("nothing.7", "no instruction 'nothing.7', neither in the file nor"), ("add.20", "no kernel holds 'add.20'"),
    ("exp.11", "hint: did you mean exp.1")])
def test_command_about_what_is_not_there(name, words, capsys):
    sys.argv = ["hloc", "explain", str(MODELS / "digits" / "model.hlo"), "--about", name]
    with pytest.raises(SystemExit):
        main()
    assert words in capsys.readouterr().err


def test_what_became_part_of_a_kernel_is_found_by_its_name_in_the_file():
    told = explain(hloc.load(MODELS / "digits" / "model.hlo"), find("cpu")).about("exp.1")
    (kernel,) = told.kernels
    assert "exponential" in kernel.members
    assert all(kernel.instruction.name in (e.producer_kernel, e.reader_kernel) for e in told.edges)
