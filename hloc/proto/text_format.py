"""Protobuf's text form: `name: "f" computations { id: 3 }` to records and back, by the same schema as the wire format.

In: a Source and the name of a message. Out: a Record as wire.decode gives it, whose offsets are characters. Example:

    parse_text(Source("dimensions: 2 dimensions: 3"), "TileProto")      Record {"dimensions": (2, 3)}
"""
from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hloc.errors import ParseError, Source, Span, UnsupportedError
from hloc.phrases import escaped, string_end, unescaped
from hloc.proto.schema import ARRAY_TYPES, ENUMS, MESSAGES, VARINTS, Field, Message
from hloc.proto.wire import MAX_DEPTH, MAX_RECORDS, Record, is_written, known_enum

_SKIPPED = re.compile(r"[\s,;]*(?:#[^\n]*[\s,;]*){0,1000}")      # bounded: each repetition takes memory
_TOKEN = re.compile(r"""
    (?P<string>["']) |
    (?P<word>[A-Za-z_][A-Za-z0-9_.]*) |
    (?P<number>-?\s*(?:[0-9.][A-Za-z0-9_.+]*(?:(?<=[eE])-[0-9]+[fF]?)?|[A-Za-z]+)) |
    (?P<sign>[{}<>\[\]:]) |
    (?P<end>\Z)""", re.VERBOSE)
_EXTENSION = re.compile(r"[^\]\s]*\]")
_NAN_BYTES = struct.pack("<d", math.nan)[:7]          # without the byte that holds the sign
_CLOSING = {"{": "}", "<": ">"}
_RANGES = {"int32": (-2**31, 2**31 - 1), "uint32": (0, 2**32 - 1),
           "int64": (-2**63, 2**63 - 1), "uint64": (0, 2**64 - 1)}
Warn = Callable[[str, Span], None]


def parse_text(source: Source, message: str, warn: Warn | None = None) -> Record:
    """The record of a whole text. Raises ParseError with its location."""
    return _TextReader(source, warn).read(MESSAGES[message])


class _TextReader:
    """Reads one text, token by token."""

    def __init__(self, source: Source, warn: Warn | None):
        self.source, self.warn = source, warn
        self.at = self.records = 0
        self.unknown: set[tuple[str, str]] = set()
        self.step()

    def step(self) -> None:
        """Move to the next token."""
        text = self.source.text
        start = self.at
        while (skipped := _SKIPPED.match(text, start)) and skipped.end() > start:
            start = skipped.end()
        match = _TOKEN.match(text, start)
        if match is None:
            raise ParseError("this is not protobuf text", Span(self.source, start, start + 1))
        self.kind, self.start, self.at = match.lastgroup, start, match.end()
        if self.kind == "string":
            self.at = string_end(text, start) or len(text)
            if self.at - start < 2 or "\n" in text[start:self.at] or text[self.at - 1] != text[start]:
                raise ParseError("the string has no end in its line", Span(self.source, start, start + 1))
        self.text = text[start:self.at]

    def error(self, message: str) -> ParseError:
        return ParseError(message, Span(self.source, self.start, max(self.at, self.start + 1)))

    def read(self, message: Message) -> Record:
        """All fields, with a stack of the open messages. An open message of None is skipped."""
        root = Record(message, 0)
        stack: list[tuple[Record | None, str, bool]] = [(root, "", False)]     # record, closing sign, whether in a list
        while True:
            record, closing, in_list = stack[-1]
            if self.text == closing and self.kind in ("sign", "end"):
                self.finish(record)
                if self.kind == "end":
                    return root
                stack.pop()
                self.step()
                if in_list and not self.list_goes_on():
                    continue
                if in_list:
                    stack.append(self.open_message(stack[-1][0], self.list_field, True))
                continue
            opened = self.field(record)
            if opened is not None:
                stack.append(opened)
                if len(stack) > MAX_DEPTH:
                    raise self.error(f"messages nest deeper than {MAX_DEPTH}")

    def list_goes_on(self) -> bool:
        """After a message in a list: whether another follows; if not, moves past the list's end."""
        if self.text in _CLOSING:
            return True
        if self.text != "]":
            raise self.error("here must be ] or another message")
        self.step()
        return False

    def finish(self, record: Record | None) -> None:
        if record is None:
            return
        for name, value in record.items():
            if type(value) is list:
                field = record.message.by_name[name]
                record[name] = np.array(value, ARRAY_TYPES[field.kind]) if field.is_array else tuple(value)

    def field(self, record: Record | None) -> tuple[Record | None, str, bool] | None:
        """Reads a field's name and its value; a message is only opened."""
        field = self.field_name(record)
        colon = self.text == ":"
        if colon:
            self.step()
        if self.text in _CLOSING and self.kind == "sign":
            return self.open_message(record, field, False)
        if self.text == "[" and self.kind == "sign":
            self.step()
            if self.text in _CLOSING:
                self.list_field = field
                return self.open_message(record, field, True)
            while self.text != "]":
                self.value(record, field)
            self.step()
            return None
        if not colon:
            raise self.error("here must be a colon or a message")
        self.value(record, field)
        return None

    def field_name(self, record: Record | None) -> Field | None:
        """The field that is named at this token; None for one that is not read."""
        if self.text == "[" and self.kind == "sign":           # an extension or the type of an Any
            match = _EXTENSION.match(self.source.text, self.at)
            if match is None:
                raise self.error("here must be the name of a field")
            self.at = match.end()
            self.step()
            return None
        if self.kind != "word":
            raise self.error("here must be the name of a field")
        field = record.message.by_name.get(self.text) if record is not None else None
        if field is None and record is not None:
            self.unknown_field(record.message)
        self.step()
        return None if field is None or field.kind == "unread" else field

    def unknown_field(self, message: Message) -> None:
        if self.warn and (message.name, self.text) not in self.unknown:
            self.unknown.add((message.name, self.text))
            self.warn(f"unknown field {self.text} of {message.name} is omitted",
                      Span(self.source, self.start, self.at))

    def open_message(self, record: Record | None, field: Field | None, in_list: bool
                     ) -> tuple[Record | None, str, bool]:
        closing = _CLOSING[self.text]
        inner = None
        if record is not None and field is not None:
            if field.kind != "message":
                raise self.error(f"{field.name} is no message")
            self.records += 1
            if self.records > MAX_RECORDS:
                raise self.error(f"more than {MAX_RECORDS} parts")
            inner = Record(MESSAGES[field.type], self.start)
            self.put(record, field, inner)
        self.step()
        return inner, closing, in_list

    def put(self, record: Record, field: Field, value: Any) -> None:
        if field.repeated:
            record.setdefault(field.name, []).append(value)
        elif field.name in record:
            raise self.error(f"{field.name} stands twice")
        else:
            record[field.name] = value

    def value(self, record: Record | None, field: Field | None) -> None:
        """One scalar value; adjacent strings are concatenated."""
        if self.kind not in ("string", "word", "number"):
            raise self.error("here must be a value")
        if self.kind == "string":
            if field is not None and field.kind not in ("string", "bytes"):
                raise self.error(f"{field.name} is no string")
            pieces = []
            while self.kind == "string":
                pieces.append(unescaped(self.text[1:-1]))
                self.step()
            if record is not None and field is not None:
                self.put(record, field, self.string(field, b"".join(pieces)))
            return
        if record is not None and field is not None:
            self.put(record, field, self.scalar(field))
        self.step()

    def string(self, field: Field, value: bytes) -> str | bytes:
        if field.kind == "bytes":
            return value
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{field.name} is not UTF-8") from None

    def scalar(self, field: Field) -> Any:
        text = "".join(self.text.split())
        kind = field.kind
        if kind == "enum":
            numbers = ENUMS[field.type].numbers
            if text not in numbers and not text.lstrip("-").isdigit():
                raise self.error(f"{text} is no {field.type}")
            return text if text in numbers else ENUMS[field.type].names.get(int(text[:20])) or text
        if kind == "bool":
            if text not in ("true", "false", "True", "False", "t", "f", "0", "1"):
                raise self.error(f"{field.name} is true or false")
            return text in ("true", "True", "t", "1")
        if kind in VARINTS:
            return self.integer(field, text)
        if kind in ("float", "double"):
            return self.decimal(field, text)
        raise self.error(f"{field.name} is a {kind}, not {text[:40]}")

    def integer(self, field: Field, text: str) -> int:
        try:
            value = int(text, 0) if not re.fullmatch(r"-?0[0-7]+", text) else int(text, 8)
        except ValueError:
            raise self.error(f"{field.name} is a whole number") from None
        low, high = _RANGES[field.kind]
        if not low <= value <= high:
            raise self.error(f"{text[:40]} does not fit into {field.kind}")
        return value

    def decimal(self, field: Field, text: str) -> float:
        try:
            return float(text.rstrip("fF") if not text.lower().endswith("inf") else text)
        except ValueError:
            raise self.error(f"{field.name} is a number") from None


# -- writing -----------------------------------------------------------------------------------------------------------

def print_text(record: Mapping[str, Any], message: str) -> str:
    """The text of a record, one field a line."""
    lines: list[str] = []
    _print(record, MESSAGES[message], "", lines)
    return "\n".join(lines) + "\n"


def _print(record: Mapping[str, Any], message: Message, indent: str, lines: list[str]) -> None:
    """Appends the lines of a record, indented by two blanks a level. Recursive, to MAX_DEPTH."""
    if len(indent) > 2 * MAX_DEPTH:
        raise ParseError(f"the module nests deeper than {MAX_DEPTH} messages, more than a proto may hold")
    for name, value in record.items():
        field = message.by_name[name]
        if not is_written(field, value):
            continue
        for one in value if field.repeated else (value,):
            if field.kind == "message":
                lines.append(f"{indent}{field.name} {{")
                _print(one, MESSAGES[field.type], indent + "  ", lines)
                lines.append(indent + "}")
            else:
                lines.append(f"{indent}{field.name}: {_scalar_text(field, one)}")


def _scalar_text(field: Field, value: Any) -> str:
    if field.kind in ("string", "bytes"):
        return f'"{escaped(value)}"'
    if field.kind == "bool":
        return "true" if value else "false"
    if field.kind == "float":
        return _decimal_text(float(value), str(np.float32(value)))
    if field.kind == "double":
        return _decimal_text(float(value), repr(float(value)))
    return known_enum(field, value) if field.kind == "enum" else str(value)


def _decimal_text(value: float, text: str) -> str:
    if math.isnan(value):
        if struct.pack("<d", value)[:7] != _NAN_BYTES:
            raise UnsupportedError("protobuf text has no NaN with a payload", hint="write .hlo.pb or .hlo instead")
        return "-nan" if math.copysign(1, value) < 0 else "nan"
    return text
