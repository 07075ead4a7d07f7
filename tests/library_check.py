"""A call of a library on given operands, on the evaluator and in compiled C, against arrays made in NumPy."""
from __future__ import annotations

import json

import numpy as np

import hloc
from hloc.evaluate import evaluate
from hloc.ir import element_type_of
from hloc.text import parse_module

TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 1e-2, "float8_e4m3fn": 0.07, "complex64": 2e-6, "int8": 0,
             "int32": 0, "float16": 2e-3, "uint32": 0}
rng = np.random.default_rng(11)


def draw(*sizes, dtype=np.float32):
    if np.dtype(dtype).kind == "i":
        return rng.integers(-4, 5, sizes).astype(dtype)
    values = rng.uniform(-1, 1, sizes)
    return (values + 1j * rng.uniform(-1, 1, sizes) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def shape_of(x) -> str:
    return f"{element_type_of(x.dtype)}[{','.join(map(str, x.shape))}]"


def check(target: str, operands, wanted, *, config=None, more="", workspace=True, tolerance=None, layout="") -> None:
    """The call on `operands` must give `wanted`, then a workspace of zeros, on both."""
    shapes = [shape_of(w) + layout for w in wanted] + ["s8[16]"] * workspace
    shape = f"({', '.join(shapes)})" if workspace or len(wanted) > 1 else shapes[0]
    lines = [f"  p{n} = {shape_of(x)} parameter({n})" for n, x in enumerate(operands)]
    written = f", backend_config={json.dumps(config)}" if config is not None else ""
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    text = "\n".join(["HloModule library", "ENTRY e {", *lines,
                      f'  ROOT r = {shape} custom-call({names}){more}, custom_call_target="{target}"{written}', "}"])
    module = parse_module(text)
    for name, results in (("evaluator", evaluate(module, operands)), ("cpu", hloc.compile(text, "cpu")(*operands))):
        assert len(results) == len(wanted) + workspace
        for got, want in zip(results, wanted):
            limit = TOLERANCE[want.dtype.name] if tolerance is None else tolerance
            got_wide, wide = (np.where(got == want, 0, x.astype(np.complex128)) for x in (got, want))
            scale = max(1.0, float(np.abs(np.where(np.isfinite(want), want, 0)).max(initial=0)))
            error = float(np.abs(got_wide - wide).max(initial=0))
            assert got.dtype == want.dtype and error <= limit * scale, (name, error, got, want)
        assert not workspace or not np.any(results[-1])
