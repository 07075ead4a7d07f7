"""Kernels of the test data (testdata/cuda, testdata/kernels, testdata/ops) on the device, against the evaluator."""
from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from gpu_sections.device import TESTS
from gpu_sections.programs import ROOT
from hloc.errors import HlocError, UnsupportedError
from hloc.tools.compare import OF_PRODUCTS

DATA = ROOT / "testdata"
SMALL = ("teams", "sorts")              # what the emulation is given
TOGETHER = 64                           # files of examples that are one program


def rows(device) -> Iterator[dict]:
    for what, cases in groups(device).items():
        yield row(device, what, cases())


def groups(device) -> dict[str, Callable[[], list]]:
    """What is one program each: its name, and a function that gives its cases."""
    sys.path.insert(0, str(TESTS))
    files = sorted([*(DATA / "cuda").glob("*.hlo"), *(DATA / "kernels").glob("*.hlo")])
    if device.emulated:
        files = [f for f in files if f.stem in SMALL]
    found = {f"{path.parent.name}/{path.stem}": partial(cases_of, path, device.machine) for path in files}
    examples = sorted((DATA / "ops").glob("*.hlo"))
    for number in range(0, len(examples), TOGETHER)[:1 if device.emulated else None]:
        chosen = examples[number:number + (1 if device.emulated else TOGETHER)]
        found[f"ops/{chosen[0].stem} to {chosen[-1].stem}"] = partial(example_cases, chosen, device.machine)
    return found


def row(device, what: str, cases: list) -> dict:
    """How many instructions of these agree with the evaluator."""
    try:
        wrong = failures(device, cases)
    except HlocError as error:
        wrong = [error.message]
    if wrong:
        return {"what": what, "value": f"{len(wrong)} of {len(cases)} wrong", "wrong": True, "note": wrong[0][:300]}
    return {"what": what, "value": f"{len(cases)} instructions agree"}


def failures(device, cases: list) -> list[str]:
    """The first line of each disagreement."""
    from cuda_emulation.cases import program_of
    from kernel_harness import compare
    arrays = [np.ascontiguousarray(a) for case in cases for operand in case.operands for a in operand]
    backend = device.loaded(program_of(cases), arrays)
    backend.run()
    results, wrong = list(backend.fetch()), []
    backend.close()
    for case in cases:
        for expected in case.expected:
            try:
                compare(case.name, results.pop(0), expected, least_error(case))
            except AssertionError as error:
                wrong.append(f"{case.name}: {str(error).strip().splitlines()[0]}")
    return wrong


def least_error(case) -> float:
    """What the tensor cores' sums of f8 may differ from those of f32."""
    f8 = any(a.dtype.name.startswith("float8") for operand in case.operands for a in operand)
    return OF_PRODUCTS["f8"]["f32"] if f8 else 0.0


def cases_of(path: Path, machine) -> list:
    from kernel_harness import collect
    texts = path.read_text(encoding="utf-8").split("\n// -----")
    return [c for n, text in enumerate(texts)
            for c in collect(text if n == 0 else "// " + text, f"{path.stem}#{n}", machine=machine)]


def example_cases(paths: list[Path], machine) -> list:
    """The examples of opcodes that have kernels of their own, on their own inputs."""
    from kernel_harness import collect
    from op_examples import read_examples
    from test_kernels import ELSEWHERE
    cases = []
    for path in paths:
        for example in read_examples(path):
            for number, case in enumerate(example.cases):
                if not case.devices and not ELSEWHERE.fullmatch(example.name.split(":")[0]):
                    with contextlib.suppress(UnsupportedError):
                        cases += collect(example.text, f"{example.name}:{number}", case.inputs.get(0, []),
                                         machine=machine)
    return cases
