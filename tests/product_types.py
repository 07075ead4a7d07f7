"""Dots and convolutions of every three element types, in few modules.

    for text, arrays, expected in modules("dot", SMALL, triples(TYPES, 0)): ...

Numbers are small and sums exact in 32 bits of a float, so that results agree to the last bit with what is computed
here: integers wrap, everything else is added up exactly and converted once.
"""
from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from hloc.ir import ELEMENT_TYPES, numpy_dtype
from hloc.kernels.ir import Apply, Kernel, Load, Mutable, Store
from hloc.kernels.walks import expressions, parts, walk
from hloc.ops.conversions import convert_array
from hloc.ops.products import sum_type

TYPES = tuple(t.name for t in ELEMENT_TYPES.values() if t.dtype is not None)
SOME = ("pred", "s4", "s8", "u16", "s32", "u64", "f8e4m3fn", "f8e8m0fnu", "bf16", "f16", "f32", "f64", "c64")
INTEGERS = ("pred", "signed", "unsigned")
GROUPS = 2
Triple = tuple[str, str, str]


class Sizes(NamedTuple):
    m: int
    k: int
    n: int


SMALL, LARGE = Sizes(2, 4, 3), Sizes(24, 64, 40)


class Form(NamedTuple):
    """How an op is written: sizes of the operands and of the result, the call, and further operands."""

    lhs: str
    rhs: str
    result: str
    call: str
    extra: tuple[str, ...] = ()


FORMS = {
    "dot": Form("{m},{k}", "{k},{n}", "{m},{n}",
                "dot({a}, {b}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"),
    "convolution": Form("{m},{k},1", "{k},1,{n}", "{m},1,{n}",
                        "convolution({a}, {b}), window={{size={k}}}, dim_labels=b0f_0io->b0f"),
    "ragged-dot": Form("{m},{k}", "2,{k},{n}", "{m},{n}",
                       "ragged-dot({a}, {b}, sizes), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, "
                       "lhs_ragged_dims={{0}}, rhs_group_dims={{0}}", ("sizes = s32[2]",)),
    "scaled-dot": Form("{m},{k}", "{k},{n}", "{m},{n}",
                       "scaled-dot({a}, {b}, s, t), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
                       ("s = f8e8m0fnu[1,2]", "t = f32[]")),
}


def triples(types: Sequence[str], shift: int) -> list[Triple]:
    """len(types)^2 triples (lhs, rhs, result), in which every two types meet in every two of the three places."""
    count = len(types)
    return [(a, b, types[(i + j + shift) % count]) for i, a in enumerate(types) for j, b in enumerate(types)]


def all_triples(types: Sequence[str]) -> list[Triple]:
    return [(a, b, c) for a in types for b in types for c in types]


# -- which triples stand for all ---------------------------------------------------------------------------------------

def classes(triple: Triple) -> set[tuple[str, str, str]]:
    """What a product does with its types: it converts each operand to the type of the sums, multiplies and adds there,
    and converts the sums to the result."""
    sums = sum_type(*triple)
    return {("lhs", triple[0], sums), ("rhs", triple[1], sums), ("result", sums, triple[2])}


@cache
def representatives() -> tuple[Triple, ...]:
    """Triples in which all classes of all triples occur, the rare ones first."""
    triples_of: dict[tuple[str, str, str], list[Triple]] = defaultdict(list)
    for triple in random.Random(0).sample(all_triples(TYPES), len(TYPES) ** 3):
        for each in classes(triple):
            triples_of[each].append(triple)
    rare_first, missing, found = sorted(triples_of, key=lambda c: (len(triples_of[c]), c)), set(triples_of), []
    for each in rare_first:
        if each in missing:
            found.append(max(triples_of[each][:300], key=lambda triple: len(classes(triple) & missing)))
            missing -= classes(found[-1])
    return tuple(found)


def pieces(kernels: Iterable[Kernel]) -> set[tuple]:
    """What kernels are made of: operations with the types of their arguments, what is loaded, stored and added up."""
    found: set[tuple] = set()
    for kernel in kernels:
        types = {b.name: b.type for b in kernel.buffers}
        for statement in walk(kernel.body):
            for e in parts(expressions(statement)):
                if isinstance(e, Apply):
                    found.add((e.op, e.type, e.immediate, *(a.type for a in e.arguments)))
                elif isinstance(e, Load):
                    found.add(("load", e.type))
            if isinstance(statement, Store):
                found.add(("store", types.get(statement.buffer)))
            elif isinstance(statement, Mutable):
                found.add(("variable", statement.initial.type, statement.reassociable))
    return found


# -- modules and what they give ----------------------------------------------------------------------------------------

def numbers(element_type: str, *sizes: int) -> np.ndarray:
    """Small numbers of a type: integers of which some products wrap in 8 bits, halves, both signs, as far as it goes."""
    rng = np.random.default_rng(len(element_type) + sum(sizes))
    row = ELEMENT_TYPES[element_type]
    if row.kind in INTEGERS:
        values = rng.choice([0, 1, 2, 3, 16, -1, -2], sizes)
        if row.bits < 8:
            values %= 1 << row.bits
            values = np.where(values >> row.bits - 1 > 0, values - (1 << row.bits), values) \
                if row.kind == "signed" else values
            return values.astype(np.int8).astype(row.dtype)
        if row.kind == "unsigned" and row.bits > 8:             # sums of the largest would round in f32
            values = abs(values)
        return values.astype(row.dtype)
    if element_type == "f8e8m0fnu":
        return rng.choice([0.5, 1, 2, 4], sizes).astype(row.dtype)
    values = rng.choice([0, 0.5, 1, 1.5, 2, -1, -3], sizes)
    if row.kind == "complex":
        values = values + 1j * rng.choice([0, 1, -2], sizes)
    return values.astype(row.dtype)


def exact(array: np.ndarray) -> np.ndarray:
    """The same numbers as int64, f64 or c128."""
    kind = next(t.kind for t in ELEMENT_TYPES.values() if t.dtype == array.dtype)
    if kind in INTEGERS:
        return array.astype(np.int8).astype(np.int64) if array.dtype.itemsize == 1 and array.dtype.kind == "V" \
            else array.astype(np.int64)
    return array.astype(np.complex128 if kind == "complex" else np.float64)


def expected(op: str, triple: Triple, arrays: dict[str, np.ndarray], sizes: Sizes) -> np.ndarray:
    """What the op must give, written down without hloc's own products."""
    lhs, rhs = exact(arrays["a." + triple[0]]), exact(arrays["b." + triple[1]])
    if op == "convolution":
        lhs, rhs = lhs[:, :, 0], rhs[:, 0, :]
    if op == "scaled-dot":
        lhs = lhs * np.repeat(exact(arrays["s"]), sizes.k // 2, axis=1)
        rhs = rhs * exact(arrays["t"])
    if op == "ragged-dot":
        first, second = (int(x) for x in arrays["sizes"])
        sums = np.concatenate([lhs[:first] @ rhs[0], lhs[first:first + second] @ rhs[1],
                               np.zeros((sizes.m - first - second, sizes.n), np.result_type(lhs, rhs))])
    else:
        sums = lhs @ rhs
    result = convert_array(_wrapped(sums, triple) if sums.dtype == np.int64 else sums, triple[2])
    return result[:, None, :] if op == "convolution" else result


def _wrapped(sums: np.ndarray, triple: Triple) -> np.ndarray:
    """Integers become pred from the wider of the operands' types; others wrap in the result's own."""
    if triple[2] != "pred" or triple[:2] == ("pred", "pred"):
        return sums
    bits = max(1 if t == "pred" else ELEMENT_TYPES[t].bits for t in triple[:2])
    return sums if bits == 64 else sums % (1 << bits)


def modules(op: str, sizes: Sizes, chosen: Sequence[Triple], most: int = 1000) -> Iterator[
        tuple[str, list[np.ndarray], list[np.ndarray], list[Triple]]]:
    """HLO text, its inputs, its results and the triples that these belong to; up to `most` of them in a module."""
    for start in range(0, len(chosen), most):
        yield _module(op, sizes, chosen[start:start + most])


def _module(op: str, sizes: Sizes, chosen: Sequence[Triple]):
    form = FORMS[op]
    arrays: dict[str, np.ndarray] = {}
    lines, named = [], {**{f"a.{t[0]}": None for t in chosen}, **{f"b.{t[1]}": None for t in chosen}}
    written = form._replace(**{k: getattr(form, k).format(**sizes._asdict()) for k in ("lhs", "rhs", "result")})
    for name in named:
        side, element_type = name.split(".")
        dimensions = written.lhs if side == "a" else written.rhs
        lines.append(f"  {name} = {element_type}[{dimensions}] parameter({len(arrays)})")
        arrays[name] = numbers(element_type, *map(int, dimensions.split(",")))
    for extra in form.extra:
        name = extra.split()[0]
        lines.append(f"  {extra} parameter({len(arrays)})")
        arrays[name] = {"sizes": np.array([sizes.m // 2, 1], np.int32),
                        "s": np.array([[2, 0.5]]).astype(numpy_dtype("f8e8m0fnu")), "t": np.float32(0.5)}[name]
    for n, (a, b, c) in enumerate(chosen):
        call = form.call.format(a=f"a.{a}", b=f"b.{b}", **sizes._asdict())
        lines.append(f"  r{n} = {c}[{written.result}] {call}")
    shape = ", ".join(f"{c}[{written.result}]" for _, _, c in chosen)
    lines.append(f"  ROOT all = ({shape}) tuple({', '.join(f'r{n}' for n in range(len(chosen)))})")
    text = "HloModule types\n\nENTRY e {\n" + "\n".join(lines) + "\n}\n"
    return text, list(arrays.values()), [expected(op, t, arrays, sizes) for t in chosen], list(chosen)


def wrong(results: Sequence[np.ndarray], wanted: Sequence[np.ndarray], chosen: Sequence[Triple]) -> list[str]:
    """A line for each triple whose result differs."""
    return [f"{t}: {r.tolist()} instead of {w.tolist()}" for r, w, t in zip(results, wanted, chosen, strict=True)
            if r.dtype != w.dtype or not np.array_equal(exact(r), exact(w), equal_nan=True)]
