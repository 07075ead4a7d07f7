"""Binary modules: XLA's own are read as their text is, what hloc writes is read back as the same module, by hloc and by
XLA; damaged ones end in a located error."""
import random
from pathlib import Path

import numpy as np
import pytest
from module_equality import difference

import hloc
from hloc.errors import HlocError, ParseError, Source, UnsupportedError
from hloc.ir import reachable_computations
from hloc.ir.printer import print_module
from hloc.proto import kind_of, read_proto, read_text_proto, write_proto, write_text_proto
from hloc.proto.schema import MESSAGES
from hloc.proto.text_format import parse_text, print_text
from hloc.proto.varints import decode_varints, encode_varints, varint
from hloc.proto.wire import MAX_DEPTH, ByteSource, decode, encode
from hloc.proto.writer import module_record
from hloc.text import parse_module, parse_modules
from hloc.text.long_words import LONGEST_WORD

TESTDATA = Path(__file__).parent.parent / "testdata"
EXAMPLES = sorted((TESTDATA / "proto").glob("*.hlo"))
TEXTS = sorted([*(TESTDATA / "ops").glob("*.hlo"), *(TESTDATA / "roundtrip").glob("*.hlo")])
# Texts that say in full what XLA prints in short, or leave out what it prints.
SPELLED_OUT = {"async-start": "calls=", "async-update": "calls=", "async-done": "calls=", "compare": "the default type",
               "dot": "no contracting dimensions", "outfeed": "no layout", "free_form_attributes": "blanks"}
# Fields that only the header of a text has.
HEADER_ONLY = ("allow_spmd_sharding_propagation_to_parameters", "allow_spmd_sharding_propagation_to_output",
               "alias_passthrough_params", "origin_recovery_table", "debug_attributes")


def modules_in(path: Path) -> list[hloc.ir.Module]:
    return parse_modules(path.read_text(), path.name)


def in_call_order(module: hloc.ir.Module) -> hloc.ir.Module:
    """Computations in the order in which the entry calls them: XLA's text and its proto have different ones."""
    module.computations = reachable_computations(module.entry)
    return module


# -- XLA's own protos ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_reads_what_xla_writes(path):
    found = read_proto(path.with_suffix(".hlo.pb").read_bytes(), path.name)
    wanted = parse_module(path.read_text(), path.name)
    assert difference(in_call_order(found), in_call_order(wanted)) is None


def test_snapshot_brings_its_arguments():
    module = hloc.load(TESTDATA / "proto" / "snapshot.pb")
    values, start = module.default_inputs
    assert values.tolist() == [1, 2, 3] and start == 4
    assert hloc.compile(module, "reference")(*module.default_inputs)[0] == 10


def test_kinds_are_told_apart():
    record = module_record(hloc.load(TESTDATA / "proto" / "sum.hlo"))
    assert kind_of(encode(record, "HloModuleProto")) == "HloModuleProto"
    assert kind_of(encode({"hlo_module": record}, "HloProto")) == "HloProto"
    assert kind_of(encode({"hlo": {"hlo_module": record}}, "HloSnapshot")) == "HloSnapshot"
    assert kind_of(b"\nHloModule m\nENTRY e { ROOT c = f32[] constant(1) }") is None


# -- round trips ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", TEXTS + EXAMPLES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_written_and_read_back(path):
    for module in modules_in(path):
        try:
            binary, text = write_proto(module), write_text_proto(module)
        except UnsupportedError as error:
            assert "proto" in str(error)
            continue
        found = read_proto(binary, path.name)
        assert difference(read_text_proto(text, path.name), found) is None
        assert difference(read_proto(write_proto(found), path.name), found) is None
        if path.stem not in SPELLED_OUT:
            assert print_module(found, canonical=True) == \
                print_module(as_written(module, found), canonical=True)


def as_written(module: hloc.ir.Module, found: hloc.ir.Module) -> hloc.ir.Module:
    """The header in XLA's spelling, without what only a text can say; a proto always has the entry's layout."""
    for key in HEADER_ONLY:
        module.attributes.pop(key, None)
    assert set(module.attributes) <= set(found.attributes)
    module.attributes = found.attributes
    return module


def test_names_become_unique_in_the_module():
    module = parse_module("f { p = f32[] parameter(0)  ROOT r = f32[] negate(p) }\n"
                          "ENTRY e { p = f32[] parameter(0)  ROOT r = f32[] call(p), to_apply=f }")
    names = [i.name for i in read_proto(write_proto(module), "m").instructions()]
    assert names == ["p", "r", "p.1", "r.1"]


def test_an_outfeed_without_its_shape_has_that_of_its_operand():
    """XLA's reader needs it, texts may leave it out."""
    module = parse_module("""HloModule m
ENTRY e {
  x = s32[3,2]{0,1} parameter(0)
  t = token[] parameter(1)
  ROOT o = token[] outfeed(x, t)
}""")
    assert "outfeed_shape=s32[3,2]{0,1}" in str(read_proto(write_proto(module), "m"))


def test_what_a_proto_cannot_say_is_named():
    module = parse_module("ENTRY e { p = s32[2] parameter(0)  ROOT r = s32[2] collective-permute(p), "
                          "source_target_pairs={{0,1}}, slice_sizes={{1},{1}} }")
    with pytest.raises(UnsupportedError, match="no field for the attribute slice_sizes of collective-permute"):
        write_proto(module)


def test_text_has_no_payloads_of_nan():
    module = parse_module("ENTRY e { ROOT c = f32[2] constant({nan(0x12), nan}) }")
    with pytest.raises(UnsupportedError, match="NaN"):
        write_text_proto(module)
    assert str(read_proto(write_proto(module), "m").entry.root).endswith("c>")


def test_elided_constants_stay_elided():
    module = parse_module("ENTRY e { ROOT c = f32[2] constant({...}) }")
    assert read_proto(write_proto(module), "m").entry.root.literal is None


# -- damaged files -------------------------------------------------------------------------------------------------------

def proto_of(text: str) -> dict:
    return module_record(parse_module(text))


def error_of(record: dict) -> str:
    with pytest.raises(HlocError) as caught:
        read_proto(encode(record, "HloModuleProto"), "m.pb")
    return str(caught.value)


TINY = "HloModule m\nENTRY e { p = f32[2] parameter(0)  ROOT n = f32[2] negate(p) }"


def test_errors_name_the_byte_and_the_instruction():
    record = proto_of(TINY)
    record["computations"][0]["instructions"][1]["operand_ids"] = [77]
    error = error_of(record)
    assert error.startswith("m.pb:byte ") and "uses the instruction 77" in error
    assert "in instruction n of computation e" in error


@pytest.mark.parametrize("change, message", [
    (lambda m: m["computations"][0]["instructions"][1].update(opcode="negat"), "unknown opcode 'negat'"),
    (lambda m: m["computations"][0]["instructions"][1].update(operand_ids=[]), "negate takes 1 operand"),
    (lambda m: m["computations"][0]["instructions"][1].update(id=1), "a second instruction has the number 1"),
    (lambda m: m["computations"][0]["instructions"][0].update(parameter_number=5), "not numbered from 0"),
    (lambda m: m["computations"][0].update(root_id=9), "has no root 9"),
    (lambda m: m["computations"][0]["instructions"][0]["shape"].update(dimensions=[-3]), "cannot be negative"),
    (lambda m: m.update(computations=[]), "no computations"),
    (lambda m: m.update(name="a" * LONGEST_WORD), "a name of 65,536 characters: names have fewer than 65,536"),
    (lambda m: m["computations"][0].update(name="a" * LONGEST_WORD), "a name of 65,536 characters"),
    (lambda m: m["computations"][0]["instructions"][1].update(name="a" * LONGEST_WORD), "a name of 65,536 characters"),
    (lambda m: m.update(schedule={"sequences": [{"key": 1, "value": {"instruction_ids": [2, 1]}}]}),
     "scheduled before its operands"),
])
def test_wrong_modules(change, message):
    record = proto_of(TINY)
    change(record)
    error = error_of(record)
    assert message in error and len(error) < 1000


def test_literals_have_as_many_elements_as_their_shape():
    record = proto_of("ENTRY e { ROOT c = f32[3] constant({1,2,3}) }")
    record["computations"][0]["instructions"][0]["literal"]["f32s"] = np.zeros(2, np.float32)
    assert "f32[3] has 2 elements" in error_of(record)


def test_messages_nest_only_so_deep():
    shape: dict = {"element_type": "F32"}
    data = encode(shape, "ShapeProto")
    for _ in range(MAX_DEPTH + 5):
        data = b"\x10\x0d\x22" + varint(len(data)) + data
    with pytest.raises(ParseError, match="nest deeper"):
        decode(data, "ShapeProto", ByteSource("m.pb"))
    with pytest.raises(ParseError, match="nest deeper"):
        parse_text(Source("tuple_shapes {" * (MAX_DEPTH + 5)), "ShapeProto")


def test_unknown_fields_are_told():
    told = []
    data = write_proto(parse_module(TINY)) + varint(900 << 3) + b"\x05"
    read_proto(data, "m.pb", lambda message, span: told.append(f"{span}: {message}"))
    assert told == [f"m.pb:byte {len(data) - 3}: unknown field 900 of HloModuleProto is omitted"]
    with pytest.raises(HlocError, match="unknown field 900"):
        hloc.load(data, name="m.pb", strict=True)


COMPARE = "ENTRY e {\n  a = f32[2] parameter(0)\n  ROOT c = pred[2] compare(a, a), direction=LT\n}\n"


@pytest.mark.parametrize("fields, told", [
    ({"comparison_order": "TOTALORDER"}, "type=TOTALORDER"), ({"comparison_order": "PARTIALORDER"}, ""), ({}, ""),
    ({"comparison_order": "TOTALORDER", "comparison_type": ""}, "type=TOTALORDER"), ({"block_scaling_config": {}}, ""),
    ({"comparison_order": "WEAKORDER"}, "m.pb:byte 64: error: comparison_order 'WEAKORDER'"),
    ({"block_scaling_config": {"lhs": {"scale_idx": 2}}}, "compare with block_scaling_config"),
    ({"has_dynamic_root": True}, "compare with has_dynamic_root"),
])
def test_fields_of_new_protos(fields, told):
    """What changes an instruction's meaning is read or refused, never omitted."""
    record = module_record(parse_module(COMPARE))
    record["computations"][0]["instructions"][1].update(fields)
    warned = []
    try:
        text = str(read_proto(encode(record, "HloModuleProto"), "m.pb", lambda *w: warned.append(w)))
    except UnsupportedError as error:
        text = str(error)
    assert told in text and ("type=" in text) == ("type=" in told) and not warned


def test_any_damage_ends_in_a_located_error():
    """Bytes that are cut off, changed, put in: a module or an HlocError."""
    generator = random.Random(7)
    originals = [p.read_bytes() for p in sorted((TESTDATA / "proto").glob("*.pb"))]
    for _ in range(3000):
        data = bytearray(generator.choice(originals))
        for _ in range(generator.choice((1, 1, 3))):
            at, kind = generator.randrange(len(data)), generator.randrange(4)
            if kind == 0:
                data = data[:at + 1]
            elif kind == 1:
                data[at] = generator.randrange(256)
            elif kind == 2:
                del data[at:at + generator.randrange(1, 6)]
            else:
                data[at:at] = data[:generator.randrange(1, 9)]
            data = data or bytearray(b"\0")
        try:
            module = read_proto(bytes(data), "m.pb")
            hloc.verify.verify(module)
            write_proto(module)
        except HlocError as error:
            assert str(error)


# -- the wire format and the text format ---------------------------------------------------------------------------------

def test_varints_in_bulk():
    values = np.array([0, 1, 127, 128, 300, 2**31, 2**63, 2**64 - 1], np.uint64)
    data = b"".join(varint(int(v)) for v in values)
    assert encode_varints(values) == data
    assert decode_varints(data).tolist() == values.tolist()
    assert varint(-1) == b"\xff" * 9 + b"\x01"
    assert decode_varints(b"\x80") is None and decode_varints(b"\xff" * 10 + b"\x01") is None


def test_packed_and_single_numbers_are_the_same():
    source = ByteSource("t")
    assert decode(b"\x0a\x02\x02\x03", "TileProto", source)["dimensions"] == (2, 3)
    assert decode(b"\x08\x02\x08\x03", "TileProto", source)["dimensions"] == (2, 3)
    assert decode(b"\x0a\x01\x02\x08\x03", "TileProto", source)["dimensions"] == (2, 3)


def test_text_format_takes_every_spelling():
    text = """# a comment
    element_type: F32, dimensions: [1, 0x10, 010]; is_dynamic_dimension: [false, t, 0]
    layout < minor_to_major: 2 minor_to_major: [1, 0] tiles { dimensions: -1 } tiles: {} physical_thing { a: [{b: "x" 'y'}] } >
    tuple_shapes: [{ element_type: 17 }, { element_type: TOKEN }] [some.ext] { a: 1 }"""
    record = parse_text(Source(text), "ShapeProto")
    assert record["dimensions"] == (1, 16, 8) and record["is_dynamic_dimension"] == (False, True, False)
    assert record["layout"]["minor_to_major"] == (2, 1, 0) and len(record["layout"]["tiles"]) == 2
    assert [s["element_type"] for s in record["tuple_shapes"]] == ["TOKEN", "TOKEN"]
    assert parse_text(Source(print_text(record, "ShapeProto")), "ShapeProto") == record


@pytest.mark.parametrize("text, place", [("dimensions 3", "1:12"), ("dimensions: x", "1:13"), ("layout {", "1:9"),
                                         ("dimensions: 3\n}", "2:1"), ('dimensions: "a"', "1:13"),
                                         ("element_type: F33", "1:15"), ("\n  ~", "2:3")])
def test_errors_in_text_have_a_place(text, place):
    with pytest.raises(ParseError, match=f"t:{place}: error"):
        parse_text(Source(text, "t"), "ShapeProto")


def test_the_schema_is_whole():
    for message in MESSAGES.values():
        for field in message.by_name.values():
            assert field.kind != "message" or field.type in MESSAGES, (message.name, field.name)


# -- XLA as the judge ----------------------------------------------------------------------------------------------------

@pytest.mark.xla
@pytest.mark.parametrize("path", TEXTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_xla_agrees(path):
    """XLA's proto of a module is read as its print of that proto; our proto of it is printed the same by XLA."""
    jaxlib = pytest.importorskip("jaxlib._hlo", reason="jaxlib is not installed, or has no _hlo")
    options = jaxlib.HloPrintOptions()
    options.print_large_constants = True
    for part in path.read_text().split("// -----"):
        try:
            original = jaxlib.hlo_module_from_text(part)
            binary = original.as_serialized_hlo_module_proto()
            theirs = jaxlib.HloModule.from_serialized_hlo_module_proto(binary).to_string(options)
        except Exception:                                   # jaxlib raises its own kinds; newer syntax, ops it lacks
            continue
        found, wanted = read_proto(binary, path.name), parse_module(theirs, path.name)
        assert difference(in_call_order(found), in_call_order(wanted)) is None
        ours = jaxlib.HloModule.from_serialized_hlo_module_proto(write_proto(wanted)).to_string(options)
        assert str(in_call_order(parse_module(ours))) == str(in_call_order(wanted))
