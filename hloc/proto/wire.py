"""Protobuf's wire format: bytes to records and back, by the schema.

In: bytes and the name of a message. Out: a Record, a dict of the fields that are present; `record[name]` gives the
default for a missing one. Enums are represented by their names, repeated fields by tuples. Example:

    decode(b"\\x0a\\x02\\x02\\x03", "TileProto", name)      Record {"dimensions": (2, 3)}
    encode({"dimensions": (2, 3)}, "TileProto")          b"\\x0a\\x02\\x02\\x03"

The input is not trusted: sizes, depth and the number of records are bounded, and each error gives its byte offset.
Equal bytes of small messages become one record, since a module repeats its few shapes thousands of times.
"""
from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hloc.errors import ParseError, Source, Span, UnsupportedError, printable
from hloc.proto.schema import ARRAY_TYPES, ENUMS, MESSAGES, VARINTS, Field, Message
from hloc.proto.varints import decode_varints, encode_varints, varint
from hloc.source_lines import written_at

MAX_DEPTH = 100                        # of nested messages; the limit of protobuf's own readers
MAX_RECORDS = 5_000_000
MAX_LIST = 1 << 24                     # elements of a repeated field outside of literals
SHARED_BYTES = 400                     # messages up to this size are shared
NEVER_SHARED = frozenset(["HloInstructionProto", "HloComputationProto", "HloModuleProto"])
MASK = (1 << 64) - 1
VARINT, FIXED64, LENGTH, GROUP, GROUP_END, FIXED32 = range(6)
_FIXED = {"double": (FIXED64, 8, "<d"), "float": (FIXED32, 4, "<f")}
Warn = Callable[[str, Span], None]


class ByteSource(Source):
    """A binary file as the source of spans: offsets are bytes. A reader records notes and metadata by offset."""

    __slots__ = ("notes", "metadata")

    def __init__(self, name: str):
        super().__init__("", name)
        self.notes: dict[int, str] = {}
        self.metadata: dict[int, str] = {}

    def place(self, offset: int) -> str:
        return f"{self.name}:byte {offset}"

    def line(self, offset: int) -> str:
        return self.place(offset)

    def written_at(self, start: int) -> str:
        return written_at(self.metadata[start], self.tables) if start in self.metadata else ""

    def excerpt(self, start: int, end: int) -> str:
        return f"  in {printable(self.notes[start])}" if start in self.notes else ""


class Record(dict):
    """The present fields of a message; missing ones give their defaults."""

    __slots__ = ("message", "offset")

    def __init__(self, message: Message, offset: int):
        super().__init__()
        self.message, self.offset = message, offset

    def __missing__(self, name: str) -> Any:
        return self.message.by_name[name].default

    def part(self, name: str) -> Record:
        """The message in a field; an empty one if it is missing."""
        found = self.get(name)
        return Record(MESSAGES[self.message.by_name[name].type], self.offset) if found is None else found


def decode(data: bytes, message: str, source: ByteSource, warn: Warn | None = None) -> Record:
    """The record of a whole file. Raises ParseError with the offset of the first wrong byte."""
    return _Decoder(data, source, warn).message(MESSAGES[message], 0, len(data), 0)


class _Decoder:
    """Reads one file."""

    def __init__(self, data: bytes, source: ByteSource, warn: Warn | None):
        self.data, self.source, self.warn = data, source, warn
        self.records = 0
        self.shared: dict[tuple[str, bytes], Record] = {}
        self.unknown: set[tuple[str, int]] = set()

    def error(self, message: str, offset: int) -> ParseError:
        return ParseError(message, Span(self.source, offset, offset + 1))

    def count(self, offset: int) -> None:
        self.records += 1
        if self.records > MAX_RECORDS:
            raise self.error(f"more than {MAX_RECORDS} parts", offset)

    def message(self, message: Message, start: int, end: int, depth: int) -> Record:
        """The record of the bytes from start to end. Recursive, to MAX_DEPTH."""
        if depth > MAX_DEPTH:
            raise self.error(f"messages nest deeper than {MAX_DEPTH}", start)
        self.count(start)
        record, at = Record(message, start), start
        while at < end:
            tag_at = at
            tag, at = self.varint(at, end)
            field = message.by_number.get(tag >> 3)
            if field is None or field.kind == "unread":
                at = self.skip(tag, at, end, tag_at)
                if field is None:
                    self.unknown_field(message, tag >> 3, tag_at)
            else:
                at = self.field(record, field, tag & 7, at, end, depth)
        for name, value in record.items():
            if type(value) is list:
                record[name] = self.joined(message.by_name[name], value)
        return record

    def field(self, record: Record, field: Field, wire: int, at: int, end: int, depth: int) -> int:
        """Reads one field into the record; returns where it ends."""
        name = field.name
        if wire == LENGTH:
            size, at = self.varint(at, end)
            if size > end - at:
                raise self.error(f"{name} of {record.message.name} has {size} bytes, but {end - at} are left", at)
            end = at + size
            value = self.long_value(field, at, end, depth)
            at = end
            if field.repeated and field.kind not in ("message", "string", "bytes"):     # packed numbers
                record.setdefault(name, []).extend([value] if field.is_array else value)
                return at
        else:
            value, at = self.number(field, wire, at, end)
        if field.repeated:
            self.count(at)
            record.setdefault(name, []).append(np.array([value], ARRAY_TYPES[field.kind]) if field.is_array else value)
        elif name in record:
            raise self.error(f"{name} of {record.message.name} stands twice", at)
        else:
            record[name] = value
        return at

    def long_value(self, field: Field, at: int, end: int, depth: int) -> Any:
        """A message, a string, bytes or packed numbers."""
        if field.kind == "message":
            return self.submessage(MESSAGES[field.type], at, end, depth + 1)
        if field.kind == "bytes":
            return self.data[at:end]
        if field.kind == "string":
            try:
                return self.data[at:end].decode("utf-8")
            except UnicodeDecodeError as error:
                raise self.error(f"{field.name} is not UTF-8", at + error.start) from None
        if not field.repeated:
            raise self.error(f"{field.name} is a number, but bytes stand here", at)
        return self.packed(field, at, end)

    def submessage(self, message: Message, at: int, end: int, depth: int) -> Record:
        if end - at > SHARED_BYTES or message.name in NEVER_SHARED:
            return self.message(message, at, end, depth)
        key = (message.name, self.data[at:end])
        found = self.shared.get(key)
        if found is None:
            found = self.shared[key] = self.message(message, at, end, depth)
        return found

    def packed(self, field: Field, at: int, end: int) -> Any:
        """Numbers without tags: an array for a literal, else a list."""
        if field.kind in _FIXED:
            size = _FIXED[field.kind][1]
            if (end - at) % size:
                raise self.error(f"{field.name} has {end - at} bytes, which is no multiple of {size}", at)
            values = np.frombuffer(self.data, ARRAY_TYPES[field.kind], (end - at) // size, at)
        elif end - at < 32 and not field.is_array:
            return self.few(field, at, end)
        else:
            varints = decode_varints(memoryview(self.data)[at:end])
            if varints is None:
                raise self.error(f"{field.name} holds a number of more than 64 bits, or one without an end", at)
            values = varints
            if field.is_array:
                return values != 0 if field.kind == "bool" else values.astype(ARRAY_TYPES[field.kind])
        if field.is_array:
            return values
        if len(values) > MAX_LIST:
            raise self.error(f"{field.name} has more than {MAX_LIST} elements", at)
        return [_number(field, v) if field.kind in VARINTS else v for v in values.tolist()]

    def few(self, field: Field, at: int, end: int) -> list:
        values = []
        while at < end:
            value, at = self.varint(at, end)
            values.append(_number(field, value))
        return values

    def number(self, field: Field, wire: int, at: int, end: int) -> tuple[Any, int]:
        """A number with its own tag."""
        if wire == VARINT and (field.kind in VARINTS):
            value, at = self.varint(at, end)
            return _number(field, value), at
        fixed_wire, size, code = _FIXED.get(field.kind, (None, 0, ""))
        if wire != fixed_wire:
            raise self.error(f"{field.name} is written as something else than {field.type}", at)
        if end - at < size:
            raise self.error(f"{field.name} is cut off", at)
        return struct.unpack_from(code, self.data, at)[0], at + size

    def varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > MASK:
                    break
                return value, at
            shift += 7
            if shift > 63:
                break
        raise self.error("a number of more than 64 bits, or one that is cut off", at)

    def skip(self, tag: int, at: int, end: int, tag_at: int) -> int:
        """The offset after a field that is not read."""
        wire = tag & 7
        if wire == VARINT:
            return self.varint(at, end)[1]
        if wire == LENGTH:
            size, at = self.varint(at, end)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise self.error(f"no protobuf field: kind {wire}", tag_at)
        if size > end - at:
            raise self.error(f"a field of {size} bytes, but {end - at} are left", at)
        return at + size

    def unknown_field(self, message: Message, number: int, offset: int) -> None:
        if number == 0:
            raise self.error("no protobuf field: number 0", offset)
        if self.warn and (message.name, number) not in self.unknown:
            self.unknown.add((message.name, number))
            self.warn(f"unknown field {number} of {message.name} is omitted", Span(self.source, offset, offset + 1))

    def joined(self, field: Field, values: list) -> Any:
        """The values of a repeated field, in their final form."""
        if not field.is_array:
            return tuple(values)
        return values[0] if len(values) == 1 else np.concatenate(values)


def _number(field: Field, value: int) -> Any:
    """A varint as the field's type: two's complement for signed ones, names for enums."""
    kind = field.kind
    if kind == "int64" or kind == "int32":
        return value - (1 << 64) if value >> 63 else value
    if kind == "bool":
        return value != 0
    if kind == "enum":
        return enum_name(field, value)
    return value


def enum_name(field: Field, value: int) -> str:
    """The name of an enum's number, or the number as text if it has no name."""
    return ENUMS[field.type].names.get(value) or str(value)


def top_fields(data: bytes, start: int, end: int) -> dict[int, tuple[int, int]] | None:
    """The range of the first occurrence of each field with a length; None if the bytes are not a message."""
    reader = _Decoder(data, ByteSource(""), None)
    found: dict[int, tuple[int, int]] = {}
    at = start
    try:
        while at < end:
            tag_at = at
            tag, at = reader.varint(at, end)
            if tag >> 3 == 0:
                return None
            if tag & 7 == LENGTH:
                size, begin = reader.varint(at, end)
                found.setdefault(tag >> 3, (begin, begin + size))
            at = reader.skip(tag, at, end, tag_at)
    except ParseError:
        return None
    return found


# -- writing -----------------------------------------------------------------------------------------------------------

def encode(record: Mapping[str, Any], message: str) -> bytes:
    """The bytes of a record (a dict of fields), in its order."""
    chunks: list[bytes] = []
    _encode(record, MESSAGES[message], chunks, 0)
    return b"".join(chunks)


def _encode(record: Mapping[str, Any], message: Message, chunks: list[bytes], depth: int) -> int:
    """Appends the bytes of a record; returns how many. Recursive, to MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise ParseError(f"the module nests deeper than {MAX_DEPTH} messages, more than a proto may hold")
    total = 0
    for name, value in record.items():
        field = message.by_name[name]
        if not is_written(field, value):
            continue
        values = value if field.repeated and field.kind in ("message", "string", "bytes") else (value,)
        for one in values:
            total += _encode_field(field, one, chunks, depth)
    return total


def is_written(field: Field, value: Any) -> bool:
    """Whether a field is written: always if it is a message or its presence has a meaning, else if not the default."""
    return field.repeated or field.explicit or field.kind == "message" or value != field.default


def _encode_field(field: Field, value: Any, chunks: list[bytes], depth: int) -> int:
    if field.kind == "message":
        place = len(chunks)
        chunks.append(b"")
        size = _encode(value, MESSAGES[field.type], chunks, depth + 1)
        chunks[place] = varint(field.number << 3 | LENGTH) + varint(size)
        return len(chunks[place]) + size
    if field.kind in ("string", "bytes"):
        body = value.encode("utf-8") if isinstance(value, str) else value
    elif field.repeated:
        body = _packed(field, value)
        if not body:
            return 0
    else:
        chunks.append(_single(field, value))
        return len(chunks[-1])
    chunks.append(varint(field.number << 3 | LENGTH) + varint(len(body)))
    chunks.append(body)
    return len(chunks[-2]) + len(body)


def _packed(field: Field, values: Any) -> bytes:
    if field.kind in _FIXED:
        return np.asarray(values, ARRAY_TYPES[field.kind]).tobytes()
    if field.kind == "bool":
        return np.asarray(values, np.bool_).tobytes()
    if field.is_array:
        return encode_varints(values.astype(np.uint64 if values.dtype.kind == "u" else np.int64))
    return b"".join(varint(_integer(field, v)) for v in values)


def _single(field: Field, value: Any) -> bytes:
    if field.kind in _FIXED:
        wire, _, code = _FIXED[field.kind]
        return varint(field.number << 3 | wire) + struct.pack(code, value)
    return varint(field.number << 3 | VARINT) + varint(_integer(field, value))


def _integer(field: Field, value: Any) -> int:
    if field.kind != "enum":
        return int(value)
    return ENUMS[field.type].numbers[known_enum(field, value)]


def known_enum(field: Field, value: str) -> str:
    """`value`, if the enum has that name. Raises UnsupportedError for newer names in HLO text."""
    if value not in ENUMS[field.type].numbers:
        raise UnsupportedError(f"a proto has no {field.type} {value}")
    return value
