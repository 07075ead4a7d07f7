"""Shardings, device groups and meshes: their texts and their messages, both ways.

    read_sharding(record)                        {devices=[2,1]<=[2] last_tile_dim_replicate}
    write_sharding("{maximal device=3}")         {"type": "MAXIMAL", "tile_assignment_devices": (3,)}
    write_groups("[2,2]<=[4]")                   {"iota_collective_device_list": {...}}

Texts are as XLA prints them (xla/hlo/ir: hlo_sharding.cc, named_sharding.cc, mesh_and_axis.cc, replica_group.cc).
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hloc.errors import Span, UnsupportedError
from hloc.proto.notes import metadata_phrase, read_metadata
from hloc.proto.phrases import Phrase, escaped
from hloc.proto.wire import Record

_WORDS = {"replicated": "REPLICATED", "manual": "MANUAL", "unknown": "UNKNOWN", "unreduced": "UNREDUCED"}
_TYPES = {type_name: word for word, type_name in _WORDS.items()}
_AXES = ("replicated", "unreduced", "manual")
MAX_DEPTH = 100


def _listed(values: Iterable[object], comma: str = ",") -> str:
    return comma.join(map(str, values))


# -- shardings ---------------------------------------------------------------------------------------------------------

def read_sharding(record: Record) -> str:
    if record["type"] == "TUPLE":
        parts = [read_sharding(part) for part in record["tuple_shardings"]]
        marked = [f"/*index={i}*/{p}" if i and i % 5 == 0 else p for i, p in enumerate(parts)]
        return "{" + ", ".join(marked) + "}"
    if "named_sharding" in record:
        return _read_named(record["named_sharding"])
    words = [_read_placement(record)]
    if record["replicate_on_last_tile_dim"]:
        words.append("last_tile_dim_replicate")
    if record["last_tile_dims"]:
        words.append("last_tile_dims={" + ", ".join(_TYPES.get(t, t.lower()) for t in record["last_tile_dims"]) + "}")
    if record["is_shard_group"]:
        words.append(f"shard_{record['shard_group_type'].lower()} {record['shard_group_id']}")
    if record["metadata"]:
        words.append("metadata=" + _read_metadata_list(record["metadata"]))
    return "{" + " ".join(words) + "}"


def _read_metadata_list(records: tuple[Record, ...]) -> str:
    texts = [read_metadata(r) for r in records]
    return texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"


def _read_placement(record: Record) -> str:
    kind = record["type"]
    if kind in _TYPES:
        return _TYPES[kind]
    if kind == "MAXIMAL":
        return f"maximal device={_listed(record['tile_assignment_devices'])}"
    tiles = f"devices=[{_listed(record['tile_assignment_dimensions'])}]"
    if record["iota_reshape_dims"]:
        return tiles + _read_iota(record["iota_reshape_dims"], record["iota_transpose_perm"])
    return tiles + _listed(record["tile_assignment_devices"])


def _read_iota(sizes: tuple[int, ...], order: tuple[int, ...]) -> str:
    """<=[2,2]T(1,0): counting up in that shape, transposed."""
    transposed = f"T({_listed(order)})" if order and order != tuple(range(len(order))) else ""
    return f"<=[{_listed(sizes)}]{transposed}"


def write_sharding(text: str, span: Span | None = None) -> dict[str, Any]:
    phrase = Phrase(text, span)
    record = _sharding(phrase, 0)
    phrase.end()
    return record


def _sharding(phrase: Phrase, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise phrase.error(f"a sharding of at most {MAX_DEPTH} levels")
    phrase.expect("{")
    if phrase.text in ("{", "}"):
        parts = []
        while not phrase.accept("}"):
            parts.append(_sharding(phrase, depth + 1))
            phrase.accept(",")
        return {"type": "TUPLE", "tuple_shardings": parts}
    if phrase.text in ("mesh", "maximal_mesh"):
        return {"named_sharding": _write_named(phrase)}
    record: dict[str, Any] = {}
    while not phrase.accept("}"):
        record |= _sharding_word(phrase)
    return record


def _sharding_word(phrase: Phrase) -> dict[str, Any]:
    word = phrase.word()
    if word in _WORDS:
        return {"type": _WORDS[word]}
    if word == "last_tile_dim_replicate":
        return {"replicate_on_last_tile_dim": True}
    if word in ("shard_as", "shard_like"):
        group = word.partition("_")[2].upper()
        return {"is_shard_group": True, "shard_group_type": group, "shard_group_id": phrase.integer()}
    if word == "maximal":
        phrase.expect("device")
        phrase.expect("=")
        return {"type": "MAXIMAL", "tile_assignment_devices": (phrase.integer(),)}
    if word == "metadata":
        phrase.expect("=")
        return {"metadata": _write_metadata_list(phrase)}
    if word == "last_tile_dims":
        phrase.expect("=")
        return {"last_tile_dims": [_WORDS.get(w) or w.upper() for w in _words(phrase)]}
    if word != "devices":
        raise phrase.error(f"a word of a sharding (not {word})")
    phrase.expect("=")
    return {"type": "OTHER", "tile_assignment_dimensions": phrase.integers("[", "]"), **_devices(phrase)}


def _words(phrase: Phrase) -> list[str]:
    """{manual, replicated}"""
    phrase.expect("{")
    words = []
    while not phrase.accept("}"):
        words.append(phrase.word())
        phrase.accept(",")
    return words


def _devices(phrase: Phrase) -> dict[str, Any]:
    """<=[4]T(0), or a list of numbers without brackets."""
    if phrase.text == "<=":
        sizes, order = _iota(phrase)
        return {"iota_reshape_dims": sizes, "iota_transpose_perm": order}
    numbers = [phrase.integer()]
    while phrase.accept(","):
        numbers.append(phrase.integer())
    return {"tile_assignment_devices": numbers}


def _iota(phrase: Phrase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    phrase.expect("<=")
    sizes = phrase.integers("[", "]")
    return sizes, phrase.integers("(", ")") if phrase.accept("T") else tuple(range(len(sizes)))


def _write_metadata_list(phrase: Phrase) -> list[dict[str, Any]]:
    """{...} or {{...}, {...}}"""
    text = phrase.balanced()
    inner = Phrase(text, phrase.span)
    if not text[1:].lstrip().startswith("{"):
        return [metadata_phrase(inner)]
    inner.expect("{")
    found = []
    while not inner.accept("}"):
        found.append(metadata_phrase(inner))
        inner.accept(",")
    return found


# -- meshes ------------------------------------------------------------------------------------------------------------

def _read_named(record: Record) -> str:
    mesh = record.part("mesh")
    names = [axis["name"] for axis in mesh["axes"]]
    if not names and mesh["device_ids"]:
        return f"{{maximal_mesh[device_id={_listed(mesh['device_ids'])}]}}"
    dims = ", ".join(_read_dimension(d, names) for d in record["dim_shardings"])
    words = [_read_mesh(mesh), f"[{dims}]"]
    words += [f"{key}={_read_axes(record[f'{key}_axes'], names)}" for key in _AXES if record[f"{key}_axes"]]
    if record["metadata"]:
        words.append("metadata={" + ", ".join(read_metadata(m) for m in record["metadata"]) + "}")
    return "{" + ", ".join(words) + "}"


def _read_mesh(mesh: Record) -> str:
    """mesh['x'=2,'y'=2], device_ids=(3,2,1,0)"""
    text = "mesh[" + ",".join(f"'{escaped(axis['name'])}'={axis['size']}" for axis in mesh["axes"]) + "]"
    if mesh["device_ids"]:
        return f"{text}, device_ids=({_listed(mesh['device_ids'])})"
    iota = mesh["iota_transform"]
    if iota is None or not iota["reshape_dims"]:
        return text
    return f"{text}, device_ids=([{_listed(iota['reshape_dims'])}]T({_listed(iota['transpose_perm'])}))"


def _read_axes(axes: tuple[Record, ...], names: list[str]) -> str:
    return "{" + ", ".join(_read_axis(a, names) for a in axes) + "}"


def _read_dimension(record: Record, names: list[str]) -> str:
    axes = [_read_axis(a, names) for a in record["axes"]]
    return "{" + ", ".join(axes if record["is_closed"] else [*axes, "?"]) + "}"


def _read_axis(record: Record, names: list[str]) -> str:
    """'x', or 'x':(1)2 for a part of it."""
    index = record["mesh_axis_index"]
    text = f"'{escaped(names[index])}'" if 0 <= index < len(names) else "'?'"
    part = record["sub_axis_info"]
    return text if part is None else f"{text}:({part['pre_size']}){part['size']}"


def _write_named(phrase: Phrase) -> dict[str, Any]:
    if phrase.accept("maximal_mesh"):
        for word in ("[", "device_id", "="):
            phrase.expect(word)
        mesh = {"device_ids": (phrase.integer(),)}
        phrase.expect("]")
        phrase.expect("}")
        return {"mesh": mesh}
    mesh, names = _write_mesh(phrase)
    phrase.accept(",")
    phrase.expect("[")
    record: dict[str, Any] = {"mesh": mesh, "dim_shardings": []}
    while not phrase.accept("]"):
        axes, is_open = _write_axes(phrase, names)
        record["dim_shardings"].append({"axes": axes, "is_closed": not is_open})
        phrase.accept(",")
    while not phrase.accept("}"):
        phrase.accept(",")
        key = phrase.word()
        phrase.expect("=")
        if key == "metadata":
            record["metadata"] = _write_metadata_list(phrase)
        elif key in _AXES:
            if phrase.text != "{":
                raise UnsupportedError(f"a proto has no {key}={phrase.text} of a sharding", phrase.span)
            record[f"{key}_axes"] = _write_axes(phrase, names)[0]
        else:
            raise phrase.error(f"replicated, unreduced, manual or metadata (not {key})")
    return record


def _write_mesh(phrase: Phrase) -> tuple[dict[str, Any], list[str]]:
    """The mesh that stands here, and the names of its axes."""
    phrase.expect("mesh")
    phrase.expect("[")
    axes = []
    while not phrase.accept("]"):
        name = phrase.string().decode("utf-8", "replace")
        phrase.expect("=")
        axes.append({"name": name, "size": phrase.integer()})
        phrase.accept(",")
    mesh: dict[str, Any] = {"axes": axes}
    if phrase.text == "," and phrase.whole[phrase.at:].lstrip().startswith("device_ids"):
        phrase.step()
    if phrase.accept("device_ids"):
        phrase.expect("=")
        mesh |= _write_device_ids(phrase)
    return mesh, [axis["name"] for axis in axes]


def _write_device_ids(phrase: Phrase) -> dict[str, Any]:
    """(3,2,1,0) or ([2,2]T(1,0))"""
    text = phrase.balanced()
    inner = Phrase(text, phrase.span)
    if not text[1:].lstrip().startswith("["):
        return {"device_ids": inner.integers("(", ")")}
    inner.expect("(")
    sizes = inner.integers("[", "]")
    order = inner.integers("(", ")") if inner.accept("T") else tuple(range(len(sizes)))
    return {"iota_transform": {"reshape_dims": sizes, "transpose_perm": order}}


def _write_axes(phrase: Phrase, names: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """{'x', 'y':(1)2, ?}: the axes, and whether more may follow."""
    phrase.expect("{")
    axes, is_open = [], False
    while not phrase.accept("}"):
        if phrase.accept("?"):
            is_open = True
            continue
        name = phrase.string().decode("utf-8", "replace")
        if name not in names:
            raise phrase.error(f"an axis of the mesh (not {name!r})")
        axis: dict[str, Any] = {"mesh_axis_index": names.index(name)}
        if phrase.accept(":"):
            before, = phrase.integers("(", ")") or (1,)
            axis["sub_axis_info"] = {"pre_size": before, "size": phrase.integer()}
        axes.append(axis)
        phrase.accept(",")
    return axes, is_open


# -- groups of devices -------------------------------------------------------------------------------------------------

def read_groups(record: Record) -> str:
    """replica_groups of an instruction, in the form that its message has."""
    if "iota_collective_device_list" in record:
        iota = record["iota_collective_device_list"]
        return (f"[{iota['num_replica_groups']},{iota['num_devices_per_group']}]"
                + _read_iota(iota["iota_reshape_dims"], iota["iota_transpose_perm"]))
    if "mesh_axes_replica_group_list" in record:
        groups = record["mesh_axes_replica_group_list"]
        mesh = groups.part("mesh")
        return f"{_read_mesh(mesh)} {_read_axes(groups['axes'], [a['name'] for a in mesh['axes']])}"
    groups = record.part("collective_device_list")["replica_groups"] or record["replica_groups"]
    return "{" + ",".join("{" + _listed(g["replica_ids"]) + "}" for g in groups) + "}"


def write_groups(text: str, span: Span | None = None) -> dict[str, Any]:
    phrase = Phrase(text, span)
    if phrase.text == "[":
        sizes = phrase.integers("[", "]")
        reshape, order = _iota(phrase)
        if len(sizes) != 2:
            raise phrase.error("[groups, devices per group]")
        return {"iota_collective_device_list": {
            "num_replica_groups": sizes[0], "num_devices_per_group": sizes[1], "iota_reshape_dims": reshape,
            "iota_transpose_perm": order}}
    if phrase.text == "mesh":
        mesh, names = _write_mesh(phrase)
        return {"mesh_axes_replica_group_list": {"mesh": mesh, "axes": _write_axes(phrase, names)[0]}}
    groups = [{"replica_ids": g} for g in phrase.lists()]
    phrase.end()
    return {"collective_device_list": {"replica_groups": groups}}
