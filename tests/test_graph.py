"""`hloc graph` without a browser: parts, neighbourhoods, sizes, what its files hold, and its errors."""
from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from growing_modules import KINDS, sizes_of
from linearity import calls_made
from test_cli import here  # noqa: F401
from test_pages import HOSTILE, TEXT, hostile

import hloc
from hloc.analysis.cost import predicted_seconds
from hloc.ir import Instruction
from hloc.pages.dot import dot_text
from hloc.pages.graph_page import graph_data, graph_page
from hloc.targets import find
from hloc.text import parse_module
from hloc.tools.graph import (
    CLASSES,
    MOST_ITEMS,
    Graph,
    class_of,
    constants_in,
    edges_to,
    inlined,
    neighbourhood,
    parts,
    weights,
)

MODELS = Path(__file__).parent.parent / "testdata" / "models"


def flat(items: list) -> list[Instruction]:
    return [i for item in items for i in (flat(item) if isinstance(item, list) else [item])]


def lists(items: list) -> list[list]:
    return [items, *(inner for item in items if isinstance(item, list) for inner in lists(item))]


@pytest.mark.parametrize("name", ["transformer_train", "resnet50", "gpt2_generate", "digits"])
def test_parts_hold_everything_in_order(name):
    module = hloc.load(MODELS / name / "model.hlo")
    for computation in module.computations:
        tree = parts(computation.instructions)
        assert flat(tree) == computation.instructions
        assert all(0 < len(items) <= MOST_ITEMS for items in lists(tree))


def test_leaves_stand_before_their_readers():
    module = parse_module("ENTRY e { c = f32[] constant(1)  x = f32[4] parameter(0)  n = f32[4] negate(x)  "
                          "b = f32[4] broadcast(c), dimensions={}  ROOT a = f32[4] add(n, b) }")
    assert [i.name for i in Graph(module).of(module.entry)] == ["x", "n", "c", "b", "a"]


def test_instructions_without_readers_are_shown():
    module = parse_module("ENTRY e { x = f32[4] parameter(0)  y = f32[] parameter(1)  ROOT n = f32[4] negate(x) }")
    assert {i.name for i in Graph(module).of(module.entry)} == {"x", "y", "n"}


def test_elements_of_tuples_and_constants_have_no_box():
    module = parse_module("""ENTRY e {
      c = f32[] constant(0.5)  b = f32[4] broadcast(c), dimensions={}  unread = f32[] constant(2)
      t = (f32[4], f32[]) parameter(0)  x = f32[4] get-tuple-element(t), index=0  dead = f32[] get-tuple-element(t), index=1
      ROOT m = f32[4] multiply(x, b) }""")
    hidden = inlined(module.entry.instructions, module.entry.root)
    assert {i.name for i in hidden} == {"c", "b", "x", "dead"}
    assert [(a.name, b.name) for a, b in edges_to(module.entry.root, hidden)] == [("t", "x")]
    assert constants_in(module.entry.root, hidden) == "0.5"
    element = parse_module("ENTRY e { t = (f32[4]) parameter(0)  ROOT x = f32[4] get-tuple-element(t), index=0 }").entry
    assert inlined(element.instructions, element.root) == set()


def test_neighbourhoods():
    module = parse_module(TEXT)

    def around(name, radius):
        return {i.name for i in neighbourhood(module, name, radius)}

    assert around("a", 0) == {"a"} and around("a", 1) == {"x", "a", "r"}
    assert around("n", 0) == {"n", "r"}                      # with the fusion that holds it
    with pytest.raises(hloc.HlocError, match="no instruction 'b'"):
        around("b", 1)


def test_every_opcode_has_a_class():
    module = hloc.load(MODELS / "control_flow" / "model.hlo")
    assert {class_of(i) for i in module.instructions()} <= set(CLASSES)
    assert class_of(parse_module(TEXT).entry.root) == "elementwise"


def test_sizes():
    module = hloc.load(MODELS / "minilm" / "model.hlo")
    machine = find("h100").machine
    seconds, unit = weights(module, "time", machine)
    dots = [i for i in module.instructions() if i.opcode == "dot"]
    largest = max(dots, key=lambda i: weights(module, "flops", machine)[0][i])
    assert unit == "seconds" and seconds[largest] == predicted_seconds(largest, machine) > 0
    assert seconds[max(seconds, key=seconds.get)] < 1
    assert weights(module, "bytes", machine)[0][dots[0]] == sum(o.shape.num_bytes for o in dots[0].operands) + dots[0].shape.num_bytes


def test_data_of_the_page():
    data = graph_data(Graph(parse_module(TEXT)))
    names = [node[0] for node in data["nodes"]]
    root = data["nodes"][names.index("r")]
    assert [names[o] for o in root[4]] == ["a"] and data["computations"][root[10][0]][0] == "f"
    exp = data["nodes"][names.index("a")]
    assert data["strings"][exp[7]] == "loss.py:7" and exp[3] == 16 and exp[6] == 5 and "exponential(%x)" in exp[8]
    assert data["computations"][data["entry"]][0] == "e"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_pages_are_made_in_linear_time(kind):
    small, large = (calls_made(lambda module: graph_page(Graph(module), "m"), hloc.load(KINDS[kind](size))) / size
                    for size in sizes_of(kind))
    assert large < 1.3 * small                              # one more level of parts


def test_names_are_quoted_in_dot():
    told = dot_text(Graph(hostile(parse_module(TEXT))))
    assert "<img" not in told and "\x1b" not in told and "&lt;img" in told
    for line in told.split("\n"):
        assert line.replace('\\"', "").count('"') % 2 == 0


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz's dot is not installed")
def test_a_drawing(here, hloc_run):  # noqa: F811
    code, out, _ = hloc_run("graph", "add.hlo", "-o", "add.svg")
    assert code == 0 and out == "add.svg: 4 instructions\n"
    drawn = Path("add.svg").read_text(encoding="utf-8")
    texts = [t.text for t in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert "tanh f32[2,3]" in texts and "<!DOCTYPE" not in drawn
    from hloc.pages.dot import svg_text
    texts = ElementTree.fromstring(svg_text(Graph(hostile(parse_module(TEXT))))).itertext()
    assert any(HOSTILE[:20] in text for text in texts)


def test_a_drawing_without_graphviz(here, hloc_run, monkeypatch):  # noqa: F811
    monkeypatch.setenv("PATH", "")
    code, out, err = hloc_run("graph", "add.hlo", "-o", "add.svg")
    assert code == 6 and out == "" and "dot, which draws .svg, is not installed" in err and not Path("add.svg").exists()


def test_the_command(here, hloc_run):  # noqa: F811
    assert hloc_run("graph", "add.hlo", "-o", "add.html")[:2] == (0, "add.html: 4 instructions\n")
    assert hloc_run("graph", "add.hlo", "-o", "add.html", "--about", "s", "--radius", "0")[1] == "add.html: 1 instruction\n"
    code, out, _ = hloc_run("graph", "add.hlo", "-o", "add.dot", "--after", "end", "--cost", "bytes")
    assert code == 0 and "fusion f32[2,3]" in Path("add.dot").read_text(encoding="utf-8")


def test_measured_times(here, hloc_run):  # noqa: F811
    code, out, _ = hloc_run("run", "add.hlo", "-t", "cpu", "-i", "zeros", "--profile", "--json")
    Path("profile.json").write_text(out, encoding="utf-8")
    name, seconds = (json.loads(out)["profile"][0][key] for key in ("instruction", "seconds"))
    assert hloc_run("graph", "add.hlo", "-o", "add.html", "--after", "end", "--cost", "profile.json")[0] == 0
    assert f'"{name}"' in Path("add.html").read_text(encoding="utf-8") and str(seconds) in Path("add.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments, code, words", [
    (["-o", "add.png"], 2, "hint: name a FILE that ends with .html, .svg or .dot"),
    (["-o", "no/add.html"], 6, "no such folder"),
    (["-o", "add.html", "--about", "t1"], 2, "no instruction 't1' in the module\nhint: did you mean t?"),
    (["-o", "add.html", "--after", "fusoin"], 2, "did you mean fusion?"),
    (["-o", "add.html", "--cost", "tiem"], 2, "cannot read the profile tiem: No such file"),
    (["-o", "add.html", "--cost", "add.hlo"], 2, "add.hlo is not JSON"),
    (["-o", "add.html", "--cost", "list.json"], 2, "the file is not a profile"),
    (["-o", "add.html", "--cost", "deep.json"], 2, "deep.json is not JSON"),
    (["-o", "add.html", "--cost", "other.json"], 2, "no instruction of the profile is in this module\nhint: profiles name"),
], ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_mistakes_are_one_error(here, hloc_run, arguments, code, words):  # noqa: F811
    Path("list.json").write_text("[1]")
    Path("deep.json").write_text("[" * 100_000)
    Path("other.json").write_text('{"profile": [{"instruction": "fusion.9", "seconds": 1}]}')
    got, out, err = hloc_run("graph", "add.hlo", *arguments)
    assert got == code and words in err and "Traceback" not in err and out == ""


def test_too_many_for_a_drawing(here, hloc_run):  # noqa: F811
    Path("long.hlo").write_text("ENTRY e {\n  x0 = f32[] parameter(0)\n" + "".join(
        f"  x{n} = f32[] negate(x{n - 1})\n" for n in range(1, 3001)) + "  ROOT r = f32[] negate(x3000)\n}\n")
    code, _, err = hloc_run("graph", "long.hlo", "-o", "long.svg")
    assert code == 2 and "a drawing of 3,002 instructions" in err and "hint: --about NAME" in err
