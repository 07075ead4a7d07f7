"""Checking arrays against entry parameters, and making inputs: random, zeros, from files.

In: parameters (anything with `name` and `shape`, flattened to array leaves) and what the user gave. Out: contiguous
NumPy arrays of the right type and shape, or a RunError that names the parameter and both sides.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from hloc.errors import RunError
from hloc.inputs.dlpack import DeviceView, host_array
from hloc.ir import ELEMENT_TYPES, Module, Shape, element_type_of, leaves, numpy_dtype

Views = Callable[[object], "DeviceView | None"]


class Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> Shape: ...


class Parameter(NamedTuple):
    """One flattened entry parameter."""

    name: str
    shape: Shape

    def __repr__(self) -> str:
        return f"{self.name}: {self.shape.to_string(False)}"


def entry_parameters(module: Module) -> list[Parameter]:
    """The flattened entry parameters, with names for messages: x, or state.3 for the fourth array of a tuple."""
    found: list[Parameter] = []
    for parameter in module.entry.parameters:
        parts = list(leaves(parameter.shape))
        found += [Parameter(f"{parameter.name}.{i}" if parameter.shape.is_tuple else parameter.name, s)
                  for i, s in enumerate(parts)]
    return found


def entry_results(module: Module) -> list[Parameter]:
    """The flattened results, by number."""
    return [Parameter(f"result.{i}", s) for i, s in enumerate(leaves(module.entry.root.shape))]


def check_inputs(module: Module, arrays: Sequence[object]) -> list[np.ndarray]:
    """check_arrays against the module's entry."""
    return host_arrays(entry_parameters(module), arrays)


def check_arrays(parameters: Sequence[Named], arrays: Sequence[object], on_device: Views | None = None,
                 ) -> list[np.ndarray | DeviceView]:
    """`arrays` as contiguous ndarrays. Raises RunError if their number, types or shapes differ from the parameters'.

    on_device  returns the view of an array on the program's GPU, which stays there; None for any other
    """
    _check_number(parameters, len(arrays))
    return [check_array(i, p, a, on_device) for i, (p, a) in enumerate(zip(parameters, arrays))]


def host_arrays(parameters: Sequence[Named], arrays: Sequence[object]) -> list[np.ndarray]:
    """check_arrays where no array is on a device."""
    return [a for a in check_arrays(parameters, arrays) if isinstance(a, np.ndarray)]


def check_forms(parameters: Sequence[Named], forms: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> None:
    """check_arrays for arrays of which only types and sizes are known."""
    _check_number(parameters, len(forms))
    for number, (parameter, (dtype, sizes)) in enumerate(zip(parameters, forms)):
        if not _has_type(dtype, parameter.shape) or not _has_sizes(sizes, parameter.shape):
            raise _other_form(number, parameter, dtype, sizes)


def _check_number(parameters: Sequence[Named], given: int) -> None:
    if given != len(parameters):
        were = "was" if given == 1 else "were"
        raise RunError(f"the module takes {_count(len(parameters))}, but {given} {were} given"
                       + _listing(parameters, given))


def check_array(number: int, parameter: Named, given: object, on_device: Views | None = None,
                ) -> np.ndarray | DeviceView:
    """check_arrays for one array."""
    want = parameter.shape
    if type(given) is np.ndarray and given.dtype == numpy_dtype(want.element_type):
        array = given                                             # the common case, kept short: it runs at every call
    elif (view := _view_of(number, parameter, given, on_device)) is not None:
        return view
    else:
        array = _convert(number, parameter, given)
    if not _has_sizes(array.shape, want):
        raise _other_form(number, parameter, array.dtype, array.shape)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _view_of(number: int, parameter: Named, given: object, on_device: Views | None) -> DeviceView | None:
    if on_device is None:
        return None
    try:
        view = on_device(given)
    except RunError as error:
        raise _unreadable(number, parameter, error) from None
    if view is None:
        return None
    if not _has_type(view.dtype, parameter.shape) or view.shape != parameter.shape.dimensions:
        raise _other_form(number, parameter, view.dtype, view.shape)
    return view


def _unreadable(number: int, parameter: Named, error: RunError) -> RunError:
    return RunError(f"input {number} ({parameter.name}) must be {parameter.shape.to_string(False)}: {error.message}",
                    hint=error.hint)


def _has_type(dtype: np.dtype, want: Shape) -> bool:
    """.npy files keep bf16 and f8 as raw bytes."""
    exact = numpy_dtype(want.element_type)
    return dtype == exact or dtype.kind == "V" and dtype.names is None and dtype.itemsize == exact.itemsize


def _has_sizes(sizes: tuple[int, ...], want: Shape) -> bool:
    return sizes == want.dimensions or within_bounds(sizes, want)


def _other_form(number: int, parameter: Named, dtype: np.dtype, sizes: tuple[int, ...]) -> RunError:
    """An array of another type, or of another shape."""
    want = parameter.shape
    astype = not _has_type(dtype, want) and _has_sizes(sizes, want)
    return RunError(f"input {number} ({parameter.name}) must be {want.to_string(False)}, "
                    f"but {_type_name(dtype, want)}[{','.join(map(str, sizes))}] was given",
                    hint=f"convert it: array.astype({_as_python(numpy_dtype(want.element_type))})" if astype else None)


def _type_name(dtype: np.dtype, want: Shape) -> str:
    if _has_type(dtype, want):
        return want.element_type
    try:
        return element_type_of(dtype) if dtype.isnative else str(dtype)
    except (KeyError, TypeError):
        return str(dtype)


def within_bounds(sizes: tuple[int, ...], shape: Shape) -> bool:
    """Dynamic dimensions may be smaller than their bound."""
    return len(sizes) == shape.rank and all(
        size == bound or bound < 0 or size <= bound and dynamic
        for size, bound, dynamic in zip(sizes, shape.dimensions, shape.dynamic_dimensions or (False,) * shape.rank))


def is_whole(element_type: str) -> bool:
    return ELEMENT_TYPES[element_type].kind in ("pred", "signed", "unsigned")


def _convert(number: int, parameter: Named, given: object) -> np.ndarray:
    """Convert Python scalars and lists to the wanted type, but no float to an integer; an array must have the type."""
    want = parameter.shape
    dtype = numpy_dtype(want.element_type)
    if isinstance(given, (bool, int, float, complex, list, tuple)):
        try:
            if np.size(given) and np.asarray(given).dtype.kind == "f" and is_whole(want.element_type):
                raise TypeError
            return np.asarray(given, dtype)
        except (TypeError, ValueError, OverflowError):
            raise RunError(f"input {number} ({parameter.name}) must be {want.to_string(False)}: "
                           f"cannot convert {type(given).__name__}") from None
    try:
        array = host_array(given)
    except RunError as error:
        raise _unreadable(number, parameter, error) from None
    if not _has_type(array.dtype, want):
        raise _other_form(number, parameter, array.dtype, array.shape)
    if array.dtype.kind == "V" and dtype == np.bool_:
        return array.view(np.uint8) != 0
    return array if array.dtype == dtype else array.view(dtype)


def _as_python(dtype: np.dtype) -> str:
    """A type as a Python expression."""
    return f"{'numpy' if hasattr(np, dtype.name) else 'ml_dtypes'}.{dtype.name}"


def _count(number: int) -> str:
    return "1 input" if number == 1 else f"{number} inputs"


def _listing(parameters: Sequence[Named], given: int) -> str:
    """The first missing parameters or, if too many arrays were given, the existing parameters."""
    named = parameters[given:] or parameters
    listed = ", ".join(f"{p.name} {p.shape.to_string(False)}" for p in named[:4]) + (", ..." if len(named) > 4 else "")
    return f"{'; missing' if given < len(parameters) else ''}: {listed}" if listed else ""


# -- generated inputs --------------------------------------------------------------------------------------------------

def random_arrays(parameters: Iterable[Named], seed: int) -> list[np.ndarray]:
    """Deterministic arrays: floats normal with deviation 1, integers 0 to 9, pred random."""
    generator = np.random.default_rng(seed)
    return [_random(generator, p.shape) for p in parameters]


def _random(generator: np.random.Generator, shape: Shape) -> np.ndarray:
    kind, dtype, size = shape.kind, numpy_dtype(shape.element_type), shape.dimensions
    if kind == "pred":
        return generator.random(size) < 0.5
    if kind in ("signed", "unsigned"):
        most = min(10, 1 << (ELEMENT_TYPES[shape.element_type].bits - (kind == "signed")))
        return generator.integers(0, most, size, dtype=np.int64).astype(dtype)
    if kind == "complex":
        return (generator.standard_normal(size) + 1j * generator.standard_normal(size)).astype(dtype)
    return np.asarray(generator.standard_normal(size, dtype=np.float32)).astype(dtype)


def zero_arrays(parameters: Iterable[Named]) -> list[np.ndarray]:
    return [np.zeros(p.shape.dimensions, numpy_dtype(p.shape.element_type)) for p in parameters]
