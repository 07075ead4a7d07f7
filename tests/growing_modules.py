"""HLO modules of any size, of the kinds that have made compilation slow: unrolled programs, long chains, many readers.

    KINDS["pads"](200)         the text of a sum of 200 pads
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

COLUMNS = 64


def _module(lines: Iterable[str], before: str = "") -> str:
    return "\n".join(["HloModule m", before, "ENTRY main {", *(f"  {line}" for line in lines), "}", ""])


def pads(count: int) -> str:
    """The gradient of rows that are taken one at a time: each is padded to the whole array, all are added up."""
    whole = f"f32[{count},{COLUMNS}]"
    lines = ["z = f32[] constant(0)", f"x = {whole} parameter(0)"]
    for n in range(count):
        lines += [f"s.{n} = f32[1,{COLUMNS}] slice(x), slice={{[{n}:{n + 1}], [0:{COLUMNS}]}}",
                  f"c.{n} = f32[1,{COLUMNS}] multiply(s.{n}, s.{n})",
                  f"p.{n} = {whole} pad(c.{n}, z), padding={n}_{count - 1 - n}x0_0"]
    total = "p.0"
    for n in range(1, count):
        lines.append(f"a.{n} = {whole} add({total}, p.{n})")
        total = f"a.{n}"
    return _module([*lines, f"ROOT r = {whole} negate({total})"])


def slices(count: int) -> str:
    """The sum of rows that are sliced out of one array, each a step further along."""
    row = f"f32[{COLUMNS}]"
    lines = [f"x = f32[{COLUMNS + count}] parameter(0)", f"a.0 = {row} slice(x), slice={{[0:{COLUMNS}]}}"]
    for n in range(1, count + 1):
        lines += [f"s.{n} = {row} slice(x), slice={{[{n}:{n + COLUMNS}]}}", f"a.{n} = {row} add(a.{n - 1}, s.{n})"]
    return _module([*lines, f"ROOT r = {row} negate(a.{count})"])


def joined(count: int) -> str:
    """Rows of one array, in another order, one behind the other."""
    lines = [f"x = f32[{count},{COLUMNS}] parameter(0)"]
    for n in range(count):
        row = n * 7 % count
        lines.append(f"s.{n} = f32[1,{COLUMNS}] slice(x), slice={{[{row}:{row + 1}], [0:{COLUMNS}]}}")
    names = ", ".join(f"s.{n}" for n in range(count))
    return _module([*lines, f"ROOT r = f32[{count},{COLUMNS}] concatenate({names}), dimensions={{0}}"])


def joined_columns(count: int) -> str:
    """As joined, along the last dimension."""
    lines = [f"x = f32[{COLUMNS},{2 * count}] parameter(0)"]
    for n in range(count):
        column = n * 7 % count
        lines.append(f"s.{n} = f32[{COLUMNS},2] slice(x), slice={{[0:{COLUMNS}], [{column}:{column + 2}]}}")
    names = ", ".join(f"s.{n}" for n in range(count))
    return _module([*lines, f"ROOT r = f32[{COLUMNS},{2 * count}] concatenate({names}), dimensions={{1}}"])


def joins_in_joins(count: int) -> str:
    """A list that grows by one element at a time, each time joined anew."""
    lines = ["x = f32[1,64] parameter(0)", "j.0 = f32[1,64] negate(x)"]
    for n in range(1, count):
        lines += [f"e.{n} = f32[1,64] slice(j.{n - 1}), slice={{[{n - 1}:{n}], [0:64]}}",
                  f"f.{n} = f32[1,64] add(e.{n}, x)",
                  f"j.{n} = f32[{n + 1},64] concatenate(j.{n - 1}, f.{n}), dimensions={{0}}"]
    return _module([*lines, f"ROOT r = f32[{count},64] negate(j.{count - 1})"])


def selects(depth: int) -> str:
    """Nested selects, each by another condition on the row's number."""
    whole, rows = f"f32[256,{COLUMNS}]", f"[256,{COLUMNS}]"
    lines = [f"x = {whole} parameter(0)", f"i = s32{rows} iota(), iota_dimension=0",
             f"v.0 = {whole} negate(x)"]
    for n in range(depth):
        lines += [f"k.{n} = s32[] constant({n})", f"b.{n} = s32{rows} broadcast(k.{n}), dimensions={{}}",
                  f"c.{n} = pred{rows} compare(i, b.{n}), direction=EQ",
                  f"m.{n} = {whole} add(v.{n}, x)", f"v.{n + 1} = {whole} select(c.{n}, m.{n}, v.{n})"]
    return _module([*lines, f"ROOT r = {whole} negate(v.{depth})"])


def selects_by_data(depth: int) -> str:
    """Nested selects by conditions that are read, one for each row, as betainc and other special functions have them."""
    whole = f"f32[1000,{COLUMNS}]"
    lines = [f"x = {whole} parameter(0)", f"p = f32[{depth},1000] parameter(1)", f"v.0 = {whole} negate(x)",
             "z = f32[1000] parameter(2)"]
    for n in range(depth):
        lines += [f"s.{n} = f32[1,1000] slice(p), slice={{[{n}:{n + 1}], [0:1000]}}",
                  f"t.{n} = f32[1000] reshape(s.{n})", f"c.{n} = pred[1000] compare(t.{n}, z), direction=LT",
                  f"b.{n} = pred[1000,{COLUMNS}] broadcast(c.{n}), dimensions={{0}}",
                  f"m.{n} = {whole} add(v.{n}, x)", f"v.{n + 1} = {whole} select(b.{n}, m.{n}, v.{n})"]
    return _module([*lines, f"ROOT r = {whole} negate(v.{depth})"])


def functions(count: int, name: str = "sine", shape: str = "f32[1000]") -> str:
    """One function of another, in a chain."""
    lines = [f"x.0 = {shape} parameter(0)", *(f"x.{n + 1} = {shape} {name}(x.{n})" for n in range(count))]
    lines[-1] = "ROOT " + lines[-1]
    return _module(lines)


def waves(count: int, name: str = "sine", shape: str = "f32[1000]") -> str:
    """As functions, with a product and a sum between them, and a sum of all."""
    lines = [f"x.0 = {shape} parameter(0)", f"y = {shape} parameter(1)", f"t.0 = {shape} negate(y)"]
    for n in range(count):
        lines += [f"f.{n} = {shape} {name}(x.{n})", f"m.{n} = {shape} multiply(f.{n}, y)",
                  f"x.{n + 1} = {shape} add(m.{n}, x.{n // 2})", f"t.{n + 1} = {shape} add(t.{n}, f.{n})"]
    return _module([*lines, f"ROOT r = {shape} multiply(t.{count}, x.{count})"])


def readers(count: int) -> str:
    """Layers that all read one array, and are sums of it and the layer before; all are results."""
    shape = "f32[16]"
    lines = [f"x = {shape} parameter(0)", f"w = {shape} sine(x)", f"v.0 = {shape} negate(x)"]
    for n in range(count):
        lines.append(f"v.{n + 1} = {shape} {('add', 'multiply')[n % 2]}(v.{n}, w)")
    lines[-1] = "ROOT " + lines[-1]
    return _module(lines)


def reductions(count: int) -> str:
    """Layers with a reduction each, all of which read one array: none can join the one before."""
    add = "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }"
    lines = ["x = f32[16,16] parameter(0)", "w = f32[16,16] sine(x)", "z = f32[] constant(0)",
             "v.0 = f32[16,16] negate(x)"]
    for n in range(count):
        lines += [f"m.{n} = f32[16,16] multiply(v.{n}, w)",
                  f"r.{n} = f32[16] reduce(m.{n}, z), dimensions={{1}}, to_apply=add",
                  f"b.{n} = f32[16,16] broadcast(r.{n}), dimensions={{0}}", f"v.{n + 1} = f32[16,16] add(b.{n}, w)"]
    lines[-1] = "ROOT " + lines[-1]
    return _module(lines, add)


def dots(count: int) -> str:
    """Layers of one weight: a product, a bias, a function; all read the same arrays."""
    lines = ["x = f32[8,16] parameter(0)", "w = f32[16,16] parameter(1)", "b = f32[16] parameter(2)",
             "v.0 = f32[8,16] negate(x)"]
    for n in range(count):
        lines += [f"d.{n} = f32[8,16] dot(v.{n}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
                  f"b.{n} = f32[8,16] broadcast(b), dimensions={{1}}", f"s.{n} = f32[8,16] add(d.{n}, b.{n})",
                  f"v.{n + 1} = f32[8,16] tanh(s.{n})"]
    lines[-1] = "ROOT " + lines[-1]
    return _module(lines)


KINDS: dict[str, Callable[[int], str]] = {
    f.__name__: f for f in (pads, slices, joined, joined_columns, joins_in_joins, selects, selects_by_data, functions,
                            readers, reductions, dots)}
