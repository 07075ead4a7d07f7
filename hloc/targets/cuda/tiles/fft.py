"""Fourier transforms on the GPU: an "fft" Tile -> CUDA C kernels, one pass per transformed dimension.

In: the Tile that kernels/library_kernels/whole_arrays.py describes. Out: per dimension, one kernel if a line fits into
shared memory, otherwise one per stage over scratch memory. The stages are the prime factors of the length, with small
ones combined. A real transform starts (RFFT) or ends (IRFFT) with the last dimension, and stores only half of it.

    1024 points -> radices 16, 16, 4      a prime length -> one stage of that many terms
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Buffer, Tile
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.tiles.tiling import kernel_text

LARGEST_RADIX = 16
LINE_BYTES = 16 << 10           # most bytes of a line in shared memory, which holds two copies
THREADS = 256
BLOCKS_PER_SM = 16


class Pass(NamedTuple):
    """`lines` transforms of `length` points that are `stride` apart. source, target: C expressions of a complex array,
    or with real_in, real_out of a real one. half_in, half_out: only the first length // 2 + 1 points are stored."""

    length: int
    stride: int
    lines: int
    source: str
    target: str
    real_in: bool = False
    real_out: bool = False
    half_in: bool = False
    half_out: bool = False
    scale: float = 1.0


def radices(length: int) -> list[int]:
    """The prime factors of a length. Successive factors are multiplied while the product is at most LARGEST_RADIX."""
    factors, rest, p = [], length, 2
    while rest > 1:
        if p * p > rest:
            p = rest
        while rest % p == 0:
            factors.append(p)
            rest //= p
        p += 1
    joined: list[int] = []
    for factor in factors:
        if joined and joined[-1] * factor <= LARGEST_RADIX:
            joined[-1] *= factor
        else:
            joined.append(factor)
    return joined or [1]


def fft(tile: Tile, name: str, gpu: Machine) -> tuple:
    """Text, launches and scratch bytes of a transform."""
    facts = dict(tile.parameters)
    kind, batch, lengths = facts["kind"], facts["batch"], tuple(facts["lengths"])
    complex_type = tile.buffers[1 if kind != "IRFFT" else 0].type
    sign = -1 if kind in ("FFT", "RFFT") else 1
    elements = batch * math.prod(lengths)
    scale = 1.0 if sign < 0 else 1.0 / math.prod(lengths)
    passes = _passes(kind, batch, lengths, scale)
    largest = LINE_BYTES // ELEMENT_TYPES[complex_type].bytes
    with_scratch = tile._replace(buffers=(*tile.buffers, Buffer("scratch", complex_type, 3 * elements, "update")))
    needs = any("scratch" in (p.source, p.target) or p.length > largest for p in passes)
    own = with_scratch if needs else tile
    text = ""
    launches: list[Geometry] = []
    for number, one in enumerate(passes):
        part = f"{name}_{number}" if len(passes) > 1 else name
        emit = _shared_pass if one.length <= largest else _global_pass
        more, starts = emit(own, part, one, complex_type, sign, elements, gpu)
        text, launches = text + more, launches + starts
    return text, launches, (3 * elements * ELEMENT_TYPES[complex_type].bytes if needs else 0)


def _passes(kind: str, batch: int, lengths: tuple[int, ...], scale: float) -> list[Pass]:
    """One pass per dimension; the last one applies the scale."""
    last = lengths[-1]
    stored = (*lengths[:-1], last // 2 + 1) if kind in ("RFFT", "IRFFT") else lengths
    total = batch * math.prod(stored)
    outer = [Pass(n, math.prod(stored[d + 1:]), total // n, "", "") for d, n in enumerate(lengths[:-1])]
    inner = Pass(last, 1, batch * math.prod(lengths[:-1]), "", "", real_in=kind == "RFFT", half_out=kind == "RFFT",
                 half_in=kind == "IRFFT", real_out=kind == "IRFFT")
    order = [*outer, inner] if kind == "IRFFT" else [inner, *outer]
    place = "scratch" if kind == "IRFFT" else "out0"       # the real result is too small for the complex data
    done = []
    for number, one in enumerate(order):
        final = number == len(order) - 1
        done.append(one._replace(source="in0" if number == 0 else place, target="out0" if final else place,
                                 scale=scale if final else 1.0))
    return done


def _index(one: Pass, half: bool) -> str:
    """C expression of the offset of point i of line `line`."""
    stored = one.length // 2 + 1 if half else one.length
    if one.stride == 1:
        return f"line * {stored}L + i"
    return f"line / {one.stride} * {one.stride * stored}L + line % {one.stride} + i * {one.stride}L"


def _load(one: Pass, complex_type: str) -> str:
    """load(line, i): a function that reads a point of the source."""
    part = "f32" if complex_type == "c64" else "f64"
    type = c_type(complex_type)
    body = f"return {one.source}[{_index(one, one.half_in)}];"
    if one.real_in:
        body = f"return hloc_complex_{part}({one.source}[{_index(one, False)}], 0);"
    if one.half_in:                                         # x[n - i] = conj(x[i])
        mirrored = (f"const bool mirrored = i > {one.length // 2};\n  if (mirrored) i = {one.length} - i;\n"
                    f"  {type} x = {one.source}[{_index(one, True)}];\n")
        ends = f"i == 0 || 2 * i == {one.length}"           # real: the stored imaginary part is ignored
        body = mirrored + f"  x.im = {ends} ? 0 : mirrored ? -x.im : x.im;\n  return x;"
    return f"auto load = [&](long line, long i) -> {type} {{\n  {body}\n}};"


def _save(one: Pass, complex_type: str) -> str:
    """save(line, i, x): a function that stores a point of the result."""
    part = "f32" if complex_type == "c64" else "f64"
    lines = []
    if one.half_out:
        lines.append(f"if (i > {one.length // 2}) return;")
    if one.scale != 1.0:
        factor = f"({c_type(part)}){one.scale!r}"
        lines.append(f"x.re *= {factor}, x.im *= {factor};")
    lines.append(f"{one.target}[{_index(one, one.half_out)}] = {'x.re' if one.real_out else 'x'};")
    body = "\n  ".join(lines)
    return f"auto save = [&](long line, long i, {c_type(complex_type)} x) {{\n  {body}\n}};"


def _element(one: Pass, complex_type: str, done: int, radix: int, sign: int) -> str:
    real = "float" if complex_type == "c64" else "double"
    return f"hloc_fft_element<{c_type(complex_type)}, {real}, {one.length}, {done}, {radix}, {sign}>"


def _shared_pass(tile: Tile, name: str, one: Pass, complex_type: str, sign: int, elements: int, gpu: Machine) -> tuple:
    """One block per line. It loads the line, runs the stages between two buffers of shared memory, and stores it."""
    type, n = c_type(complex_type), one.length
    stages, done = [], 1
    for number, radix in enumerate(radices(n)):
        source, target = ("first", "second") if number % 2 == 0 else ("second", "first")
        element = f"{_element(one, complex_type, done, radix, sign)}([&](long n) {{ return {source}[n]; }}, i)"
        stages += [f"  for (long i = threadIdx.x; i < {n}; i += blockDim.x) {target}[i] = {element};",
                   "  __syncthreads();"]
        done *= radix
    final = "second" if len(stages) // 2 % 2 == 1 else "first"
    body = [_load(one, complex_type), _save(one, complex_type),
            f"{type} *first = ({type} *)memory, *second = first + {n};",
            "\n".join([f"for (long line = blockIdx.x; line < {one.lines}; line += gridDim.x) {{",
                       f"  for (long i = threadIdx.x; i < {n}; i += blockDim.x) first[i] = load(line, i);",
                       "  __syncthreads();", *stages,
                       f"  for (long i = threadIdx.x; i < {n}; i += blockDim.x) save(line, i, {final}[i]);",
                       "  __syncthreads();", "}"])]
    threads = min(THREADS, max(32, -(-n // 32) * 32))
    text = kernel_text(tile, name, threads, body, 2 * n * ELEMENT_TYPES[complex_type].bytes)
    return text, [Geometry(name, (max(1, min(one.lines, gpu.cores * BLOCKS_PER_SM)), 1, 1), (threads, 1, 1))]


def _global_pass(tile: Tile, name: str, one: Pass, complex_type: str, sign: int, elements: int, gpu: Machine) -> tuple:
    """One kernel per stage, one thread per point. Between stages, the lines are contiguous in scratch memory."""
    text, launches, done, factors = "", [], 1, radices(one.length)
    if len(factors) == 1 and one.source == one.target:
        factors.append(1)                                   # a copy stage: a stage must not overwrite its input
    halves = (f"scratch + {elements}L", f"scratch + {2 * elements}L")
    for number, radix in enumerate(factors):
        read = "load(line, n)" if number == 0 else f"({halves[(number - 1) % 2]})[line * {one.length}L + n]"
        element = f"{_element(one, complex_type, done, radix, sign)}([&](long n) {{ return {read}; }}, i)"
        final = number == len(factors) - 1
        write = f"save(line, i, {element});" if final else f"({halves[number % 2]})[point] = {element};"
        loop = "\n".join([
            "const long step = (long)gridDim.x * blockDim.x;",
            "const long start = blockIdx.x * (long)blockDim.x + threadIdx.x;",
            f"for (long point = start; point < {one.lines * one.length}L; point += step) {{",
            f"  const long line = point / {one.length}, i = point % {one.length};", f"  {write}", "}"])
        body = ([_load(one, complex_type)] if number == 0 else []) + ([_save(one, complex_type)] if final else [])
        function = f"{name}_stage{number}"
        text += kernel_text(tile, function, THREADS, [*body, loop])
        blocks = -(-one.lines * one.length // THREADS)
        launches.append(Geometry(function, (max(1, min(blocks, gpu.cores * BLOCKS_PER_SM)), 1, 1), (THREADS, 1, 1)))
        done *= radix
    return text, launches
