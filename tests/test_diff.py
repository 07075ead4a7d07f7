"""`hloc diff`: instructions are matched by structure. Each text of testdata/diff holds two modules and, behind a second
`// ==>`, what differs: one change a line (HLOC_GOLDEN=1 rewrites it; review the diff)."""
from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from growing_modules import KINDS, sizes_of
from linearity import calls_made
from test_cli import here  # noqa: F401

import hloc
from hloc.ir.clone import clone_module
from hloc.targets import find
from hloc.text import parse_module
from hloc.tools.diff import diff
from hloc.tools.pass_states import pass_states

TESTDATA = Path(__file__).parent.parent / "testdata"
CASES = sorted((TESTDATA / "diff").glob("*.hlo"))
ARROW = "// ==>\n"
MODELS = ("digits", "control_flow", "lstm", "transformer_train", "gather_scatter")


def lines_of(found) -> list[str]:
    def place(i, home):
        return f"{home[i].name}/{i.name}" if i is not None else ""

    return [" ".join(["; ".join(f"{d.what}: {d.before} -> {d.after}" for d in c.details) or c.kinds[0],
                      f" {place(c.before, found.home_before)} -> {place(c.after, found.home_after)}"]).replace("   ->", "  ->")
            for c in found.changes]


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path):
    first, second, expected = path.read_text(encoding="utf-8").split(ARROW)
    modules = parse_module(first), parse_module(second)
    told = "".join(f"{line.rstrip()}\n" for line in lines_of(diff(*modules)))
    if os.environ.get("HLOC_GOLDEN"):
        path.write_text(ARROW.join([first, second, told]), encoding="utf-8")
    else:
        assert told == expected
    assert diff(modules[0], parse_module(first)).equal and diff(modules[1], parse_module(second)).equal
    back = diff(modules[1], modules[0])
    turned = {"came": "went", "went": "came"}
    assert back.counts == {turned.get(k, k): n for k, n in diff(*modules).counts.items()}


def renamed(module: hloc.Module, seed: int) -> hloc.Module:
    """The same module under other names."""
    copy = clone_module(module)
    chosen = random.Random(seed)
    for computation in copy.computations:
        names = [f"n.{number}" for number in range(len(computation.instructions))]
        chosen.shuffle(names)
        for instruction, name in zip(computation.instructions, names):
            instruction.name = name
        computation.name = f"c.{chosen.random()}"
    return copy


@pytest.mark.parametrize("name", MODELS)
def test_names_are_no_difference(name):
    module = hloc.load(TESTDATA / "models" / name / "model.hlo")
    found = diff(module, renamed(module, 1))
    assert found.equal and found.matched == len(list(module.instructions()))
    _, optimized = pass_states(clone_module(module), find("cpu"), {})
    assert diff(optimized, renamed(optimized, 2)).equal


@pytest.mark.parametrize("name", MODELS)
def test_one_changed_instruction_is_one_change(name):
    """An operand of another instruction, an attribute, or a constant: what stands around it stays matched."""
    module = hloc.load(TESTDATA / "models" / name / "model.hlo")
    count = len(list(module.instructions()))
    for seed in range(8):
        copy = renamed(module, seed)
        victims = [i for i in copy.instructions() if i.opcode in ("add", "multiply", "subtract", "maximum")]
        victim = random.Random(seed).choice(victims)
        victim.opcode = "minimum"
        found = diff(module, copy)
        assert found.matched == count - 1 and found.counts["came"] == found.counts["went"] == 1
        assert any(c.after is victim for c in found.changes)


def test_every_instruction_is_matched_or_named():
    module = hloc.load(TESTDATA / "models" / "transformer_train" / "model.hlo")
    found = diff(*pass_states(module, find("cpu"), {}, after="fusion"))
    old = {c.before for c in found.changes if c.kinds == ("went",)} | set(found.matching.forward)
    new = {c.after for c in found.changes if c.kinds == ("came",)} | set(found.matching.backward)
    assert old == set(found.before.instructions()) and new == set(found.after.instructions())


def test_what_fusion_does_is_moving():
    """Instructions that fusion takes into a kernel are found there; only what is computed twice is new."""
    module = hloc.load(TESTDATA / "models" / "digits" / "model.hlo")
    found = diff(*pass_states(module, find("cpu"), {}, before="fusion", after="fusion"))
    assert found.counts["moved"] > 20 and "went" not in found.counts
    came = {c.after.opcode for c in found.changes if c.kinds == ("came",)}
    assert came <= {"fusion", "parameter", "constant", "broadcast", "tuple", "get-tuple-element"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_comparing_is_linear(kind):
    small, large = (calls_made(lambda pair: diff(*pair), _changed(kind, size)) / size for size in sizes_of(kind))
    assert large < 1.15 * small


def _changed(kind: str, size: int) -> tuple[hloc.Module, hloc.Module]:
    """A module and itself with an instruction of every ten changed."""
    module = hloc.load(KINDS[kind](size))
    copy = clone_module(module)
    for instruction in list(copy.instructions())[::10]:
        if instruction.opcode in ("add", "multiply", "negate"):
            instruction.opcode = {"add": "maximum", "multiply": "minimum", "negate": "abs"}[instruction.opcode]
    return module, copy


def test_modules_that_break_rules_are_compared(here, hloc_run):  # noqa: F811
    Path("broken.hlo").write_text("""f { p = f32[4] parameter(0)  ROOT n = f32[4] negate(p) }
ENTRY e {
  x = f32[4] parameter(0)
  t = (f32[4]) tuple(x)
  g = f32[4] get-tuple-element(t), index=3
  ROOT r = f32[4] fusion(g, g), kind=kLoop, calls=f
}
""")
    code, out, err = hloc_run("diff", "broken.hlo", "broken.hlo")
    assert code == 0 and "no difference" in out and "index=3 of a tuple of 1 elements" in err


# -- the command -------------------------------------------------------------------------------------------------------

def test_the_command(here, hloc_run):  # noqa: F811
    Path("b.hlo").write_text(Path("add.hlo").read_text().replace("tanh(s)", "tanh(s), metadata={op_name=\"f\"}").replace("x =", "k =").replace("add(x", "add(k"))
    code, out, _ = hloc_run("diff", "add.hlo", "b.hlo")
    assert code == 1 and out.splitlines()[:2] == [
        "add.hlo: 4 instructions; b.hlo: 4 instructions; 4 are in both", "metadata 1"]
    assert "e/t" in out and 'metadata: none -> {op_name="f"}' in out
    assert hloc_run("diff", "add.hlo", "b.hlo", "--ignore", "metadata")[:2] == (
        0, "add.hlo: 4 instructions; b.hlo: 4 instructions; 4 are in both\nno difference\n")
    code, out, _ = hloc_run("diff", "add.hlo", "b.hlo", "--json")
    told = json.loads(out)
    assert code == 1 and told["counts"] == {"metadata": 1} and told["changes"][0]["after"]["line"] == 7
    code, out, _ = hloc_run("diff", "add.hlo", "--before", "fusion", "--after", "fusion")
    assert code == 1 and "moved" in out and "fusion(" in out


@pytest.mark.parametrize("arguments, code, words", [
    (["add.hlo"], 2, "hint: name a second module, or passes"),
    (["add.hlo", "add.hlo", "--after", "fusion"], 2, "need one module, and two are given"),
    (["add.hlo", "--after", "fusoin"], 2, "did you mean fusion?"),
    (["add.hlo", "--before", "fusion", "--after", "call_inliner"], 2, "call_inliner does not run after fusion"),
    (["add.hlo", "nowhere.hlo"], 2, "nowhere.hlo"),
    (["add.hlo", "add.hlo", "--ignore", "colour"], 2, "hint: kinds: came, went"),
    (["add.hlo", "add.hlo", "-o", "diff.txt"], 2, "a diff is written as a page, FILE.html"),
    (["add.hlo", "add.hlo", "-o", "no/diff.html"], 6, "no such folder"),
    (["-", "-"], 2, "only one of the two modules can be standard input"),
], ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_mistakes_are_one_error(here, hloc_run, arguments, code, words):  # noqa: F811
    got, out, err = hloc_run("diff", *arguments)
    assert got == code and words in err and "Traceback" not in err and out == ""
