"""What is restored from beside the grammar or from the cache, parser and patterns, is what the grammar gives."""
import json
import re
import sys
from pathlib import Path

import lark
import pytest
from lark import Lark

from hloc import patterns
from hloc.errors import Source
from hloc.text import generated_tables, grammar, tables
from hloc.text.lexer import StateLexer

TEXT = "HloModule m\nENTRY e { p = f32[2]{0} parameter(0) ROOT n = f32[2]{0} negate(p), metadata={op_name=\"x\"} }"


@pytest.fixture
def text():
    return grammar.grammar_file().read_text(encoding="utf-8")


@pytest.fixture
def alone(text, tmp_path):
    """A grammar's file without tables beside it."""
    file = tmp_path / "grammar" / "hlo.lark"
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    return file


def test_the_tables_beside_the_grammar_are_its_own():
    file = grammar.grammar_file()
    content = tables.tables_file(file).read_text(encoding="utf-8")
    key, made_with = content.splitlines()[0].split(" of Lark ")
    if made_with != lark.__version__:
        pytest.skip(f"the tables are of Lark {made_with}, here is {lark.__version__}")
    own = tables.key_of(file.read_text(encoding="utf-8"), grammar.START)
    assert f"{key} of Lark {made_with}" == own, "the grammar has changed: make tables"
    listed = json.loads(generated_tables.patterns_file(file).read_text(encoding="utf-8"))
    assert [tuple(p) for p in listed] == generated_tables.own_patterns(), "the grammar has changed: make tables"


def test_restored_tables_parse_the_same(alone, tmp_path, monkeypatch):
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path))
    first = tables.cached_parser(alone, grammar.START, StateLexer)
    stored, = tmp_path.glob("*.json")
    monkeypatch.setattr(tables, "built", lambda *_: pytest.fail("built again"))
    second = tables.cached_parser(alone, grammar.START, StateLexer)
    assert second.parse(TEXT, start="module") == first.parse(TEXT, start="module")
    assert {t.name: t.pattern.to_regexp() for t in second.terminals} == \
           {t.name: t.pattern.to_regexp() for t in first.terminals}
    stored.rename(tables.tables_file(alone))                   # out of the cache, beside the grammar
    third = tables.cached_parser(alone, grammar.START, StateLexer)
    assert third.parse(TEXT, start="module") == first.parse(TEXT, start="module")


def test_no_cache_folder_is_no_obstacle(alone, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path / "file" / "folder"))
    parser = tables.cached_parser(alone, grammar.START, StateLexer)
    assert parser.parse("{0,1}", start="integers").children == ["0", "1"]
    assert grammar.parse("integers", Source("{0,1}")).children == ["0", "1"]


def test_tables_of_another_grammar_are_not_taken(alone, tmp_path, monkeypatch):
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path))
    tables.tables_file(alone).write_text("another key\n{}\n", encoding="utf-8")
    assert tables.cached_parser(alone, grammar.START, StateLexer).parse("{0,1}", start="integers").children == ["0", "1"]


def test_restored_patterns_are_those_that_re_compiles(text, tmp_path, monkeypatch):
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path))
    long = [t.pattern.to_regexp() for t in grammar.lark().terminals if len(t.pattern.to_regexp()) >= patterns.LONG]
    named = r"(?P<name>[a-z]+)(?P<rest>.*)" + "|x" * patterns.LONG
    for pattern in [*long, named]:
        first = patterns.compiled(pattern, re.DOTALL)
        with monkeypatch.context() as patched:
            patched.setattr(patterns, "code", lambda *_: pytest.fail("compiled again"))
            second = patterns.compiled(pattern, re.DOTALL)
        assert first == second == re.compile(pattern, re.DOTALL)
    assert patterns.compiled(named, re.DOTALL).match("ab\n").groupdict() == {"name": "ab", "rest": "\n"}
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path / "file" / "folder"))
    assert patterns.compiled(named) == re.compile(named)


def test_installed_patterns_are_those_that_re_compiles(tmp_path, monkeypatch):
    installed = tmp_path / "patterns.json"
    count = patterns.install(generated_tables.patterns_file(grammar.grammar_file()), installed)
    if sys.implementation.name != "cpython" or sys.version_info < (3, 11):
        assert count == 0
        return
    monkeypatch.setattr(patterns, "INSTALLED", installed)
    patterns._installed.cache_clear()
    assert len(patterns._installed()) == count > 50
    with monkeypatch.context() as patched:
        patched.setattr(re, "compile", lambda *_: pytest.fail("compiled again"))
        patched.setattr(patterns, "code", lambda *_: pytest.fail("compiled again"))
        taken = [patterns.compiled(*p) for p in generated_tables.own_patterns()]
    assert taken == [re.compile(*p) for p in generated_tables.own_patterns()]
    installed.write_text("another Python\n{}", encoding="utf-8")
    patterns._installed.cache_clear()
    assert patterns._installed() == {}
    installed.unlink()
    patterns._installed.cache_clear()
    assert patterns._installed() == {}
    patterns._installed.cache_clear()


MODELS = Path(__file__).parent.parent / "testdata" / "models"


@pytest.mark.parametrize("start, content", [
    ("module", TEXT), ("integers", "{0,1}"), ("shape", "(f32[2]{0}, (s32[], token[]))"),
    ("literal_parts", "{ {1, 2}, {3, 4} }"),
    ("module", (MODELS / "control_flow" / "model.hlo").read_text(encoding="utf-8"))],
    ids=["module", "integers", "shape", "literal", "control_flow"])
def test_places_are_those_that_lark_tells(text, start, content):
    own = grammar.lark().parse(content, start=start)
    larks = Lark(text, parser="lalr", lexer=StateLexer, start=grammar.START, maybe_placeholders=False,
                 propagate_positions=True).parse(content, start=start)
    for mine, wanted in zip(own.iter_subtrees(), larks.iter_subtrees(), strict=True):
        assert mine.data == wanted.data and mine.meta.empty == wanted.meta.empty
        if not wanted.meta.empty:
            assert (mine.meta.start_pos, mine.meta.end_pos) == (wanted.meta.start_pos, wanted.meta.end_pos)
