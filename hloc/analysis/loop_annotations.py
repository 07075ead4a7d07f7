"""Hints in a while loop's backend_config, which its condition and body overrule.

    {"known_trip_count":{"n":"10"},"known_init_step":{"init":"0","step":"1"},
     "known_induction_variable":{"tuple_index":"0"}}

A compiler wrote them for the loop at that time; the loop or the hint may have been changed since.
Source: WhileLoopBackendConfig in xla/xla_data.proto.
"""
from __future__ import annotations

import json
from collections.abc import Iterator

from hloc.analysis.while_loops import induction_of, loop_of, trip_count
from hloc.errors import Span
from hloc.ir import Instruction, Module, Verbatim

TRIP_COUNT = "known_trip_count"
# Key of the hint and of the number in it -> description of the number.
HINTS = {(TRIP_COUNT, "n"): "iterations", ("known_init_step", "init"): "first value of the counter",
         ("known_init_step", "step"): "step of the counter", ("known_induction_variable", "tuple_index"): "counter"}


def backend_config(instruction: Instruction) -> dict:
    """The attribute as a dict; empty if it is missing or no JSON object."""
    text = instruction.get("backend_config")
    if text is None:
        return {}
    try:
        config = json.loads(text)
        config = json.loads(config) if isinstance(config, str) else config       # older XLA writes it as a string
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def hinted(config: dict, key: str, name: str) -> int | None:
    """The number under config[key][name], or None where there is none."""
    hint = config.get(key)
    try:
        return int(hint[name]) if isinstance(hint, dict) and name in hint else None
    except (TypeError, ValueError, OverflowError):
        return None


def known_trip_count(instruction: Instruction) -> int | None:
    """The number of iterations in backend_config, or None. Valid only after
    while_loop_trip_count_annotator, which writes the number that the loop's condition determines, or none."""
    return hinted(backend_config(instruction), TRIP_COUNT, "n")


def with_trip_count(instruction: Instruction, count: int | None) -> dict:
    """The attributes with that known_trip_count in backend_config, or without one."""
    config = {k: v for k, v in backend_config(instruction).items() if k != TRIP_COUNT}
    if count is not None:
        config[TRIP_COUNT] = {"n": str(count)}
    attributes = {k: v for k, v in instruction.attributes.items() if k != "backend_config"}
    if config:
        attributes["backend_config"] = _written(config)
    return attributes


def _written(config: dict) -> Verbatim:
    return Verbatim(json.dumps(config, separators=(",", ":")))


def without_hints(instruction: Instruction) -> dict:
    """The attributes without any of them: of a loop that is about to change."""
    config = {k: v for k, v in backend_config(instruction).items() if k not in {key for key, _ in HINTS}}
    attributes = {k: v for k, v in instruction.attributes.items() if k != "backend_config"}
    return {**attributes, "backend_config": _written(config)} if config else attributes


def contradictions(module: Module) -> Iterator[tuple[str, Span | None]]:
    """A message and its place for each hint that contradicts the condition and body of its loop."""
    for instruction in module.instructions():
        if instruction.opcode != "while" or "backend_config" not in instruction.attributes:
            continue
        config, loop = backend_config(instruction), loop_of(instruction)
        induction = induction_of(loop) if loop is not None and config else None
        if loop is None or induction is None:
            continue
        facts = trip_count(loop), induction.start, induction.step, induction.element
        for ((key, name), what), fact in zip(HINTS.items(), facts):
            said = hinted(config, key, name)
            if None not in (said, fact) and said != fact:
                yield (f"{key} of %{instruction.name} says {said} ({what}), condition and body say {fact}, which "
                       "counts", instruction.span)
