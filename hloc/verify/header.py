"""Rules of a module's header: numbers of devices, layouts of the entry, aliases of results and parameters, donors.

    for error in header_errors(module): ...
"""
from __future__ import annotations

from collections.abc import Iterator

from hloc.devices import device_counts
from hloc.errors import VerifyError
from hloc.ir import Module, Shape
from hloc.ops.checks import listed, text
from hloc.text.header import aliases, donors, entry_layout, place_of
from hloc.verify.shapes import agrees, any_element_type, operand_part, part_of


def header_errors(module: Module) -> Iterator[VerifyError]:
    yield from _count_errors(module)
    yield from _layout_errors(module)
    shapes = [p.shape for p in module.entry.parameters]
    yield from _alias_errors(module, shapes)
    for donor in donors(module):
        if operand_part(shapes, donor.parameter, donor.parameter_index) is None:
            yield _header_error(module, "buffer_donor",
                                f"there is no ({donor.parameter}, {listed(donor.parameter_index)})")


def _header_error(module: Module, key: str, message: str) -> VerifyError:
    return VerifyError(f"{key}: {message}", place_of(module, key))


def _count_errors(module: Module) -> Iterator[VerifyError]:
    for key, count in zip(("replica_count", "num_partitions"), device_counts(module)):
        if count < 1:
            yield _header_error(module, key, f"{count} devices")


def _layout_errors(module: Module) -> Iterator[VerifyError]:
    """entry_computation_layout fits the entry's parameters and result.

    Layouts may differ, and so may element types: texts edited by hand often forget them there, and XLA reads those.
    """
    key, written = "entry_computation_layout", entry_layout(module)
    if written is None:
        return
    parameters, shapes = module.entry.parameters, written[0]
    if len(parameters) != len(shapes):
        yield _header_error(module, key, f"{len(shapes)} parameters, but the entry has {len(parameters)}")
        return
    pairs = [(f"parameter %{p.name}", p.shape, s) for p, s in zip(parameters, shapes)]
    for what, shape, layout in [*pairs, ("the result", module.entry.root.shape, written[1])]:
        if not agrees(shape, layout, any_element_type):
            yield _header_error(module, key, f"{text(layout)} for {what}, which is {text(shape)}")


def _alias_errors(module: Module, shapes: list[Shape]) -> Iterator[VerifyError]:
    """Both sides exist and have the same number of bytes; no result and no parameter is named twice."""
    taken: set[tuple] = set()
    for alias in aliases(module):
        result = part_of(module.entry.root.shape, alias.output)
        parameter = operand_part(shapes, alias.parameter, alias.parameter_index)
        sides = (("the result", alias.output), (f"parameter {alias.parameter}", alias.parameter_index))
        for shape, (what, index) in zip((result, parameter), sides):
            problem = "" if shape is not None and shape.is_array else "is no array"
            if (what, index) in taken:
                problem = "is named twice"
            if problem:
                yield _header_error(module, "input_output_alias", f"{what} at {listed(index)} {problem}")
            taken.add((what, index))
        if result is not None and parameter is not None and result.num_bytes != parameter.num_bytes:
            yield _header_error(
                module, "input_output_alias", f"{sides[0][0]} at {listed(alias.output)} is {text(result)}, "
                f"{sides[1][0]} at {listed(alias.parameter_index)} is {text(parameter)}")
