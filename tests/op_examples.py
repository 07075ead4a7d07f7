"""Reads testdata/ops/*.hlo: modules with the values that they must give (format: testdata/ops/README.md).

    for example in read_examples(path): example.module_text, example.cases[0].inputs[0], ...
"""
from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hloc.ir import ELEMENT_TYPES

FOLDER = Path(__file__).parent.parent / "testdata" / "ops"
_SECTION = re.compile(r"(inputs|outputs)(?: (\d+))?:$")
_VALUE = re.compile(r"([a-z]\w*)\[([\d,]*)\]\s*(.*)$", re.S)
_NUMBER = re.compile(r"[^\s{},()]+")


@dataclass
class Case:
    """Device number -> flattened arrays; device 0 alone where the file does not number them."""

    inputs: dict[int, list[np.ndarray]] = field(default_factory=dict)
    outputs: dict[int, list[np.ndarray]] = field(default_factory=dict)
    devices: bool = False


@dataclass
class Example:
    """One module of a file."""

    name: str
    text: str
    line: int
    cases: list[Case]
    tolerance: float = 0.0
    no_xla: str = ""


def read_examples(path: Path) -> list[Example]:
    """All modules of a file, in order."""
    examples, line = [], 1
    for number, part in enumerate(re.split(r"^// -----\n", path.read_text(), flags=re.M)):
        examples.append(_read_example(f"{path.stem}:{number}", part, line))
        line += part.count("\n") + 1
    return examples


def _read_example(name: str, text: str, line: int) -> Example:
    example = Example(name, text, line, [])
    values: list[str] | None = None
    blocks: list[tuple[str, int | None, list[str]]] = []
    for comment in (c[2:].strip() for c in text.splitlines() if c.startswith("//")):
        section = _SECTION.match(comment)
        if section:
            values = []
            blocks.append((section[1], int(section[2]) if section[2] else None, values))
        elif comment.startswith("tolerance:"):
            example.tolerance, values = float(comment.split(":")[1]), None
        elif comment.startswith("xla: no"):
            example.no_xla, values = comment[7:].lstrip(", ") or "no reason given", None
        elif values is not None and _VALUE.match(comment):
            values.append(comment)
        elif values and re.match(r"[\s{},()\-+.\w]*$", comment):
            values[-1] += " " + comment
    _add_blocks(example, blocks)
    return example


def _add_blocks(example: Example, blocks: list) -> None:
    """Inputs after outputs, or outputs twice for a device, begin a new case."""
    case, complete = Case(), False
    for kind, device, texts in blocks:
        if complete and (kind == "inputs" or (device or 0) in case.outputs):
            example.cases.append(case)
            case = Case()
        getattr(case, kind)[device or 0] = [read_value(t) for t in texts]
        case.devices |= device is not None
        complete = kind == "outputs"
    if complete:
        example.cases.append(case)


def read_value(text: str) -> np.ndarray:
    """An array from "f32[2,2] {{1,2},{3,4}}"."""
    match = _VALUE.match(text)
    element_type, dims, literal = match[1], match[2], match[3].strip()
    shape = tuple(int(d) for d in dims.split(",")) if dims else ()
    kind, dtype = ELEMENT_TYPES[element_type].kind, ELEMENT_TYPES[element_type].dtype
    size = math.prod(shape)
    if literal == "iota":
        return np.arange(size).astype(dtype).reshape(shape)
    tokens = _NUMBER.findall(literal)
    if tokens and tokens[0] == "all":
        tokens = tokens[1:] * (size * (2 if kind == "complex" and len(tokens) == 3 else 1))
    numbers = [_number(t, kind) for t in tokens]
    if kind == "complex" and "(" in literal:
        # complex(), not a + bj: inf * 0 would make a nan
        numbers = [complex(a, b) for a, b in zip(numbers[::2], numbers[1::2])]
    if len(numbers) != size:
        raise ValueError(f"{text!r} has {len(numbers)} elements, not {size}")
    wide = {"float": np.float64, "complex": np.complex128, "pred": np.bool_}.get(kind)
    if wide is None and ELEMENT_TYPES[element_type].bits == 64:
        wide = dtype
    with np.errstate(all="ignore"):
        return np.array(numbers, dtype=wide or np.int64).astype(dtype).reshape(shape)


def _number(token: str, kind: str):
    if kind == "pred":
        return token in ("true", "1")
    return int(token, 0) if kind in ("signed", "unsigned") else float(token)


def difference(got: np.ndarray, want: np.ndarray, tolerance: float) -> str:
    """Empty where the two agree, else what differs first."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    bad = ~_agree(got, want, tolerance)
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} differ, first at {list(at)}: {got[at]!r} instead of {want[at]!r}"


def _agree(got: np.ndarray, want: np.ndarray, tolerance: float) -> np.ndarray:
    if np.dtype(want.dtype).kind == "c":
        return _agree(got.real, want.real, tolerance) & _agree(got.imag, want.imag, tolerance)
    if want.dtype == np.bool_ or want.dtype.kind in "iu":
        return got == want
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if tolerance:
            return same | (np.abs(a - b) <= tolerance * np.maximum(1, np.abs(b)))
        return same & (np.isnan(a) | (np.signbit(a) == np.signbit(b)))
