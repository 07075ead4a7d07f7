"""Each op on each element type: the verifier refuses it, with its place, or the evaluator and the CPU run it."""
from __future__ import annotations

import numpy as np
import pytest
from combined import combined
from op_types import CALLS, TYPES, forms, module_of
from product_types import numbers

import hloc
from hloc.errors import VerifyError
from hloc.inputs import entry_results
from hloc.ops.table import OPS
from hloc.tools.compare import compare

TRIED = [op for op in OPS.values() if (op.scalar is not None and op.opcode != "convert") or op.opcode in CALLS]


def modules_of(element_type: str) -> tuple[list[str], list[str]]:
    """Texts of the ops that the verifier lets pass for a type, and what it says of the others."""
    passed, refused = [], []
    for op in TRIED:
        for attributes in forms(op):
            text = module_of(op, element_type, attributes)
            try:
                hloc.load(text)
            except VerifyError as error:
                assert error.span is not None, str(error)
                refused.append(f"{op.opcode} {attributes}".strip())
            else:
                passed.append(text)
    return passed, refused


def inputs(element_type: str) -> list[np.ndarray]:
    return [numbers(element_type, 8), numbers(element_type, 8)[::-1].copy(), numbers(element_type, 1).reshape(())]


def test_all_elementwise_ops_are_tried():
    assert len(TRIED) > 60 and set(CALLS) <= set(OPS)


@pytest.mark.parametrize("element_type", TYPES)
def test_runs_or_is_refused(element_type):
    passed, refused = modules_of(element_type)
    assert len(passed) > 25 and len(refused) > 3
    modules = [hloc.load(text) for text in passed]
    expected = [hloc.compile(m, "reference")(*inputs(element_type))[0] for m in modules]
    exe = hloc.compile(combined(modules), "cpu")
    results = exe(*inputs(element_type) * len(modules))
    differ = [(str(m.entry.root), d.note, d.got, d.want) for m, r, e in zip(modules, results, expected, strict=True)
              for d in compare(entry_results(m), [r], [e]) if not d.agrees]
    assert differ == []


ORDER = ["maximum", "minimum", "clamp", "remainder", *(f"compare direction={d}" for d in ("LT", "LE", "GT", "GE"))]


@pytest.mark.parametrize("element_type, some", [
    ("c64", ORDER), ("c128", ORDER), ("pred", ["subtract", "negate", "sine", "shift-left", "mulhi", "sign"]),
    ("u8", ["abs", "sign", "floor", "tanh", "is-finite"]), ("s4", ["sqrt", "reduce-precision exponent_bits=5, mantissa_bits=3", "complex"]),
    ("bf16", ["and", "not", "popcnt", "shift-left", "mulhi", "complex"]), ("f8e8m0fnu", ["xor", "count-leading-zeros"]),
])
def test_is_refused(element_type, some):
    refused = modules_of(element_type)[1]
    assert [name for name in some if name not in refused] == []
