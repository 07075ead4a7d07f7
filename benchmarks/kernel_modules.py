"""Some 600 small modules, one kernel or a few each: what benchmarks/kernels.py and benchmarks/compare.py time.

    for m in modules(): print(m.family, m.name, m.text)

Families stand for what kernels are made of: operations, element types and sizes are crossed, so that no one case stands
for all. Rows have lengths that are whole vectors and lengths that are not; arrays fit into the second cache.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

FLOATS = ("f32", "f64", "bf16", "f16")
INTEGERS = ("s8", "u8", "s16", "s32", "s64")
ROWS = ((512, 256), (1000, 77), (4096, 24), (20000, 5))            # rows and columns of about as many elements
LENGTHS = (65536, 10007)
CONVERSIONS = (("u8", "f32"), ("f32", "u8"), ("bf16", "f32"), ("f32", "bf16"), ("f16", "f32"), ("s64", "f64"),
               ("s32", "f32"), ("f32", "s32"), ("pred", "f32"))
TABLES = ((4096, 64, 2048), (50000, 5, 20000), (65536, 1, 30000))  # rows, columns, rows that are picked


class Module(NamedTuple):
    """One module. name: unique within its family."""

    family: str
    name: str
    text: str


def modules(word: str = "") -> list[Module]:
    """All modules, or those whose family and name hold a word."""
    found = [Module(function.__name__, name, text) for function in FAMILIES for name, text in function()]
    assert len({(m.family, m.name) for m in found}) == len(found)
    return [m for m in found if word in f"{m.family} {m.name}"]


Texts = Iterator[tuple[str, str]]


# -- writing HLO -------------------------------------------------------------------------------------------------------

def shape(type: str, *dimensions: int) -> str:
    return f"{type}[{','.join(map(str, dimensions))}]"


def module(lines: Iterable[str], *regions: str) -> str:
    """A module of these instructions, the last of which is the result."""
    *others, root = lines
    return "HloModule m\n" + "".join(regions) + "ENTRY e {\n" + "".join(f"  {line}\n" for line in others) \
        + f"  ROOT {root}\n}}\n"


def region(name: str, type: str, op: str) -> str:
    """A computation that joins two scalars by one operation."""
    return f"{name} {{\n  a = {type}[] parameter(0)\n  b = {type}[] parameter(1)\n  ROOT r = {type}[] {op}(a, b)\n}}\n"


def initial(type: str, op: str) -> str:
    """The constant that a reduction begins with."""
    is_float = type in FLOATS
    low = "-inf" if is_float else "0" if type.startswith("u") else str(-1 << int(type[1:]) - 1)
    return f"z = {type}[] constant({ {'add': 0, 'maximum': low}[op] })"


def splat(name: str, type: str, of: str, value: object) -> list[str]:
    """A constant of an array's shape."""
    return [f"{name}0 = {type}[] constant({value})", f"{name} = {of} broadcast({name}0), dimensions={{}}"]


# -- families ----------------------------------------------------------------------------------------------------------

def pointwise() -> Texts:
    """Chains of elementwise operations over flat arrays."""
    for n, type in product(LENGTHS, FLOATS + INTEGERS):
        s = shape(type, n)
        given = [f"a = {s} parameter(0)", f"b = {s} parameter(1)"]
        yield f"multiply add {s}", module([*given, f"m = {s} multiply(a, b)", f"y = {s} add(m, a)"])
        yield f"clamp {s}", module([*given, f"x = {s} maximum(a, b)", f"y = {s} minimum(x, a)"])
        yield f"select {s}", module([*given, f"p = {shape('pred', n)} compare(a, b), direction=LT",
                                     f"y = {s} select(p, a, b)"])
    for n, type, op in product(LENGTHS, FLOATS, ("exponential", "tanh", "log", "sine", "rsqrt", "logistic", "erf")):
        s = shape(type, n)
        yield f"{op} {s}", module([f"a = {s} parameter(0)", f"x = {s} abs(a)", f"y = {s} {op}(x)"])
    for n, type in product(LENGTHS, ("f32", "f64")):
        s = shape(type, n)
        chain = [f"x{k + 1} = {s} sine(x{k})" for k in range(20)]
        yield f"twenty sines {s}", module([f"x0 = {s} parameter(0)", *chain])
    for n, (source, to) in product(LENGTHS, CONVERSIONS):
        s = shape(to, n)
        yield f"convert {source} to {to} {n}", module([f"a = {shape(source, n)} parameter(0)", f"c = {s} convert(a)",
                                                       f"y = {s} add(c, c)"])


def broadcast() -> Texts:
    """Rows and columns spread over a matrix."""
    for (r, c), type in product(ROWS, FLOATS + ("s32", "u8")):
        s = shape(type, r, c)
        given = [f"x = {s} parameter(0)", f"b = {shape(type, c)} parameter(1)", f"d = {shape(type, r)} parameter(2)",
                 f"bs = {s} broadcast(b), dimensions={{1}}", f"ds = {s} broadcast(d), dimensions={{0}}"]
        yield f"bias {s}", module([*given[:2], given[3], f"y = {s} add(x, bs)"])
        yield f"scale and bias {s}", module([*given, f"m = {s} multiply(x, ds)", f"y = {s} add(m, bs)"])


def transpose() -> Texts:
    """Matrices and batches of them."""
    for (r, c), type in product(ROWS, ("f32", "f64", "bf16", "s8")):
        s, t = shape(type, r, c), shape(type, c, r)
        yield f"2d {s}", module([f"x = {s} parameter(0)", f"y = {t} transpose(x), dimensions={{1,0}}"])
        yield f"2d and bias {s}", module([f"x = {s} parameter(0)", f"t = {t} transpose(x), dimensions={{1,0}}",
                                          f"b = {t} parameter(1)", f"y = {t} add(t, b)"])
    for type in ("f32", "bf16"):
        yield f"heads {type}", module([f"x = {shape(type, 4, 128, 12, 32)} parameter(0)",
                                       f"y = {shape(type, 4, 12, 128, 32)} transpose(x), dimensions={{0,2,1,3}}"])
        yield f"channels {type}", module([f"x = {shape(type, 4, 56, 56, 3)} parameter(0)",
                                          f"y = {shape(type, 4, 3, 56, 56)} transpose(x), dimensions={{0,3,1,2}}"])


def _reduction(s: str, result: str, type: str, op: str, dimensions: str, before: Iterable[str] = ()) -> str:
    last = "x"
    lines = [f"x = {s} parameter(0)"]
    for line in before:
        lines.append(line)
        last = line.split(" ", 1)[0]
    return module([*lines, initial(type, op),
                   f"y = {result} reduce({last}, z), dimensions={{{dimensions}}}, to_apply=f"], region("f", type, op))


def row_reduction() -> Texts:
    """Sums and largest elements of rows; sums of squares."""
    for (r, c), type, op in product(ROWS, FLOATS + INTEGERS, ("add", "maximum")):
        s = shape(type, r, c)
        yield f"{op} {s}", _reduction(s, shape(type, r), type, op, "1")
    for (r, c), type in product(ROWS, FLOATS):
        s = shape(type, r, c)
        yield f"squares {s}", _reduction(s, shape(type, r), type, "add", "1", [f"q = {s} multiply(x, x)"])
        yield f"exponentials {s}", _reduction(s, shape(type, r), type, "add", "1", [f"q = {s} exponential(x)"])
    for (r, c), type in product(ROWS, ("f32", "bf16")):
        s, p = shape(type, r, c), shape("pred", r, c)
        yield f"any {s}", module([
            f"x = {s} parameter(0)", *splat("most", type, s, 5), f"q = {p} compare(x, most), direction=GT",
            "z = pred[] constant(false)", f"y = {shape('pred', r)} reduce(q, z), dimensions={{1}}, to_apply=f"],
            region("f", "pred", "or"))


def column_reduction() -> Texts:
    """The same along columns, and of whole arrays."""
    for (r, c), type in product(ROWS, FLOATS + ("s32", "u8")):
        s = shape(type, r, c)
        yield f"add {s}", _reduction(s, shape(type, c), type, "add", "0")
        yield f"maximum {s}", _reduction(s, shape(type, c), type, "maximum", "0")
    for n, type in product(LENGTHS, FLOATS + ("s32",)):
        yield f"whole {shape(type, n)}", _reduction(shape(type, n), f"{type}[]", type, "add", "0")


def arg_reduction() -> Texts:
    """The place of the largest element of each row."""
    for (r, c), type in product(ROWS, ("f32", "bf16", "s32")):
        s, i = shape(type, r, c), shape("s32", r, c)
        low = initial(type, "maximum").replace("z =", "low =")
        body = (f"f {{\n  a = {type}[] parameter(0)\n  i = s32[] parameter(1)\n  b = {type}[] parameter(2)\n"
                "  j = s32[] parameter(3)\n  p = pred[] compare(a, b), direction=GE\n"
                f"  v = {type}[] select(p, a, b)\n  k = s32[] select(p, i, j)\n"
                f"  ROOT t = ({type}[], s32[]) tuple(v, k)\n}}\n")
        yield f"argmax {s}", module([
            f"x = {s} parameter(0)", f"n = {i} iota(), iota_dimension=1", low, "zero = s32[] constant(0)",
            f"r = ({shape(type, r)}, {shape('s32', r)}) reduce(x, n, low, zero), dimensions={{1}}, to_apply=f",
            f"y = {shape('s32', r)} get-tuple-element(r), index=1"], body)


def normalization() -> Texts:
    """Softmax, layer norm and variance of rows."""
    for (r, c), type in product(ROWS, ("f32", "f64", "bf16", "f16")):
        s, v = shape(type, r, c), shape(type, r)
        largest, total = region("largest", type, "maximum"), region("total", type, "add")
        yield f"softmax {s}", module([
            f"x = {s} parameter(0)", f"low = {type}[] constant(-inf)", f"zero = {type}[] constant(0)",
            f"m = {v} reduce(x, low), dimensions={{1}}, to_apply=largest", f"ms = {s} broadcast(m), dimensions={{0}}",
            f"d = {s} subtract(x, ms)", f"e = {s} exponential(d)",
            f"t = {v} reduce(e, zero), dimensions={{1}}, to_apply=total",
            f"ts = {s} broadcast(t), dimensions={{0}}", f"y = {s} divide(e, ts)"], largest, total)
        mean = [f"x = {s} parameter(0)", f"zero = {type}[] constant(0)", *splat("n", type, v, c),
                f"t = {v} reduce(x, zero), dimensions={{1}}, to_apply=total", f"m = {v} divide(t, n)",
                f"ms = {s} broadcast(m), dimensions={{0}}", f"d = {s} subtract(x, ms)", f"q = {s} multiply(d, d)",
                f"u = {v} reduce(q, zero), dimensions={{1}}, to_apply=total", f"w = {v} divide(u, n)"]
        yield f"variance {s}", module([*mean[:-1], f"y = {v} divide(u, n)"], total)
        yield f"layer norm {s}", module([
            *mean, *splat("eps", type, v, 0.001), f"we = {v} add(w, eps)", f"i = {v} rsqrt(we)",
            f"is = {s} broadcast(i), dimensions={{0}}", f"y = {s} multiply(d, is)"], total)


def windows() -> Texts:
    """Pooling and moving sums."""
    for type, (name, window, result) in product(("f32", "bf16", "s32"), (
            ("2x2", "size=1x2x2x1 stride=1x2x2x1", (4, 28, 28, 16)),
            ("3x3 strided", "size=1x3x3x1 stride=1x2x2x1 pad=0_0x0_1x0_1x0_0", (4, 28, 28, 16)),
            ("3x3", "size=1x3x3x1 pad=0_0x1_1x1_1x0_0", (4, 56, 56, 16)))):
        for op in ("add", "maximum"):
            s = shape(type, 4, 56, 56, 16)
            yield f"{name} {op} {type}", module([
                f"x = {s} parameter(0)", initial(type, op),
                f"y = {shape(type, *result)} reduce-window(x, z), window={{{window}}}, to_apply=f"],
                region("f", type, op))
    for type, width in product(("f32", "f64"), (5, 64)):
        s = shape(type, 64, 1000)
        yield f"moving sum of {width} {type}", module([
            f"x = {s} parameter(0)", initial(type, "add"),
            f"y = {shape(type, 64, 1001 - width)} reduce-window(x, z), window={{size=1x{width}}}, to_apply=f"],
            region("f", type, "add"))


def movement() -> Texts:
    """Pads, slices, joins, reversals and repetitions."""
    for (r, c), type in product(ROWS, ("f32", "bf16", "u8", "s64")):
        s = shape(type, r, c)
        given, one = f"x = {s} parameter(0)", [f"one = {type}[] constant(1)"]
        yield f"pad {s}", module([given, *one, f"y = {shape(type, r + 2, c + 2)} pad(x, one), padding=1_1x1_1"])
        yield f"reverse {s}", module([given, f"y = {s} reverse(x), dimensions={{1}}"])
        half = shape(type, r, -(-c // 2))
        yield f"every other {s}", module([given, f"y = {half} slice(x), slice={{[0:{r}], [0:{c}:2]}}"])
        yield f"join columns {s}", module([given, f"w = {s} parameter(1)",
                                           f"y = {shape(type, r, 2 * c)} concatenate(x, w), dimensions={{1}}"])
        less = shape(type, r, c - 1)
        yield f"shift and add {s}", module([
            given, f"a = {less} slice(x), slice={{[0:{r}], [0:{c - 1}]}}",
            f"b = {less} slice(x), slice={{[0:{r}], [1:{c}]}}", f"y = {less} add(a, b)"])


    for n, type in product(LENGTHS, ("s32", "s64")):
        yield f"every fifth {shape(type, n)}", module([
            f"x = {shape(type, 5 * n)} parameter(0)",
            f"y = {shape(type, n)} slice(x), slice={{[0:{5 * n}:5]}}"])


def indexing() -> Texts:
    """Gathers, scatters and updates in place."""
    for type, (rows, columns, picked) in product(("f32", "bf16", "s8"), TABLES):
        table, result, places = shape(type, rows, columns), shape(type, picked, columns), shape("s32", picked, 1)
        spread = [f"n = {places} iota(), iota_dimension=0", *splat("p", "s32", places, 7919),
                  *splat("q", "s32", places, rows), f"k = {places} multiply(n, p)", f"i = {places} remainder(k, q)"]
        yield f"gather rows {table}", module([
            f"x = {table} parameter(0)", *spread,
            f"y = {result} gather(x, i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
            f"index_vector_dim=1, slice_sizes={{1,{columns}}}"])
        yield f"scatter add {table}", module([
            f"x = {table} parameter(0)", f"u = {result} parameter(1)", *spread,
            f"y = {table} scatter(x, i, u), update_window_dims={{1}}, inserted_window_dims={{0}}, "
            f"scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=f"], region("f", type, "add"))


def matmul() -> Texts:
    """Products too small for library kernels, or just large enough."""
    for type, (m, k, n) in product(("f32", "f64", "bf16", "s32"), (
            (4, 4, 4), (64, 3, 64), (4000, 4, 3), (128, 16, 16), (1, 256, 256), (256, 256, 1), (96, 96, 96))):
        yield f"{m}x{k}x{n} {type}", module([
            f"a = {shape(type, m, k)} parameter(0)", f"b = {shape(type, k, n)} parameter(1)",
            f"y = {shape(type, m, n)} dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"])
    for type, (batch, m, k, n) in product(("f32", "bf16"), ((512, 4, 4, 4), (2000, 3, 3, 3), (48, 32, 32, 32))):
        yield f"{batch} of {m}x{k}x{n} {type}", module([
            f"a = {shape(type, batch, m, k)} parameter(0)", f"b = {shape(type, batch, k, n)} parameter(1)",
            f"y = {shape(type, batch, m, n)} dot(a, b), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, "
            f"lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}}"])


def complex_numbers() -> Texts:
    """Products, sizes and sums of complex arrays; reversed and joined ones."""
    for type, (r, c) in product(("c64", "c128"), ROWS[:2]):
        s = shape(type, r, c)
        yield f"reverse {s}", module([f"x = {s} parameter(0)", f"y = {s} reverse(x), dimensions={{1}}"])
        yield f"join columns {s}", module([f"x = {s} parameter(0)", f"w = {s} parameter(1)",
                                           f"y = {shape(type, r, 2 * c)} concatenate(x, w), dimensions={{1}}"])
    for type, n in product(("c64", "c128"), LENGTHS):
        s, part = shape(type, n), {"c64": "f32", "c128": "f64"}[type]
        yield f"multiply {s}", module([f"a = {s} parameter(0)", f"b = {s} parameter(1)", f"y = {s} multiply(a, b)"])
        yield f"abs {s}", module([f"a = {s} parameter(0)", f"y = {shape(part, n)} abs(a)"])
        yield f"exponential {s}", module([f"a = {s} parameter(0)", f"y = {s} exponential(a)"])
        yield f"make {s}", module([f"a = {shape(part, n)} parameter(0)", f"b = {shape(part, n)} parameter(1)",
                                   f"y = {s} complex(a, b)"])


def scans() -> Texts:
    """Running sums, as XLA writes cumsum, and the doubling of associative scans."""
    for (r, c), type in product(((64, 1000), (1000, 64)), ("f32", "bf16", "s32")):
        s = shape(type, r, c)
        yield f"cumulative sum {s}", module([
            f"x = {s} parameter(0)", initial(type, "add"),
            f"y = {s} reduce-window(x, z), window={{size=1x{c} pad=0_0x{c - 1}_0}}, to_apply=f"],
            region("f", type, "add"))
    for type, n in product(("f32", "bf16"), (256, 1000)):
        yield f"scan by doubling {type} {n}", module(_doubling_scan(type, n, 64))
        yield f"associative scan {type} {n}", module(_associative_scan(type, n, 64))


def _associative_scan(type: str, n: int, columns: int) -> list[str]:
    """A running sum of rows as JAX's associative_scan has it: sums of pairs are scanned, then spread and completed."""
    lines, sizes = [f"x0 = {shape(type, n, columns)} parameter(0)", f"zero = {type}[] constant(0)"], [n]
    for k in range(n.bit_length()):
        n, half = sizes[-1], shape(type, sizes[-1] // 2, columns)
        if n < 2:
            break
        lines += [f"even{k} = {half} slice(x{k}), slice={{[0:{n - 1}:2], [0:{columns}]}}",
                  f"odd{k} = {half} slice(x{k}), slice={{[1:{n}:2], [0:{columns}]}}",
                  f"x{k + 1} = {half} add(even{k}, odd{k})"]
        sizes.append(n // 2)
    last = f"x{len(sizes) - 1}"
    for k in reversed(range(len(sizes) - 1)):
        n, odds = sizes[k], sizes[k + 1]
        inner, evens = n - odds - 1, shape(type, n - odds, columns)
        lines.append(f"first{k} = {shape(type, 1, columns)} slice(x{k}), slice={{[0:1], [0:{columns}]}}")
        if inner:
            part = shape(type, inner, columns)
            lines += [f"before{k} = {part} slice({last}), slice={{[0:{inner}], [0:{columns}]}}",
                      f"own{k} = {part} slice(x{k}), slice={{[2:{n}:2], [0:{columns}]}}",
                      f"sums{k} = {part} add(before{k}, own{k})"]
        parts = f"first{k}, sums{k}" if inner else f"first{k}"
        s = shape(type, n, columns)
        lines += [f"evens{k} = {evens} concatenate({parts}), dimensions={{0}}",
                  f"at{k} = {s} pad(evens{k}, zero), padding=0_{n - 2 * (n - odds) + 1}_1x0_0",
                  f"between{k} = {s} pad({last}, zero), padding=1_{n - 2 * odds}_1x0_0",
                  f"y{k} = {s} add(at{k}, between{k})"]
        last = f"y{k}"
    return lines


def _doubling_scan(type: str, n: int, columns: int) -> list[str]:
    """A running sum of rows by doubling: each step adds what lies 2^k rows before."""
    s = shape(type, n, columns)
    lines, last = [f"x = {s} parameter(0)", f"zero = {type}[] constant(0)"], "x"
    for k in range(math.ceil(math.log2(n))):
        step = 1 << k
        lines += [f"c{k} = {shape(type, n - step, columns)} slice({last}), slice={{[0:{n - step}], [0:{columns}]}}",
                  f"p{k} = {s} pad(c{k}, zero), padding={step}_0x0_0", f"t{k} = {s} add({last}, p{k})"]
        last = f"t{k}"
    return lines


FAMILIES = (pointwise, broadcast, transpose, row_reduction, column_reduction, arg_reduction, normalization, windows,
            movement, indexing, matmul, complex_numbers, scans)
