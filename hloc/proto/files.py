"""Whole files: the kind of message, its module and its arguments.

    module = read_proto(data, "m.hlo.pb")          HloModuleProto, HloProto or HloSnapshot
    module.default_inputs                          the snapshot's arguments, or None
    write_proto(module)                            bytes of an HloModuleProto
"""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hloc.errors import Source, Span
from hloc.ir.module import Module
from hloc.proto.header import LEFT_OUT
from hloc.proto.literals import read_literal
from hloc.proto.reader import read_module
from hloc.proto.shapes import ShapeReader
from hloc.proto.text_format import parse_text, print_text
from hloc.proto.wire import ByteSource, Record, decode, encode, top_fields
from hloc.proto.writer import module_record

Warn = Callable[[str, Span], None]
_TEXT_KINDS = {"hlo": "HloSnapshot", "arguments": "HloSnapshot", "hlo_module": "HloProto",
               "buffer_assignment": "HloProto"}
_FIRST_WORD = re.compile(r"(?:\s|#[^\n]*(?:\n|\Z))*(\w+)\s*[:{<]")


def kind_of(data: bytes) -> str | None:
    """HloModuleProto, HloProto, HloSnapshot, or None for other bytes. Reads only the outer fields."""
    place: tuple[int, int] | None = (0, len(data))
    for kind in ("HloModuleProto", "HloProto", "HloSnapshot"):
        fields = top_fields(data, *place) if place else None
        if fields is None:
            return None
        if _is_module(data, fields):
            return kind
        place = fields.get(1)                 # the module of an HloProto, the HloProto of an HloSnapshot
    return None


def _is_module(data: bytes, fields: dict[int, tuple[int, int]]) -> bool:
    """A module's field 3 is a computation, whose field 2 is an instruction, whose field 2 is an opcode."""
    for number in (3, 2):
        place = fields.get(number)
        found = top_fields(data, *place) if place else None
        if found is None:
            return False
        fields = found
    start, end = fields.get(2, (0, 0))
    return re.fullmatch(rb"[a-z][a-z0-9\-]*", data[start:end]) is not None


def read_proto(data: bytes, name: str, warn: Warn | None = None) -> Module:
    """The module in a binary file. Raises ParseError with the offset of the wrong byte."""
    source = ByteSource(name)
    return _module(decode(data, kind_of(data) or "HloModuleProto", source, warn), source)


def read_text_proto(text: str, name: str, warn: Warn | None = None) -> Module:
    """The module in a protobuf text file. Raises ParseError with line and column."""
    source = Source(text, name)
    first = _FIRST_WORD.match(text)
    kind = _TEXT_KINDS.get(first[1] if first else "", "HloModuleProto")
    return _module(parse_text(source, kind, warn), source)


def _module(record: Record, source: Source) -> Module:
    """The module of any of the messages; a snapshot's arguments become its default inputs."""
    arguments = ()
    if record.message.name == "HloSnapshot":
        arguments, record = record["arguments"], record.part("hlo")
    if record.message.name == "HloProto":
        record = record.part("hlo_module")
    module = read_module(record, source)
    if arguments:
        shapes = ShapeReader(source)
        values = [read_literal(a, shapes) for a in arguments]
        module.default_inputs = tuple(leaf for value in values for leaf in _leaves(value))
    return module


def _leaves(value: Any) -> list:
    """The arrays of a literal, in order. Recursive: shapes bound the depth."""
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


def left_out(module: Module) -> list[str]:
    """Attributes of the module's header that a proto cannot hold; they do not affect its meaning."""
    return [key for key in module.attributes if key in LEFT_OUT]


def write_proto(module: Module) -> bytes:
    """The bytes of an HloModuleProto. Raises UnsupportedError for attributes without a field."""
    return encode(module_record(module), "HloModuleProto")


def write_text_proto(module: Module) -> str:
    """The same as protobuf text."""
    return print_text(module_record(module), "HloModuleProto")
