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


def rows_of_functions(count: int) -> str:
    """Rows of one array, taken one at a time, a function of each, and all joined: what jnp.stack([f(x[0]), ...]) gives."""
    lines = [f"x = f32[{count},{COLUMNS}] parameter(0)"]
    for n in range(count):
        lines += [f"s.{n} = f32[1,{COLUMNS}] slice(x), slice={{[{n}:{n + 1}], [0:{COLUMNS}]}}",
                  f"c.{n} = f32[1,{COLUMNS}] cosine(s.{n})"]
    names = ", ".join(f"c.{n}" for n in range(count))
    return _module([*lines, f"ROOT r = f32[{count},{COLUMNS}] concatenate({names}), dimensions={{0}}"])


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


def transformer(count: int) -> str:
    """Unrolled layers with attention and a hidden layer, their gradients, and the update of all weights."""
    rows, width = 16, 8
    x, square, hidden, row = f"f32[{rows},{width}]", f"f32[{rows},{rows}]", f"f32[{rows},32]", f"f32[{rows}]"
    up, down = f"f32[{width},32]", f"f32[32,{width}]"
    lines = [f"x.0 = {x} parameter(0)", "z = f32[] constant(0)", "low = f32[] constant(-inf)",
             "rate = f32[] constant(0.01)", "one = f32[] constant(1)", f"ones = {hidden} broadcast(one), dimensions={{}}",
             f"rate.u = {up} broadcast(rate), dimensions={{}}", f"rate.d = {down} broadcast(rate), dimensions={{}}"]

    def dot(name: str, shape: str, left: str, right: str, over: tuple[int, int]) -> None:
        lines.append(f"{name} = {shape} dot({left}, {right}), lhs_contracting_dims={{{over[0]}}}, "
                     f"rhs_contracting_dims={{{over[1]}}}")

    def of_rows(name: str, value: str, start: str, joined: str) -> None:
        lines.extend([f"{name}.r = {row} reduce({value}, {start}), dimensions={{1}}, to_apply={joined}",
                      f"{name} = {square} broadcast({name}.r), dimensions={{0}}"])
    for n in range(count):
        lines.extend([f"u.{n} = {up} parameter({2 * n + 1})", f"d.{n} = {down} parameter({2 * n + 2})"])
        dot(f"s.{n}", square, f"x.{n}", f"x.{n}", (1, 1))
        of_rows(f"m.{n}", f"s.{n}", "low", "most")
        lines.extend([f"t.{n} = {square} subtract(s.{n}, m.{n})", f"e.{n} = {square} exponential(t.{n})"])
        of_rows(f"l.{n}", f"e.{n}", "z", "add")
        lines.append(f"p.{n} = {square} divide(e.{n}, l.{n})")
        dot(f"a.{n}", x, f"p.{n}", f"x.{n}", (1, 0))
        lines.append(f"y.{n} = {x} add(x.{n}, a.{n})")
        dot(f"i.{n}", hidden, f"y.{n}", f"u.{n}", (1, 0))
        lines.append(f"h.{n} = {hidden} tanh(i.{n})")
        dot(f"o.{n}", x, f"h.{n}", f"d.{n}", (1, 0))
        lines.append(f"x.{n + 1} = {x} add(y.{n}, o.{n})")
    gradient, results = f"x.{count}", [f"x.{count}"]
    for n in reversed(range(count)):
        dot(f"gd.{n}", down, f"h.{n}", gradient, (0, 0))
        dot(f"gh.{n}", hidden, gradient, f"d.{n}", (1, 1))
        lines.extend([f"hh.{n} = {hidden} multiply(h.{n}, h.{n})", f"ih.{n} = {hidden} subtract(ones, hh.{n})",
                      f"gi.{n} = {hidden} multiply(gh.{n}, ih.{n})"])
        dot(f"gu.{n}", up, f"y.{n}", f"gi.{n}", (0, 0))
        dot(f"gj.{n}", x, f"gi.{n}", f"u.{n}", (1, 1))
        lines.append(f"gy.{n} = {x} add({gradient}, gj.{n})")
        dot(f"gp.{n}", square, f"gy.{n}", f"x.{n}", (1, 1))
        lines.append(f"gq.{n} = {square} multiply(gp.{n}, p.{n})")
        of_rows(f"gr.{n}", f"gq.{n}", "z", "add")
        lines.extend([f"gt.{n} = {square} subtract(gp.{n}, gr.{n})", f"gs.{n} = {square} multiply(gt.{n}, p.{n})"])
        for part, left, right, over in (("v", f"p.{n}", f"gy.{n}", (0, 0)), ("k", f"gs.{n}", f"x.{n}", (1, 0)),
                                        ("w", f"gs.{n}", f"x.{n}", (0, 0))):
            dot(f"g{part}.{n}", x, left, right, over)
        lines.extend([f"g1.{n} = {x} add(gy.{n}, gv.{n})", f"g2.{n} = {x} add(gk.{n}, gw.{n})",
                      f"g.{n} = {x} add(g1.{n}, g2.{n})",
                      f"du.{n} = {up} multiply(gu.{n}, rate.u)", f"nu.{n} = {up} subtract(u.{n}, du.{n})",
                      f"dd.{n} = {down} multiply(gd.{n}, rate.d)", f"nd.{n} = {down} subtract(d.{n}, dd.{n})"])
        results += [f"nu.{n}", f"nd.{n}"]
        gradient = f"g.{n}"
    shapes = ", ".join([x, *[up, down] * count])
    combiners = "".join(f"{name} {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] {op}(a, b) }}\n"
                        for name, op in (("add", "add"), ("most", "maximum")))
    return _module([*lines, f"ROOT r = ({shapes}) tuple({', '.join(results)})"], combiners)


KINDS: dict[str, Callable[[int], str]] = {
    f.__name__: f for f in (pads, slices, joined, joined_columns, joins_in_joins, selects, selects_by_data, functions,
                            waves, rows_of_functions, readers, reductions, dots, transformer)}


def sizes_of(kind: str) -> tuple[int, int]:
    """Two sizes whose work is compared, in instructions or layers. Blocks of rows need other positions than few rows."""
    return (16, 64) if kind == "transformer" else (240, 480) if kind == "pads" else (60, 240)
