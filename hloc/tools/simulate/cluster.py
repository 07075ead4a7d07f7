"""Cluster files: which devices there are, and by what links they are joined. docs/commands/simulate.md says what each
key means; clusters/*.json are those that have names.

    find_cluster("dgx-h100")        one of hloc's own
    find_cluster("ours.json")       a file

Raises UsageError, with the file and the key, for what is none.
"""
from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from hloc.analysis.links import Level
from hloc.errors import HlocError, ParseError, Source, Span, UsageError, printable
from hloc.files import read
from hloc.machine import Machine
from hloc.targets import find
from hloc.targets.target import Target

MOST_BYTES = 1 << 20
MOST_LEVELS = 8
MOST_DEVICES = 1 << 20
SHOWN = 60                                  # characters of a wrong value
KEYS = {"cluster": ("name", "about", "device", "levels", "sources"),
        "device": ("target", "memory", "cores", "vector_bytes", "memory_bandwidth", "kernel_time_factor"),
        "level": ("name", "joins", "bandwidth", "efficiency", "latency", "port")}


@dataclass(frozen=True)
class Cluster:
    """target: passes, kernels and costs of a device; memory: bytes of one, None: not known; time_factor: what kernels
    take over what the cost model says; sources: where the figures come from, by what they are of."""

    name: str
    target: Target
    memory: int | None
    time_factor: float
    levels: tuple[Level, ...]
    about: str = ""
    sources: Mapping[str, str] | None = None

    @property
    def devices(self) -> int:
        """The most that it holds."""
        return math.prod(level.joins for level in self.levels)


def cluster_names() -> list[str]:
    """Of the clusters that come with hloc."""
    folder = resources.files("hloc.tools.simulate").joinpath("clusters")
    return sorted(one.name.removesuffix(".json") for one in folder.iterdir() if one.name.endswith(".json"))


def find_cluster(name: str) -> Cluster:
    """By a name of cluster_names() or the path of a file."""
    if name in cluster_names():
        text = resources.files("hloc.tools.simulate").joinpath("clusters", f"{name}.json").read_text(encoding="utf-8")
        return read_cluster(text, name)
    path = Path(name)
    if path.suffix != ".json" and not path.exists():
        near = difflib.get_close_matches(name, cluster_names(), n=1)
        raise UsageError(f"no cluster is called {name!r}, and there is no such file",
                         hint=f"did you mean {near[0]}?" if near else f"clusters: {', '.join(cluster_names())}")
    try:
        text = read(path, MOST_BYTES).decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is no text in UTF-8, so no cluster file") from None
    return read_cluster(text, name)


def read_cluster(text: str, name: str) -> Cluster:
    """The content of a file; name: for messages."""
    fields = _Fields(name, "", _parsed(text, name), KEYS["cluster"])
    device = fields.inner("device", KEYS["device"])
    levels = fields.list_of("levels", MOST_LEVELS)
    if not levels:
        raise fields.wrong("levels", "must name at least one link: without one, devices cannot reach each other")
    made = tuple(_level(_Fields(name, f"levels[{n}].", one, KEYS["level"])) for n, one in enumerate(levels))
    found = Cluster(fields.text("name", name), _target(device), device.whole("memory", None),
                    device.number("kernel_time_factor", 1.0), made, fields.text("about", ""),
                    fields.texts("sources"))
    if found.devices > MOST_DEVICES:
        raise fields.wrong("levels", f"join {found.devices:,} devices; the most is {MOST_DEVICES:,}")
    return found


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ParseError(f"no JSON: {error.msg}", Span(Source(text, name), error.pos, error.pos + 1)) from None
    except (ValueError, RecursionError) as error:
        said = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ParseError(f"{name}: {said}") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no figure of a cluster")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"the key {printable(next(n for n in names if names.count(n) > 1))[:SHOWN]!r} stands twice")
    return found


class _Fields:
    """An object of the file, its keys checked. place: where it stands."""

    def __init__(self, name: str, place: str, value: Any, keys: tuple[str, ...]):
        self.name, self.place, self.value = name, place, value
        if not isinstance(value, dict):
            raise UsageError(f"{name}: {place.rstrip('.') or 'a cluster'} must be an object with the keys "
                             f"{', '.join(keys)}, is {_shown(value)}")
        unknown = next((key for key in value if key not in keys), None)
        if unknown is not None:
            near = difflib.get_close_matches(unknown, keys, n=1)
            raise UsageError(f"{name}: {place}{printable(unknown)[:SHOWN]} is no key of a cluster file",
                             hint=f"did you mean {near[0]}?" if near else f"keys: {', '.join(keys)}")

    def wrong(self, key: str, what: str) -> UsageError:
        return UsageError(f"{self.name}: {self.place}{key} {what}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self.value.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"must be a text, {_is(self.value, key)}")
        return value

    def texts(self, key: str) -> dict[str, str]:
        value = self.value.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self.wrong(key, f"must be an object of texts, {_is(self.value, key)}")
        return value

    def number(self, key: str, default: float | None = None, *, least: float = 1e-15, most: float = 1e18) -> float:
        value = self.value.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise self.wrong(key, f"must be a number of {least:g} to {most:g}, {_is(self.value, key)}")
        return float(value)

    def whole(self, key: str, default: int | None, *, most: int = 1 << 50) -> int | None:
        value = self.value.get(key, default)
        if value is None and key not in self.value:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.wrong(key, f"must be a whole number of 1 to {most:,}, {_is(self.value, key)}")
        return value

    def inner(self, key: str, keys: tuple[str, ...]) -> _Fields:
        if key not in self.value:
            raise self.wrong(key, "is missing")
        return _Fields(self.name, f"{self.place}{key}.", self.value[key], keys)

    def list_of(self, key: str, most: int) -> list[Any]:
        value = self.value.get(key, [])
        if not isinstance(value, list) or len(value) > most:
            raise self.wrong(key, f"must be a list of at most {most}, {_is(self.value, key)}")
        return value


def _is(fields: dict[str, Any], key: str) -> str:
    return f"is {_shown(fields[key])}" if key in fields else "is missing"


def _shown(value: Any) -> str:
    shown = printable(json.dumps(value)) if not isinstance(value, (dict, list)) else f"of {len(value)} parts"
    return shown if len(shown) <= SHOWN else shown[:SHOWN] + " ..."


def _level(fields: _Fields) -> Level:
    port = fields.text("port", "device")
    if port not in ("device", "unit"):
        raise fields.wrong("port", f"must be 'device' or 'unit', is {_shown(port)}")
    joins = fields.whole("joins", None, most=MOST_DEVICES)
    if joins is None:
        raise fields.wrong("joins", "is missing: how many units this link joins")
    efficiency = fields.number("efficiency", 1.0, most=1.0)
    return Level(fields.text("name"), joins, fields.number("bandwidth") * efficiency,
                 fields.number("latency", least=0.0, most=10.0), port == "unit")


def _target(fields: _Fields) -> Target:
    name = fields.text("target")
    try:
        found = find(name)
    except HlocError:
        found = None
    if found is None or name in ("auto", "cuda", "reference"):
        raise fields.wrong("target", f"must be cpu or a GPU that hloc knows, such as h100, is {_shown(name)}")
    changes: dict[str, Any] = {}
    for key, of in (("cores", "cores"), ("vector_bytes", "vector_bytes")):
        if key in fields.value:
            changes[of] = fields.whole(key, None, most=4096)
    if "memory_bandwidth" in fields.value:
        changes["bandwidth"] = fields.number("memory_bandwidth")
    if changes and found.machine.kind == "gpu":
        raise fields.wrong(next(k for k in ("cores", "vector_bytes", "memory_bandwidth") if k in fields.value),
                           f"is known of {name}: leave it out")
    return replace(found, machine=_changed(found.machine, changes)) if changes else found


def _changed(machine: Machine, changes: Mapping[str, Any]) -> Machine:
    return replace(machine, **changes)
