"""The page of hloc explore in Chromium: what a person does there. Nothing is asked of any other server; no script fails."""
from __future__ import annotations

import re
import signal
import time

import pytest
from explore_server import ENDLESS, Explorer
from pygments.lexers import get_lexer_by_name
from test_browser import CHROMIUM, FLAGS, browser, chain  # noqa: F401 - a fixture
from test_explore import EXPONENTIAL, TEXT
from test_pages import HOSTILE, colours, contrast, hostile

import hloc
from hloc.explore.menu import WORDS

assert CHROMIUM or FLAGS
WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 420, "height": 800}


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explore")
    (folder / "m.hlo").write_text(TEXT)
    started = Explorer(folder, str(folder / "m.hlo"))
    started.ask(TEXT)                                        # its worker is ready
    yield started
    started.end(signal.SIGKILL)


@pytest.fixture
def opened(browser):                                         # noqa: F811
    """Opens an address; at the end, no script may have failed and nothing else may have been asked for."""
    wrong: list[str] = []
    contexts = []

    def open_page(address: str, viewport=WIDE, **settings):
        context = browser.new_context(viewport=viewport, **settings)
        contexts.append(context)
        page = context.new_page()
        own = re.match(r"http://[^/]+/", address)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" and "CONNECTION_REFUSED" not in said.text else None)
        page.on("request", lambda request: None if request.url.startswith((own[0] if own else "file:", "blob:")) else wrong.append(request.url))
        page.goto(address)
        answered(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def answered(page, before: int = 0, seconds: float = 90) -> int:
    """Wait until one more question is answered than `before`; how many are."""
    page.wait_for_function("before => Number(document.querySelector('main').dataset.answers || 0) > before", arg=before, timeout=seconds * 1000)
    return answers(page)


def answers(page) -> int:
    return int(page.locator("main").get_attribute("data-answers") or 0)


def line_of(page, place: str, words: str):
    """The line of an editor or pane that holds the words."""
    return page.locator(f"{place} .cm-line", has_text=words).first


def point_at(page, place: str, words: str) -> None:
    box = line_of(page, place, words).bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + box["height"] / 2)


def scroll_to(page, place: str, words: str) -> None:
    """A pane down until it has a line with the words: lines that are far from the view are not in the page."""
    for _ in range(100):
        if page.locator(f"{place} .cm-line", has_text=words).count():
            break
        page.locator(f"{place} .cm-scroller").evaluate("e => new Promise(done => { e.scrollTop += 100; requestAnimationFrame(() => requestAnimationFrame(done)); })")
    line_of(page, place, words).scroll_into_view_if_needed()


def marked(page, place: str) -> list[str]:
    return page.locator(f"{place} .cm-line.linked").all_text_contents()


def write(page, text: str) -> int:
    """Put a text into the editor as a paste does, and wait for the panes; how many questions are answered."""
    before = answers(page)
    page.locator(".source .cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)
    return answered(page, before)


def test_an_error_is_underlined_and_goes_when_it_is_mended(explorer, opened):
    page = opened(explorer.address)
    before = answers(page)
    box = line_of(page, ".source", "tanh(p)").bounding_box()
    page.mouse.click(box["x"] + 400, box["y"] + 5)           # behind its end
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Backspace")
    page.keyboard.type("q")
    before = answered(page, before + 0)
    page.wait_for_selector(".source .cm-lintRange-error")
    told = page.locator(".problems li").inner_text()
    assert "error: " in told and "q" in told and page.locator(".problems li").count() == 1
    page.locator(".source .cm-lintRange-error").hover()
    assert "q" in page.locator(".cm-tooltip .cm-diagnostic").inner_text()
    assert page.locator(".pane").first.locator(".cm-line", has_text="exponential").count()   # what was there before
    page.locator(".problems button").click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Backspace")
    page.keyboard.type("p")
    page.wait_for_function("() => document.querySelectorAll('.problems li').length === 0")
    assert page.locator(".cm-lintRange-error").count() == 0


def test_a_line_marks_what_it_came_from_and_became(explorer, opened):
    page = opened(explorer.address)
    scroll_to(page, ".pane:nth-child(2)", "void k")          # below the functions that it calls
    point_at(page, ".source", "exponential(x)")
    assert marked(page, ".source") == ["  p = f32[64,256] exponential(x)"]
    assert any("exponential(" in line for line in marked(page, ".pane:nth-child(1)"))
    assert any("void k" in line for line in marked(page, ".pane:nth-child(2)"))
    point_at(page, ".pane:nth-child(2)", "/* exponential")
    assert marked(page, ".source") == ["  p = f32[64,256] exponential(x)"]
    page.mouse.move(700, 5)
    assert marked(page, ".source") == []
    line_of(page, ".source", "exponential(x)").click()       # the cursor marks, too, and the panes go there
    page.mouse.move(700, 5)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert marked(page, ".source") == ["  p = f32[64,256] exponential(x)"]


def test_names_jump_to_their_definitions(explorer, opened):
    page = opened(explorer.address)

    def selected() -> tuple[str, str]:
        return page.evaluate("getSelection().toString()"), page.locator(".source .cm-activeLine").inner_text()

    line = line_of(page, ".source", "reduce(t, z)").bounding_box()
    width = page.evaluate("() => { const s = document.createElement('span'); s.textContent = 'x'.repeat(100); s.style.font = getComputedStyle(document.querySelector('.cm-line')).font; document.body.append(s); const w = s.getBoundingClientRect().width / 100; s.remove(); return w; }")
    text = line_of(page, ".source", "reduce(t, z)").inner_text()
    at = lambda word: (line["x"] + 6 + width * (text.index(word) + 0.5), line["y"] + 8)  # noqa: E731
    page.mouse.click(*at("t, z"))
    page.keyboard.press("F12")
    assert selected() == ("t", "  t = f32[64,256] tanh(p)")
    page.keyboard.down("Control")
    page.mouse.click(*at("add"))
    page.keyboard.up("Control")
    assert selected() == ("add", "add {")
    inside = page.locator(".source .cm-line", has_text="ROOT s").bounding_box()
    page.mouse.click(inside["x"] + 6 + width * 22.5, inside["y"] + 8)      # a of add(a, b): the one of its own computation
    page.keyboard.press("F12")
    assert selected() == ("a", "  a = f32[] parameter(0)")


def test_panes_are_added_changed_and_closed_by_keys(explorer, opened):
    page = opened(explorer.address)
    before = answers(page)
    page.get_by_role("button", name="Add pane").focus()
    page.keyboard.press("Enter")
    before = answered(page, before)
    assert page.locator(".pane").count() == 3
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Kind of pane"
    for kind, expected in (("cuda", "__global__"), ("decisions", "why these were not fused"), ("times", "for a run on"), ("graph", "main"), ("after", "HloModule")):
        page.get_by_label("Kind of pane").nth(2).select_option(kind)
        before = answered(page, before)
        assert expected in page.locator(".pane").nth(2).inner_text() or page.locator(".pane").nth(2).locator("svg .box").count()
    state = page.locator(".pane").nth(2).get_by_label("After which pass")
    assert [o for o in state.locator("option").all_text_contents() if "fusion" in o]
    state.select_option("input")
    before = answered(page, before)
    assert "fusion(" not in page.locator(".pane").nth(2).inner_text()
    page.locator(".pane").nth(2).get_by_role("button", name="Close").focus()
    page.keyboard.press("Enter")
    assert page.locator(".pane").count() == 2
    assert page.evaluate("document.activeElement.tagName") == "SELECT"


def test_a_graph_marks_lines_and_is_marked(explorer, opened):
    page = opened(explorer.address)
    before = answers(page)
    page.get_by_label("Kind of pane").nth(1).select_option("graph")
    before = answered(page, before)
    page.locator("svg .box", has_text="tuple").hover()
    assert any("tuple(r, d)" in line for line in marked(page, ".source"))
    point_at(page, ".source", "tuple(r, d)")
    assert page.locator("svg .linked").count() == 1


def test_examples_and_a_reload(explorer, opened):
    page = opened(explorer.address)
    before = answers(page)
    page.get_by_label("Example").select_option(index=2)
    answered(page, before)
    title = page.locator("h1").inner_text()
    text = page.locator(".source .cm-content").inner_text()
    assert title.endswith(".hlo") and title != "m.hlo" and "HloModule" in text
    page.reload()
    answered(page)
    assert page.locator("h1").inner_text() == title and page.locator(".source .cm-content").inner_text() == text


def test_a_shared_file_shows_the_same_without_a_server(explorer, opened, tmp_path):
    page = opened(explorer.address)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save to share").click()
    saved = tmp_path / "saved.html"
    download.value.save_as(saved)
    assert download.value.suggested_filename == "m.html"
    alone = opened(saved.as_uri())
    scroll_to(alone, ".pane:nth-child(2)", "void k")
    point_at(alone, ".source", "exponential(x)")
    assert any("void k" in line for line in marked(alone, ".pane:nth-child(2)"))
    alone.locator(".source .cm-content").click()
    alone.keyboard.type("zzz")
    assert "zzz" not in alone.locator(".source .cm-content").inner_text()
    assert alone.get_by_role("button", name="Add pane").count() == 0 and alone.get_by_label("Kind of pane").first.is_disabled()
    again = Explorer(tmp_path, str(saved))
    page = opened(again.address)
    assert page.locator(".pane").count() == 2 and line_of(page, ".source", "exponential(x)").count()
    assert again.end()[0] == 0


def test_a_module_that_never_ends_is_one_message(explorer, opened, tmp_path):
    quick = Explorer(tmp_path, "--seconds", "5")
    page = opened(quick.address)
    page.get_by_label("Kind of pane").nth(1).select_option("results")
    write(page, ENDLESS)
    page.wait_for_function("() => document.querySelector('.status').textContent.includes('longer than')", timeout=90_000)
    assert page.locator(".message").inner_text().strip() == "this takes longer than 5 s and was ended"
    quick.end()
    page.keyboard.press("End")
    page.keyboard.type(" ")
    page.wait_for_function("() => document.querySelector('.status').textContent.includes('is it still running')", timeout=90_000)


def test_markup_in_names_is_text(explorer, opened):
    page = opened(explorer.address)
    for kind in ("graph", "decisions", "diff", "results"):
        page.get_by_label("Kind of pane").nth(1).select_option(kind)
        write(page, str(hostile(hloc.load(TEXT))))
        write(page, TEXT.replace("p = f32", 'p = f32').replace("HloModule m", f"HloModule m // {HOSTILE}"))
        assert page.locator("img:not(.cm-widgetBuffer), [onerror]").count() == 0
    write(page, f"ENTRY e {{ ROOT {HOSTILE} }}")
    page.locator(".problems li").first.wait_for()
    assert page.locator("img:not(.cm-widgetBuffer), [onerror]").count() == 0


def test_words_are_coloured_as_pygments_has_them(explorer, opened):
    text = TEXT + '// a comment\n/* one\n two */\ng { ROOT %q.1 = (pred[2]{0}, bf16[]) custom-call(), custom_call_target="a \\" b", x={-inf,1.5e-3} }\n'
    page = opened(explorer.address)
    write(page, text)
    tokens = [(str(kind).removeprefix("Token."), value) for kind, value in get_lexer_by_name("hlo").get_tokens(text)]
    for kind, name in (("Name.Variable", "word-variable"), ("Keyword.Type", "word-type"), ("Name.Function", "word-function"), ("Name.Attribute", "word-attribute"), ("Literal.String", "word-string")):
        assert WORDS[kind]
        shown = page.locator(f".source .{name}").all_text_contents()
        assert shown == [value for token, value in tokens if token == kind], kind
    assert "two */" in "".join(page.locator(".source .word-comment").all_text_contents())


@pytest.mark.parametrize("count, first, key", [(1_000, 20, 5), (8_000, 36, 24)])
def test_times(opened, tmp_path, count, first, key):
    """Seconds until the panes of a module stand on the page, and after one key; the limits hold on two busy cores."""
    (tmp_path / "m.hlo").write_text(str(chain(count)))
    started = Explorer(tmp_path, str(tmp_path / "m.hlo"))
    started.ask(TEXT)                                        # its worker is ready
    start = time.perf_counter()
    page = opened(started.address)
    times = [time.perf_counter() - start]
    page.locator(".source .cm-content").focus()
    for _ in range(3 if count < 8_000 else 1):
        before = answers(page)
        page.keyboard.press("Control+End")
        page.keyboard.type(" ")
        answered(page, before)
        times.append(int(page.locator("main").get_attribute("data-answered")) / 1000)
    print(f"{count} instructions: first {times[0]:.2f} s; after a key", *(f"{seconds:.2f} s" for seconds in times[1:]))
    assert page.locator(".message").count() == 0 and f"{count + 1} instructions" in page.locator(".status").inner_text()
    assert started.end()[0] == 0
    assert times[0] < first and min(times[1:]) < key


@pytest.mark.parametrize("viewport, scheme", [(WIDE, "light"), (WIDE, "dark"), (NARROW, "light"), (NARROW, "dark")])
def test_nothing_is_wider_than_the_page_and_all_is_labelled(explorer, opened, viewport, scheme):
    page = opened(explorer.address, viewport, color_scheme=scheme)
    page.get_by_role("button", name="Add pane").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    unnamed = page.evaluate("""() => [...document.querySelectorAll("button, select, input, [role=textbox], section")].filter(e =>
        !(e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length))).map(e => e.outerHTML)""")
    assert unnamed == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)")


def test_all_is_reached_by_keys(explorer, opened):
    page = opened(explorer.address)
    page.locator("body").click(position={"x": 5, "y": 5})
    seen = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).slice(0, 20)"))
    assert {"Add pane", "Save to share", "HLO text", "Kind of pane", "After which pass", "C"} <= seen


def test_texts_are_printed_whole(explorer, opened):
    page = opened(explorer.address)
    page.emulate_media(media="print")
    page.evaluate("() => { dispatchEvent(new Event('beforeprint')) }")
    printed = page.locator(".printed").all_inner_texts()
    assert printed[0].strip() == TEXT.strip() and "hloc_execute" in printed[2]
    assert not page.locator(".cm-editor").first.is_visible() and page.locator(".printed").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_contrast(scheme):
    page, own = colours("page.css")[scheme], colours("explore.css")[scheme]
    grounds = [page["ground"], own["linked"], own["active"], *(page[f"{kind}-ground"] for kind in ("came", "went", "moved", "changed"))]
    for name in (name for name in own if name.startswith("word-")):
        assert all(contrast(own[name], ground) >= 4.5 for ground in grounds), name
    assert contrast(page["ink"], own["linked"]) >= 7 and EXPONENTIAL
