"""The target-independent pipeline keeps what real modules mean: a sample of them, before and after, by the evaluator.

The modules are not part of the project; without them the test is skipped.
"""
from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from hloc.errors import HlocError
from hloc.evaluate import evaluate
from hloc.inputs import entry_parameters, random_arrays
from hloc.passes.context import PassContext
from hloc.passes.pipelines import TARGET_INDEPENDENT
from hloc.passes.runner import run_passes
from hloc.text import parse_module

CORPUS = Path(__file__).parent.parent.parent / "shared" / "corpus"
LONGEST_TEXT = 6_000
ONE_IN = 8
TOLERANCE = {"bfloat16": 3e-2, "float16": 4e-3, "float64": 1e-9}


def sample() -> list[Path]:
    """A fixed choice of small modules that XLA accepts."""
    index = CORPUS / "index.jsonl"
    if not index.exists():
        return []
    rows = [json.loads(line) for line in index.read_text(encoding="utf-8").splitlines()]
    paths = [CORPUS / r["path"] for r in rows if r["xla_parser"] == "accepts"]
    return [p for p in paths if p.stat().st_size < LONGEST_TEXT and zlib.crc32(p.name.encode()) % ONE_IN == 0]


def outcome(text: str, optimize: bool):
    """The results on random inputs, or None where the evaluator has no meaning for the module."""
    module = parse_module(text)
    parameters = entry_parameters(module)
    if any(p.shape.is_dynamic for p in parameters) or sum(p.shape.num_bytes for p in parameters) > 1 << 20:
        return None
    inputs = random_arrays(parameters, 0)
    if optimize:
        run_passes(module, TARGET_INDEPENDENT, PassContext())
        assert not run_passes(module, TARGET_INDEPENDENT, PassContext())
    try:
        return evaluate(module, inputs)
    except HlocError:
        return None


@pytest.mark.skipif(not sample(), reason="the corpus of real modules is not on this machine")
def test_meaning_is_kept() -> None:
    compared = 0
    for path in sample():
        text = path.read_text(encoding="utf-8")
        try:
            before = outcome(text, optimize=False)
        except HlocError:
            continue
        if before is None:
            continue
        after = outcome(text, optimize=True)
        assert after is not None and len(before) == len(after), path.name
        for a, b in zip(before, after):
            assert a.dtype == b.dtype and a.shape == b.shape, path.name
            assert close(a, b), path.name
        compared += 1
    assert compared > 20


def close(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind in "biu" or a.dtype.name.startswith(("int", "uint")):
        return np.array_equal(a, b)
    tolerance = TOLERANCE.get(a.dtype.name, 1e-4)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    largest = np.max(np.abs(a), initial=0, where=np.isfinite(a))
    return np.allclose(a, b, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
