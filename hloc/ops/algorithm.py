"""The algorithm by which a target multiplies the elements of a matmul or convolution.

    algorithm_of(dot)                 "dot_tf32_tf32_f32", or "" where none is named
    with_algorithm(dot, algorithm)    the attributes that name one

HLO has the attribute `algorithm` for dots alone. Convolutions and ragged dots hold it as the frontend attribute
"hloc.algorithm", so that XLA's parser reads them.
"""
from __future__ import annotations

import re
from typing import Any

from hloc.ir import Instruction, Verbatim

ALGORITHMS = {"default": "dot_tf32_tf32_f32", "high": "dot_tf32_tf32_f32_x3"}     # of f32, by operand_precision
NOTED = re.compile(r'hloc\.algorithm="(\w+)"')


def algorithm_of(product: Instruction) -> str:
    """What a dot names, or what the pass algorithm_assignment noted."""
    if product.opcode == "dot":
        return str(product.get("algorithm") or "")
    noted = NOTED.search(str(product.get("frontend_attributes", "")))
    return noted[1] if noted and noted[1] in ALGORITHMS.values() else ""


def with_algorithm(product: Instruction, algorithm: str) -> dict[str, Any]:
    """The attributes of a product that names none yet, and an algorithm."""
    if product.opcode == "dot":
        return {**product.attributes, "algorithm": algorithm}
    others = str(product.get("frontend_attributes", "{}")).strip()[1:-1].strip()
    noted = f'hloc.algorithm="{algorithm}"' + (f",{others}" if others else "")
    return {**product.attributes, "frontend_attributes": Verbatim("{" + noted + "}")}
