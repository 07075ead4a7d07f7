"""Every opcode has a row, an example, and a meaning or a reason why not; every example gives its values."""
from __future__ import annotations

import numpy as np
import op_examples as examples
import pytest

from hloc.evaluate import evaluate
from hloc.evaluate.simulate import evaluate_devices
from hloc.ir.printer import print_module
from hloc.ops.table import OPS
from hloc.text import parse_module
from hloc.verify import verify

ALL = [e for path in sorted(examples.FOLDER.glob("*.hlo")) for e in examples.read_examples(path)]
CASES = [pytest.param(e, c, id=f"{e.name}:{i}") for e in ALL for i, c in enumerate(e.cases)]


def run(module, case):
    """Device number -> arrays of the result."""
    if not case.devices:
        return {0: evaluate(module, case.inputs.get(0, []))}
    return dict(enumerate(evaluate_devices(module, [case.inputs.get(d, []) for d in range(len(case.outputs))])))


@pytest.mark.parametrize("example, case", CASES)
def test_example(example, case):
    module = parse_module(example.text, example.name)
    verify(module)
    got = run(module, case)
    for device, want in case.outputs.items():
        assert len(got[device]) == len(want)
        for index, (a, b) in enumerate(zip(got[device], want)):
            assert examples.difference(a, b, example.tolerance) == "", f"device {device}, output {index}"


@pytest.mark.parametrize("example", [pytest.param(e, id=e.name) for e in ALL])
def test_round_trip(example):
    text = print_module(parse_module(example.text, example.name))
    assert print_module(parse_module(text)) == text


@pytest.mark.parametrize("opcode", sorted(OPS))
def test_row(opcode):
    """Runs no code of the op: the row is complete and there is an example of it."""
    op = OPS[opcode]
    assert op.opcode == opcode
    assert (op.evaluate is not None) != bool(op.unsupported)
    assert op.least_operands <= (op.most_operands if op.most_operands is not None else op.least_operands)
    assert any(e.name.split(":")[0].split(".")[0] == opcode for e in ALL), f"no testdata/ops/{opcode}.hlo"


def test_every_opcode_of_the_text_has_a_row():
    opcodes = (examples.FOLDER.parent / "opcodes.txt").read_text(encoding="utf-8").split()      # all that XLA has or had
    assert set(OPS) == set(opcodes)


@pytest.mark.xla
@pytest.mark.parametrize("example, case", [p for p in CASES if not p.values[0].no_xla and not p.values[1].devices])
def test_xla_agrees(example, case):
    xla = pytest.importorskip("xla_oracle", reason="jaxlib is not installed")
    got = xla.run(example.text, case.inputs.get(0, []))
    for index, (a, b) in enumerate(zip(got, case.outputs[0])):
        assert examples.difference(np.asarray(a), b, example.tolerance) == "", f"output {index}"
