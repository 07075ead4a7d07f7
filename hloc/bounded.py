"""Executables of programs with bounded dynamic dimensions: arguments and results of any size up to the bound.

The compiled program takes and returns each of these arrays at its bounds, followed by its sizes, one s32 for each
dynamic dimension (hloc/passes/dynamic_padder). Here arguments are padded and results cut.

    exe: (f32[<=8] x) -> f32[<=8]     calls     program: (f32[8], s32[]) -> (f32[8], s32[])
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hloc.executable import Backend, Executable
from hloc.inputs import Named
from hloc.ir import Shape


def with_sizes(exe: Executable, parameters: Sequence[Named], results: Sequence[Named]) -> Executable:
    """The executable with the `parameters` and `results` of the module as it was written."""
    if not any(v.shape.is_dynamic for v in (*parameters, *results)):
        return exe

    def start() -> Backend:
        backend = exe.backend

        def run(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
            given = [part for v, array in zip(parameters, arrays) for part in filled(v.shape, array)]
            answers = iter(backend(given))
            return tuple(cut(v.shape, answers) for v in results)
        return run
    return replace(exe, parameters=parameters, results=results, start=start, _backend=None, _quick=None)


def dynamic_dimensions(shape: Shape) -> list[int]:
    return [d for d, flag in enumerate(shape.dynamic_dimensions) if flag]


def filled(shape: Shape, array: np.ndarray) -> list[np.ndarray]:
    """The array, padded with zeros to its bounds, and its sizes."""
    if not shape.is_dynamic:
        return [array]
    if array.shape == shape.dimensions:
        whole = array
    else:
        whole = np.zeros(shape.dimensions, array.dtype)
        whole[tuple(map(slice, array.shape))] = array
    return [whole, *(np.array(array.shape[d], np.int32) for d in dynamic_dimensions(shape))]


def cut(shape: Shape, answers: Iterator[np.ndarray]) -> np.ndarray:
    """The next array, cut to its sizes."""
    array = next(answers)
    sizes = {d: max(0, int(next(answers))) for d in dynamic_dimensions(shape)}
    if not sizes:
        return array
    return np.ascontiguousarray(array[tuple(slice(0, sizes.get(d, n)) for d, n in enumerate(shape.dimensions))])
