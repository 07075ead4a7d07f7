"""Operands of products that are computed as a tile is loaded: a Prologue -> a struct for hloc_computed (gemm.cuh).

In: a Prologue of a "gemm" Tile. Out: Computed: the dimension along which a thread computes a vector of elements, the
vector's length, and the struct's text. The inputs of an element are loaded one step ahead, in their types in memory.
The arithmetic follows when the tile's buffer in shared memory is free.

    multiply(convert(x), broadcast(scale)), x: s8[k,n]  ->
    struct k0_rhs {
      const hloc_s8 *in1;  const hloc_bf16 *in2;
      struct Read { hloc_pack<hloc_s8, 8> x0;  hloc_pack<hloc_bf16, 8> x1; };
      read(outer, inner, row, depth)            loads
      make(read, outer, inner, row, depth)      8 elements of rhs
    };
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.ir.narrowing import all_known
from hloc.kernels.ir import INDEX, SUM, Apply, Buffer, Const, Expr, Let, Load, Prologue, Tile, Var
from hloc.kernels.walks import expressions, needed, parts, replaced, with_expressions
from hloc.targets.c_expressions import EXACT_IN_BF16, c_type, expression
from hloc.targets.cuda.loops.kernels import HALVES, rounds_to_half
from hloc.targets.printer import CUDA, StatementPrinter, comment, pointer_type

VECTOR_BYTES, MOST_LOADED = 16, 64      # bytes that a thread computes at once; of one array loaded for them
VECTORS = (16, 8, 4, 2, 1)
FREE, DEPTH = "row", "depth"
BYTES = ("s8", "u8")
LANE = Var("lane", INDEX)
PLACE = "long outer, long inner, long row, long depth"


class Step(NamedTuple):
    """A position within a vector: its step from one lane to the next, and a known divisor of it at the first lane."""

    step: int
    divisor: int


class Computed(NamedTuple):
    """along: vectors run along the depth, otherwise along rows; vector: their length; packs: loads that are contiguous
    over the lanes; single: loads that all lanes share; others: loads of one element per lane."""

    prologue: Prologue
    along: bool
    vector: int
    packs: tuple[Load, ...]
    single: tuple[Load, ...]
    others: tuple[Load, ...]

    @property
    def held_bytes(self) -> int:
        """Bytes of registers for loads in flight."""
        return sum(self.vector * _size(load) for load in (*self.packs, *self.others)) + 4 * len(self.single)

    def buffers(self, tile: Tile) -> list[Buffer]:
        used = {load.buffer for load in loads_of(self.prologue)}
        return [b for b in tile.buffers if b.name in used]


def computed(prologue: Prologue, free: int, depth: int, along: bool | None = None, most: int = 0) -> Computed:
    """free, depth: rows (columns of rhs) of the operand, and elements of a sum; along: the required direction of
    vectors, or None; most: their largest length, by default that of a 16-byte store."""
    most = most or max(1, VECTOR_BYTES // ELEMENT_TYPES[prologue.type].bytes)
    found = [_classified(prologue, way, next(v for v in VECTORS if v <= most and extent % v == 0))
             for way, extent in ((True, depth), (False, free)) if along in (None, way)]
    return max(found, key=_quality)


def computed_thin(prologue: Prologue, free: int, depth: int, wide: int) -> Computed:
    """For the large operand of a thin product, which stays in registers. The vector's length is that of a 16-byte load;
    wide: its largest length along rows."""
    most = max((VECTOR_BYTES // _size(load) for load in loads_of(prologue)), default=1)
    found = computed(prologue, free, depth, most=most)
    return found if found.along or found.vector <= wide else computed(prologue, free, depth, False, wide)


def _quality(found: Computed) -> tuple[int, int]:
    """Sort key: fewer loads per element are better, then longer vectors."""
    loads = len(found.packs) + len(found.single) + found.vector * len(found.others)
    return -loads * VECTOR_BYTES // found.vector, found.vector


def _classified(prologue: Prologue, along: bool, vector: int) -> Computed:
    lets = {s.name: s.value for s in prologue.statements}
    packs, single, others = [], [], []
    for load in loads_of(prologue):
        move = step_of(load.position, DEPTH if along else FREE, vector, lets)
        if move is not None and move.step == 0:
            single.append(load)
        elif move == Step(1, move.divisor if move else 0) and move.divisor % vector == 0 and \
                vector * _size(load) <= MOST_LOADED:
            packs.append(load)
        else:
            others.append(load)
    return Computed(prologue, along, vector, tuple(packs), tuple(single), tuple(others))


def _size(load: Load) -> int:
    return ELEMENT_TYPES[load.type].bytes


def loads_of(prologue: Prologue) -> list[Load]:
    roots = [prologue.value, *(e for s in prologue.statements for e in expressions(s))]
    return list(dict.fromkeys(p for p in parts(roots) if isinstance(p, Load)))


def step_of(expr: Expr, moving: str, vector: int, lets: Mapping[str, Expr]) -> Step | None:
    """The Step of an expression in the variable `moving`, whose vectors start at multiples of their length. None if the
    expression is not linear in it within a vector."""
    if isinstance(expr, Const):
        return Step(0, abs(expr.integer) if expr.type == INDEX else abs(int(expr.real)))
    if isinstance(expr, Var):
        if expr.name in lets:
            return step_of(lets[expr.name], moving, vector, lets)
        return Step(1, vector) if expr.name == moving else Step(0, 1)
    sides = [step_of(a, moving, vector, lets) for a in (expr.arguments if isinstance(expr, Apply) else [expr.position])]
    if not all_known(sides):
        return None
    if isinstance(expr, Load):
        return Step(0, 1) if sides[0].step == 0 else None
    if expr.op == SUM:
        *factors, constant = expr.immediate
        return Step(sum(s.step * f for s, f in zip(sides, factors)),
                    math.gcd(constant, *(s.divisor * f for s, f in zip(sides, factors))))
    if expr.op in STEPS and expr.type == INDEX:
        left, right = sides
        return STEPS[expr.op](left, right, expr.arguments[-1], vector)
    return Step(0, 1) if all(s.step == 0 for s in sides) else None


def _product(a: Step, b: Step, right: Expr, vector: int) -> Step | None:
    return Step(0, a.divisor * b.divisor) if a.step == b.step == 0 else None


def _stays(a: Step, by: int, vector: int) -> bool:
    """Whether all lanes of a vector have the same quotient by `by`."""
    return a.step >= 0 and a.step * (vector - 1) < math.gcd(a.divisor, by)


def _quotient(a: Step, b: Step, right: Expr, vector: int) -> Step | None:
    if not isinstance(right, Const) or not _stays(a, right.integer, vector):
        return None
    by = right.integer
    return Step(0, a.divisor // by if a.divisor % by == 0 else 1)


def _remainder(a: Step, b: Step, right: Expr, vector: int) -> Step | None:
    if not isinstance(right, Const) or not _stays(a, right.integer, vector):
        return None
    return Step(a.step, math.gcd(a.divisor, right.integer))


STEPS = {"multiply": _product, "divide": _quotient, "remainder": _remainder}


# -- text --------------------------------------------------------------------------------------------------------------

def prologue_struct(found: Computed, tile: Tile, name: str) -> str:
    """The text of struct `name`. Its pointers are the buffers that it reads."""
    given, type = found.prologue, c_type(found.prologue.type)
    printer = StatementPrinter(CUDA)
    printer.lines += comment((f"{given.operand}, computed on its way into the tile:", *given.origin))
    printer.line(0, f"struct {name} {{")
    printer.line(1, f"enum {{ ALONG = {int(found.along)}, VECTOR = {found.vector} }};")
    printer.line(1, f"typedef {type} Element;")
    for buffer in found.buffers(tile):
        printer.line(1, f"{pointer_type(buffer)}{buffer.name};")
    places = _places(found)
    printer.line(1, "struct Read {")
    for load, (member, many) in places.items():
        kind = _held(load, found) or f"hloc_pack<{c_type(load.type)}, {found.vector}>" if many else c_type(load.type)
        printer.line(2, f"{kind} {member};")
    printer.line(1, "};")
    _print_read(printer, found, places)
    _print_make(printer, found, places, type)
    printer.line(0, "};")
    return "\n".join(printer.lines) + "\n"


def _places(found: Computed) -> dict[Load, tuple[str, bool]]:
    """For each load, the member with its result, and whether the member has an element per lane."""
    many = {*found.packs, *found.others}
    return {load: (f"x{n}", load in many) for n, load in enumerate(loads_of(found.prologue))}


def _held(load: Load, found: Computed) -> str:
    """The type of words in which a vector of bytes waits: the compiler copies structs element by element. "" for other
    loads."""
    words = load in found.packs and load.type in BYTES and found.vector % 4 == 0
    return f"hloc_pack<unsigned, {found.vector // 4}>" if words else ""


def _print_read(printer: StatementPrinter, found: Computed, places: Mapping[Load, tuple[str, bool]]) -> None:
    printer.line(1, f"HLOC_MEMBER Read read({PLACE}) const {{")
    printer.line(2, "Read read;")
    together = [load for load in places if load not in found.others]
    _print_lets(printer, found, together, 2)
    for load in together:
        member, many = places[load]
        text = expression(load)
        if many:
            pack = _held(load, found) or f"hloc_pack<{c_type(load.type)}, {found.vector}>"
            text = f"*(const {pack} *)&{text}"
        printer.line(2, f"read.{member} = {text};")
    if found.others:
        _print_lane_loop(printer, found)
        _print_lets(printer, found, found.others, 3)
        for load in found.others:
            printer.line(3, f"read.{places[load][0]}.at[lane] = {expression(load)};")
        printer.line(2, "}")
    printer.line(2, "return read;")
    printer.line(1, "}")


def _print_make(printer: StatementPrinter, found: Computed, places: Mapping[Load, tuple[str, bool]], type: str) -> None:
    """Bytes become f32 all at once, and what is rounded to two bytes is rounded in pairs: single ones take instructions
    of a quarter of the rate, and more to put them together."""
    given, pack = found.prologue, f"hloc_pack<{type}, {found.vector}>"
    half = given.type if found.vector > 1 and rounds_to_half(given.value) else ""
    printer.line(1, f"HLOC_MEMBER {pack} make(const Read &read, {PLACE}) const {{")
    printer.line(2, f"float made[{found.vector}];" if half else f"{pack} made;")
    values: dict[Expr, Expr] = {}
    for load, (member, many) in places.items():
        values[load] = Load(f"read.{member}.at", LANE, load.type) if many else Var(f"read.{member}", load.type)
        if _held(load, found):
            pack = f"hloc_pack<{c_type(load.type)}, {found.vector}>"
            printer.line(2, f"const {pack} {member} = hloc_taken_out<{pack}>(read.{member});")
            printer.line(2, f"const auto {member}_f32 = hloc_widened<{c_type(load.type)}>(read.{member});")
            values[load] = Load(f"{member}.at", LANE, load.type)
            values[Apply("convert", (load,), "f32")] = Load(f"{member}_f32.at", LANE, "f32")
    _print_lane_loop(printer, found)

    def of_lane(expr: Expr) -> Expr:
        return replaced(exact(expr), values.get)
    value = of_lane(given.value)
    printer.statements(needed([with_expressions(s, of_lane) for s in given.statements], [value]), 3)
    printer.statements([Let("element", value.arguments[0] if half and isinstance(value, Apply) else value)], 3)
    for line in ("  made[lane] = element;" if half else "  made.at[lane] = element;", "}",
                 f"return hloc_rounded_all_{half}(made);" if half else "return made;"):
        printer.line(2, line)
    printer.line(1, "}")


def exact(expr: Expr) -> Expr:
    """The same expression without the rounding step of exact conversions to bf16 or f16, such as of 8-bit weights."""
    if not isinstance(expr, Apply):
        return expr
    expr = expr._replace(arguments=tuple(exact(a) for a in expr.arguments))
    inner = expr.arguments[0]
    if expr.op != "convert":
        return expr
    if expr.type == "bf16" and inner.type in EXACT_IN_BF16:
        return expr._replace(arguments=(Apply("convert", (inner,), "f32"),))
    if expr.type == "f32" and inner.type in HALVES and isinstance(inner, Apply) and inner.op == "convert" \
            and _before(inner).type in EXACT_IN_BF16:
        return expr._replace(arguments=(_before(inner),))
    return expr


def _before(converted: Apply) -> Expr:
    """The operand of a conversion, or of the conversion to f32 before it."""
    inner = converted.arguments[0]
    return inner.arguments[0] if isinstance(inner, Apply) and inner.op == "convert" and inner.type == "f32" else inner


def _print_lane_loop(printer: StatementPrinter, found: Computed) -> None:
    """The head of a loop over the lanes of a vector. In it, the moving variable is that of one lane."""
    moving = DEPTH if found.along else FREE
    printer.line(2, "#pragma unroll")
    printer.line(2, f"for (long lane = 0, first = {moving}; lane < {found.vector}; lane++) {{")
    printer.line(3, f"const long {moving} = first + lane;")


def _print_lets(printer: StatementPrinter, found: Computed, loads: Iterable[Load], indent: int) -> None:
    """The Lets that the positions of these loads use."""
    printer.statements(needed(found.prologue.statements, [load.position for load in loads]), indent)
