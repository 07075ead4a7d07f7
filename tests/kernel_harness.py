"""Runs single kernels: lower the instructions of a module's entry, compile them in one go, compare with the evaluator.

    cases = collect(text)            one Case per instruction of the entry that has kernels
    library = build(cases)           one C file, one call of the compiler
    run(case, library)               the result arrays
"""
from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from native import source_of

from hloc.evaluate import Evaluator, Options
from hloc.ir import ELEMENT_TYPES, Instruction, Shape, leaves, numpy_dtype
from hloc.kernels.ir import PARALLEL, For, Kernel, Tile
from hloc.kernels.lower import Lowered, lower
from hloc.kernels.text.interpreter import interpret
from hloc.kernels.verify import verify_kernel
from hloc.machine import Machine
from hloc.ops.values import flatten
from hloc.targets.cpu.building import toolchain
from hloc.targets.cpu.building.library_kernels import runtime_units
from hloc.targets.cpu.tiles.source import tile_functions
from hloc.targets.printer import print_kernel
from hloc.text import parse_module

MACHINE = Machine("test", "cpu", 2, 32, 32 << 10, 1 << 20, 20e9, 4e-6)
NOT_KERNELS = frozenset(["parameter", "constant", "tuple", "get-tuple-element", "while", "conditional", "call",
                         "custom-call", "after-all", "add-dependency", "optimization-barrier", "opt-barrier", "domain",
                         "partition-id", "replica-id"])


@dataclass
class Case:
    """One instruction with the values of its operands and what must come out."""

    name: str
    instruction: Instruction
    lowered: Lowered
    operands: list[list[np.ndarray]]
    expected: list[np.ndarray]
    first: int = 0


def collect(text: str, name: str = "", inputs: list[np.ndarray] | None = None,
            machine: Machine = MACHINE) -> list[Case]:
    """Lower every instruction of the entry; raises UnsupportedError for what has no kernels."""
    module = parse_module(text, name) if name else parse_module(text)
    values: dict[Instruction, list] = {}
    entry = set(module.entry.instructions)

    def observe(instruction: Instruction, _operands, value) -> None:
        if instruction in entry:
            values[instruction] = [np.ascontiguousarray(v) for v in flatten(value) if v is not None]
    _keep_everything(module.entry)
    evaluator = Evaluator(module, options=Options(observer=observe))
    arrays = inputs if inputs is not None else random_inputs(module)
    evaluator.run(arrays)
    remaining = iter(arrays)
    for parameter in module.entry.parameters:
        values[parameter] = [next(remaining) for _ in leaves(parameter.shape)]
    for instruction in module.entry.instructions:
        if instruction.opcode == "constant" and instruction not in values:
            values[instruction] = [np.ascontiguousarray(v) for v in flatten(instruction.literal)]
    cases = []
    for instruction in module.entry.instructions:
        if instruction.opcode not in NOT_KERNELS and list(leaves(instruction.shape)):
            operands = [values[o] for o in instruction.operands]
            cases.append(Case(f"{name}:{instruction.name}", instruction, lower(instruction, machine), operands,
                              values[instruction]))
    return cases


def _keep_everything(entry) -> None:
    """Make every instruction a result, so that the evaluator computes it."""
    parts = list(entry.instructions)
    entry.root = Instruction("everything", "tuple", Shape.tuple([i.shape for i in parts]), parts)
    entry.instructions.append(entry.root)


def random_inputs(module) -> list[np.ndarray]:
    shapes = [s for p in module.entry.parameters for s in leaves(p.shape)]
    random = np.random.default_rng(0)
    return [random_array(random, s) for s in shapes]


def random_array(random, shape) -> np.ndarray:
    dtype, kind = numpy_dtype(shape.element_type), ELEMENT_TYPES[shape.element_type].kind
    if kind == "pred":
        return random.integers(0, 2, shape.dimensions).astype(dtype)
    if kind in ("signed", "unsigned"):
        return random.integers(0 if kind == "unsigned" else -2, 6, shape.dimensions).astype(dtype)
    values = random.normal(size=shape.dimensions)
    if kind == "complex":
        values = values + 1j * random.normal(size=shape.dimensions)
    return np.asarray(values).astype(dtype)


def build(cases: list[Case], folder: Path) -> ctypes.CDLL:
    """Compile the kernels of all cases into one shared object."""
    parts, units = ['#include "scalar.h"\n#include "pool.h"\n_Thread_local int hloc_out_of_memory;\n'], ["pool.c"]
    count = 0
    for case in cases:
        case.first = count
        for call in case.lowered.calls:
            text, more = _source(call.kernel, f"k{count}")
            parts.append(text)
            units += more
            count += 1
    source, output = folder / "kernels.c", folder / "kernels.so"
    source.write_text("\n".join(parts))
    chain = toolchain.find()
    command = [*chain.command, *chain.flags(), "-O2", "-fvisibility=default", "-shared", "-fPIC", str(source),
               *(str(source_of(unit, folder)) for unit in dict.fromkeys(units)), "-o", str(output), "-lm", "-lpthread"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[:4000]
    library = ctypes.CDLL(str(output))
    library.hloc_pool_start(2, 100)
    return library


def _source(kernel, name: str) -> tuple[str, list[str]]:
    """The C text of a kernel, and the units of the runtime that it calls."""
    if isinstance(kernel, Tile):
        functions = tile_functions(kernel, name, Machine.host())       # the C compiler's target: plans must fit it
        return "".join(f.text for f in functions), runtime_units(name for f in functions for name, _ in f.calls)
    verify_kernel(kernel)
    return print_kernel(kernel, name), []


def run(case: Case, library: ctypes.CDLL, share: bool = False) -> list[np.ndarray]:
    """Run the compiled kernels of a case. share: results take the memory of operands wherever the lowering says so."""
    def launch(number: int, kernel: Kernel | Tile, arrays: list[np.ndarray]) -> None:
        pointers = (ctypes.c_void_p * max(1, len(arrays)))(*[a.ctypes.data for a in arrays])
        function = getattr(library, f"k{case.first + number}")
        if isinstance(kernel, Tile):
            function(pointers)
            return
        extent = next((s.extent for s in kernel.body if isinstance(s, For) and s.kind == PARALLEL), 1)
        half = extent // 2
        for begin, end in ([(half, extent), (0, half)] if half else [(0, extent)]):
            function(pointers, ctypes.c_long(begin), ctypes.c_long(end))
    return launched(case, launch, share)


def interpreted(case: Case, changed: Callable[[Kernel], Kernel] = lambda k: k, unwritten: int = 0) -> list[np.ndarray]:
    """The same by the interpreter of the loop IR, for cases without Tiles; `changed`: what is done to each kernel."""
    def launch(_number: int, kernel: Kernel, arrays: list[np.ndarray]) -> None:
        kernel = changed(kernel)
        flat = {b.name: a.reshape(-1).view(np.uint8)[:b.size * ELEMENT_TYPES[b.type].bytes].view(numpy_dtype(b.type))
                for b, a in zip(kernel.buffers, arrays)}
        interpret(kernel, flat, unwritten)
    return launched(case, launch)


def launched(case: Case, launch: Callable[[int, Kernel | Tile, list[np.ndarray]], None],
             share: bool = False) -> list[np.ndarray]:
    """The results of a case whose kernels run by `launch(number, kernel, arrays)`, one array for each buffer, from where
    the buffer begins. Results start as garbage where they are not updated in place."""
    results = [np.full(e.shape, 77).astype(e.dtype) for e in case.expected]
    operands = [[np.array(leaf) for leaf in leaves_] for leaves_ in case.operands]
    taken: set[int] = set()
    for result, operand in case.lowered.can_share if share else ():
        if operand not in taken and results[result].base is None:
            taken.add(operand)
            results[result] = operands[operand][0].view(results[result].dtype).reshape(results[result].shape)
    for result, operand in case.lowered.in_place:
        results[result][...] = operands[operand][0]
    scratch = [np.full(size, 0xA5, np.uint8) for size in case.lowered.scratch]
    for number, call in enumerate(case.lowered.calls):
        arrays = [results[a.index] if a.kind == "result" else scratch[a.index] if a.kind == "scratch"
                  else operands[a.index][0] for a in call.arguments]
        starts = [a.part[0] if a.part else 0 for a in call.arguments]
        launch(number, call.kernel, [a.reshape(-1).view(np.uint8)[s:] for a, s in zip(arrays, starts)])
    return results


def compare(name: str, actual: np.ndarray, expected: np.ndarray, least: float = 0.0) -> None:
    """Equal integers; floats within what the element type allows, relative to the largest magnitude. least: what
    floats may differ in any case."""
    if expected.dtype.kind in "biu" or expected.dtype.name in ("int2", "int4", "uint2", "uint4"):
        np.testing.assert_array_equal(actual.astype(np.int64), expected.astype(np.int64), err_msg=name)
        return
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    tolerance = {"float32": 2e-5, "float64": 1e-11, "complex64": 2e-5, "complex128": 1e-11, "bfloat16": 2e-2,
                 "float16": 3e-3}.get(expected.dtype.name, 0.13)
    tolerance = max(tolerance, least)
    finite = e[np.isfinite(e)]
    scale = max(1.0, float(np.abs(finite).max())) if finite.size else 1.0
    np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance * scale, equal_nan=True, err_msg=name)
