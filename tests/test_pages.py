"""Pages without a browser: what they hold, that every name is escaped, and that they ask no server for anything."""
from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import hloc
from hloc.ir import Module
from hloc.ir.clone import clone_module
from hloc.pages.diff_page import diff_page, sections
from hloc.pages.dump_folder import DumpFolder
from hloc.pages.graph_page import graph_page
from hloc.pages.page import asset
from hloc.pages.report_page import report_page
from hloc.passes.context import PassContext
from hloc.passes.dce import dce
from hloc.passes.defuser import defuser
from hloc.passes.runner import run_passes
from hloc.targets import find
from hloc.text import parse_module
from hloc.tools.diff import diff
from hloc.tools.graph import CLASSES, Graph
from hloc.tools.report import make_report

HOSTILE = '</script></style><img src=x onerror="alert(1)"><!-- \u2028 \' & ]]> \x1b[31m'
TEXT = """HloModule m
f { p = f32[4] parameter(0)  ROOT n = f32[4] negate(p) }
ENTRY e {
  x = f32[4] parameter(0)
  a = f32[4] exponential(x), metadata={op_name="jit(f)/exp" source_file="loss.py" source_line=7}
  ROOT r = f32[4] fusion(a), kind=kLoop, calls=f
}
"""
# Elements that a page may hold; whatever comes from a module adds none.
VOID = {"meta", "input", "br", "link", "col"}


class Reader(HTMLParser):
    """The elements of a page, its text, and whether they close as they open."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.shown: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.shown.append(data)

    @property
    def text(self) -> str:
        return "".join(self.shown)


def hostile(module: Module) -> Module:
    """The module with markup in every name and every text."""
    for computation in module.computations:
        computation.name += HOSTILE
        for i in computation.instructions:
            i.name += HOSTILE
            if "metadata" in i.attributes:
                i.attributes["metadata"] = '{op_name="' + HOSTILE + '" source_file="' + HOSTILE.replace('"', "") + '" source_line=1}'
    module.name += HOSTILE
    module.attributes["frontend_attributes"] = HOSTILE
    return module


def pages_of(module: Module, other: Module, title: str, folder: Path) -> dict[str, str]:
    return {"diff": diff_page(diff(module, other), [title, "b.hlo"]), "dumps": dumps_of(module, title, folder).index(),
            "graph": graph_page(Graph(other), title), "report": report_of(other, title)}


def report_of(module: Module, title: str) -> str:
    return report_page(make_report(clone_module(module), find("h100"), title=title, others=["cpu"]))


def dumps_of(module: Module, title: str, folder: Path) -> DumpFolder:
    """After one pass that changes something, and one that does not."""
    dumps = DumpFolder(folder, module, title)
    run_passes(module, (defuser, dce), PassContext(), dump_after=["all"], on_dump=dumps, verify=False)
    return dumps


PAGES = ["diff", "dumps", "graph", "report"]


@pytest.mark.parametrize("name", PAGES)
def test_pages_stand_alone(name, tmp_path):
    page = pages_of(parse_module(TEXT), parse_module(TEXT.replace("exponential", "tanh")), "a.hlo", tmp_path)[name]
    reader = Reader(page)
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"http://www\.w3\.org/\d+/svg", "", page))
    assert not any({"src", "href", "srcset", "action"} & {*attributes} - {"#"} for tag, attributes in reader.elements
                   if not re.fullmatch(r"#[\w-]+|[\w.]+\.hlo", str(attributes.get("href", "#a"))))
    assert ("html", {"lang": "en"}) in reader.elements
    policy = next(a["content"] for t, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "unsafe-eval" not in policy and "script-src 'unsafe" not in policy
    assert not any(key.startswith("on") or key == "style" for _, attributes in reader.elements for key in attributes)
    assert "prefers-color-scheme: dark" in page and "@media print" in page


@pytest.mark.parametrize("name", PAGES)
def test_names_are_escaped(name, tmp_path):
    plain = pages_of(parse_module(TEXT), parse_module(TEXT.replace("exponential", "tanh")), "a.hlo", tmp_path)[name]
    page = pages_of(hostile(parse_module(TEXT)), hostile(parse_module(TEXT.replace("exponential", "tanh"))), "a" + HOSTILE, tmp_path)[name]
    expected, got = Reader(plain), Reader(page)
    assert {tag for tag, _ in got.elements} == {tag for tag, _ in expected.elements}
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in got.elements)
    assert "\x1b" not in page and HOSTILE[:20] not in page


def test_the_diff_page_holds_every_change():
    found = diff(parse_module(TEXT), parse_module(TEXT.replace("exponential(x)", "tanh(x)")))
    shown = Reader(diff_page(found, ["a.hlo", "b.hlo"])).text
    assert "a.hlo: 5 instructions; b.hlo: 5; 4 are in both." in shown
    assert "exponential(%x)" in shown and "tanh(%x)" in shown and "loss.py:7" in shown
    same = Reader(diff_page(diff(parse_module(TEXT), parse_module(TEXT)), ["a.hlo", "b.hlo"])).text
    assert "No difference." in same


def test_what_went_stands_where_it_was():
    lines = "".join(f"  a{n} = f32[4] {'negate' if n % 2 else 'sine'}(a{n - 1})\n" for n in range(1, 10))
    before = "ENTRY e {\n  a0 = f32[4] parameter(0)\n" + lines + "  ROOT r = f32[4] cosine(a9)\n}"
    after = before.replace("  a5 = f32[4] negate(a4)\n", "").replace("sine(a5)", "sine(a4)")
    shown = Reader(diff_page(diff(parse_module(before), parse_module(after)), ["a", "b"])).text
    places = [shown.index(f"%a{n} =") for n in (3, 4, 5, 6, 7, 8)]
    assert places == sorted(places) and "%a2 =" not in shown and "2 unchanged" in shown


def test_a_long_diff_ends():
    lines = "".join(f"  a{n} = f32[4] negate(a{n - 1})\n" for n in range(1, 100))
    before = "ENTRY e {\n  a0 = f32[4] parameter(0)\n" + lines + "  ROOT r = f32[4] cosine(a99)\n}"
    found = diff(parse_module(before), parse_module(before.replace("negate", "sine")))
    (short, note), (whole,) = sections(found, 30), sections(found)
    rows = [sum(tag == "tr" for tag, _ in Reader(text).elements) for text in (short, whole)]
    assert 25 <= rows[0] <= 35 and rows[1] > 190 and note == "<p>Here are 30 lines; hloc diff has all.</p>"


def test_a_dump_folder_holds_what_changed(tmp_path):
    dumps = dumps_of(parse_module(TEXT), "m.hlo", tmp_path / "dumps")
    dumps.finish()
    assert sorted(p.name for p in (tmp_path / "dumps").iterdir()) == ["000.input.hlo", "001.after.defuser.hlo", "index.html"]
    shown = Reader((tmp_path / "dumps" / "index.html").read_text(encoding="utf-8")).text
    assert "went 2, moved 1" in shown and "moved: f" in shown and "after dce" not in shown


def test_notebooks_show_the_graph():
    """In a frame of its own, escaped; too large modules have a sentence instead."""
    module = hloc.load(TEXT)
    for shown, name in ((module._repr_html_(), "a"), (hloc.compile(TEXT, "reference")._repr_html_(), "a"),
                        (hloc.compile(TEXT, "h100", run=False)._repr_html_(), "fusion")):
        (frame,) = [attributes for tag, attributes in Reader(shown).elements if tag == "iframe"]
        assert frame["sandbox"] == "allow-scripts" and frame["srcdoc"].startswith("<!DOCTYPE html>") and "parameters" in shown
        assert name in Reader(frame["srcdoc"]).text + frame["srcdoc"] and len(shown) < 150_000
    (frame,) = [attributes for tag, attributes in Reader(hostile(module)._repr_html_()).elements if tag == "iframe"]
    assert "onerror" not in {key for _, attributes in Reader(frame["srcdoc"]).elements for key in attributes}
    many = "".join(f"  v{n} = f32[2] negate(v{n - 1})\n" for n in range(1, 2_100))
    large = hloc.load("ENTRY e {\n  v0 = f32[2] parameter(0)\n" + many + "  ROOT r = f32[2] negate(v9)\n}")
    assert "too many to draw here" in large._repr_html_() and "iframe" not in large._repr_html_()


# -- contrast ----------------------------------------------------------------------------------------------------------

def colours(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """The colours of a style sheet by name, in light and in dark."""
    light, dark = {}, {}
    for part in re.split(r"(?=@media)", asset(name)):
        found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))
        if "prefers-color-scheme: dark" in part:
            dark.update(found)
        elif not part.startswith("@media"):
            light.update(found)
    return light, dark


def contrast(first: str, second: str) -> float:
    """By WCAG 2.1: 4.5 is enough for text, 3 for what is drawn."""
    def luminance(colour: str) -> float:
        parts = [int(colour[n:n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))

    darker, lighter = sorted(map(luminance, (first, second)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_contrast(scheme):
    page, graph = colours("page.css")[scheme], colours("graph.css")[scheme]
    assert set(CLASSES) <= set(graph)
    grounds = [page["ground"], page["raised"], *(page[f"{k}-ground"] for k in ("came", "went", "moved", "changed")),
               *(graph[k] for k in (*CLASSES, "part"))]
    assert all(contrast(page["ink"], ground) >= 7 for ground in grounds)
    assert all(contrast(page["faint"], ground) >= 4.5 for ground in grounds[:6])
    assert all(contrast(page[k], page[f"{k}-ground"]) >= 4.5 for k in ("came", "went", "moved", "changed"))
    assert all(contrast(page["went"], page[f"{k}-ground"]) >= 4.5 for k in ("moved", "changed"))
    assert all(contrast(page["came"], page[f"{k}-ground"]) >= 4.5 for k in ("moved", "changed"))
    assert contrast(page["link"], page["ground"]) >= 4.5
    assert all(contrast(colour, page["ground"]) >= 3 for colour in (graph["edge"], page["focus"]))
