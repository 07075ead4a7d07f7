"""Sizes for the unbounded dimensions of StableHLO, as of `jax.export` with symbolic shapes: `--size b=4`.

    with_sizes(module, "f.mlir", {"b": 4})      arguments tensor<?x4xf32> become tensor<4x4xf32>, and so all behind them

An unbounded dimension is named by its argument and its place (arg0.0), or by the variable that jax.export wrote for it;
the place goes before the variable. A new function `main` takes arguments of these sizes and calls the old one; XLA's
shape refinement (in jaxlib) carries them on.
"""
from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

from hloc.errors import UsageError, printable

MOST_SIZE = (1 << 31) - 1
INNER = "hloc_of_unbounded_sizes"             # what the old main is called
_TENSOR = re.compile(r"tensor<((?:(?:\?|\d+)x)*)(complex<\w+>|[\w!.]+)>")         # without an encoding, as of bounds
_PRODUCT = re.compile(r"(\d{1,9})\*([A-Za-z_]\w*)")
# jax.export writes what its arguments are into each assertion: args[0].shape = (b, 4),args[1].shape = (c,).
_SPECIFICATIONS = re.compile(r"polymorphic shapes specifications: (.{1,100000}?)\. Obtained dimension variables")
_SPECIFICATION = re.compile(r"\.shape = \(([^()=]*)\)(?=,|$)")


def with_sizes(module: str | bytes, name: str, sizes: Mapping[str, int]) -> bytes:
    """The module as MLIR bytecode. Raises UsageError for sizes that are missing, unknown or out of range; jaxlib's
    errors are its own."""
    try:
        from jax.interpreters.mlir import make_ir_context
        from jaxlib import _jax
        from jaxlib.mlir import ir
    except ImportError as error:
        raise UsageError(f"{name} is MLIR: reading it needs jax, which is not installed ({error})",
                         hint="pip install 'hloc[jax]'") from None
    if isinstance(module, bytes):
        module = _jax.mlir.deserialize_portable_artifact(module)
    with make_ir_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        mains = [f for f in parsed.body.operations if "sym_name" in f.attributes and
                 ir.StringAttr(f.attributes["sym_name"]).value == "main" and "function_type" in f.attributes]
        if len(mains) != 1:
            raise UsageError(f"{name} has no function main, whose arguments --size speaks of")
        types = [_Argument(str(t)) for t in _function_type(ir, mains[0]).inputs]
        chosen = _chosen(types, _variables(str(parsed), types), dict(sizes), name)
        apart = ir.Module.parse(_wrapper(ir, mains[0], types, chosen))
        parsed.body.append(next(iter(apart.body.operations)).detach_from_parent())
        mains[0].attributes["sym_name"] = ir.StringAttr.get(INNER)
        mains[0].attributes["sym_visibility"] = ir.StringAttr.get("private")
        code = io.BytesIO()
        parsed.operation.write_bytecode(code)
        return _jax.mlir.refine_polymorphic_shapes(code.getvalue(), enable_shape_assertions=True,
                                                   validate_static_shapes=True)


def _function_type(ir: Any, function: Any) -> Any:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


class _Argument:
    """The type of an argument: its text, its element type, and its sizes, None where a dimension is unbounded."""

    def __init__(self, text: str):
        tensor = _TENSOR.fullmatch(text)
        self.text, self.element = text, tensor[2] if tensor else ""
        self.sizes = [None if n == "?" else int(n) for n in tensor[1].split("x")[:-1]] if tensor else []

    @property
    def unbounded(self) -> bool:
        return None in self.sizes

    def of_sizes(self, sizes: list[int]) -> str:
        return f"tensor<{''.join(f'{n}x' for n in sizes)}{self.element}>"


def _variables(text: str, types: list[_Argument]) -> dict[tuple[int, int], str]:
    """What jax.export calls the dimensions: {(argument, dimension): variable}. {} where it has not written that."""
    found = _SPECIFICATIONS.search(text)
    specified = [[part.strip() for part in m[1].split(",") if part.strip()]
                 for m in _SPECIFICATION.finditer(found[1])] if found else []
    unbounded = [n for n, t in enumerate(types) if t.unbounded]
    if [len(s) for s in specified] != [len(types[n].sizes) for n in unbounded]:
        return {}
    return {(n, d): variable for n, parts in zip(unbounded, specified) for d, variable in enumerate(parts)
            if types[n].sizes[d] is None}


def _chosen(types: list[_Argument], variables: Mapping[tuple[int, int], str], given: dict[str, int],
            name: str) -> dict[int, list[int]]:
    """The sizes of the arguments that have unbounded dimensions."""
    known: dict[int, list[int]] = {}
    missing: list[str] = []
    used: set[str] = set()
    for n, argument in enumerate(types):
        for d, size in enumerate(argument.sizes):
            if size is None:
                own = (f"arg{n}.{d}", variables.get((n, d), ""))
                key = next((k for k in own if k in given), None)
                size = given[key] if key else _computed(own[1], given)
                used |= {key} if key else set(re.findall(r"[A-Za-z_]\w*", own[1])) if size is not None else set()
                if size is None:
                    product = _PRODUCT.fullmatch(own[1])
                    missing.append(own[1] if own[1].isidentifier() else product[2] if product else own[0])
                elif not 0 <= size <= MOST_SIZE:
                    raise UsageError(f"--size: dimension {own[0]} cannot have {size} elements")
            if size is not None:                      # else it is missing, which is said below
                known.setdefault(n, []).append(size)
    names = ", ".join(dict.fromkeys(missing))
    if missing:
        raise UsageError(f"{name} has dimensions without a size: {printable(names)[:500]}",
                         hint="give each: " + " ".join(f"--size {m}=4" for m in list(dict.fromkeys(missing))[:8]))
    if surplus := sorted(set(given) - used):
        raise UsageError(f"--size {surplus[0]}: {name} has no such unbounded dimension")
    return {n: s for n, s in known.items() if types[n].unbounded}


def _computed(expression: str, given: Mapping[str, int]) -> int | None:
    """What jax.export wrote as a product of a number and a variable, 2*b; None where that is not known."""
    found = _PRODUCT.fullmatch(expression)
    return int(found[1]) * given[found[2]] if found and found[2] in given else None


def _wrapper(ir: Any, main: Any, types: list[_Argument], chosen: Mapping[int, list[int]]) -> str:
    """A module with func.func @main of these sizes, that calls the old one, which is declared behind it; attributes of
    arguments and results are kept."""
    results = [str(t) for t in _function_type(ir, main).results]
    notes = {key: [str(a) for a in ir.ArrayAttr(main.attributes[key])] if key in main.attributes else [""] * count
             for key, count in (("arg_attrs", len(types)), ("res_attrs", len(results)))}
    outer = [t.of_sizes(chosen[n]) if n in chosen else t.text for n, t in enumerate(types)]
    lines, names = [], [f"%arg{n}" for n in range(len(types))]
    for n, sizes in chosen.items():
        lines += [f"%s{n} = stablehlo.constant dense<{sizes}> : tensor<{len(sizes)}xi64>",
                  f"%w{n} = stablehlo.custom_call @stablehlo.shape_refinement_operand_wrapper(%arg{n}, %s{n}) "
                  f"{{indices_of_shape_operands = dense<1> : tensor<1xi64>}} : "
                  f"({outer[n]}, tensor<{len(sizes)}xi64>) -> {types[n].text}"]
        names[n] = f"%w{n}"
    listed = ", ".join(results)
    call = f"func.call @{INNER}({', '.join(names)}) : ({', '.join(t.text for t in types)}) -> ({listed})"
    values = [f"%r#{n}" for n in range(len(results))] if len(results) > 1 else ["%r"] * len(results)
    lines += [f"%r:{len(results)} = {call}" if len(results) > 1 else f"%r = {call}" if results else call,
              f"func.return {', '.join(values)} : {listed}" if results else "func.return"]
    head = ", ".join(f"%arg{n}: {t} {note if note != '{}' else ''}"
                     for n, (t, note) in enumerate(zip(outer, notes["arg_attrs"])))
    tail = ", ".join(f"{t} {note if note != '{}' else ''}" for t, note in zip(results, notes["res_attrs"]))
    declared = f"func.func private @{INNER}({', '.join(t.text for t in types)}) -> ({listed})"
    return f"func.func public @main({head}) -> ({tail}) {{\n" + "\n".join(lines) + f"\n}}\n{declared}"
