"""What type checkers cannot tell: values that are known to be there."""
from __future__ import annotations

from typing import TypeGuard, TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """A value that is not None, as the caller knows."""
    assert value is not None
    return value


def all_known(values: list[T | None]) -> TypeGuard[list[T]]:
    """Whether None is not among the values."""
    return None not in values
