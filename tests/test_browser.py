"""Pages in a real browser: Chromium, driven by Playwright (`pip install 'hloc[browser]'`, and a Chromium of the system
or `playwright install chromium`). Nothing is fetched: pages are opened as files, and any other request fails a test."""
from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from test_pages import HOSTILE, TEXT, hostile, report_of
from test_report import SOFTMAX

import hloc
from hloc.pages.diff_page import diff_page
from hloc.pages.graph_page import graph_page
from hloc.pages.report_page import report_page
from hloc.targets import find
from hloc.text import parse_module
from hloc.tools.diff import diff
from hloc.tools.formatting import size_text
from hloc.tools.graph import Graph
from hloc.tools.report import make_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'hloc[browser]'")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
MODELS = Path(__file__).parent.parent / "testdata" / "models"
LOOP = """cond { s = (s32[], f32[4]) parameter(0)  i = s32[] get-tuple-element(s), index=0  n = s32[] constant(9)  ROOT p = pred[] compare(i, n), direction=LT }
body {
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[4] sine(x), metadata={op_name="jit(f)/sin" source_file="wave.py" source_line=42}
  ROOT t = (s32[], f32[4]) tuple(j, y)
}
ENTRY e {
  x = (s32[], f32[4]) parameter(0)
  w = (s32[], f32[4]) while(x), condition=cond, body=body
  ROOT g = f32[4] get-tuple-element(w), index=1
}
"""


class Clock:
    """Seconds of CPU that a page's main thread has taken since this was made, or asked last: other work on the machine
    does not count."""

    def __init__(self, page):
        self.session, self.before = page.context.new_cdp_session(page), 0.0
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def __call__(self) -> float:
        metrics = self.session.send("Performance.getMetrics")["metrics"]
        now = next(m["value"] for m in metrics if m["name"] == "ThreadTime")
        before, self.before = self.before, now
        return now - before


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        except sync_api.Error as error:
            pytest.skip(f"no Chromium: playwright install chromium ({str(error).splitlines()[0]})")
        yield started
        started.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page's markup; at the end, no script may have failed and nothing may have been asked for."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))

    def open_page(markup: str):
        path = tmp_path / "page.html"
        path.write_text(markup, encoding="utf-8")
        page.goto(path.as_uri())
        return page

    open_page.clock = Clock(page)
    yield open_page
    page.close()
    assert wrong == []


def chain(count: int) -> hloc.Module:
    """A module of `count` instructions with several readers each, in scopes of a hundred."""
    lines = ["ENTRY e {", "  v0 = f32[8,16] parameter(0)", "  v1 = f32[8,16] negate(v0)"]
    lines += [f"  v{n} = f32[8,16] {'add' if n % 3 else 'multiply'}(v{n - 1}, v{n - 2 if n % 5 else max(0, n - 60)}), "
              f'metadata={{op_name="jit(f)/layer_{n // 100}/op" source_file="net.py" source_line={n // 10}}}'
              for n in range(2, count)]
    return parse_module("\n".join([*lines, f"  ROOT r = f32[8,16] tanh(v{count - 1})", "}"]))


def names(page) -> list[str]:
    """The names of the nodes that are drawn."""
    return page.locator("svg .box .name, svg .frame > .head").all_text_contents()


def test_a_fusion_opens_and_folds(opened):
    page = opened(graph_page(Graph(parse_module(TEXT)), "m.hlo"))
    assert {"x", "a", "p", "n"} <= set(names(page)) and any(name.startswith("\u2212 r") for name in names(page))
    page.locator("#fold").click()
    assert {"x", "a", "r \u2026"} <= set(names(page)) and "n" not in names(page)
    page.locator("svg .box", has_text="r \u2026").dblclick()
    assert {"p", "n"} <= set(names(page))
    page.keyboard.press("Enter")
    assert "n" not in names(page)
    assert page.locator("#details").inner_text().startswith("r\n")


def test_keys_go_along_the_edges(opened):
    page = opened(graph_page(Graph(parse_module(TEXT)), "m.hlo"))
    page.locator("svg .box", has_text="exponential").click()
    for key, name in (("ArrowDown", "r"), ("ArrowUp", "a"), ("ArrowUp", "x")):
        page.keyboard.press(key)
        assert page.locator("#details h2").inner_text() == name
        assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(name + ",")


def test_loops_are_frames_and_search_finds_what_is_folded(opened):
    page = opened(graph_page(Graph(parse_module(LOOP)), "loop.hlo"))
    page.locator("#fold").click()
    assert "y" not in names(page)
    page.keyboard.press("/")
    for wanted in ("sine", "wave.py:42", "line:8"):
        page.locator("#search").fill(wanted)
        assert page.locator("#said").inner_text() == "1 instruction found"
    page.keyboard.press("Enter")
    assert "y" in names(page) and page.locator("#details h2").inner_text() == "y"
    assert {"\u2212 body", "\u2212 w  while  (s32[], f32[4])"} <= set(names(page))
    told = page.locator("#details").inner_text()
    assert "wave.py:42" in told and "f32[4], 16 B" in told and "body" in told
    page.locator("#details button", has_text="x").click()
    assert page.locator("#details h2").inner_text() == "x"


def test_elements_and_constants_have_no_box(opened):
    """An element of a tuple is an edge, a constant stands in what reads it; search finds them where they are seen."""
    page = opened(graph_page(Graph(parse_module(LOOP)), "loop.hlo"))
    page.locator("#unfold").click()
    assert not {"i", "one", "n"} & set(names(page))
    assert page.locator("svg .box.elementwise", has_text="j").locator("text").all_text_contents()[2] == "1"
    for name, place in (("one", "j"), ("i get-tuple-element", "s")):
        page.locator("#search").fill(name)
        page.locator("#results button").first.click()
        assert page.locator("svg .chosen .name").text_content() == place
        assert page.locator("#details h2").inner_text() == name.split()[0]


@pytest.mark.parametrize("make", [lambda: graph_page(Graph(hostile(parse_module(TEXT))), "m" + HOSTILE), lambda: diff_page(diff(
    hostile(parse_module(TEXT)), hostile(parse_module(TEXT.replace("exponential", "tanh")))), ["a" + HOSTILE, "b"]),
    lambda: report_of(hostile(parse_module(TEXT)), "m" + HOSTILE)], ids=["graph", "diff", "report"])
def test_markup_in_names_is_text(opened, make):
    page = opened(make())
    assert page.locator("img").count() == 0
    if page.locator("#unfold").count():
        page.locator("#unfold").click()
        page.locator("#search").fill("exponential")
        page.locator("#results button").click()
        assert "<img src=x" in page.locator("#details h2").inner_text()
    if page.locator("#instant").count():
        page.locator("#instant").press("End")
        assert "<img src=x" in page.locator("#instant-said").inner_text()
    assert page.locator("img").count() == 0


def test_the_diff_hides_kinds(opened):
    page = opened(diff_page(diff(parse_module(TEXT), parse_module(TEXT.replace("exponential", "tanh"))), ["a", "b"]))
    assert page.locator("tr.came").is_visible()
    page.get_by_label("came", exact=True).uncheck()
    assert not page.locator("tr.came").is_visible() and page.locator("tr.went").is_visible()


@pytest.mark.parametrize("count, first, unfolded, found", [(1_000, 2, 10, 1), (20_000, 4, 15, 3)])
def test_large_graphs_stay_usable(opened, count, first, unfolded, found):
    """Seconds until the first drawing, until a search went to a node, and until all (or 2,500) are open."""
    page = opened(graph_page(Graph(chain(count)), "chain.hlo"))
    page.wait_for_selector("body[data-ready]", timeout=120_000)
    times = [opened.clock()]
    assert len(names(page)) < 60
    page.locator("#search").fill(f"v{count // 2} add")
    page.locator("#results button").first.click()
    assert page.locator("#details h2").inner_text() == f"v{count // 2}"
    times.append(opened.clock())
    page.locator("#unfold").click(timeout=120_000)
    assert len(names(page)) >= min(count, 2000)
    times.append(opened.clock())
    print("first, search, unfolded:", *(f"{seconds:.2f} s" for seconds in times))
    assert times[0] < first and times[1] < found and times[2] < unfolded


def test_deep_nesting(opened):
    """Calls in calls: nothing recurses on them; of 1,500 frames the inner ones are drawn."""
    lines = ["g0 { p = f32[4] parameter(0)  ROOT n = f32[4] negate(p) }"]
    lines += [f"g{n} {{ p = f32[4] parameter(0)  ROOT c = f32[4] call(p), to_apply=g{n - 1} }}" for n in range(1, 1500)]
    lines.append("ENTRY e { p = f32[4] parameter(0)  ROOT c = f32[4] call(p), to_apply=g1499 }")
    page = opened(graph_page(Graph(parse_module("\n".join(lines))), "deep.hlo"))
    page.locator("#search").fill("negate")
    page.locator("#results button").click()
    assert page.locator("#details h2").inner_text() == "n" and "n" in names(page)
    assert "not drawn" in page.locator("#said").inner_text()
    page.locator("#unfold").click()
    assert 50 < page.locator("svg .frame").count() < 70
    page.locator("#fold").click()
    assert set(names(page)) == {"\u2212 e", "p", "c \u2026"}


def test_two_cells_of_a_notebook(opened):
    """Each has a graph that answers, whatever the other does."""
    cells = [hloc.load(TEXT)._repr_html_(), hloc.load(LOOP)._repr_html_()]
    page = opened("<!DOCTYPE html><title>notebook</title>" + "<hr>".join(cells))
    first, second = page.frame_locator("iframe").nth(0), page.frame_locator("iframe").nth(1)
    first.locator("#search").fill("exponential")
    second.locator("#search").fill("sine")
    for frame, name in ((first, "a"), (second, "y")):
        frame.locator("#results button").first.click()
        assert frame.locator("#details h2").inner_text() == name
    assert page.locator("iframe").count() == 2 and "parameters" in page.locator("body").inner_text()


def marked(page, column: int) -> list[str]:
    """The marked lines of one of the texts of the open kernel."""
    return [t.strip() for t in page.locator(f"details[open] .sides > div:nth-child({column}) .linked").all_text_contents()]


def test_lines_of_a_report_are_linked(opened):
    page = opened(report_page(make_report(hloc.load(SOFTMAX), find("cpu"))))
    page.locator("#kernels a", has_text="exponential").click()               # opens the texts
    line = page.locator("details[open] .line", has_text="exponential(")
    line.hover()
    assert re.fullmatch(r"let t2_\w+ = exp\(t1_\w+ - splat:f32x\d+\(\w+\)\)", marked(page, 2)[0])
    assert re.match(r"const hloc_f32x\d+ t2_\w+ = hlocv_exp_f32x\d+\(", marked(page, 3)[0])
    page.locator("h1").hover()
    assert marked(page, 3) == []
    line.click()
    page.locator("h1").hover()
    values = {line.split(" = ")[0].split()[-1].split("_")[0] for line in marked(page, 3)}
    assert values == {"t2", "t3"}                                            # computed, and read again by the division
    page.keyboard.press("ArrowDown")                                         # the next line: the sum's first value
    assert any(re.match(r"(\w+) = \1 \+ ", line) for line in marked(page, 2)), marked(page, 2)
    assert page.evaluate("document.activeElement.textContent").strip().startswith("%constant")
    page.keyboard.press("Escape")
    assert marked(page, 2) == []


def test_the_memory_chart_tells_of_any_instant(opened):
    report = make_report(hloc.load(SOFTMAX), find("cpu"))
    page = opened(report_page(report))
    said, rows = page.locator("#instant-said"), page.locator("#buffers tbody tr")
    peak = max(report.memory.live)                           # the scratch memory of rows that go together is counted
    assert peak > 64 << 10 and f"{size_text(peak)} in use (the peak)" in said.inner_text() and rows.count() == 2
    page.locator("#instant").press("End")
    assert "64 KiB in use" in said.inner_text() and rows.count() == 1
    box = page.locator("svg.memory").bounding_box()
    page.mouse.move(box["x"] + 0.12 * box["width"], box["y"] + box["height"] / 2)
    page.wait_for_function("document.getElementById('instant-said').textContent.startsWith('0: x, 0 B')")
    assert rows.count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_a_report_fits_the_window(browser, tmp_path, scheme, width):
    """No part is wider than the window but those that scroll, and text is drawn in the scheme's colours."""
    (tmp_path / "r.html").write_text(report_page(make_report(hloc.load(SOFTMAX), find("h100"), others=["cpu"])), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto((tmp_path / "r.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    assert dark == (scheme == "dark")
    page.close()


@pytest.mark.parametrize("count, seconds, size", [(1_000, 3, 2 << 20), (20_000, 6, 8 << 20)])
def test_large_reports_stay_usable(opened, count, seconds, size):
    """Bytes of the page, and seconds until it is there and the memory chart follows."""
    markup = report_page(make_report(chain(count), find("cpu"), title="chain.hlo"))
    page = opened(markup)
    page.locator("#instant").press("Home")
    page.wait_for_function("document.getElementById('instant-said').textContent.startsWith('0: ')")
    took = opened.clock()
    print(f"{len(markup) / 2**20:.1f} MiB, {took:.2f} s")
    assert len(markup) < size and took < seconds


def test_the_training_step_of_resnet(opened):
    """The first drawing, within two seconds."""
    page = opened(graph_page(Graph(hloc.load(MODELS / "resnet50_train" / "model.hlo")), "resnet50_train"))
    page.wait_for_selector("body[data-ready]", timeout=120_000)
    assert 10 < len(names(page)) < 100 and opened.clock() < 2
