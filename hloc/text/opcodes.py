"""The syntax of each opcode: number of operands, required and optional attributes.

In: an opcode as written. Out: its Signature, from the op's row in hloc/ops; None for an unknown opcode. Example:

    signature("reduce").required == ("dimensions", "to_apply")
    signature("custom-call-start").allowed             custom-call's attributes and those of async-start
"""
from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hloc.ops.table import OPS

COMMON = frozenset(["metadata", "sharding", "frontend_attributes", "backend_config", "origin", "statistics",
                    "control-predecessors", "parameter_replication"])
KNOWN_KEYS: frozenset[str] = COMMON.union(*((*row.required, *row.optional) for row in OPS.values()))


class Signature(NamedTuple):
    """`most` is None where there is no bound; `allowed` holds the required, the optional and the common attributes."""

    least: int
    most: int | None
    required: tuple[str, ...]
    allowed: frozenset[str]


@lru_cache(maxsize=1024)
def signature(opcode: str) -> Signature | None:
    """The signature of an opcode, also of the asynchronous short forms X-start, X-update, X-done."""
    try:
        row = OPS[opcode]
    except KeyError:
        return None
    return Signature(row.least_operands, row.most_operands, row.required, COMMON.union(row.required, row.optional))
