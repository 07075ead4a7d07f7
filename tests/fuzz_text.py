"""Damaged HLO texts, for fuzz.py.

Texts of testdata (and of the folders) are cut, spliced and changed at random, then parsed, verified, printed, optimized;
small modules are evaluated, and C is generated for them.
"""
from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from hloc.api import Options, optimize, plan
from hloc.errors import HlocError
from hloc.evaluate import evaluate
from hloc.inputs import entry_parameters, random_arrays
from hloc.ir import Module, leaves
from hloc.ir.clone import clone_module
from hloc.targets import find
from hloc.text import parse_module
from hloc.verify import verify

LONGEST = 20_000                        # characters of a text that is mutated
SUFFIX = ".hlo"
SMALL = 1 << 16                         # elements in all arrays of a module that is run
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[A-Za-z_][\w.\-]*|-?\d+(?:\.\d+)?|->|[^\w\s]|\s+')
NUMBERS = ("0", "1", "2", "-1", "3", "7", "64", "2147483648", "-9223372036854775808", "18446744073709551616",
           "999999999999999999999", "0.5", "nan", "inf", "1e400", "100000")
STRAY = ("(", ")", "{", "}", "[", "]", ",", "=", "%", '"', "'", "/*", "*/", "//", "\n", "\0", "ROOT ", "ENTRY ", "->",
         "\u2028", "{{", "}}", "[<=4]", "f32[]", "(f32[2], s32[])", "token[]", "<=", "?", ":", "\\", "{1,0}", "u1[8]")
WORDS = ("add", "while", "fusion", "tuple", "reduce", "f8e4m3fn", "s4", "c128", "pred", "parameter", "constant", "bitcast",
         "int", "for", "dimensions", "to_apply", "calls", "body", "window", "sharding", "metadata", "dot", "scatter")


# -- damaging ----------------------------------------------------------------------------------------------------------

def mutated(text: str, others: list[str], choose: random.Random) -> str:
    """`text` with one to a few changes."""
    tokens = list(tokens_of(text))
    for _ in range(choose.choice((1, 1, 1, 2, 3, 6))):
        if not tokens:
            return ""
        choose.choice(CHANGES)(tokens, others, choose)
    return "".join(tokens)


@cache
def tokens_of(original: str) -> tuple[str, ...]:
    return tuple(TOKEN.findall(original))


def replace_number(tokens: list[str], others: list[str], choose: random.Random) -> None:
    places = [i for i, t in enumerate(tokens) if t.lstrip("-")[:1].isdigit()]
    if places:
        tokens[choose.choice(places)] = choose.choice(NUMBERS + tuple(str(n) for n in range(5)))


def replace_word(tokens: list[str], others: list[str], choose: random.Random) -> None:
    """A name by another of the same text, or by a word of the language."""
    places = [i for i, t in enumerate(tokens) if t[:1].isalpha() or t[:1] == "_"]
    if places:
        tokens[choose.choice(places)] = choose.choice(WORDS) if choose.random() < 0.3 else tokens[choose.choice(places)]


def swap(tokens: list[str], others: list[str], choose: random.Random) -> None:
    i, j = choose.randrange(len(tokens)), choose.randrange(len(tokens))
    tokens[i], tokens[j] = tokens[j], tokens[i]


def delete(tokens: list[str], others: list[str], choose: random.Random) -> None:
    i = choose.randrange(len(tokens))
    del tokens[i:i + choose.choice((1, 1, 2, 5, 40))]


def repeat(tokens: list[str], others: list[str], choose: random.Random) -> None:
    i = choose.randrange(len(tokens))
    part = tokens[i:i + choose.choice((1, 3, 10, 60))]
    tokens[i:i] = part * choose.choice((1, 1, 2, 300 if len(part) < 4 else 2))


def insert(tokens: list[str], others: list[str], choose: random.Random) -> None:
    tokens.insert(choose.randrange(len(tokens) + 1), choose.choice(STRAY))


def splice(tokens: list[str], others: list[str], choose: random.Random) -> None:
    """A stretch of another text."""
    other = tokens_of(choose.choice(others))
    if other:
        i, j = choose.randrange(len(other)), choose.randrange(len(tokens))
        tokens[j:j + choose.choice((0, 20))] = other[i:i + choose.choice((5, 30, 200))]


def move_line(tokens: list[str], others: list[str], choose: random.Random) -> None:
    lines = "".join(tokens).split("\n")
    i, j = choose.randrange(len(lines)), choose.randrange(len(lines))
    lines.insert(j, lines.pop(i))
    tokens[:] = TOKEN.findall("\n".join(lines))


CHANGES: tuple[Callable, ...] = (replace_number, replace_number, replace_word, replace_word, swap, delete, repeat, insert,
                                 splice, move_line)


# -- trying ------------------------------------------------------------------------------------------------------------

def attempt(text: str) -> None:
    """All stages, as far as they go. HlocErrors end it; anything else is a find."""
    try:
        module = parse_module(text)
        verify(module)
        go_on(module)
    except HlocError as error:
        assert str(error)


TRIED: set[int] = set()                 # hashes of the modules that went on, so that none does so twice


def go_on(module: Module) -> None:
    """The stages behind reading, for a module that did not go through them before: of damaged texts that can be read,
    every second is one of those that were tried already, or the original. Raises HlocError."""
    text = str(module)
    if hash(text) in TRIED:
        return
    TRIED.add(hash(text))
    assert str(parse_module(text)) == text, "printing is no fixed point"
    small = is_small(module)
    if small:
        run_evaluator(module)
    compile_to_text(module, "cpu", small)
    compile_to_text(module, "cuda", small)


def is_small(module: Module) -> bool:
    """Whether it is cheap to run: few elements, and no loops, whose length nobody knows."""
    if any(i.opcode in ("while", "fft", "infeed", "recv") for i in module.instructions()):
        return False
    sizes = [s.num_elements for i in module.instructions() for s in leaves(i.shape)]
    return sum(sizes) < SMALL and len(sizes) < 2000 and all(window_is_small(i) for i in module.instructions())


def window_is_small(instruction) -> bool:
    window = instruction.get("window")
    sizes = [d.size * d.window_dilation + abs(d.padding_low) + abs(d.padding_high) + d.base_dilation
             for d in getattr(window, "dimensions", ())]
    return int(np.prod(sizes, dtype=object)) < SMALL if sizes else True


def run_evaluator(module: Module) -> None:
    parameters = entry_parameters(module)
    if any(p.shape.is_dynamic or -1 in p.shape.dimensions for p in parameters):
        return
    try:
        evaluate(module, random_arrays(parameters, 0))
    except HlocError:
        pass


def compile_to_text(module: Module, name: str, small: bool) -> None:
    try:
        target, options, copy = find(name), Options(), clone_module(module)
        optimize(copy, target, options)
        verify(copy)
        if small:
            assert target.executable(plan(copy, target, options), copy, options).source
    except HlocError:
        pass


def originals(folders: Sequence[Path]) -> list[str]:
    """The modules of .hlo files."""
    paths = sorted(p for folder in folders for p in folder.rglob("*.hlo"))
    texts = [p.read_text(encoding="utf-8", errors="replace") for p in paths if p.stat().st_size < LONGEST]
    parts = [part for text in texts for part in re.split(r"^// (?:-----|==>)\n", text, flags=re.M)]
    return [part for part in parts if part.strip()]
