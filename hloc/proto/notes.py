"""Annotations of instructions that do not affect their meaning: metadata, frontend attributes, origin, statistics.

    read_metadata({"op_name": "x", "source_line": 3})       {op_name="x" source_line=3}
    write_metadata('{op_name="x" source_line=3}')           {"op_name": "x", "source_line": 3}

Texts are as XLA prints them. Each form has a reader and a writer.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hloc.errors import Span
from hloc.ir.shapes import Shape
from hloc.phrases import Phrase, escaped, is_dictionary
from hloc.proto.schema import ENUMS, MESSAGES
from hloc.proto.wire import Record

# In XLA's order.
_METADATA = ("op_type", "op_name", "source_file", "source_line", "source_end_line", "source_column",
             "source_end_column", "profile_type", "deduplicated_name", "scheduling_name", "stack_frame_id")


def read_metadata(record: Record) -> str:
    """op_type="a" source_line=3 ... in braces; {} if there is none."""
    words = []
    for name in _METADATA:
        value = record[name]
        if not value:
            continue
        if name == "profile_type":
            numbers = ENUMS["ProfileType"].numbers
            words.append("profile_type={" + ",".join(str(numbers.get(v, v)) for v in value) + "}")
        else:
            words.append(f'{name}="{escaped(value)}"' if isinstance(value, str) else f"{name}={value}")
    return "{" + " ".join(words) + "}"


def write_metadata(text: str, span: Span | None = None) -> dict[str, Any]:
    phrase = Phrase(text, span)
    record = metadata_phrase(phrase)
    phrase.end()
    return record


def metadata_phrase(phrase: Phrase) -> dict[str, Any]:
    """The fields in {name=value ...}, with blanks or commas between; fields that XLA's text lacks are omitted."""
    record: dict[str, Any] = {}
    fields = MESSAGES["OpMetadata"].by_name
    phrase.expect("{")
    while not phrase.accept("}"):
        if phrase.accept(","):
            continue
        name = phrase.word()
        phrase.expect("=")
        kind = fields[name].kind if name in _METADATA else None
        if kind == "string":
            record[name] = text_of(phrase.string())
        elif kind == "int32":
            record[name] = phrase.integer()
        elif kind == "enum":
            names = ENUMS["ProfileType"].names
            record[name] = [names.get(n, str(n)) for n in phrase.integers("{", "}")]
        else:
            phrase.balanced()
    return record


def text_of(raw: bytes) -> str:
    """The text of bytes that must be UTF-8."""
    return raw.decode("utf-8", "replace")


def read_frontend_attributes(record: Record) -> str:
    """{a={...},b="text"}, sorted; "" if there are none."""
    pairs = sorted((entry["key"], entry["value"]) for entry in record["map"])
    words = (f"{key}={value}" if is_dictionary(value) else f'{key}="{escaped(value)}"' for key, value in pairs)
    return "{" + ",".join(words) + "}" if pairs else ""


def write_frontend_attributes(text: str, span: Span | None = None) -> dict[str, Any]:
    phrase = Phrase(text, span)
    entries = []
    phrase.expect("{")
    while not phrase.accept("}"):
        key = text_of(phrase.string()) if phrase.is_string() else phrase.word()
        phrase.expect("=")
        value = text_of(phrase.string()) if phrase.is_string() else phrase.balanced()
        entries.append({"key": key, "value": value})
        phrase.accept(",")
    phrase.end()
    return {"map": entries}


# -- origin: the values of the original module to which this one corresponds -------------------------------------------

def read_origin(record: Record, shape: Shape) -> str:
    """{({"a" {0}}, {"b"})}: one pair of braces for each leaf of the shape, empty if its origin is unknown."""
    if record["is_synthetic_call"]:
        return "{[synthetic_call]}"
    arrays = {element["shape_index"]: element.part("original_array") for element in record["elements"]}
    return "{" + _origin(shape, (), arrays) + "}"


def _origin(shape: Shape, index: tuple[int, ...], arrays: Mapping[tuple, Record]) -> str:
    if shape.is_tuple:
        parts = (_origin(s, (*index, i), arrays) for i, s in enumerate(shape.tuple_shapes))
        return "(" + ", ".join(parts) + ")"
    found = arrays.get(index)
    if found is None or "instruction_name" not in found:
        return "{}"
    where = " {" + ",".join(map(str, found["shape_index"])) + "}" if found["shape_index"] else ""
    return f'{{"{escaped(found["instruction_name"])}"{where}}}'


def write_origin(text: str, span: Span | None = None) -> dict[str, Any]:
    phrase = Phrase(text, span)
    phrase.expect("{")
    if phrase.accept("["):
        phrase.expect("synthetic_call")
        return {"is_synthetic_call": True}
    elements: list[dict[str, Any]] = []
    index: list[int] = []
    while phrase.text and not (phrase.text == "}" and not index):
        if phrase.accept("("):
            index.append(0)
        elif phrase.accept(")"):
            index.pop()
        elif phrase.accept(","):
            index[-1:] = [index[-1] + 1] if index else []
        else:
            elements.append({"shape_index": tuple(index), **_origin_leaf(phrase)})
        if not index and phrase.text not in ("}", ""):
            raise phrase.error("}")
    phrase.expect("}")
    return {"elements": elements}


def _origin_leaf(phrase: Phrase) -> dict[str, Any]:
    """{"name" {1}} or {}."""
    phrase.expect("{")
    array: dict[str, Any] = {}
    if phrase.is_string():
        array = {"instruction_name": text_of(phrase.string())}
        if phrase.text == "{":
            array["shape_index"] = phrase.integers("{", "}")
    phrase.expect("}")
    return {"original_array": array} if array else {}


# -- statistics --------------------------------------------------------------------------------------------------------

def read_statistics(record: Record) -> str:
    """{visualizing_index=0,flops=33}; "" if there are none."""
    if not record["statistics"]:
        return ""
    words = [f"{s['stat_name']}={s['stat_val']:g}" for s in record["statistics"]]
    return "{" + ",".join([f"visualizing_index={record['stat_index_to_visualize']}", *words]) + "}"


def write_statistics(text: str, span: Span | None = None) -> dict[str, Any]:
    phrase = Phrase(text, span)
    record: dict[str, Any] = {"statistics": []}
    phrase.expect("{")
    while not phrase.accept("}"):
        name = phrase.word()
        phrase.expect("=")
        if name == "visualizing_index":
            record["stat_index_to_visualize"] = phrase.integer()
        else:
            record["statistics"].append({"stat_name": name, "stat_val": number(phrase)})
        phrase.accept(",")
    phrase.end()
    return record


def number(phrase: Phrase) -> float:
    """A decimal number."""
    try:
        return float(phrase.text)
    except ValueError:
        raise phrase.error("a number") from None
    finally:
        phrase.step()
