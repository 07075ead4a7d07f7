"""The text of shardings -> Sharding. Source of the forms: xla/hlo/parser/hlo_parser.cc (ParseSingleSharding).

    parse_sharding("{devices=[2,1]<=[2]}")            Sharding("tiled", tiles=(2, 1), devices=Iota((2,), (0,)))

Raises ParseError, at the span that is given, for what is none of the forms.
"""
from __future__ import annotations

import math
from functools import lru_cache

from hloc.errors import HlocError, Span
from hloc.phrases import Phrase
from hloc.sharding.annotation import (
    AXIS_ROLES,
    LARGEST_DEVICE_COUNT,
    WORDS,
    AxisUse,
    DimensionAxes,
    Iota,
    NamedMesh,
    Role,
    Sharding,
)

MAX_DEPTH = 100


def parse_sharding(text: str, span: Span | None = None) -> Sharding:
    """One annotation, with its braces. The same texts stand on most instructions of a module: they are read once."""
    try:
        return _parsed(text)
    except HlocError:
        return _whole(Phrase(text, span))                       # raises the error again, with its place


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Sharding:
    return _whole(Phrase(text))


def _whole(phrase: Phrase) -> Sharding:
    found = read_sharding(phrase)
    phrase.end()
    return found


def read_sharding(phrase: Phrase, depth: int = 0) -> Sharding:
    """The sharding that stands here; goes on behind it."""
    if depth > MAX_DEPTH:
        raise phrase.error(f"a sharding of at most {MAX_DEPTH} levels")
    phrase.expect("{")
    if phrase.text in ("{", "}"):
        parts = []
        while not phrase.accept("}"):
            parts.append(read_sharding(phrase, depth + 1))
            phrase.accept(",")
        return Sharding("tuple", parts=tuple(parts))
    if phrase.text in ("mesh", "maximal_mesh"):
        return _named(phrase)
    facts: dict = {}
    while not phrase.accept("}"):
        facts |= _word(phrase)
    if "kind" not in facts:
        raise phrase.error("a sharding")
    return Sharding(**facts)


def _word(phrase: Phrase) -> dict:
    word = phrase.word()
    if word in WORDS:
        return {"kind": word}
    if word == "last_tile_dim_replicate":
        return {"replicate_last": True}
    if word in ("shard_as", "shard_like"):
        return {"group": (word.partition("_")[2], phrase.integer())}
    if word == "maximal":
        phrase.expect("device")
        phrase.expect("=")
        return {"kind": "maximal", "device": phrase.integer()}
    if word == "metadata":
        phrase.expect("=")
        return {"metadata": phrase.balanced()}
    if word == "last_tile_dims":
        phrase.expect("=")
        return {"subgroups": _words(phrase)}
    if word != "devices":
        raise phrase.error(f"a word of a sharding (not {word})")
    phrase.expect("=")
    return {"kind": "tiled", "tiles": phrase.integers("[", "]"), "devices": _devices(phrase)}


def _words(phrase: Phrase) -> tuple[str, ...]:
    """{manual, replicated}"""
    phrase.expect("{")
    words = []
    while not phrase.accept("}"):
        words.append(phrase.word())
        phrase.accept(",")
    return tuple(words)


def _devices(phrase: Phrase) -> Iota | tuple[int, ...]:
    """<=[4]T(0), or a list of numbers without brackets."""
    if phrase.text == "<=":
        return read_iota(phrase)
    numbers = [phrase.integer()]
    while phrase.accept(","):
        numbers.append(phrase.integer())
    return tuple(numbers)


def read_iota(phrase: Phrase) -> Iota:
    """<=[2,2]T(1,0)"""
    phrase.expect("<=")
    return _sizes_and_order(phrase)


def _sizes_and_order(phrase: Phrase) -> Iota:
    sizes = phrase.integers("[", "]")
    order = phrase.integers("(", ")") if phrase.accept("T") else tuple(range(len(sizes)))
    if sorted(order) != list(range(len(sizes))):
        raise phrase.error(f"an order of the {len(sizes)} dimensions before T")
    if math.prod(sizes) > LARGEST_DEVICE_COUNT:
        raise phrase.error(f"at most {LARGEST_DEVICE_COUNT} devices")
    return Iota(sizes, order)


# -- meshes ------------------------------------------------------------------------------------------------------------

def _named(phrase: Phrase) -> Sharding:
    if phrase.accept("maximal_mesh"):
        for word in ("[", "device_id", "="):
            phrase.expect(word)
        device = phrase.integer()
        phrase.expect("]")
        return Sharding("named", device=device, **_roles(phrase))
    mesh = read_mesh(phrase)
    phrase.accept(",")
    if phrase.text in WORDS:
        return Sharding("named", mesh=mesh, word=phrase.word(), **_roles(phrase))
    return Sharding("named", mesh=mesh, dimensions=read_dimensions(phrase), **_roles(phrase))


def _roles(phrase: Phrase) -> dict:
    roles, metadata = [], ""
    while not phrase.accept("}"):
        phrase.accept(",")
        key = phrase.word()
        phrase.expect("=")
        if key == "metadata":
            metadata = phrase.balanced()
        elif key in AXIS_ROLES:
            combiner = "" if phrase.text == "{" else phrase.word()
            roles.append(Role(key, read_axes(phrase).axes, combiner))
        else:
            raise phrase.error(f"{', '.join(AXIS_ROLES)} or metadata (not {key})")
    return {"roles": tuple(roles), "metadata": metadata}


def read_mesh(phrase: Phrase) -> NamedMesh:
    """mesh['x'=2,'y'=4], device_ids=(...): the mesh that stands here."""
    phrase.expect("mesh")
    axes = read_axis_sizes(phrase)
    if phrase.text == "," and phrase.whole[phrase.at:].lstrip().startswith("device_ids"):
        phrase.step()
    if not phrase.accept("device_ids"):
        return NamedMesh(axes)
    phrase.expect("=")
    text = phrase.balanced()
    inner = Phrase(text, phrase.span)
    if not text[1:].lstrip().startswith("["):
        return NamedMesh(axes, inner.integers("(", ")"))
    inner.expect("(")
    return NamedMesh(axes, _sizes_and_order(inner))


def read_axis_sizes(phrase: Phrase) -> tuple[tuple[str, int], ...]:
    """['x'=2,'y'=4]"""
    phrase.expect("[")
    axes = []
    while not phrase.accept("]"):
        name = _name(phrase)
        phrase.expect("=")
        axes.append((name, phrase.integer()))
        phrase.accept(",")
    return tuple(axes)


def read_dimensions(phrase: Phrase) -> tuple[DimensionAxes, ...]:
    """[{'x'}, {?}]"""
    phrase.expect("[")
    dimensions = []
    while not phrase.accept("]"):
        dimensions.append(read_axes(phrase))
        phrase.accept(",")
    return tuple(dimensions)


def read_axes(phrase: Phrase) -> DimensionAxes:
    """{'x', 'y':(1)2, ?}: the axes, and whether more may follow. A priority behind it (p0) is read over."""
    phrase.expect("{")
    axes, is_open = [], False
    while not phrase.accept("}"):
        if phrase.accept("?"):
            is_open = True
            continue
        name = _name(phrase)
        if phrase.accept(":"):
            before, = phrase.integers("(", ")") or (1,)
            axes.append(AxisUse(name, before, phrase.integer()))
        else:
            axes.append(AxisUse(name))
        phrase.accept(",")
    if phrase.text[:1] == "p" and phrase.text[1:].isdigit():
        phrase.step()
    return DimensionAxes(tuple(axes), is_open)


def _name(phrase: Phrase) -> str:
    return phrase.string().decode("utf-8", "replace")
