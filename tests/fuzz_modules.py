"""Random modules at the edges, for fuzz.py: dimensions of none, one and primes, windows that see only padding, negative
padding and dilation, each opcode as often as any other (random_modules.py).

Nothing is damaged here: each module is right, is printed and read again, and becomes C and CUDA C, or is refused by
name, with the place.
"""
from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from random_body import Seeded
from random_modules import random_facts, random_module

import hloc
from hloc.errors import UnsupportedError
from hloc.ir.clone import clone_module
from hloc.text import parse_module
from hloc.verify import verify

SUFFIX = ".hlo"
TARGETS = ("cpu", "h200")


def originals(folders: Sequence[Path]) -> list[str]:
    """Modules are made from nothing."""
    return [""]


def mutated(original: str, others: list[str], choose: random.Random) -> str:
    return edge_module(choose.getrandbits(62))


def edge_module(seed: int) -> str:
    choices = Seeded(seed)
    return random_module(choices, random_facts(choices)._replace(edges=True))


def attempt(text: str) -> None:
    """Nothing but a located UnsupportedError of a target may be raised."""
    module = parse_module(text)
    verify(module)
    assert str(parse_module(str(module))) == str(module), "printing is no fixed point"
    for target in TARGETS:
        compile_to_source(clone_module(module), target)


def compile_to_source(module, target: str) -> None:
    try:
        assert hloc.compile(module, target=target, run=False).source
    except UnsupportedError as refusal:
        assert refusal.span is not None, f"no place: {refusal}"
