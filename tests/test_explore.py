"""hloc explore: what panes hold and how their lines are linked; the server: whom it answers, and within which limits."""
from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from explore_server import ENDLESS, ROOT, Explorer, until
from test_pages import HOSTILE, Reader, hostile

import hloc
from hloc.cli.lexer import HloLexer
from hloc.explore.menu import examples, facts
from hloc.explore.views import KINDS
from hloc.explore.worker import answers
from hloc.pages.explore_page import explore_page, policy, state_of
from hloc.targets.cuda import compiler

PAGES = Path(hloc.__file__).parent / "pages"
TEXT = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY e {
  x = f32[64,256] parameter(0)
  w = f32[256,32] parameter(1)
  p = f32[64,256] exponential(x)
  t = f32[64,256] tanh(p)
  z = f32[] constant(0)
  r = f32[64] reduce(t, z), dimensions={1}, to_apply=add
  d = f32[64,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT o = (f32[64], f32[64,32]) tuple(r, d)
}
"""
EXPONENTIAL, TANH, REDUCE, DOT = (1 + TEXT[:TEXT.index(word)].count("\n") for word in ("exponential", "tanh(", "reduce(", "dot("))
NEEDS = {"ptx": compiler.nvrtc_version() or shutil.which("nvcc"), "machine": shutil.which("objdump")}


def content(text: str, **pane: str) -> dict:
    found = list(answers({"text": text, "name": "m.hlo", "panes": [{"id": 0, **pane}]}))
    return next(event["content"] for event in found if event["event"] == "pane")


def linked(shown: dict) -> list[tuple[str, list[int]]]:
    """The lines of a text, each with the lines that it comes from."""
    lines = shown["text"].split("\n")
    assert len(lines) == len(shown["lines"])
    return [(line, shown["sets"][n] if n >= 0 else []) for line, n in zip(lines, shown["lines"])]


# -- panes ---------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_shows_something(kind):
    if not NEEDS.get(kind, True):
        pytest.skip(f"no compiler or disassembler for {kind} on this machine")
    for target in KINDS[kind].targets[:2] or ("",):
        shown = content(TEXT, kind=kind, target=target)
        if kind == "machine" and target != "cpu":
            continue                                          # test_gpu_code_is_disassembled
        assert shown["is"] != "message", shown
        if shown["is"] == "code":
            assert {REDUCE, DOT} <= {n for _, lines in linked(shown) for n in lines}
        if shown["is"] == "tables":
            assert any(row["lines"] for part in shown["parts"] for row in part["rows"])
        json.dumps(shown)


@pytest.mark.parametrize("kind, target, words", [("after", "cpu", "exponential("), ("c", "cpu", "/* exponential"), ("cuda", "h100", "/* exponential"), ("loops", "cpu", "// exponential"), ("diff", "cpu", "exponential(")])
def test_a_line_knows_where_it_comes_from(kind, target, words):
    found = [lines for line, lines in linked(content(TEXT, kind=kind, target=target)) if words in line]
    assert found and all(EXPONENTIAL in lines and DOT not in lines for lines in found)


def test_a_kernels_code_comes_from_all_that_it_computes():
    for kind, target, start in (("c", "cpu", "void k"), ("cuda", "h100", 'extern "C"')):
        rows = linked(content(TEXT, kind=kind, target=target))
        place = next(n for n, (line, lines) in enumerate(rows) if start in line and EXPONENTIAL in lines)
        assert {EXPONENTIAL, TANH, REDUCE} <= set(rows[place][1]) and DOT not in rows[place][1]
        assert any(EXPONENTIAL in lines for _, lines in rows[place + 1:place + 12])


def test_vectors_are_linked_and_functions_for_them_are_not():
    rows = linked(content(TEXT, kind="c", target="cpu"))
    assert all(REDUCE in lines and DOT not in lines for line, lines in rows if line.lstrip().startswith("v0_a"))
    assert any(TANH in lines for line, lines in rows if " v0_v" in line and "= hlocv_tanh_f32x" in line)
    functions = [lines for line, lines in rows if line.startswith("HLOC_FN ")]
    assert functions and not any(functions)


@pytest.mark.skipif(not NEEDS["machine"], reason="objdump is not installed: apt install binutils")
def test_machine_code_comes_from_its_kernels_lines():
    rows = linked(content(TEXT, kind="machine", target="cpu"))
    symbols = [(line, lines) for line, lines in rows if line.endswith(">:")]
    assert any({EXPONENTIAL, REDUCE} <= set(lines) for line, lines in symbols if "<k0" in line or "<k1" in line)
    assert sum(bool(lines) for _, lines in rows) > 20


@pytest.mark.skipif(not NEEDS["ptx"], reason="neither NVRTC nor nvcc is installed")
def test_gpu_code_is_disassembled(monkeypatch, tmp_path):
    """By whatever nvdisasm is on PATH: this one prints a cubin's symbols in the form of NVIDIA's."""
    (tmp_path / "nvdisasm").write_text("#!/bin/sh\nfor f in $(strings -a \"$2\" | grep -o '^k[0-9]*_[a-z_0-9]*$' | sort -u); do\n"
                                       "  printf '\\t.section\\t.text.%s,\"ax\"\\n        /*0000*/ EXIT ;\\n' $f; done\n")
    (tmp_path / "nvdisasm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rows = linked(content(TEXT, kind="machine", target="h100"))
    assert any("EXIT" in line and {EXPONENTIAL, REDUCE} <= set(lines) for line, lines in rows)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert "nvdisasm" in content(TEXT, kind="machine", target="h100")["text"]


def test_states_are_those_of_the_passes_that_changed_something():
    found = list(answers({"text": TEXT, "name": "m.hlo", "panes": [{"id": 0, "kind": "after", "state": "fusion:1"}, {"id": 1, "kind": "diff", "state": "fusion:1"}, {"id": 2, "kind": "after", "state": "input"}, {"id": 3, "kind": "after", "state": "cse:9"}]}))
    passes = next(event["passes"] for event in found if event["event"] == "passes")
    assert "fusion:1" in [name for name, _ in passes]
    shown = {event["pane"]: event["content"] for event in found if event["event"] == "pane"}
    assert "kind=k" in shown[0]["text"] and "copy-done" not in shown[0]["text"]
    assert "came" in shown[1]["classes"].values() and "fusion(" in shown[1]["text"]
    assert "fusion(" not in shown[2]["text"] and "exponential(" in shown[2]["text"]
    assert shown[3]["is"] == "message" and "does not change this module" in shown[3]["text"]


def test_schedules_have_candidates_with_times():
    parts = content(TEXT.replace("64,", "512,").replace("f32[64]", "f32[512]"), kind="decisions", target="h100")["parts"]
    rows = next(part["rows"] for part in parts if part["title"].startswith("Schedules"))
    assert rows[0]["cells"][0] == "chosen" and len(rows) > 2 and DOT in rows[0]["lines"]
    assert float(rows[0]["cells"][3].replace(",", "")) > 0


@pytest.mark.parametrize("by", ["evaluator", "compiled C"])
def test_results_are_those_of_the_module(by):
    rows = {row["cells"][0]: row for part in content("ENTRY e {\n  c = f32[3] constant({1, 2, 3})\n  ROOT n = f32[3] negate(c)\n}", kind="results", by=by)["parts"] for row in part["rows"]}
    assert rows["result.0"]["cells"][3:] == ["-3", "-2", "-1", "-1, -2, -3"] and rows["result.0"]["lines"] == [3]


def test_elided_constants_are_made_up_for_results():
    shown = content("ENTRY e {\n  c = f32[3,4] constant({...})\n  ROOT n = f32[3,4] negate(c)\n}", kind="results")
    assert shown["is"] == "tables" and "1 constants" in shown["note"]


# -- what is wrong with a text -------------------------------------------------------------------------------------------

def checked(text: str) -> dict:
    return next(event for event in answers({"text": text, "name": "m.hlo", "panes": []}) if event["event"] == "checked")


@pytest.mark.parametrize("text, place, words", [
    ("", (0, 0), ""), ("ENTRY", (1, 6), ""), ("ENTRY e {\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] tahn(x)\n}", (3, 19), "tahn"),
    ("ENTRY e {\n  x = f32[2] parameter(0)\n  ROOT y = f32[3] tanh(x)\n}", (3, None), "(it cannot run)")])
def test_problems_have_places(text, place, words):
    found = checked(text)["problems"]
    assert found and words in found[0]["message"] + found[0]["hint"]
    if words:
        assert found[0]["line"] == place[0] and found[0]["length"] > 0
        assert place[1] is None or found[0]["column"] == place[1]


def test_all_rules_that_a_module_breaks_are_shown_and_passes_still_run():
    text = "ENTRY e {\n  x = f32[2] parameter(0)\n  y = f32[3] tanh(x)\n  ROOT z = f32[5] negate(y)\n}"
    assert [p["line"] for p in checked(text)["problems"]] == [3, 4]
    assert content(text, kind="after", state="input")["is"] == "code"
    assert "broadcast" not in content(text, kind="results")["text"] and content(text, kind="results")["is"] == "message"


def test_warnings_are_shown():
    found = checked("ENTRY e {\n  ROOT x = f32[2] parameter(0), unknown_thing=7\n}")["problems"]
    assert [p["severity"] for p in found] == ["warning"]


def test_unknown_panes_are_messages():
    assert "no kind of pane" in content(TEXT, kind="nothing")["text"]
    assert "no target" in content(TEXT, kind="c", target="h100")["text"]


def test_examples_are_in_order():
    for name, (title, text) in examples().items():
        assert checked(text)["problems"] == [] and checked(text)["read"], name
        assert title and "HloModule" in text


# -- the page ------------------------------------------------------------------------------------------------------------

def saved(text: str = TEXT, name: str = "m.hlo") -> str:
    panes = [{"kind": "c", "target": "cpu"}, {"kind": "graph"}]
    state = {"text": text, "name": name, "panes": panes, "answers": [content(text, **pane) for pane in panes]}
    return explore_page(state, facts(HloLexer.tokens["root"]), served=False)


def test_a_saved_page_stands_alone_and_opens_again():
    page = saved()
    reader = Reader(page)
    assert not any({"src", "href", "srcset", "action"} & {*attributes} for _, attributes in reader.elements)
    assert "connect-src" not in policy(served=False) and "connect-src 'self'" in policy(served=True)
    assert "frame-ancestors 'none'" in policy(served=True) and "unsafe-eval" not in page
    assert state_of(page) == {"text": TEXT, "name": "m.hlo", "panes": [{"kind": "c", "target": "cpu"}, {"kind": "graph"}]}
    assert state_of(TEXT) is None
    with pytest.raises(hloc.HlocError, match="damaged"):
        state_of(page.replace('id="state"', 'id="other"'))


def test_names_are_escaped_in_saved_pages():
    text = str(hostile(hloc.load(TEXT)))
    page = explore_page({"text": text + HOSTILE, "name": "m" + HOSTILE, "panes": [{"kind": HOSTILE}], "answers": [{"is": "message", "text": HOSTILE, "hint": HOSTILE}]}, facts(HloLexer.tokens["root"]), served=False)
    assert {tag for tag, _ in Reader(page).elements} == {tag for tag, _ in Reader(saved()).elements}
    assert state_of(page)["text"] == text + HOSTILE and HOSTILE[:20] not in page


def test_what_pages_ship_is_small_and_has_its_licenses():
    shipped = [*PAGES.glob("*.js"), *PAGES.glob("*.css")]
    assert sum(path.stat().st_size for path in shipped) < 3 << 20
    licenses = (PAGES / "LICENSES" / "codemirror.txt").read_text(encoding="utf-8")
    assert licenses.count("Permission is hereby granted") >= 5 and "@codemirror/view" in licenses and "@lezer/highlight" in licenses


# -- the server ----------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    started = Explorer(tmp_path_factory.mktemp("explore"), "--seconds", "8", "--memory", "1GiB")
    yield started
    started.end(signal.SIGKILL)


def test_the_page_has_headers_that_bind_it(explorer):
    status, headers, data = explorer.request()
    assert status == 200 and "softmax" in data.decode()
    assert headers["content-security-policy"] == policy(served=True) and headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer" and "server" not in headers


@pytest.mark.parametrize("path, headers", [
    ("/", {}), ("/wrong/", {}), ("//", {}), ("/wrong/panes", {}), ("", {"Host": "evil.example:80"}), ("", {"Host": "127.0.0.1"}),
    ("", {"Origin": "http://evil.example"}), ("", {"Origin": "null"}), ("", {"Origin": "http://127.0.0.1:1"}), ("", {"Sec_Fetch_Site": "cross-site"})])
def test_strangers_are_refused(explorer, path, headers):
    for method in ("GET", "POST"):
        status, _, data = explorer.request(method, path, b"{}" if method == "POST" else None, **headers)
        assert status == 403 and explorer.token.encode() not in data


def test_the_page_itself_is_answered(explorer):
    for host in ("127.0.0.1", "localhost"):
        origin = f"http://{host}:{explorer.port}"
        status, _, _ = explorer.request("POST", "panes", json.dumps({"text": TEXT, "name": "m", "panes": []}).encode(), Host=origin[7:], Origin=origin, Sec_Fetch_Site="same-origin")
        assert status == 200


@pytest.mark.parametrize("body, status", [
    (b"", 400), (b"{", 400), (b"[]", 400), (b"[" * 100_000, 400), (b'{"text": 1, "name": "", "panes": []}', 400),
    (b'{"text": "", "name": "", "panes": [1]}', 400), (b'{"text": "", "name": "", "panes": [' + b",".join([b"{}"] * 101) + b"]}", 400),
    (json.dumps({"text": "x" * (17 << 20), "name": "", "panes": []}).encode(), 413)])
def test_bad_questions_are_refused(explorer, body, status):
    assert explorer.request("POST", "panes", body)[0] == status
    assert explorer.request("POST", "share", body)[0] in (400, status)


def test_large_bodies_are_refused_before_they_are_read(explorer):
    with socket.create_connection(("127.0.0.1", explorer.port)) as connection:
        connection.sendall(f"POST /{explorer.token}/panes HTTP/1.1\r\nHost: 127.0.0.1:{explorer.port}\r\nContent-Type: application/json\r\n"
                           f"Content-Length: {1 << 40}\r\n\r\n".encode())
        assert b" 413 " in connection.recv(4096)
    assert explorer.request("POST", "panes", b"{}", Content_Type="text/plain")[0] == 415
    assert explorer.request("POST", "panes", b"{}", Content_Length="x")[0] == 400


def test_questions_are_answered(explorer):
    events = explorer.ask(TEXT, {"kind": "after"}, {"kind": "cuda", "target": "a100"}, {"kind": "nothing"})
    assert [e["event"] for e in events][0] == "checked" and events[-1] == {"event": "done"}
    shown = {e["pane"]: e["content"]["is"] for e in events if e["event"] == "pane"}
    assert shown == {0: "code", 1: "code", 2: "message"}


def test_a_shared_file_opens_again(explorer, tmp_path):
    state = {"text": TEXT, "name": "m.hlo", "panes": [{"kind": "c"}], "answers": [explorer.content(TEXT, kind="c")]}
    status, _, data = explorer.request("POST", "share", json.dumps(state).encode())
    assert status == 200 and state_of(data.decode())["text"] == TEXT
    (tmp_path / "m.html").write_bytes(data)
    again = Explorer(tmp_path, str(tmp_path / "m.html"))
    assert json.dumps(TEXT)[1:20] in again.request()[2].decode()
    assert again.end()[0] == 0


def test_a_module_that_never_ends_is_ended(explorer):
    events = explorer.ask(ENDLESS, {"kind": "after"}, {"kind": "results"})
    assert events[-1] == {"event": "ended", "message": "this takes longer than 8 s and was ended"}
    assert [e["pane"] for e in events if e["event"] == "pane"] == [0]
    assert until(lambda: len(explorer.processes()) == 1)


def test_memory_is_limited(explorer):
    shown = explorer.content("ENTRY e {\n  c = f32[] constant(1)\n  b = f32[1000000000] broadcast(c), dimensions={}\n  ROOT n = f32[1000000000] negate(b)\n}", kind="results")
    assert shown["is"] == "message" and "memory" in shown["text"]
    assert explorer.content(TEXT, kind="after")["is"] == "code"


def test_who_leaves_is_computed_for_no_more(explorer):
    body = json.dumps({"text": ENDLESS, "name": "m", "panes": [{"id": 0, "kind": "results"}]}).encode()
    with socket.create_connection(("127.0.0.1", explorer.port)) as connection:
        connection.sendall(f"POST /{explorer.token}/panes HTTP/1.1\r\nHost: 127.0.0.1:{explorer.port}\r\nContent-Type: application/json\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert until(lambda: len(explorer.processes()) == 2)
    assert until(lambda: len(explorer.processes()) == 1, 5)


def test_a_worker_that_was_killed_is_started_again(explorer):
    os.kill(explorer.processes()[0], signal.SIGKILL)
    assert explorer.content(TEXT, kind="after")["is"] == "code"


def test_nothing_is_written_but_the_cache(explorer):
    explorer.ask(TEXT, {"kind": "results", "by": "compiled C"}, {"kind": "machine"})
    left = [str(p) for name in ("work", "tmp") for p in (explorer.folder / name).rglob("*")]
    assert left == [] and any((explorer.folder / "cache").iterdir())


def test_a_busy_port_is_one_error(explorer):
    done = subprocess.run([sys.executable, "-m", "hloc.cli.main", "explore", "--no-browser", "--port", str(explorer.port)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 6 and done.stderr.startswith(f"error: cannot listen on port {explorer.port} of 127.0.0.1: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)])
def test_signals_end_it_with_all_that_it_started(tmp_path, number, code):
    started = Explorer(tmp_path, "--seconds", "60")
    body = json.dumps({"text": ENDLESS, "name": "m", "panes": [{"id": 0, "kind": "results"}]}).encode()
    with socket.create_connection(("127.0.0.1", started.port)) as connection:
        connection.sendall(f"POST /{started.token}/panes HTTP/1.1\r\nHost: 127.0.0.1:{started.port}\r\nContent-Type: application/json\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert until(lambda: len(started.processes()) == 2, 60)
        below = started.processes()
        ended, said = started.end(number)
    assert ended == code and "Traceback" not in said
    assert until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))


HUNG_UP = """
import http.client, os, signal, socket, threading
from hloc.explore import server
from hloc.explore.pool import Limits
from hloc.interrupts import ending_cleanly

def page(*_, **__):
    os.kill(os.getpid(), NUMBER)
    return "page"

def ask(address):
    connection = http.client.HTTPConnection(address.split("/")[2])
    connection.request("GET", "/token/")
    connection.getresponse().read()

server.explore_page = page
with socket.create_server(("127.0.0.1", 0)) as listening, ending_cleanly():
    server.serve(listening, "token", {}, {}, Limits(10, 1 << 30), lambda address: threading.Thread(target=ask, args=(address,)).start())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_meets_a_task_ends_the_server(number):
    for package in ("starlette", "uvicorn"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'hloc[explore]'")
    script = HUNG_UP.replace("NUMBER", str(int(number)))
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == -number, done.stderr


@pytest.mark.parametrize("name, text, words", [("missing.hlo", None, "cannot read"), ("m.html", '<!DOCTYPE html><main class="explore">', "damaged"),
                                               ("m.hlo", b"\xff\xfe\x00", "not HLO text"), ("m.so", b"\x7fELF....", "compiled code")])
def test_files_that_cannot_be_opened(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    done = subprocess.run([sys.executable, "-m", "hloc.cli.main", "explore", "--no-browser", str(tmp_path / name)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 3) and words in done.stderr and "Traceback" not in done.stderr


def test_a_file_with_faults_opens_as_it_is(tmp_path):
    (tmp_path / "broken.hlo").write_text("ENTRY e {\r\n  not HLO")
    started = Explorer(tmp_path, str(tmp_path / "broken.hlo"))
    assert "ENTRY e {\\n  not HLO" in started.request()[2].decode()
    assert started.end()[0] == 0
