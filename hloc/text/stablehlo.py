"""StableHLO and MLIR bytecode to a serialized HloModuleProto, through jaxlib (the `jax` extra).

    proto, devices = hlo_of_mlir("module @f { func.func public @main(...) ... }", "f.mlir")

jaxlib converts; hloc reads the result like any other proto.
"""
from __future__ import annotations

import re
from collections.abc import Mapping

from hloc.errors import HlocError, ParseError, Source, Span, UsageError

BYTECODE = b"ML\xefR"
_FIRST_WORD = re.compile(r'(?:\s|//[^\n]*(?:\n|\Z))*'
                         r'(?:module\s*[@{a]|[#!][\w$.\-]+\s*=|func\.func\b|"builtin\.module")')
_DIALECT = re.compile(r"\b(?:func\.func\b|stablehlo\.|mhlo\.|chlo\.|vhlo\.)")
_UNBOUNDED = re.compile(r"tensor<(?:\d+x)*\?")
_ERROR = re.compile(r"[^:\s]+:(\d+):(\d+): error: ([^\n]*)")
_COUNTS = {"num_replicas": "replica_count", "num_partitions": "num_partitions"}
_COUNT = re.compile(r"mhlo\.(num_replicas|num_partitions)\s*=\s*(\d{1,9})\b")


def is_mlir(text: str) -> bool:
    """Whether the beginning of a text is MLIR."""
    return _FIRST_WORD.match(text) is not None and _DIALECT.search(text) is not None


def hlo_of_mlir(module: str | bytes, name: str, sizes: Mapping[str, int] | None = None) -> tuple[bytes, dict[str, str]]:
    """The proto, and header attributes that have no field in it; `sizes` of unbounded dimensions by their names
    (stablehlo_sizes.py). Raises UsageError without jaxlib, ParseError."""
    from hloc.text.stablehlo_sizes import with_sizes
    try:
        from jaxlib import _jax
    except ImportError as error:
        raise UsageError(f"{name} is MLIR: reading it needs jax, which is not installed ({error})",
                         hint="pip install 'hloc[jax]'") from None
    try:
        sized = with_sizes(module, name, sizes) if sizes else module
        computation = _jax.mlir.mlir_module_to_xla_computation(sized, use_tuple_args=False, return_tuple=False)
        proto = computation.as_serialized_hlo_module_proto()
    except HlocError:
        raise
    except Exception as error:                     # jaxlib's exceptions vary by version
        raise _located(str(error), module, name, bool(sizes)) from None
    head = module[:module.find("{", module.find("{") + 1) + 1][:10_000] if isinstance(module, str) else ""
    return proto, {_COUNTS[key]: count for key, count in _COUNT.findall(head) if count != "1"}


def _located(message: str, module: str | bytes, name: str, sized: bool) -> ParseError:
    """jaxlib's message, with the place that it speaks of, where that is one of the file as it stands."""
    found = _ERROR.search(message)
    if sized and found is not None:
        return ParseError(f"{name}, with the sizes that --size gives: {found[3]}")
    if found is None or not isinstance(module, str):
        first = (message.splitlines() or ["no message"])[0]
        return ParseError(f"{name} is not StableHLO that jaxlib can convert: {first[:300]}")
    source = Source(module, name)
    line, column = int(found[1]), int(found[2])
    start = 0
    for _ in range(min(line, 1 + module.count("\n")) - 1):
        start = module.index("\n", start) + 1
    hint = "give unbounded dimensions sizes: --size arg0.0=4" if _UNBOUNDED.search(module) else None
    return ParseError(found[3], Span(source, start + column - 1, start + column), hint)
