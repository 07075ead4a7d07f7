"""ShapeProto to Shape and back.

    ShapeReader(source).read(record)      Shape f32[2,<=3]{1,0:T(8,128)}
    write_shape(shape)                    {"element_type": "F32", "dimensions": (2, 3), ...}

A layout's tiles, memory space and so on are the text after the colon (Layout.suffix); the table below gives the form of
each. Equal records share one Shape.
"""
from __future__ import annotations

import re
from typing import Any

from hloc.errors import ParseError, Source, Span, UnsupportedError
from hloc.ir.shapes import UNBOUNDED, Layout, Shape, default_layout
from hloc.ir.types import ELEMENT_TYPES
from hloc.proto.schema import ENUMS
from hloc.proto.wire import Record
from hloc.text.shapes import MAX_DIMENSION, MAX_NESTING, MAX_PARTS

_NAMES = {"OPAQUE_TYPE": "opaque"}
_UNBOUNDED = -MAX_DIMENSION - 1
_PARTS = re.compile(r"(D|T|L|#|\*|E|SC|S|M)((?:\([^()]*\))+)")
_LEVELS = {"DIM_DENSE": "D", "DIM_COMPRESSED": "C", "DIM_SINGLETON": "S", "DIM_LOOSE_COMPRESSED": "H"}
# (letter, field) of the parts that are one number or type, in the order of the text.
_NUMBERS = (("E", "element_size_in_bits"), ("S", "memory_space"))
_TYPES = (("#", "index_primitive_type"), ("*", "pointer_primitive_type"))


def element_type(name: str) -> str | None:
    """XLA's text name of a PrimitiveType; None if hloc has no such type."""
    text = _NAMES.get(name, name.lower())
    return text if text in ELEMENT_TYPES else None


def primitive_type(text: str) -> str:
    """The PrimitiveType of an element type."""
    return "OPAQUE_TYPE" if text == "opaque" else text.upper()


class ShapeReader:
    """Reads the shapes of one file."""

    def __init__(self, source: Source):
        self.source = source
        self.seen: dict[int, tuple[Record, Shape]] = {}        # by id; the record is kept so that its id is not reused
        self.parts = 0

    def error(self, message: str, record: Record) -> ParseError:
        return ParseError(message, Span(self.source, record.offset, record.offset + 1))

    def read(self, record: Record, depth: int = 0) -> Shape:
        """The Shape of a record. Recursive, to MAX_NESTING. Raises ParseError."""
        known = self.seen.get(id(record))
        if known is not None:
            return known[1]
        name = element_type(record["element_type"])
        if name is None:
            raise self.error(f"unknown element type {record['element_type']}", record)
        if depth > MAX_NESTING:
            raise self.error(f"the shape nests deeper than {MAX_NESTING} tuples", record)
        if name in ("tuple", "buffer"):
            self.parts += len(record["tuple_shapes"])
            if self.parts > MAX_PARTS or name == "buffer" and len(record["tuple_shapes"]) != 1:
                raise self.error(f"a {name} of {len(record['tuple_shapes'])} shapes", record)
            shape = Shape(name, (), tuple(self.read(r, depth + 1) for r in record["tuple_shapes"]))
        elif name in ("token", "opaque"):
            shape = Shape(name)
        else:
            shape = self.array(name, record)
        self.seen[id(record)] = (record, shape)
        return shape

    def array(self, name: str, record: Record) -> Shape:
        sizes = tuple(UNBOUNDED if d == _UNBOUNDED else d for d in record["dimensions"])
        dynamic = record["is_dynamic_dimension"] or (False,) * len(sizes)
        if len(dynamic) != len(sizes):
            raise self.error(f"{len(sizes)} dimensions, {len(dynamic)} say whether they are dynamic", record)
        dynamic = tuple(d or size == UNBOUNDED for d, size in zip(dynamic, sizes))
        if any(size < 0 and size != UNBOUNDED for size in sizes):
            raise self.error("a dimension cannot be negative", record)
        layout = self.layout(record["layout"], len(sizes)) if "layout" in record else default_layout(len(sizes))
        return Shape(name, sizes, (), dynamic if any(dynamic) else (), layout)

    def layout(self, record: Record, rank: int) -> Layout:
        order = record["minor_to_major"]
        if len(order) != rank or sorted(order) != list(range(rank)):
            raise self.error(f"a layout names every dimension from 0 to {rank - 1} once", record)
        if "physical_shape" in record:
            raise UnsupportedError("a layout with a physical shape",
                                   Span(self.source, record.offset, record.offset + 1))
        suffix = self.suffix(record)
        default = default_layout(rank)
        return default if not suffix and order == default.minor_to_major else Layout(order, suffix)

    def suffix(self, record: Record) -> str:
        """The text after the colon, in XLA's order."""
        parts = []
        if record["dim_level_types"]:
            parts.append(f"D({','.join(_levels(record))})")
        if record["tiles"]:
            tiles = (",".join("*" if d == _UNBOUNDED else str(d) for d in t["dimensions"]) for t in record["tiles"])
            parts.append("T" + "".join(f"({t})" for t in tiles))
        if record["tail_padding_alignment_in_elements"] not in (0, 1):
            parts.append(f"L({record['tail_padding_alignment_in_elements']})")
        for letter, field in _TYPES:
            if record[field] != "PRIMITIVE_TYPE_INVALID":
                parts.append(f"{letter}({record[field].lower()})")
        parts += [f"{letter}({record[field]})" for letter, field in _NUMBERS if record[field]]
        if record["split_configs"]:
            parts.append("SC" + "".join(f"({s['dimension']}:{','.join(map(str, s['split_indices']))})"
                                        for s in record["split_configs"]))
        if record["dynamic_shape_metadata_prefix_bytes"]:
            parts.append(f"M({record['dynamic_shape_metadata_prefix_bytes']})")
        return "".join(parts)


def _levels(record: Record) -> list[str]:
    """The text of each dimension: D, C+ (not unique), C~ (not ordered) ..."""
    letters = []
    for i, level in enumerate(record["dim_level_types"]):
        unique = i >= len(record["dim_unique"]) or record["dim_unique"][i]
        ordered = i >= len(record["dim_ordered"]) or record["dim_ordered"][i]
        letters.append(_LEVELS.get(level, "D") + ("" if unique else "+") + ("" if ordered else "~"))
    return letters


# -- writing -----------------------------------------------------------------------------------------------------------

def write_shape(shape: Shape) -> dict[str, Any]:
    """The fields of a ShapeProto. Recursive: the parser bounds the nesting of shapes."""
    record: dict[str, Any] = {"element_type": primitive_type(shape.element_type)}
    if shape.is_aggregate:
        record["tuple_shapes"] = [write_shape(s) for s in shape.tuple_shapes]
    elif shape.is_array:
        record["dimensions"] = [_UNBOUNDED if d == UNBOUNDED else d for d in shape.dimensions]
        record["is_dynamic_dimension"] = shape.dynamic_dimensions or (False,) * shape.rank
        record["layout"] = _write_layout(shape.layout or default_layout(shape.rank))
    return record


def _write_layout(layout: Layout) -> dict[str, Any]:
    record: dict[str, Any] = {"minor_to_major": layout.minor_to_major, "tail_padding_alignment_in_elements": 1}
    for letter, text in _PARTS.findall(layout.suffix):
        groups = [group.strip() for group in text[1:-1].split(")(")]
        record |= _layout_part(letter, groups)
    return record


def _layout_part(letter: str, groups: list[str]) -> dict[str, Any]:
    if letter == "T":
        return {"tiles": [{"dimensions": [_UNBOUNDED if d == "*" else int(d) for d in g.split(",") if d]}
                          for g in groups]}
    if letter == "D":
        return _write_levels(groups[0].split(","))
    if letter == "SC":
        pairs = [g.split(":") for g in groups]
        return {"split_configs": [{"dimension": int(d), "split_indices": [int(i) for i in rest.split(",") if i]}
                                  for d, rest in pairs]}
    if letter in ("#", "*"):
        name = groups[0].upper()
        if name not in ENUMS["PrimitiveType"].numbers:
            raise UnsupportedError(f"the element type {groups[0]} in a layout")
        return {dict(_TYPES)[letter]: name}
    fields = {"L": "tail_padding_alignment_in_elements", "M": "dynamic_shape_metadata_prefix_bytes", **dict(_NUMBERS)}
    return {fields[letter]: int(groups[0])}


def _write_levels(letters: list[str]) -> dict[str, Any]:
    names = {letter: name for name, letter in _LEVELS.items()}
    return {"dim_level_types": [names[text[0]] for text in letters], "dim_unique": ["+" not in t for t in letters],
            "dim_ordered": ["~" not in t for t in letters]}
