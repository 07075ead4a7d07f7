"""What was once wrong on a device, and its relatives, against the evaluator: the first thing that a device is asked.

s8[70,90] x s8[90,65] and f16[90,7,9] with itself lacked the first step of the depth on an H200, where every check
without a device agreed (tests/test_cuda_unwritten.py finds the cause now). Relatives: all types that multiply, depths
of 1 to 200, strides that are odd, even, or allow for 16 bytes at once, on either side, every tile; convolutions,
operands computed on their way, ragged products, attention.

Operands are small whole numbers, whose sums every type holds, where no function is taken of them. Each set is one
program, compiled ahead in a process of its own (`gpu.py --compile SET once_wrong`).
"""
from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np

from gpu_sections import ops
from gpu_sections.device import TESTS
from gpu_sections.products import ATTENTION, GRADIENTS
from gpu_sections.programs import ROOT
from hloc import api
from hloc.errors import HlocError
from hloc.evaluate import evaluate
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.kernels.plan import Program
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.source import CUDNN, LIBRARY, variants

COMMAND = (sys.executable, str(ROOT / "benchmarks" / "gpu.py"))
SECONDS = 42                            # of the compilation of one set
TF32, PARTS = "dot_tf32_tf32_f32", "dot_bf16_bf16_f32_x3"
# name of a set -> type of the operands, of the result, algorithm of the dot
TYPES = {"f32": ("f32", "f32", ""), "f64": ("f64", "f64", ""), "bf16": ("bf16", "f32", ""), "f16": ("f16", "f16", ""),
         "s8": ("s8", "s32", ""), "s32": ("s32", "s32", ""), "c64": ("c64", "c64", ""),
         "f8e4m3fn": ("f8e4m3fn", "f32", ""), "f8e5m2": ("f8e5m2", "f32", ""), "tf32": ("f32", "f32", TF32),
         "f32 in parts": ("f32", "f32", PARTS)}
DEPTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 90, 96, 127, 128, 129, 160, 200)
FEW_DEPTHS = (7, 64, 90, 200)
FILES = ("cuda/products", "kernels/products", "cuda/convolutions", "cuda/prologues", "kernels/few_bits")
CONVOLUTIONS = (("f32", 3, 7, "3x3 pad=1_1x1_1"), ("f32", 8, 16, "3x3 stride=2x2"), ("bf16", 3, 7, "3x3"),
                ("bf16", 6, 10, "3x3 pad=1_1x1_1"), ("f16", 16, 24, "5x5 pad=2_2x2_2"),
                ("f16", 5, 8, "3x3 lhs_dilate=2x2"), ("s8", 9, 11, "3x3 rhs_dilate=2x2"), ("f64", 3, 5, "3x3"))
RAGGED = (("bf16", "f32", 96, 72), ("bf16", "f32", 91, 65), ("f16", "f32", 90, 66), ("f32", "f32", 91, 65),
          ("s8", "s32", 90, 65))
RAGGED_TEXT = """HloModule ragged
ENTRY e {{ a = {t}[200,{k}] parameter(0)  b = {t}[5,{k},{n}] parameter(1)  s = s32[5] constant({{0,70,1,64,30}})
  ROOT r = {r}[200,{n}] ragged-dot(a, b, s), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}},
    lhs_ragged_dims={{0}}, rhs_group_dims={{0}} }}
"""
HEADS = ((3, 70, 32), (2, 91, 33), (1, 200, 128), (2, 400, 64))


class Product(NamedTuple):
    """[m, k] or [k, m] by [k, n] or [n, k]; along: whether the depth k is a last dimension; batches of them."""

    m: int
    k: int
    n: int
    along: tuple[bool, bool] = (True, False)
    batches: int = 0

    def lines(self, i: int, type: str, result: str, algorithm: str) -> str:
        """The i-th of a module: parameters 2 i and 2 i + 1."""
        lead, first = (f"{self.batches},", 1) if self.batches else ("", 0)
        a, b = [self.m, self.k][::1 if self.along[0] else -1], [self.k, self.n][::-1 if self.along[1] else 1]
        return (f"  a{i} = {type}[{lead}{a[0]},{a[1]}] parameter({2 * i})\n"
                f"  b{i} = {type}[{lead}{b[0]},{b[1]}] parameter({2 * i + 1})\n"
                f"  d{i} = {result}[{lead}{self.m},{self.n}] dot(a{i}, b{i}), "
                f"lhs_contracting_dims={{{first + self.along[0]}}}, rhs_contracting_dims={{{first + self.along[1]}}}"
                + (", lhs_batch_dims={0}, rhs_batch_dims={0}" if self.batches else "")
                + (f", algorithm={algorithm}" if algorithm else "") + "\n")


class Made(NamedTuple):
    """One program: the variant of each kernel, its parameters, and what must come out: name, array, and by how much it
    may differ in any case."""

    program: Program
    variants: list[str]
    arrays: list[np.ndarray]
    expected: list[tuple[str, np.ndarray, float]]


def rows(device) -> Iterator[dict]:
    """A row for each set, in order; sets are compiled ahead of those that run."""
    found = sets(device)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
        jobs = {} if device.emulated else {what: pool.submit(compiled, what) for what in found}
        for what, make in found.items():
            why = jobs[what].result() if what in jobs else ""
            yield {"what": what, "missing": why} if why else row(device, what, make)


def row(device, what: str, make: Callable[[], Made]) -> dict:
    """How many results of a set agree with the evaluator."""
    from kernel_harness import compare
    try:
        made, wrong = make(), []
        backend = device.started(device.built(made.program, made.variants), made.arrays)
        backend.run()
        for (name, expected, least), result in zip(made.expected, backend.fetch(), strict=True):
            try:
                compare(name, result, expected, least)
            except AssertionError as error:
                wrong.append(f"{name}: {str(error).strip().splitlines()[0]}")
        backend.close()
    except HlocError as error:
        return {"what": what, "value": "wrong", "wrong": True, "note": error.message[:300]}
    if wrong:
        return {"what": what, "value": f"{len(wrong)} of {len(made.expected)} wrong", "wrong": True,
                "note": "; ".join(wrong)[:300]}
    return {"what": what, "value": f"{len(made.expected)} results agree"}


def compiled(what: str) -> str:
    """Compile a set in a process of its own, into the cache of compiled code: what went wrong."""
    try:
        done = subprocess.run([*COMMAND, "--compile", what, "once_wrong"], capture_output=True, text=True,
                              errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"not compiled in {SECONDS} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return (lines[-1][:200] if lines else f"exit code {done.returncode}") if done.returncode else ""


def compile_one(device, what: str) -> None:
    """What that process does."""
    made = sets(device)[what]()
    device.built(made.program, made.variants)


# -- the sets ----------------------------------------------------------------------------------------------------------

def sets(device) -> dict[str, Callable[[], Made]]:
    """The name of each set, and what makes it; for the emulation a few small ones. The longest compile first."""
    sys.path.insert(0, str(TESTS))
    small, machine = device.emulated, device.machine
    found = {name: partial(kernels, machine, partial(ops.cases_of, ops.DATA / f"{name}.hlo", machine))
             for name in (() if small else FILES)}
    found |= {f"products of {name}": partial(every_product, machine, name, small)
              for name in (("f16", "s8") if small else TYPES)}
    found["convolutions"] = partial(kernels, machine, partial(convolutions, machine, CONVOLUTIONS[:1] if small else
                                                              CONVOLUTIONS))
    found |= {f"ragged {t}, {k} x {n}": partial(whole, machine, RAGGED_TEXT.format(t=t, r=r, k=k, n=n))
              for t, r, k, n in (RAGGED[1:2] if small else RAGGED)}
    for h, s, d in ((1, 24, 17),) if small else HEADS:
        for name, text in (("attention", ATTENTION), *(() if small else (("gradients", GRADIENTS),))):
            for type in ("bf16", "f32"):
                found[f"{name} {type}, {h} heads, {s} positions of {d}"] = partial(
                    whole, machine, text.format(h=h, s=s, d=d).replace("bf16[", f"{type}["))
    return found


def every_product(machine, name: str, small: bool) -> Made:
    """Every depth with odd strides as the cost model has it; then other strides and layouts, in one way after the
    other."""
    odd = [Product(70, k, 65) for k in ((7, 90) if small else DEPTHS)]
    odd += [Product(9, 7, 9, (False, False), 90)]
    layouts = [(a, b) for a in (True, False) for b in (True, False)]
    others = [Product(m, k, n, along) for k in (90,) for along in layouts[:1] for m, n in ((70, 65),)] if small else \
        [Product(m, k, n, along) for k in FEW_DEPTHS for along in layouts for m, n in ((70, 65), (66, 66), (64, 128))]
    return kernels(machine, lambda: products(machine, name, odd + others), len(odd))


def products(machine, name: str, found: list[Product]) -> list:
    from kernel_harness import collect
    text = "".join(p.lines(i, *TYPES[name]) for i, p in enumerate(found))
    last = text.rindex("  d")
    module = f"HloModule products\nENTRY e {{\n{text[:last]}  ROOT {text[last + 2:]}}}\n"
    return collected(collect, module, name, machine)


def convolutions(machine, found: tuple) -> list:
    from kernel_harness import collect
    cases = []
    for t, c, f, how in found:
        extents = [int(n) for n in how.split()[0].split("x")]
        text = f"  x = {t}[2,13,11,{c}] parameter(0)\n  w = {t}[{extents[0]},{extents[1]},{c},{f}] parameter(1)\n"
        out = [after(n, extent, how) for n, extent in zip((13, 11), extents)]
        text += f"  ROOT y = {'s32' if t == 's8' else t}[2,{out[0]},{out[1]},{f}] convolution(x, w), " \
                f"window={{size={how}}}, dim_labels=b01f_01io->b01f\n"
        cases += collected(collect, f"HloModule convolution\nENTRY e {{\n{text}}}\n", f"{t} {how}", machine)
    return cases


def after(extent: int, window: int, how: str) -> int:
    """The extent of a convolution's result."""
    pads = 2 * int(how.partition("pad=")[2][:1] or 0)
    extent = (extent - 1) * 2 + 1 if "lhs_dilate" in how else extent
    window = (window - 1) * 2 + 1 if "rhs_dilate" in how else window
    return (extent + pads - window) // (2 if "stride" in how else 1) + 1


def collected(collect, text: str, name: str, machine) -> list:
    return collect(text, name, whole_numbers(api.load(text)), machine=machine)


def whole_numbers(module) -> list[np.ndarray]:
    """-3 to 3, or 0 to 3: every type holds them and the sums of their products."""
    random, found = np.random.default_rng(0), []
    for parameter in module.entry.parameters:
        type = parameter.shape.element_type
        found.append(random.integers(0 if type.startswith("u") else -3, 4, size=parameter.shape.dimensions)
                     .astype(numpy_dtype(type)))
    return found


def kernels(machine, cases: Callable[[], list], chosen: int | None = None) -> Made:
    """Single instructions. chosen: the cost model chooses for so many kernels, if given; those behind take turns."""
    from cuda_emulation.cases import program_of
    found = cases()
    program = program_of(found)
    labels, turns = [""] * len(program.kernels), Counter()
    for n in range(len(labels) if chosen is None else chosen, len(labels)):
        own = tuple(w for w in variants(program.kernels[n], machine) if w not in (LIBRARY, CUDNN))
        labels[n] = own[turns[own] % len(own)]
        turns[own] += 1
    arrays = [np.ascontiguousarray(a) for case in found for operand in case.operands for a in operand]
    expected = [(case.name, e, ops.least_error(case)) for case in found for e in case.expected]
    return Made(program, labels, arrays, expected)


def whole(machine, text: str) -> Made:
    """A module with all its passes."""
    target, module = cuda_target(machine), api.load(text)
    arrays = whole_numbers(module)
    program = api.plan(api.optimize(api.load(text), target), target)
    return Made(program, [], check_arrays(program.parameters, arrays),
                [(module.name, np.asarray(a), 0.0) for a in evaluate(module, arrays)])
