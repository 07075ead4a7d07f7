"""Executables with some fixed arguments: `exe.bind(weights)`.

In: arrays for some parameters, by name or number, or for the first ones. Out: a backend that takes the others. Fixed
arrays are checked and made contiguous once. On a GPU they are copied with the first call and stay there. On a CPU, and
if they are on the GPU already, they are read in place: their owner must not change them.

    f(w: f32[64,64], x: f32[64])     f.bind({"w": w})     calls f(w, x) for each x
"""
from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hloc.errors import UsageError
from hloc.inputs import Named, check_array
from hloc.inputs.arrays import Views
from hloc.inputs.dlpack import DeviceView

Arrays = Mapping[Any, Any] | Sequence[Any]             # by name or number, or for the first parameters


def fixed_arrays(parameters: Sequence[Named], weights: Arrays, on_device: Views | None) -> dict[int, Any]:
    """The checked fixed arrays by parameter number; on_device: as in check_arrays.

    Raises UsageError for an unknown name or number, RunError for an array of another type or shape.
    """
    numbered = sorted(_numbered(parameters, weights).items())
    return {n: _lasting(check_array(n, parameters[n], array, on_device)) for n, array in numbered}


class BoundBackend:
    """A backend that adds the fixed arrays to each call. It has the same optional methods as the backend that it wraps
    (see hloc/executable.py). There is no reference cycle, so that a GPU's memory is freed without the garbage
    collector."""

    def __init__(self, backend: Any, fixed: dict[int, Any], free: Sequence[int]):
        self.backend = backend
        self._quick = getattr(backend, "quick", None)
        self._all: list[Any] = [None] * (len(fixed) + len(free))
        for number, array in fixed.items():
            self._all[number] = self.fixed(array)
        self._free = tuple(free)
        first = len(fixed)
        self._leading = tuple(self._all[:first]) if self._free == tuple(range(first, len(self._all))) else None

    def __call__(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        return self.backend(self._arranged(arrays))

    def quick(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...] | None:
        return self._quick(self._arranged(arrays)) if self._quick and len(arrays) == len(self._free) else None

    def on_device(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        return getattr(self.backend, "on_device", self.backend)(self._arranged(arrays))

    def device_view(self, given: Any) -> DeviceView | None:
        return self.backend.device_view(given) if hasattr(self.backend, "device_view") else None

    def fixed(self, array: Any) -> Any:
        return self.backend.fixed(array) if hasattr(self.backend, "fixed") else array

    def _arranged(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """All arguments of the program, from the free ones."""
        if self._leading is not None:
            return self._leading + tuple(arrays)
        arranged = self._all.copy()
        for number, array in zip(self._free, arrays):
            arranged[number] = array
        return tuple(arranged)


def _numbered(parameters: Sequence[Named], weights: Arrays) -> dict[int, Any]:
    """The arrays by parameter number."""
    if not isinstance(weights, Mapping):
        if not isinstance(weights, (list, tuple)):
            raise UsageError("bind takes arrays by name ({'w': w}), or a list for the first parameters, not "
                             f"{type(weights).__name__}")
        weights = dict(enumerate(weights))
    numbers = {p.name: n for n, p in enumerate(parameters)}
    found: dict[int, Any] = {}
    for key, array in weights.items():
        number = numbers.get(key) if isinstance(key, str) else key
        if not isinstance(number, int) or not 0 <= number < len(parameters):
            raise _unknown(key, list(numbers))
        if number in found:
            raise UsageError(f"parameter {parameters[number].name} is bound twice, by its name and its number")
        found[number] = array
    return found


def _unknown(key: Any, names: list[str]) -> UsageError:
    if not names:
        return UsageError(f"there is no parameter {key!r} to bind: all are bound, or there are none")
    listed = difflib.get_close_matches(str(key), names, n=3) or names[:10]
    return UsageError(f"there is no parameter {key!r} to bind",
                      hint=f"parameters: {', '.join(listed)}" + (" ..." if len(names) > len(listed) else ""))


def _lasting(array: Any) -> Any:
    """Aligned, so that no call needs a copy."""
    return np.require(array, requirements=["C", "A"]) if isinstance(array, np.ndarray) else array
