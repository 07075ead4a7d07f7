"""What a pass may know about the world besides the module.

    algebraic_simplifier(module, PassContext(machine=Machine.host(), target="cpu"))

A pass is `pass_name(module: Module, context: PassContext) -> bool`; True means that it changed something. Passes that
do not depend on the target ignore the context.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hloc.machine import Machine


@dataclass
class PassContext:
    """machine: the hardware whose costs count; target: "cpu" or "cuda"; options: by name, from the command line."""

    machine: Machine = field(default_factory=Machine.host)
    target: str = "cpu"
    options: dict[str, Any] = field(default_factory=dict)
