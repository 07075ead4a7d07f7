"""The context of a pass: target, machine and options.

    algebraic_simplifier(module, PassContext(machine=Machine.host(), target="cpu"))

A pass is `pass_name(module: Module, context: PassContext) -> bool`; True means that it changed something. Passes that
do not depend on the target ignore the context.
"""
from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hloc.errors import Span, UnsupportedError, UsageError
from hloc.ir import Instruction
from hloc.machine import Machine

# Option -> its default, and its possible values for messages.
OPTIONS: dict[str, tuple[Any, str]] = {
    "fusion": ("on", "'on' or 'off'"),
    "excess_precision": ("on", "'on' or 'off'"),
    "f32": ("tf32", "'tf32' or 'exact'"),
    "memory_limit": (None, "a number of bytes, or None"),
    "combine_bytes": (30 << 20, "a number of bytes"),
    "pipelined": ("off", "'on' or 'off'"),
    "mesh": (None, "sizes of axes by name, as {'data': 4}, or None"),
}
VARIABLES = {"f32": "HLOC_F32"}             # of the environment


def _is_right(name: str, value: Any) -> bool:
    if name in ("memory_limit", "combine_bytes"):
        missing = value is None and name == "memory_limit"
        return missing or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)
    if name == "mesh":
        return value is None or isinstance(value, Mapping) and all(
            isinstance(k, str) and isinstance(n, int) and n > 0 for k, n in value.items())
    return value in (("tf32", "exact") if name == "f32" else ("on", "off"))


@dataclass
class PassContext:
    """machine: the hardware whose costs count; target: "cpu" or "cuda"; options: by name, see OPTIONS.

    fusion_report   a list that receives an Edge per array that fusion leaves between two kernels; None: no report
    saved           a list that receives a Saved per array that does not stay in memory for the sake of a memory limit
    warn            called with what the user should know, and its place; strict: that is an error then
    origins         received from sharding_propagation: of each array, by axis of the mesh, the annotation it is from
    made_for        received from spmd_partitioner: of each collective, by its channel, the arrays of the whole program
                    that it was made for, the likeliest cause first
    joined          received from passes that make one collective of several: by its channel, those of the others
    seconds         of one run of an instruction, kernels and collectives, where more is known than passes can tell
    Raises UsageError for an unknown option or an invalid value.
    """

    machine: Machine = field(default_factory=Machine.host)
    target: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)
    fusion_report: list | None = None
    saved: list | None = None
    warn: Callable[[str, Span | None], None] | None = None
    strict: bool = False
    seconds: Callable[[Instruction], float] | None = None
    origins: dict[Instruction, dict[int, Instruction]] = field(default_factory=dict)
    made_for: dict[int, tuple[Instruction, ...]] = field(default_factory=dict)
    joined: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.options.items():
            if name not in OPTIONS:
                near = difflib.get_close_matches(name, OPTIONS, n=1)
                raise UsageError(f"no pass has an option {name!r}",
                                 hint=f"did you mean {near[0]}?" if near else "options: " + ", ".join(OPTIONS))
            if not _is_right(name, value):
                raise UsageError(f"option {name} takes {OPTIONS[name][1]}, not {value!r}")

    def join(self, kept: Instruction, others: Iterable[Instruction]) -> None:
        """Note that one collective now does what the others did, too."""
        channel = kept.get("channel_id")
        if channel is not None:
            self.joined.setdefault(channel, []).extend(o.get("channel_id") for o in others)

    def option(self, name: str) -> Any:
        """The value of an option, or what the environment says, or its default. UsageError for a variable that is
        wrong."""
        if name in self.options or name not in VARIABLES:
            return self.options.get(name, OPTIONS[name][0])
        value = os.environ.get(VARIABLES[name], OPTIONS[name][0])
        if not _is_right(name, value):
            raise UsageError(f"{VARIABLES[name]} is {value!r}; it takes {OPTIONS[name][1]}")
        return value

    def tell(self, message: str, span: Span | None) -> None:
        """Warn. Raises UnsupportedError instead where the context is strict."""
        if self.strict:
            raise UnsupportedError(message, span)
        if self.warn is not None:
            self.warn(message, span)
