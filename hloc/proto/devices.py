"""Shardings, device groups and meshes: from text to messages and back.

    read_sharding(record)                        {devices=[2,1]<=[2] last_tile_dim_replicate}
    write_sharding("{maximal device=3}")         {"type": "MAXIMAL", "tile_assignment_devices": (3,)}
    write_groups("[2,2]<=[4]")                   {"iota_collective_device_list": {...}}

Texts are as XLA prints them (xla/hlo/ir: hlo_sharding.cc, named_sharding.cc, mesh_and_axis.cc, replica_group.cc).
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hloc.errors import ParseError, Span, UnsupportedError
from hloc.phrases import Phrase
from hloc.proto.notes import metadata_phrase, read_metadata
from hloc.proto.wire import Record
from hloc.sharding.annotation import AXIS_ROLES, AxisUse, DimensionAxes, Iota, NamedMesh, Role, Sharding, listed
from hloc.sharding.text import parse_sharding, read_axes, read_iota, read_mesh

_WORDS = {"replicated": "REPLICATED", "manual": "MANUAL", "unknown": "UNKNOWN", "unreduced": "UNREDUCED"}
_TYPES = {type_name: word for word, type_name in _WORDS.items()}


# -- shardings ---------------------------------------------------------------------------------------------------------

def read_sharding(record: Record) -> str:
    return str(_sharding_of(record))


def _sharding_of(record: Record) -> Sharding:
    if record["type"] == "TUPLE":
        return Sharding("tuple", parts=tuple(map(_sharding_of, record["tuple_shardings"])))
    if "named_sharding" in record:
        return _named_of(record["named_sharding"])
    kind = _TYPES.get(record["type"], "maximal" if record["type"] == "MAXIMAL" else "tiled")
    devices = record["tile_assignment_devices"]
    iota = Iota(record["iota_reshape_dims"], record["iota_transpose_perm"] or tuple(
        range(len(record["iota_reshape_dims"]))))
    group = (record["shard_group_type"].lower(), record["shard_group_id"]) if record["is_shard_group"] else None
    return Sharding(kind, device=devices[0] if kind == "maximal" and devices else None,
                    tiles=record["tile_assignment_dimensions"] if kind == "tiled" else (),
                    devices=(iota if iota.sizes else devices) if kind == "tiled" else None,
                    replicate_last=bool(record["replicate_on_last_tile_dim"]),
                    subgroups=tuple(_TYPES.get(t, t.lower()) for t in record["last_tile_dims"]), group=group,
                    metadata=_read_metadata_list(record["metadata"]) if record["metadata"] else "")


def _read_metadata_list(records: tuple[Record, ...]) -> str:
    texts = [read_metadata(r) for r in records]
    return texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"


def _named_of(record: Record) -> Sharding:
    mesh = record.part("mesh")
    names = [axis["name"] for axis in mesh["axes"]]
    metadata = "{" + ", ".join(read_metadata(m) for m in record["metadata"]) + "}" if record["metadata"] else ""
    if not names and mesh["device_ids"]:
        return Sharding("named", device=mesh["device_ids"][0], metadata=metadata)
    roles = [Role(key, tuple(_axis_of(a, names) for a in record[f"{key}_axes"])) for key in AXIS_ROLES]
    dimensions = [DimensionAxes(tuple(_axis_of(a, names) for a in d["axes"]), not d["is_closed"])
                  for d in record["dim_shardings"]]
    return Sharding("named", mesh=_mesh_of(mesh), dimensions=tuple(dimensions),
                    roles=tuple(role for role in roles if role.axes), metadata=metadata)


def _mesh_of(mesh: Record) -> NamedMesh:
    """mesh['x'=2,'y'=2], device_ids=(3,2,1,0)"""
    axes = tuple((axis["name"], axis["size"]) for axis in mesh["axes"])
    if mesh["device_ids"]:
        return NamedMesh(axes, mesh["device_ids"])
    iota = mesh["iota_transform"]
    if iota is None or not iota["reshape_dims"]:
        return NamedMesh(axes)
    return NamedMesh(axes, Iota(iota["reshape_dims"], iota["transpose_perm"]))


def _axis_of(record: Record, names: list[str]) -> AxisUse:
    """'x', or 'x':(1)2 for a part of it."""
    index = record["mesh_axis_index"]
    name = names[index] if 0 <= index < len(names) else "?"
    part = record["sub_axis_info"]
    return AxisUse(name) if part is None else AxisUse(name, part["pre_size"], part["size"])


def write_sharding(text: str, span: Span | None = None) -> dict[str, Any]:
    return _record_of(parse_sharding(text, span), span)


def _record_of(sharding: Sharding, span: Span | None) -> dict[str, Any]:
    if sharding.kind == "tuple":
        return {"type": "TUPLE", "tuple_shardings": [_record_of(part, span) for part in sharding.parts]}
    if sharding.kind == "named":
        return {"named_sharding": _named_record(sharding, span)}
    record: dict[str, Any] = {"type": _WORDS.get(sharding.kind, "MAXIMAL" if sharding.kind == "maximal" else "OTHER")}
    if sharding.kind == "maximal":
        record["tile_assignment_devices"] = (sharding.device,)
    if sharding.kind == "tiled":
        assert sharding.devices is not None
        record |= {"tile_assignment_dimensions": sharding.tiles, **_device_fields(sharding.devices)}
    if sharding.replicate_last:
        record["replicate_on_last_tile_dim"] = True
    if sharding.subgroups:
        record["last_tile_dims"] = [_WORDS.get(w) or w.upper() for w in sharding.subgroups]
    if sharding.group:
        record |= {"is_shard_group": True, "shard_group_type": sharding.group[0].upper(),
                   "shard_group_id": sharding.group[1]}
    if sharding.metadata:
        record["metadata"] = _write_metadata_list(sharding.metadata, span)
    return record


def _device_fields(devices: Iota | tuple[int, ...]) -> dict[str, Any]:
    if isinstance(devices, Iota):
        return {"iota_reshape_dims": devices.sizes, "iota_transpose_perm": devices.order}
    return {"tile_assignment_devices": list(devices)}


def _write_metadata_list(text: str, span: Span | None) -> list[dict[str, Any]]:
    """{...} or {{...}, {...}}"""
    inner = Phrase(text, span)
    if not text[1:].lstrip().startswith("{"):
        return [metadata_phrase(inner)]
    inner.expect("{")
    found = []
    while not inner.accept("}"):
        found.append(metadata_phrase(inner))
        inner.accept(",")
    return found


def _named_record(sharding: Sharding, span: Span | None) -> dict[str, Any]:
    record: dict[str, Any] = {}
    if sharding.device is not None:
        return {"mesh": {"device_ids": (sharding.device,)}}
    if sharding.word:
        raise UnsupportedError(f"a proto has no {sharding.word} of a mesh without axes", span)
    assert sharding.mesh is not None
    names = [name for name, _ in sharding.mesh.axes]
    record = {"mesh": _mesh_record(sharding.mesh), "dim_shardings": [
        {"axes": _axis_records(d.axes, names, span), "is_closed": not d.is_open} for d in sharding.dimensions]}
    if sharding.metadata:
        record["metadata"] = _write_metadata_list(sharding.metadata, span)
    for role in sharding.roles:
        if role.combiner:
            raise UnsupportedError(f"a proto has no {role.name}={role.combiner} of a sharding", span)
        record[f"{role.name}_axes"] = _axis_records(role.axes, names, span)
    return record


def _mesh_record(mesh: NamedMesh) -> dict[str, Any]:
    record: dict[str, Any] = {"axes": [{"name": name, "size": size} for name, size in mesh.axes]}
    if isinstance(mesh.devices, Iota):
        record["iota_transform"] = {"reshape_dims": mesh.devices.sizes, "transpose_perm": mesh.devices.order}
    elif mesh.devices is not None:
        record["device_ids"] = mesh.devices
    return record


def _axis_records(axes: Sequence[AxisUse], names: list[str], span: Span | None) -> list[dict[str, Any]]:
    records = []
    for axis in axes:
        if axis.name not in names:
            raise ParseError(f"the mesh has no axis {axis.name!r}", span)
        record: dict[str, Any] = {"mesh_axis_index": names.index(axis.name)}
        if axis.size is not None:
            record["sub_axis_info"] = {"pre_size": axis.before, "size": axis.size}
        records.append(record)
    return records


# -- groups of devices -------------------------------------------------------------------------------------------------

def read_groups(record: Record) -> str:
    """replica_groups of an instruction, in the form of its message."""
    if "iota_collective_device_list" in record:
        iota = record["iota_collective_device_list"]
        return (f"[{iota['num_replica_groups']},{iota['num_devices_per_group']}]"
                + f"<={Iota(iota['iota_reshape_dims'], iota['iota_transpose_perm'])}")
    if "mesh_axes_replica_group_list" in record:
        groups = record["mesh_axes_replica_group_list"]
        mesh = groups.part("mesh")
        names = [a["name"] for a in mesh["axes"]]
        return f"{_mesh_of(mesh)} {DimensionAxes(tuple(_axis_of(a, names) for a in groups['axes']))}"
    groups = record.part("collective_device_list")["replica_groups"] or record["replica_groups"]
    return "{" + ",".join("{" + listed(g["replica_ids"]) + "}" for g in groups) + "}"


def write_groups(text: str, span: Span | None = None) -> dict[str, Any]:
    phrase = Phrase(text, span)
    if phrase.text == "[":
        sizes = phrase.integers("[", "]")
        iota = read_iota(phrase)
        if len(sizes) != 2:
            raise phrase.error("[groups, devices per group]")
        return {"iota_collective_device_list": {
            "num_replica_groups": sizes[0], "num_devices_per_group": sizes[1], "iota_reshape_dims": iota.sizes,
            "iota_transpose_perm": iota.order}}
    if phrase.text == "mesh":
        mesh = read_mesh(phrase)
        names = [name for name, _ in mesh.axes]
        return {"mesh_axes_replica_group_list": {
            "mesh": _mesh_record(mesh), "axes": _axis_records(read_axes(phrase).axes, names, span)}}
    groups = [{"replica_ids": g} for g in phrase.lists()]
    phrase.end()
    return {"collective_device_list": {"replica_groups": groups}}
