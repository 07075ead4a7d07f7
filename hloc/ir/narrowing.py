"""Type guards for what type checkers cannot tell from a comparison."""
from __future__ import annotations

from typing import TypeGuard, TypeVar

T = TypeVar("T")


def all_known(values: list[T | None]) -> TypeGuard[list[T]]:
    """Whether None is not among the values."""
    return None not in values
