"""Measures every variant of one kernel on this GPU, compares their results, and chooses the fastest correct one.

In: a Tile and the GPU. Out: a Measured. Each variant is a kernel of the same computation. The first one is the cost
model's choice among those without wgmma; the results of the others must agree with its results.
"""
from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from hloc.errors import BuildError, RunError
from hloc.inputs import Parameter
from hloc.ir import ELEMENT_TYPES, numpy_dtype
from hloc.ir.shapes import array as array_shape
from hloc.kernels.ir import Buffer, Tile
from hloc.kernels.plan import Launch, Program, Ref
from hloc.machine import Machine
from hloc.targets.cuda import compiler, kernel_images
from hloc.targets.cuda.container import Container
from hloc.targets.cuda.execution.measured import Measured, describe
from hloc.targets.cuda.sources import CudaSources, make_sources
from hloc.targets.cuda.tiles.source import variants
from hloc.targets.cuda.tiles.tensor_cores import F8, TF32

LEAST_RUNS, MOST_RUNS, LEAST_SECONDS = 5, 50, 0.02
RANDOM_ELEMENTS = 1 << 20           # large inputs repeat this many random elements
# The largest difference relative to the largest result: sums in another order, rounded once.
TOLERANCE = {"f64": 1e-11, "c128": 1e-11, "f32": 1e-4, "c64": 1e-4, "f16": 4e-3, "bf16": 3e-2, "s4": 0, "u4": 0}
BLOCK = 1 << 18                     # elements that are compared at once: they fit into the caches
ROUGH = 0.3                         # for types of 8 bits and less
TF32_ERROR = 3e-3                # full precision is one of the ways
F8_ERROR = 1e-3                  # wgmma adds 128 products of f8 with 14 bits or so, 2.6e-4 was measured on an H200


def measure(tile: Tile, gpu: Machine, names: Sequence[str] = ()) -> Measured:
    """names: the variants to try, the first of which is correct; all variants if none are given. Raises RunError if the
    GPU faults, or if no variant is correct."""
    names = names or _safest_first(variants(tile, gpu))
    random = np.random.default_rng(0)
    inputs = [input_of(tile, b, random) for b in tile.buffers if b.access != "write"]
    expected, times, refused = None, {}, {}
    for name in names:
        try:
            backend = _loaded(tile, name, gpu)
        except (BuildError, RunError) as error:              # e.g. no library, or too much shared memory
            if name == names[0]:
                raise
            refused[name] = error.message.splitlines()[0]
            continue
        try:
            results, seconds = _run(backend, inputs)
        except RunError as error:
            raise RunError(f"measuring {describe(tile)} as {name!r}: {error.message}", hint=error.hint) from None
        expected = expected or results
        if all(agree(a, b, t, rounding_of(tile)) for a, b, t in zip(results, expected, _written_types(tile))):
            times[name] = round(seconds * 1e6, 3)
        else:
            refused[name] = f"its results are not those of {names[0]!r}"
    return Measured(describe(tile), min(times, key=times.__getitem__), times, refused)


def rounding_of(tile: Tile) -> float:
    """By how much results of its variants may differ, relative to the largest, for what one of them rounds to."""
    if dict(tile.parameters).get("algorithm") == TF32:
        return TF32_ERROR
    return F8_ERROR if any(b.access == "read" and b.type in F8 for b in tile.buffers) else 0


def _safest_first(names: list[str]) -> list[str]:
    """Variants without wgmma first: they are the reference for the results of wgmma."""
    return sorted(names, key=lambda name: "wgmma" in name)


def agree(actual: np.ndarray, expected: np.ndarray, type: str, least: float = 0) -> bool:
    """Whether two results are equal up to the order of sums; least: a difference that is always allowed. NaN agrees
    only with NaN at the same position."""
    if ELEMENT_TYPES[type].kind not in ("float", "complex"):
        return bool(np.array_equal(actual, expected))
    actual, expected = np.ascontiguousarray(actual).reshape(-1), np.ascontiguousarray(expected).reshape(-1)
    if np.array_equal(actual.view(np.uint8), expected.view(np.uint8)):     # most variants have the same order of sums
        return True
    wide = np.complex128 if ELEMENT_TYPES[type].kind == "complex" else \
        np.float32 if ELEMENT_TYPES[type].bytes < 4 else np.float64
    largest = apart = 0.0
    for start in range(0, actual.size, BLOCK):
        a: np.ndarray
        b: np.ndarray
        a, b = (part[start:start + BLOCK].astype(wide) for part in (actual, expected))
        known = np.isfinite(b)
        if not np.array_equal(known, np.isfinite(a)) or not np.array_equal(a[~known], b[~known], equal_nan=True):
            return False
        if not known.all():
            a, b = a[known], b[known]
        largest = max(largest, np.max(np.abs(b), initial=0.0))
        apart = max(apart, np.max(np.abs(np.subtract(a, b)), initial=0.0))
    return bool(apart <= max(least, TOLERANCE.get(type, ROUGH)) * largest)


def _loaded(tile: Tile, variant: str, gpu: Machine):
    """A backend that computes the kernel in one of its variants."""
    from hloc.targets.cuda.execution.runtime import CudaBackend
    return CudaBackend(_container(make_sources(program_of(tile), gpu, [variant]), gpu), {})


def _run(backend, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], float]:
    """The results of a run, and its seconds on the device."""
    try:
        backend.send(inputs)
        backend.run()
        results = [np.array(a) for a in backend.fetch()]
        return results, seconds_of(backend.run, backend.cuda, backend.stream, backend.context)
    finally:
        backend.close()


def _container(sources: CudaSources, gpu: Machine) -> Container:
    program = sources.program
    images = kernel_images.images_of(sources, gpu.arch)
    return Container(program.name, gpu.arch, images, sources.geometry, program.steps, program.parameters,
                     program.results, program.constants, program.arena_size, compiler.compiler_version())


def program_of(tile: Tile) -> Program:
    """A program of this kernel alone: buffers that it only writes are results, all others parameters."""
    parameters: list[Parameter] = []
    results: list[Parameter] = []
    places: list[Ref] = []
    for buffer in tile.buffers:
        own, region = (parameters, "parameter") if buffer.access != "write" else (results, "result")
        places.append(Ref(region, len(own), 0, buffer.size * ELEMENT_TYPES[buffer.type].bytes))
        own.append(Parameter(buffer.name, array_shape(buffer.type, buffer.size)))
    return Program("measured", (tile,), (Launch(0, tuple(places)),), tuple(parameters), tuple(results), (), 0)


def _written_types(tile: Tile) -> list[str]:
    return [b.type for b in tile.buffers if b.access == "write"]


def input_of(tile: Tile, buffer: Buffer, random: np.random.Generator) -> np.ndarray:
    """Random numbers whose sums do not overflow; never zeros, which multiply faster on some devices. Groups of rows
    have the same size."""
    facts = dict(tile.parameters)
    if "groups" in facts and buffer.name == facts["groups"][1]:
        return np.full(buffer.size, facts["sizes"][0] // buffer.size, numpy_dtype(buffer.type))
    count, dtype = min(buffer.size, RANDOM_ELEMENTS), numpy_dtype(buffer.type)
    if ELEMENT_TYPES[buffer.type].kind in ("float", "complex"):
        block = random.normal(size=count).astype(dtype)
    else:
        block = random.integers(0, 2, size=count).astype(dtype)
    return np.resize(block, (buffer.size,))


def seconds_of(work: Callable[[], None], cuda, stream, context) -> float:
    """The median seconds of `work`, which only enqueues operations on the stream, by the device's clock."""
    context.push()
    try:
        for _ in range(2):
            work()
        times: list[float] = []
        while len(times) < LEAST_RUNS or (sum(times) < LEAST_SECONDS and len(times) < MOST_RUNS):
            before, after = cuda.Event(), cuda.Event()
            before.record(stream)
            work()
            after.record(stream)
            after.synchronize()
            times.append(after.time_since(before) * 1e-3)
        return statistics.median(times)
    finally:
        context.pop()
