"""docs/support.md says what compiles: every opcode stands in one row, and its examples do what the row says."""
from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from op_examples import FOLDER, read_examples

import hloc
from hloc.devices import with_device_counts
from hloc.errors import UnsupportedError
from hloc.evaluate.simulate import simulated_devices
from hloc.ir import ELEMENT_TYPES
from hloc.kernels.rules.elementwise import ELEMENTWISE_RULES
from hloc.ops.known_calls import CUSTOM_CALLS
from hloc.ops.table import OPS
from hloc.ops.vendors.linear_algebra import LINEAR_ALGEBRA

FILE = Path(__file__).parent.parent / "docs" / "support.md"
PAGE = FILE.read_text(encoding="utf-8")
ROW = re.compile(r"^\| (`.*?) \| (yes|no|host) \| (yes|no|host) \|", re.M)
COLUMNS = {"cpu": 0, "sm_90a": 1}


def rows() -> dict[str, tuple[str, str]]:
    """Opcode -> what the cpu and the cuda column say."""
    found: dict[str, tuple[str, str]] = {}
    for names, *cells in ROW.findall(PAGE):
        for opcode in re.findall(r"`([\w-]+)`", names):
            assert opcode not in found, f"{opcode} stands in two rows"
            found[opcode] = tuple(cells)
    return found


def test_elementwise_ops_stand_in_the_first_row():
    """HLOC_GOLDEN=1 writes it."""
    names = " ".join(f"`{opcode}`" for opcode in sorted({*ELEMENTWISE_RULES, "compare", "copy"}))
    first = ROW.search(PAGE)
    if os.environ.get("HLOC_GOLDEN"):
        FILE.write_text(f"{PAGE[:first.start(1)]}{names}{PAGE[first.end(1):]}", encoding="utf-8")
    else:
        assert first[1] == names


def test_every_opcode_has_a_row():
    short_forms = {o for o in OPS if re.fullmatch(r"(.*)-(start|done|update)", o)}
    listed = set(rows())
    assert set(OPS) - listed <= short_forms and listed <= set(OPS)


def test_every_element_type_is_named():
    section = PAGE.partition("## Element types")[2].partition("##")[0]
    assert [t for t in ELEMENT_TYPES if t not in ("tuple", "buffer") and f"`{t}`" not in section] == []


def test_custom_calls_are_named():
    assert [n for n in CUSTOM_CALLS if n not in LINEAR_ALGEBRA and f"`{n}`" not in PAGE] == []


def for_its_devices(example):
    """The module, with as many devices as its cases have."""
    module = hloc.load(example.text + "\n")
    count = max((len(case.outputs) for case in example.cases if case.devices), default=1)
    device = simulated_devices(module, count)[0]
    return with_device_counts(module, device.replica_count, device.partition_count)


@pytest.mark.parametrize("target", COLUMNS)
def test_examples_do_what_the_page_says(target):
    """Each example compiles, or is refused by name; nothing else may happen. Nothing is built here."""
    said, wrong = rows(), []
    for path in sorted(FOLDER.glob("*.hlo")):
        opcode = path.stem.split(".")[0]
        for example in read_examples(path):
            cell = said[opcode][COLUMNS[target]]
            try:
                _ = hloc.compile(for_its_devices(example), target, run=False).source
            except UnsupportedError as error:
                named = re.sub("-(start|done)$", "", opcode) in error.message
                if cell == "yes" or not named:
                    wrong.append(f"{example.name}: {error.message}")
            else:
                if cell == "no" and any(case.devices for case in example.cases):
                    wrong.append(f"{example.name} compiles, though the page says no")
    assert wrong == []


def test_control_dependencies_hold_nothing_up():
    """The first example of each opcode compiles where each instruction waits for the one before, if it does at all."""
    for path in sorted(FOLDER.glob("*.hlo")):
        example = read_examples(path)[0]
        module = hloc.load(example.text + "\n")
        try:
            hloc.compile(module, "cpu", run=False)
        except UnsupportedError:
            continue
        computed = [i for i in module.entry.instructions if i.opcode not in ("parameter", "constant")]
        for before, instruction in zip(computed, computed[1:]):
            instruction.control_predecessors = (before,)
        assert hloc.compile(module, "cpu", run=False).source, example.name
