"""HLO text: what is read, what is printed, what is rejected, and how fast.

testdata/roundtrip/*.hlo   modules parted by `// -----`: parse -> print -> parse gives the same, by XLA's parser too
testdata/errors/*.hlo      texts parted by `// -----`; the first line of each is the error: // 3:8: message (hint)
"""
from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from corpus_roundtrip import Xla
from linearity import assert_linear
from module_equality import difference, same_value

from hloc.errors import ParseError
from hloc.ir import Shape, SliceDim, Verbatim, WindowDim
from hloc.ir.literal_printer import print_literal
from hloc.ir.printer import print_instruction, print_module
from hloc.ir.types import ELEMENT_TYPES
from hloc.text import parse_instruction, parse_module, parse_modules, parse_shape
from hloc.text.header import aliases, donors
from hloc.text.long_words import LONGEST_WORD
from hloc.text.opcodes import signature

DATA = Path(__file__).parents[1] / "testdata"
SEPARATOR = re.compile(r"^// -----[ \t]*$", re.MULTILINE)


def cases(folder: str) -> list:
    """(text) of every case in a folder, called file:number."""
    found = []
    for path in sorted((DATA / folder).glob("*.hlo")):
        parts = SEPARATOR.split(path.read_text(encoding="utf-8"))
        found += [pytest.param(part.strip("\n"), id=f"{path.stem}:{i}") for i, part in enumerate(parts)]
    return found


@pytest.mark.parametrize("text", cases("roundtrip"))
def test_round_trip(text):
    module = parse_module(text)
    again = parse_module(str(module))
    assert difference(module, again) is None
    assert str(again) == str(module)
    assert print_module(again, canonical=True) == print_module(module, canonical=True)


@pytest.mark.parametrize("text", cases("errors"))
def test_error(text):
    wanted, _, _ = text.partition("\n")
    with pytest.raises(ParseError) as caught:
        parse_module(text)
    assert described(caught.value) == wanted.removeprefix("// ")


def test_recovery_table():
    """Entries follow each other without commas; a module in a string may stand behind each."""
    table = """{ {"a"}: {"b" {1,0}}  {"c" {0}} : {}, "ENTRY e { ROOT p = f32[4] parameter(0) }"  {"d#*/e"}: {"f#$"} }"""
    module = parse_module(f"HloModule m, origin_recovery_table={table} ENTRY e {{ ROOT p = f32[4] parameter(0) }}")
    assert str(module.attributes["origin_recovery_table"]) == table


def described(error: ParseError) -> str:
    line, column = error.span.source.position(error.span.start)
    return f"{line}:{column}: {error.message}" + (f" ({error.hint})" if error.hint else "")


@pytest.fixture(scope="module")
def xla():
    pytest.importorskip("jaxlib", reason="jaxlib is not installed")
    oracle = Xla()
    yield oracle
    oracle.close()


# Texts that jaxlib's parser does not take, though newer ones or XLA's printer do, and what it reads otherwise.
NOT_IN_XLA = re.compile(r"\{\.\.\.|literal=s32\[2\]|%\w+#|topk.*is_stable|^%c \(|foo=|"
                        r"debug_attributes|f6e")


@pytest.mark.xla
@pytest.mark.parametrize("text", [c for c in cases("roundtrip") if not NOT_IN_XLA.search(c.values[0])])
def test_xla_reads_the_same(text, xla):
    theirs, ours = xla.print_of(text), xla.print_of(str(parse_module(text)))
    assert "print" in theirs and "print" in ours, (theirs, ours)
    assert without_header(ours["print"]) == without_header(theirs["print"])


def without_header(text: str) -> str:
    """XLA marks a module that was read from a single instruction as scheduled; the rest must be equal."""
    return re.sub(r"^HloModule [\w.]+(, is_scheduled=true)?", "", text)


# ---------------------------------------------------------------------------------------------- values

EXAMPLE = """ENTRY e {
  p = f32[8,8]{1,0} parameter(0)
  s = f32[4,4] slice(p), slice={[0:8:2], [4:8]}, metadata={op_name="a, b}"}
  z = f32[] constant(0)
  ROOT w = f32[4,4] reduce-window(s, z), window={size=1x2 pad=0_0x-1_2 stride=1x1},
    to_apply={ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
}"""


def test_values_are_typed():
    module = parse_module(EXAMPLE, "example.hlo")
    p, s, z, w = module.entry.instructions
    assert s.get("slice") == (SliceDim(0, 8, 2), SliceDim(4, 8, 1))
    assert s.get("metadata") == '{op_name="a, b}"}' and isinstance(s.get("metadata"), Verbatim)
    assert w.get("window").dimensions[1] == WindowDim(2, 1, -1, 2)
    assert w.get("to_apply") is module.computations[0] and module.computations[0].name == "_"
    assert z.literal.dtype == np.float32 and z.literal.shape == ()
    assert str(s.span) == "example.hlo:3:3"
    assert s.span.source.text[s.span.start:s.span.end].endswith('metadata={op_name="a, b}"}')
    assert print_instruction(s).startswith("%s = f32[4,4]{1,0} slice(%p), slice={[0:8:2], [4:8:1]}, metadata=")


def test_missing_shapes_are_inferred():
    module = parse_module("ENTRY e { p = f32[2,3] parameter(0) t = transpose(p), dimensions={1,0} ROOT n = negate(t) }")
    assert module.entry.root.shape.dimensions == (3, 2)


def test_header_and_several_modules():
    text = """HloModule a, is_scheduled=true, input_output_alias={ {0}: (1, {}, must-alias), {}: (0, {2,3}) },
  buffer_donor={ (0, {1}) }, replica_count=2
ENTRY e { p = f32[] parameter(0) ROOT q = f32[] parameter(1) }
// -----
HloModule b
ENTRY e { p = f33[] parameter(0) }"""
    one = parse_module(text.split("// -----")[0])
    assert one.is_scheduled and one.name == "a" and one.attributes["replica_count"] == "2"
    assert [tuple(a) for a in aliases(one)] == [((0,), 1, (), "must-alias"), ((), 0, (2, 3), "may-alias")]
    assert [tuple(d) for d in donors(one)] == [(0, (1,))]
    with pytest.raises(ParseError) as caught:
        parse_modules(text)
    assert described(caught.value).startswith("6:15: unknown element type")
    assert len(parse_modules(text.replace("f33", "f32"))) == 2


def test_unknown_attributes_are_kept_with_a_warning():
    text = "ENTRY e { ROOT p = f32[] parameter(0), brand_new={a=1} }"
    warnings = []
    module = parse_module(text, warn=lambda message, span: warnings.append((message, str(span))))
    assert module.entry.root.get("brand_new") == "{a=1}" and "brand_new={a=1}" in str(module)
    assert warnings == [("unknown attribute brand_new of parameter is kept as it is written", "<text>:1:40")]
    with pytest.raises(ParseError):
        parse_module(text, strict=True)


def test_single_shapes_and_instructions():
    assert str(parse_shape("(f32[2,<=3]{1,0:T(8,128)}, (s32[], token[]))")) == \
        "(f32[2,<=3]{1,0:T(8,128)}, (s32[], token[]))"
    add = parse_instruction("x = f32[4] add(f32[4] %a, f32[4] %b)")
    assert add.opcode == "add" and [o.parameter_number for o in add.operands] == [0, 1]
    with pytest.raises(ParseError):
        parse_shape("f32[2")


def test_element_of_a_tuple_as_operand():
    module = parse_module("ENTRY e { p = (f32[2], f32[2]) parameter(0) ROOT s = f32[2] add(%p#0, %p#1) }")
    assert [(o.opcode, o.get("index")) for o in module.entry.root.operands] == [
        ("get-tuple-element", 0), ("get-tuple-element", 1)]


def test_canonical_print_forgets_names_and_metadata():
    one = parse_module("HloModule a\nENTRY e { x = f32[] parameter(0), metadata={op_name='x'} ROOT y = negate(x) }")
    other = parse_module("HloModule b\nENTRY f { p = f32[] parameter(0) ROOT q = negate(p), metadata={op_name='y'} }")
    assert print_module(one, canonical=True) == print_module(other, canonical=True)


def test_elided_constants():
    module = parse_module("ENTRY e { ROOT c = s32[20] constant({" + ",".join(map(str, range(20))) + "}) }")
    assert "constant({...})" in print_module(module, elide_constants=True)
    elided = parse_module(print_module(module, elide_constants=True))
    assert elided.entry.root.literal is None


# ---------------------------------------------------------------------------------------------- literals

@pytest.mark.parametrize("element_type", [n for n, t in ELEMENT_TYPES.items() if t.dtype is not None])
def test_every_bit_pattern_survives(element_type):
    """Print and parse: the same bits, for all values of small types and random ones of large types."""
    dtype, bits = ELEMENT_TYPES[element_type].dtype, ELEMENT_TYPES[element_type].bits
    if bits <= 16 and element_type != "pred":
        raw = np.arange(1 << min(bits, 16), dtype=f"u{dtype.itemsize}")
    else:
        raw = np.frombuffer(np.random.default_rng(0).bytes(4096 * dtype.itemsize), f"u{min(dtype.itemsize, 8)}")
        raw = raw & 1 if element_type == "pred" else raw
    values = raw.view(dtype) if element_type[0] in "fcbp" else raw.astype(dtype)
    if ELEMENT_TYPES[element_type].kind in ("signed", "unsigned") and bits < 8:
        values = raw.view(f"i{dtype.itemsize}").astype(dtype)
    shape = Shape(element_type, (len(values),))
    text = f"ENTRY e {{ ROOT c = {element_type}[{len(values)}] constant({print_literal(shape, values)}) }}"
    got = parse_module(text).entry.root.literal
    if element_type in ("c64", "c128"):                  # the payload of a NaN in a pair
        nan = np.isnan(values.view(f"f{dtype.itemsize // 2}"))
        assert np.array_equal(np.isnan(got.view(f"f{dtype.itemsize // 2}")), nan)
        got, values = got[~np.isnan(values)], values[~np.isnan(values)]
    assert same_value(got, values)


def test_large_literals_in_linear_time():
    values = np.random.default_rng(0).standard_normal((40_000, 2)).astype(np.float32)

    def prepare(count):
        text = ", ".join("{" + f"{a!r}, {b!r}" + "}" for a, b in values[:count].tolist())
        return parse_module, f"ENTRY e {{ ROOT c = f32[{count},2] constant({{{text}}}) }}"

    parse, text = prepare(40_000)
    assert same_value(parse(text).entry.root.literal, values)
    assert_linear(prepare, 5_000)


# ---------------------------------------------------------------------------------------------- hostile texts

DEEP = 10_000
HOSTILE = {
    "tuples": f"ENTRY e {{ p = {'(' * DEEP}f32[]{')' * DEEP} parameter(0) }}",
    "operands": f"ENTRY e {{ p = f32[] parameter(0) ROOT n = {'negate(f32[] ' * DEEP}p{')' * DEEP} }}",
    "nested": f"ENTRY e {{ p = f32[] parameter(0) ROOT n = f32[] {'negate(f32[] ' * DEEP}negate(p){')' * DEEP} }}",
    "braces": f"ENTRY e {{ p = f32[] parameter(0), backend_config={'{' * DEEP}{'}' * DEEP} }}",
    "open braces": f"ENTRY e {{ p = f32[] parameter(0), metadata={'{' * DEEP} }}",
    "inline": f"ENTRY e {{ p = f32[] parameter(0) ROOT n = f32[] call(p), to_apply="
              f"{'{ p = f32[] parameter(0) ROOT n = f32[] call(p), to_apply=' * 2000}"
              f"{{ ROOT p = f32[] parameter(0) }}{'}' * 2001}",
    "literal": f"ENTRY e {{ ROOT p = f32[1] constant({'{' * DEEP}1{'}' * DEEP}) }}",
    "pairs": f"ENTRY e {{ ROOT p = f32[1] constant({'(' * DEEP}1{')' * DEEP}) }}",
    "dimensions": "ENTRY e { ROOT p = f32[1000000000000000000] parameter(0) }",
    "large constant": "ENTRY e { ROOT p = f32[1000000000,1000000000] constant({{1,2}}) }",
    "filled constant": "ENTRY e { ROOT p = f32[1000000000000000000] constant(1) }",
    "digits": f"ENTRY e {{ ROOT p = s32[] constant({'9' * 100_000}) }}",
    "string": 'ENTRY e { ROOT p = s32[] parameter(0), metadata={op_name="' + "a" * 300_000,
    "escapes": 'ENTRY e { ROOT p = s32[] parameter(0), backend_config="' + "\\\"" * 300_000 + '" }',
    "comment": "ENTRY e { ROOT p = s32[] parameter(0) /* " + "a*" * 300_000,
    "attributes": "ENTRY e { ROOT p = s32[] parameter(0)" + "".join(f", a{i}=b" for i in range(5000)) + " }",
    "groups": f"ENTRY e {{ ROOT p = s32[] parameter(0), a={{{'{}' * 20_000} }}",
    "NUL": "ENTRY e { \0 ROOT p = s32[] parameter(0) }",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_or_rejected(name):
    start = time.process_time()
    try:
        str(parse_module(HOSTILE[name]))
    except ParseError as error:
        assert error.span is not None and len(str(error)) < 2000
    assert time.process_time() - start < 30, "all take less than a second on a free core"


def test_truncated_texts_are_rejected_with_a_place():
    """Every beginning of a module is either a module or a located error."""
    text = EXAMPLE.replace("ENTRY", "HloModule m, replica_count=1\n\nENTRY")
    for end in range(len(text)):
        try:
            parse_module(text[:end])
        except ParseError as error:
            assert error.span is not None


def test_damaged_texts_are_rejected_with_a_place():
    """One character left out, doubled or replaced, anywhere."""
    random = np.random.default_rng(1)
    for _ in range(600):
        place, kind = int(random.integers(len(EXAMPLE))), int(random.integers(3))
        put = ["", EXAMPLE[place] * 2, "(){}[],=%\"'/*:;0aZ\n"[int(random.integers(19))]][kind]
        try:
            parse_module(EXAMPLE[:place] + put + EXAMPLE[place + 1:])
        except ParseError as error:
            assert error.span is not None


# ---------------------------------------------------------------------------------------------- the whole

def test_signatures_come_from_the_rows():
    assert signature("reduce").required == ("dimensions", "to_apply")
    assert "custom_call_target" in signature("custom-call-start").allowed and signature("nope-start") is None


def test_long_modules():
    """10,000 instructions, which take about half a second on a free core; and time grows with their number."""
    module = parse_module(long_text(10_000))
    assert len(module.entry.instructions) == 10_000
    assert str(module).splitlines()[2:-2] == long_text(10_000).splitlines()[2:-2]
    assert_linear(lambda count: (parse_module, long_text(count)), 1_000)


def long_text(count: int) -> str:
    lines = [f'  %v.{i} = f32[32,56,56,64]{{3,2,1,0}} add(%v.{i - 1}, %v.{max(i - 9, 0)}), '
             f'metadata={{op_name="jit(train_step)/block{i % 7}/add" stack_frame_id={i}}}' for i in range(1, count)]
    return "HloModule m\n\nENTRY %e (v.0: f32[32,56,56,64]) -> f32[32,56,56,64] {\n" \
           "  %v.0 = f32[32,56,56,64]{3,2,1,0} parameter(0)\n" + "\n".join(lines) + "\n}\n"


@pytest.mark.parametrize("text, place", [
    ("HloModule {}\n\nENTRY e {{ ROOT p = f32[] parameter(0) }}", "1:11"),
    ("HloModule m\n\nENTRY e {{ ROOT {} = f32[] parameter(0) }}", "3:16"),
    ("HloModule m\n\nENTRY e {{ a = f32[] parameter(0) ROOT p = f32[] negate(%{}) }}", "3:57"),
    ("HloModule m\n\nENTRY e {{ ROOT p = f32[] parameter(0), {}=3 }}", "3:40"),
    ("// {0}\nHloModule m, frontend_attributes={{a=\"it's \\\" {0}\"}} /* {0} */\n\n"
     "ENTRY e {{ ROOT {0} = f32[] parameter(0) }}", "4:16"),
])
def test_words_have_a_bound(text, place):
    """Names and numbers; strings and comments hold words of any length."""
    with pytest.raises(ParseError, match=r"m.hlo:" + place + ": error: a word of 65,537 characters: names and numbers "
                                         "have at most 65,536"):
        parse_module(text.format("a" * (LONGEST_WORD + 1)), "m.hlo")


def test_longest_words():
    """A name of the longest size; longer ones in strings and comments."""
    name, more = "a" * LONGEST_WORD, "a" * (3 * LONGEST_WORD)
    module = parse_module(f"// {more}\nHloModule {name}, frontend_attributes={{a=\"it's \\\" {more}\"}} /* {more} */\n\n"
                          f"ENTRY e {{ ROOT {name} = f32[] parameter(0) }}")
    assert (module.name, module.entry.root.name) == (name, name)
