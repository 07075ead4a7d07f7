"""The module's header and its tables of source locations, to text and back.

    read_header(record, shapes)      {"input_output_alias": "{ {0}: (0, {}, may-alias) }", ...}
    read_tables(record)              FileNames ... FunctionNames ... FileLocations ... StackFrames ...

The numbers of replicas and partitions have no fields: they are written as a device assignment, which XLA reads.
"""
from __future__ import annotations

import re
from typing import Any

from hloc.errors import UnsupportedError
from hloc.ir.attributes import Verbatim
from hloc.ir.module import Module
from hloc.ir.shapes import Shape
from hloc.phrases import escaped, unescaped
from hloc.proto.notes import read_frontend_attributes, text_of, write_frontend_attributes
from hloc.proto.shapes import ShapeReader, write_shape
from hloc.proto.wire import Record
from hloc.text.header import aliases, donors, entry_layout

_ALIAS_KINDS = {"MAY_ALIAS": "may-alias", "MUST_ALIAS": "must-alias"}
_LOCATION = ("file_name_id", "function_name_id", "line", "end_line", "column", "end_column")
_FRAME = ("file_location_id", "parent_frame_id")
_HEADS = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)", re.MULTILINE)
_ROW = re.compile(r"""([0-9]+)\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\{[^{}]*\})""", re.DOTALL)
_PAIR = re.compile(r"(\w+)\s*=\s*(-?\d+)")
MOST_DEVICES = 1 << 20
# Header attributes that control XLA and do not affect the program's meaning; a proto has no fields for them.
LEFT_OUT = frozenset(["allow_spmd_sharding_propagation_to_parameters", "allow_spmd_sharding_propagation_to_output",
                      "alias_passthrough_params", "origin_recovery_table", "debug_attributes"])
_WRITTEN = frozenset(["input_output_alias", "buffer_donor", "entry_computation_layout", "frontend_attributes",
                      "replica_count", "num_partitions"])


def _index(numbers: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def read_header(record: Record, shapes: ShapeReader) -> dict[str, Any]:
    """The header's attributes, in XLA's order."""
    texts = {"input_output_alias": _read_aliases(record), "buffer_donor": _read_donors(record),
             "entry_computation_layout": _read_layout(record, shapes), **_read_device_counts(record),
             "frontend_attributes": read_frontend_attributes(record.part("frontend_attributes"))}
    return {key: Verbatim(text) for key, text in texts.items() if text}


def _read_aliases(record: Record) -> str:
    words = [f"{_index(e['output_shape_index'])}: ({e['parameter_number']}, {_index(e['parameter_shape_index'])}, "
             f"{_ALIAS_KINDS.get(e['kind'], 'may-alias')})" for e in record.part("input_output_alias")["entries"]]
    return "{ " + ", ".join(words) + " }" if words else ""


def _read_donors(record: Record) -> str:
    words = [f"({e['parameter_number']}, {_index(e['parameter_shape_index'])})"
             for e in record.part("buffer_donor")["entries"]]
    return "{ " + ", ".join(words) + " }" if words else ""


def _read_layout(record: Record, shapes: ShapeReader) -> str:
    if "host_program_shape" not in record:
        return ""
    program = record["host_program_shape"]
    parameters = Shape.tuple(shapes.read(p) for p in program["parameters"])
    result = shapes.read(program["result"]) if "result" in program else None
    return "" if result is None else f"{{{parameters}->{result}}}"


def _read_device_counts(record: Record) -> dict[str, str]:
    devices = record.part("device_assignment")
    counts = {"replica_count": devices["replica_count"], "num_partitions": devices["computation_count"]}
    return {key: str(count) for key, count in counts.items() if count > 1}


def read_tables(record: Record) -> str:
    """The tables after the header; "" if there are none."""
    index = record["stack_frame_index"]
    if index is None:
        return ""
    names = (("FileNames", "file_names"), ("FunctionNames", "function_names"))
    parts = [_table(head, [f'"{escaped(name)}"' for name in index[field]]) for head, field in names]
    parts.append(_table("FileLocations", [_braces(r, _LOCATION) for r in index["file_locations"]]))
    parts.append(_table("StackFrames", [_braces(r, _FRAME) for r in index["stack_frames"]]))
    return "\n\n".join(p for p in parts if p)


def _table(head: str, rows: list[str]) -> str:
    return "\n".join([head, *(f"{i} {row}" for i, row in enumerate(rows, 1))]) if rows else ""


def _braces(record: Record, names: tuple[str, ...]) -> str:
    """Text in braces. Parents are counted from 1 in the text; a frame without a parent names itself."""
    return "{" + " ".join(f"{n}={record[n] + (n == 'parent_frame_id')}" for n in names) + "}"


# -- writing -----------------------------------------------------------------------------------------------------------

def write_header(module: Module) -> dict[str, Any]:
    """The module's fields for header and tables. Raises UnsupportedError for attributes that a proto cannot hold."""
    unknown = [key for key in module.attributes if key not in _WRITTEN | LEFT_OUT]
    if unknown:
        raise UnsupportedError(f"a proto has no field for the module's attribute {unknown[0]}")
    numbers = {value: key for key, value in _ALIAS_KINDS.items()}
    record: dict[str, Any] = {
        "input_output_alias": {"entries": [
            {"output_shape_index": a.output, "parameter_number": a.parameter,
             "parameter_shape_index": a.parameter_index, "kind": numbers[a.kind]} for a in aliases(module)]},
        "buffer_donor": {"entries": [{"parameter_number": d.parameter, "parameter_shape_index": d.parameter_index}
                                     for d in donors(module)]},
        "host_program_shape": _write_layout(module), **_write_device_counts(module), **write_tables(module.tables)}
    if "frontend_attributes" in module.attributes:
        record["frontend_attributes"] = write_frontend_attributes(module.attributes["frontend_attributes"])
    return record


def _write_layout(module: Module) -> dict[str, Any]:
    layout = entry_layout(module)
    parameters = module.entry.parameters
    shapes, result = layout or (tuple(p.shape for p in parameters), module.entry.root.shape)
    names = [p.name for p in parameters] if len(parameters) == len(shapes) else []
    return {"parameters": [write_shape(s) for s in shapes], "result": write_shape(result), "parameter_names": names}


def _write_device_counts(module: Module) -> dict[str, Any]:
    """Devices in increasing order: replica by replica in each partition."""
    replicas, partitions = (int(module.attributes.get(key, 1)) for key in ("replica_count", "num_partitions"))
    if replicas <= 1 and partitions <= 1:
        return {}
    if not 0 < replicas * partitions <= MOST_DEVICES:
        raise UnsupportedError(f"more than {MOST_DEVICES} devices")
    devices = [{"replica_device_ids": [r * partitions + p for r in range(replicas)]} for p in range(partitions)]
    return {"device_assignment": {"replica_count": replicas, "computation_count": partitions,
                                  "computation_devices": devices}}


def write_tables(text: str) -> dict[str, Any]:
    """The stack frames of the tables' text."""
    if not text:
        return {}
    heads = list(_HEADS.finditer(text))
    ends = [h.start() for h in heads[1:]] + [len(text)]
    tables = {head[1]: [row[2] for row in _ROW.finditer(text, head.end(), end)] for head, end in zip(heads, ends)}
    index: dict[str, Any] = {}
    for head, field in (("FileNames", "file_names"), ("FunctionNames", "function_names")):
        index[field] = [text_of(unescaped(row[1:-1])) for row in tables.get(head, ())]
    index["file_locations"] = [_numbers(row, _LOCATION) for row in tables.get("FileLocations", ())]
    index["stack_frames"] = [_numbers(row, _FRAME) for row in tables.get("StackFrames", ())]
    return {"stack_frame_index": index}


def _numbers(row: str, names: tuple[str, ...]) -> dict[str, int]:
    found = {key: int(value) for key, value in _PAIR.findall(row)}
    if "parent_frame_id" in found:
        found["parent_frame_id"] -= 1
    return {key: value for key, value in found.items() if key in names}
