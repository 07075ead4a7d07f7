"""Shardy's annotations, as JAX writes them into frontend attributes.

    frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=4]>}}                              of a module
    frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{}, {\\"x\\"}]>"}                of an array
    frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{}]>]>"}             of several
    frontend_attributes={xla.sdy.manual_axes="#sdy<manual_axes{\\"x\\"}>"}                        of a manual region

Out: NamedMesh and Sharding, as hloc/sharding/text.py makes them of XLA's own form. Source of the forms: Shardy's
dialect (shardy/dialect/sdy/ir), and xla/service/spmd/shardy/constants.h for the names.
"""
from __future__ import annotations

from collections.abc import Mapping

from hloc.errors import Span
from hloc.phrases import Phrase, unescaped
from hloc.sharding.annotation import Iota, NamedMesh, Role, Sharding
from hloc.sharding.text import read_axes, read_axis_sizes, read_dimensions

MESHES, SHARDING, MANUAL_AXES = "xla.sdy.meshes", "xla.sdy.sharding", "xla.sdy.manual_axes"
IN_SHARDINGS, OUT_SHARDINGS = "xla.sdy.in_shardings", "xla.sdy.out_shardings"

Meshes = Mapping[str, NamedMesh]


def frontend_attributes(text: str, span: Span | None = None) -> dict[str, str]:
    """{a="text",b={...}}: the values by their names, without quotes and escapes."""
    phrase, found = Phrase(text, span), {}
    phrase.expect("{")
    while not phrase.accept("}"):
        name = phrase.word()
        phrase.expect("=")
        if phrase.is_string():
            found[name] = unescaped(phrase.step()[1:-1]).decode("utf-8", "replace")
        else:
            found[name] = phrase.balanced()
        phrase.accept(",")
    return found


def meshes_of(attributes: Mapping[str, str], span: Span | None = None) -> dict[str, NamedMesh]:
    """The meshes that a module's frontend attributes define, by name."""
    text = attributes.get(MESHES)
    if text is None:
        return {}
    phrase, found = Phrase(text, span), {}
    phrase.expect("{")
    while not phrase.accept("}"):
        name = phrase.word()
        phrase.expect("=")
        _words(phrase, "#", "sdy.mesh", "<")
        axes, devices = read_axis_sizes(phrase), None
        if phrase.accept(","):
            _words(phrase, "device_ids", "=")
            devices = phrase.integers("[", "]")
        phrase.expect(">")
        found[name] = NamedMesh(axes, devices)
        phrase.accept(",")
    return found


def shardings_of(text: str, meshes: Meshes, span: Span | None = None) -> list[Sharding]:
    """One sharding for each value, of either form. Raises ParseError, where a mesh is not defined too."""
    phrase = Phrase(text, span)
    _words(phrase, "#")
    if phrase.accept("sdy.sharding"):
        found = [_sharding(phrase, meshes)]
    else:
        _words(phrase, "sdy.sharding_per_value", "<", "[")
        found = []
        while not phrase.accept("]"):
            found.append(_sharding(phrase, meshes))
            phrase.accept(",")
        phrase.expect(">")
    phrase.end()
    return found


def manual_axes(text: str, span: Span | None = None) -> tuple[str, ...]:
    """The names of the axes along which a region is manual."""
    phrase = Phrase(text, span)
    _words(phrase, "#", "sdy", "<", "manual_axes")
    return tuple(use.name for use in read_axes(phrase).axes)


def _sharding(phrase: Phrase, meshes: Meshes) -> Sharding:
    """<@mesh, [{"x"}, {}], replicated={"y"}>, where it stands; the mesh may be written in place."""
    phrase.expect("<")
    if phrase.text.startswith("@"):
        name = phrase.word()[1:]
        if name not in meshes:
            raise phrase.error(f"a mesh that the module defines ({', '.join(meshes) or 'none'}), not @{name}")
        mesh = meshes[name]
    else:
        _words(phrase, "mesh", "<")
        mesh = NamedMesh(read_axis_sizes(phrase))
        phrase.expect(">")
    phrase.expect(",")
    dimensions, roles = read_dimensions(phrase), []
    while phrase.accept(","):
        role = phrase.word()
        phrase.expect("=")
        roles.append(Role(role, read_axes(phrase).axes))
    phrase.expect(">")
    if not mesh.axes and mesh.devices and not isinstance(mesh.devices, Iota):
        return Sharding("maximal", device=mesh.devices[0])
    return Sharding("named", mesh=mesh, dimensions=dimensions, roles=tuple(roles))


def _words(phrase: Phrase, *words: str) -> None:
    for word in words:
        phrase.expect(word)
