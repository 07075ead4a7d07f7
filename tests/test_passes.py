"""Every pass on every text of testdata/passes/<pass>/<case>.hlo: input, a line `// ==>`, expected output.

Five checks a case: the printed result is the expected one (HLOC_GOLDEN=1 rewrites it; review the diff), both sides
survive printing and parsing, the verifier accepts both, a second run changes nothing, and the reference evaluator gives
the same results before and after on random inputs. Directives in comments at the top of a case switch a check off where
it does not apply:

    // not idempotent: why
    // not evaluated: why
    // target: cuda          or the name of a GPU, for which passes then choose
    // options: memory_limit=4096   an option of passes, a number
    // passes: a, b          what runs instead of the pass that the folder names
"""
from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hloc.evaluate import evaluate
from hloc.inputs import entry_parameters, random_arrays
from hloc.ir.printer import print_module
from hloc.machine import Machine
from hloc.passes.context import PassContext
from hloc.passes.pipelines import ALL_PASSES
from hloc.passes.runner import named_passes, run_passes
from hloc.targets.cuda.gpus import GPUS
from hloc.text import parse_module
from hloc.verify import verify

FOLDER = Path(__file__).parent.parent / "testdata" / "passes"
CASES = sorted(FOLDER.glob("*/*.hlo"))
ARROW = "\n// ==>\n"
MACHINE = Machine("test", "cpu", cores=8, vector_bytes=32, l1_bytes=32 << 10, l2_bytes=1 << 20, bandwidth=20e9,
                  launch_seconds=4e-6)           # choices by cost must not depend on who runs the tests
TOLERANCE = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-5, "float64": 1e-12, "complex64": 1e-5,
             "complex128": 1e-12}


def directives(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        key, _, value = line[2:].partition(":")
        found[key.strip()] = value.strip()
    return found


def assert_same_values(before: tuple, after: tuple) -> None:
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        tolerance = TOLERANCE.get(str(a.dtype))
        if tolerance is None:
            assert a.tobytes() == b.tobytes()          # NaN equals itself
        else:
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_case(path: Path) -> None:
    given, _, expected = path.read_text(encoding="utf-8").partition(ARROW)
    told = directives(given)
    passes = named_passes([n.strip() for n in told.get("passes", path.parent.name).split(",")], ALL_PASSES)
    options = {key: int(value) for key, _, value in [told["options"].partition("=")]} if "options" in told else {}
    target = told.get("target", "cpu")
    context = PassContext(GPUS[target], "cuda", options) if target in GPUS else PassContext(MACHINE, target, options)
    module = parse_module(given, path.name)
    verify(module)
    run_passes(module, passes, context)
    verify(module)
    printed = print_module(module).strip() + "\n"
    if os.environ.get("HLOC_GOLDEN"):
        path.write_text(given.rstrip("\n") + "\n" + ARROW[1:] + printed, encoding="utf-8")
    else:
        assert printed == expected
    assert print_module(parse_module(printed)).strip() + "\n" == printed
    if "not idempotent" not in told:
        again = parse_module(printed)
        assert not run_passes(again, passes, context)
    if "not evaluated" not in told:
        before = parse_module(given)
        for seed in (0, 1):
            inputs = random_arrays(entry_parameters(before), seed)
            assert_same_values(evaluate(before, inputs), evaluate(module, inputs))


def test_every_pass_has_a_case() -> None:
    missing = set(ALL_PASSES) - {path.parent.name for path in CASES}
    assert not missing, f"no testdata/passes/<pass>/ for {sorted(missing)}"
