"""Well-typed random HLO modules, as text.

    text = random_module(Seeded(7))                        a module from a seed, the same one everywhere
    text = random_module(Drawn(draw, st.integers))         a module from hypothesis, which then makes it smaller

What kinds of instructions there are stands in random_ops.py, random_indexing.py, random_products.py,
random_numerics.py, random_calls.py and random_devices.py.
"""
from __future__ import annotations

from typing import NamedTuple

from random_body import COMMON, RARE, Body, Choices, Program
from random_calls import CALLING
from random_devices import DEVICES
from random_indexing import INDEXING
from random_numerics import NUMERICS
from random_ops import BASIC, STRUCTURED, repeated
from random_products import PRODUCTS

MAKERS = repeated({**BASIC, **STRUCTURED, **PRODUCTS, **NUMERICS, **INDEXING, **CALLING, **DEVICES})
EVEN = repeated(dict.fromkeys([*MAKERS], 1))


class Facts(NamedTuple):
    """How modules are to be: many kinds of element types, layouts other than row-major, how many instructions;
    large: with dimensions that vectors of elements divide, or just not; edges: with dimensions of none, one and primes,
    windows that see only padding, and as many of each kind of instruction as of any other."""

    all_types: bool = False
    layouts: bool = False
    instructions: int = 12
    large: bool = False
    edges: bool = False


def random_facts(choices: Choices) -> Facts:
    return Facts(choices.chance(40), choices.chance(25), choices.integer(1, 24), edges=choices.chance(40))


def random_module(choices: Choices, facts: Facts | None = None) -> str:
    """The text of a module that the verifier accepts."""
    facts = facts or random_facts(choices)
    types = COMMON + RARE if facts.all_types else COMMON + ("bf16", "f16", "s8", "u32")
    program = Program(choices, facts.layouts, types, facts.large, facts.edges)
    entry = Body(program, EVEN if facts.edges else MAKERS)
    for _ in range(choices.integer(1, 3)):
        entry.parameter(program.element_type(), program.dims())
    entry.grow(facts.instructions)
    root = results(entry)
    text = entry.finish(program.name("main"), root, "ENTRY ")
    return "HloModule random\n\n" + "\n".join([*program.computations, text])


def results(entry: Body) -> str:
    """Write the root: a tuple of what nobody reads, and a few others; now and then one array, or a nested tuple."""
    choices = entry.choices
    chosen = entry.unread()[-8:] + ([choices.pick(entry.values)] if choices.chance(30) else [])
    if len(chosen) == 1 and not choices.chance(50):
        return chosen[0].name
    shapes = [entry.shape_of(v) for v in chosen]
    if len(chosen) > 2 and choices.chance(20):
        inner = entry.line(f"({', '.join(shapes[:2])})", "tuple", chosen[:2])
        return entry.line(f"({', '.join([f'({shapes[0]}, {shapes[1]})', *shapes[2:]])})", "tuple",
                          [inner, *chosen[2:]], stem="result")
    return entry.line(f"({', '.join(shapes)})", "tuple", chosen, stem="result")
