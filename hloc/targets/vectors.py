"""Operations on vectors of the loop IR as C, in GCC's vector extension: types, functions, and instructions of CPUs.

In: an expression whose type or arguments are vectors. Out: `vector_text`, its C; `vector_definitions`, the types and
functions that the expressions of a kernel need.

    Apply("add", (a, b), "f32x16")          (a + b)
    Apply("exp", (a,), "f32x16")            hlocv_exp_f32x16(a)

C's operators on vectors are one instruction of the C compiler each, and the fastest to compile. Other operations are
functions. One without a row in INSTRUCTIONS applies the scalar function of hloc/targets/c to each lane, in a loop that
compilers turn into instructions on whole vectors: it has that function's results, bit for bit. A row is for what gcc 12
does badly that way. Its meaning is the loop IR's own operation: tests compare both.
"""
from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Load, Stmt, Var
from hloc.kernels.operations import HEAVY, has_near
from hloc.kernels.vectors import ACROSS_LANES, MASKS, bits_of, bytes_of, element_of, is_vector, lanes_of, vector
from hloc.kernels.walks import expressions, operation, parts, walk

COMPARISONS = {"compare_eq": "==", "compare_ne": "!=", "compare_lt": "<", "compare_le": "<=", "compare_gt": ">",
               "compare_ge": ">="}
LOGIC = {"and": "&", "or": "|", "xor": "^", "not": "~"}
ARITHMETIC = {"add": "+", "subtract": "-", "multiply": "*", "negate": "-"}
SHIFTS = {"shift_left": "<<", "shift_right_logical": ">>", "shift_right_arithmetic": ">>"}
OPERATORS = {                   # of C on vectors, which do what the loop IR means, by the kind of elements
    "mask": COMPARISONS | LOGIC, "pred": COMPARISONS, "float": COMPARISONS | ARITHMETIC | {"divide": "/"},
    "signed": COMPARISONS | LOGIC | ARITHMETIC | SHIFTS, "unsigned": COMPARISONS | LOGIC | ARITHMETIC | SHIFTS}
MOST_INLINED = 16               # functions of many instructions in a kernel
EXACT_IN_C = ("f32", "f64", "u32", "u64", "s32", "s64")         # whose literals and operations have that type in C
ORDERED = 7                                         # of the comparison instructions
Printer = Callable[[Expr], str]
Key = TypeVar("Key", bound=Hashable)


class CountingPrinter(Protocol):
    """A StatementPrinter, which counts what it prints."""

    loops: int

    def expression(self, expr: Expr) -> str: ...


# -- instructions ------------------------------------------------------------------------------------------------------

class Instruction(NamedTuple):
    """A row: an operation with the types of its argument and result, and its C, of arguments a and b; for compilers
    that define `macro` and have the function `builtin`."""

    op: str
    source: str
    result: str
    text: str
    macro: str
    builtin: str


def _widenings() -> Iterable[Instruction]:
    """Integers to wider ones, from the low lanes of a register. gcc 12 makes four parts of a vector of 64 bytes, which
    it joins in memory."""
    letters, masks = {8: "b", 16: "w", 32: "d", 64: "q"}, {8: "char", 16: "short", 32: "int"}
    for bytes, macro in ((64, "__AVX512BW__"), (32, "__AVX2__")):
        for source, wide in ((8, 16), (8, 32), (8, 64), (16, 32), (16, 64), (32, 64)):
            lanes = bytes * 8 // wide
            low = f"({_register(source, lanes * source // 8)})a"
            if lanes * source < 128:
                places = ", ".join(map(str, [*range(lanes), *[-1] * (128 // source - lanes)]))
                low = f"({_register(source, 16)})__builtin_shufflevector(a, a, {places})"
            for sign, extended in (("s", "s"), ("u", "z")):
                name = f"__builtin_ia32_pmov{extended}x{letters[source]}{letters[wide]}{bytes * 8}"
                rest = ""
                if bytes == 64:
                    name, rest = f"{name}_mask", f", ({_register(wide, 64)}){{}}, ({masks[max(8, lanes)]})-1"
                for result in ("s", "u"):
                    yield Instruction("convert", f"{sign}{source}x{lanes}", f"{result}{wide}x{lanes}",
                                      f"{name}({low}{rest})", macro, name)


def _narrowings() -> Iterable[Instruction]:
    """Integers to narrower ones, at least a register of them. gcc 12 takes a permutation of two registers."""
    letters, masks = {8: "b", 16: "w", 32: "d", 64: "q"}, {8: "char", 16: "short", 32: "int"}
    for bytes in (64, 32):
        for source, narrow in ((16, 8), (32, 8), (32, 16), (64, 16), (64, 32)):
            lanes = bytes * 8 // source
            if lanes * narrow < 128:
                continue
            name = f"__builtin_ia32_pmov{letters[source]}{letters[narrow]}{bytes * 8}_mask"
            text = f"{name}(({_register(source, bytes)})a, ({_register(narrow, lanes * narrow // 8)}){{}}, " \
                f"({masks[max(8, lanes)]})-1)"
            for a, b in itertools.product("su", "su"):
                yield Instruction("convert", f"{a}{source}x{lanes}", f"{b}{narrow}x{lanes}", text,
                                  "__AVX512BW__" if source == 16 else "__AVX512F__" if bytes == 64 else "__AVX512VL__",
                                  name)


def _roundings() -> Iterable[Instruction]:
    """f32 to bf16, rounded to even, a whole register of them: gcc 12 takes two halves of it."""
    words, name = _register(32, 64), "__builtin_ia32_pmovdw512_mask"
    bits = f"(({words.replace('int', 'unsigned')})a)"
    rounded = f"({words})(({bits} + 0x7fffu + (({bits} >> 16) & 1u)) >> 16)"
    nan = f"({words})((({bits} >> 16) & 0x8000u) | 0x7fc0u)"
    for op, value in (("convert_held", rounded), ("convert", f"(({nan} & (a != a)) | ({rounded} & (a == a)))")):
        text = f"{name}({value}, ({_register(16, 32)}){{}}, -1)"
        yield Instruction(op, "f32x16", "bf16x16", text, "__AVX512F__", name)


def _halves() -> Iterable[Instruction]:
    """f16 to f32 and back, rounded to even."""
    short8, short16 = _register(16, 16), _register(16, 32)
    for source, result, name, arguments, macro in (
            ("f16x16", "f32x16", "vcvtph2ps512_mask", f"({short16})a, (hloc_f32x16){{}}, -1, 4", "__AVX512F__"),
            ("f16x8", "f32x8", "vcvtph2ps256", f"({short8})a", "__F16C__"),
            ("f32x16", "f16x16", "vcvtps2ph512_mask", f"a, 0, ({short16}){{}}, -1", "__AVX512F__"),
            ("f32x8", "f16x8", "vcvtps2ph256", "a, 0", "__F16C__")):
        name = f"__builtin_ia32_{name}"
        yield Instruction("convert", source, result, f"{name}({arguments})", macro, name)


def _extrema() -> Iterable[Instruction]:
    """maximum and minimum of floats in two instructions: a NaN of the second argument, which is what an accumulator
    takes in, stays; the instruction gives one of the first argument, and of two zeros that of the first argument."""
    for element, letter in (("f32", "s"), ("f64", "d")):
        for bytes, suffix in ((64, "512"), (32, "256"), (16, "")):
            same, rounding = vector(element, bytes * 8 // bits_of(element)), ", 4" if bytes == 64 else ""
            number = f"__builtin_ia32_cmpp{letter}{suffix or '128'}_mask(b, b, {ORDERED}, -1{rounding})"
            for op in ("maximum", "minimum"):
                name = f"__builtin_ia32_{op[:3]}p{letter}{suffix}_mask"
                yield Instruction(op, same, same, f"{name}(b, a, b, {number}{rounding})", "__AVX512VL__", name)


def _register(bits: int, bytes: int) -> str:
    """The compiler's own name of a vector of integers."""
    scalar = {8: "char", 16: "short", 32: "int", 64: "long long"}[bits]
    return f"__attribute__((vector_size({bytes}))) {scalar}"


INSTRUCTIONS = {(row.op, row.source, row.result): row
                for row in (*_widenings(), *_narrowings(), *_roundings(), *_halves(), *_extrema())}

CONVERTED = frozenset((element_of(row.source), element_of(row.result)) for row in _halves())


# -- expressions -------------------------------------------------------------------------------------------------------

def has_vectors(expr: Expr) -> bool:
    """Whether an expression is a vector or is computed from some."""
    return is_vector(expr.type) or isinstance(expr, Apply) and any(is_vector(a.type) for a in expr.arguments)


def vector_text(expr: Load | Apply, text: Printer) -> str:
    """The C of an expression that `has_vectors`; text: prints its parts."""
    if isinstance(expr, Load):
        return f"*(const {in_memory(expr.type)} *)({expr.buffer} + ({text(expr.position)}))"
    arguments = operands(expr)
    if expr.op == "lane":
        is_mask = element_of(arguments[0].type) in MASKS
        return f"({text(arguments[0])})[{expr.immediate[0]}]{' != 0' if is_mask else ''}"
    if expr.op == "bitcast":
        return f"((hloc_{expr.type})({text(arguments[0])}))"
    if sign := _operator(expr):
        return _with_operator(expr, sign, [_operand(expr, a, text) for a in arguments])
    return f"{_function(expr)}({', '.join(map(text, arguments))})"


def operands(expr: Apply) -> tuple[Expr, ...]:
    """The arguments of the C operator or function of an operation: of a rounding, what is rounded and widened again;
    numbers that are the same in all lanes as scalars, by which compilers divide with fewer instructions."""
    if _is_by_lanes(expr):
        scalars = tuple(a.arguments[0] if isinstance(a, Apply) and a.op == "splat" and element_of(a.type) not in MASKS
                        else a for a in expr.arguments)
        return scalars if not _operator(expr) or any(is_vector(a.type) for a in scalars) else expr.arguments
    return operation(expr.arguments[0]).arguments if _is_rounding(expr) else expr.arguments


def _is_rounding(expr: Apply) -> bool:
    """Whether this widens what it has just rounded."""
    inner = expr.arguments[0]
    return expr.op == "convert" and element_of(inner.type) == "bf16" and isinstance(inner, Apply) \
        and inner.op.startswith("convert") and inner.arguments[0].type == expr.type


def _is_by_lanes(expr: Apply) -> bool:
    """Whether a function applies a scalar operation of several numbers to each lane."""
    return len(expr.arguments) > 1 and expr.op not in ACROSS_LANES and expr.op != "select" \
        and (expr.op, expr.arguments[0].type, expr.type) not in INSTRUCTIONS


def store_text(buffer: str, position: Expr, value: Expr, text: Printer) -> str:
    """The C of a Store of a vector."""
    return f"*({in_memory(value.type)} *)({buffer} + ({text(position)})) = {text(value)};"


def in_memory(type: str) -> str:
    """The C type of a vector at any address."""
    return f"hloc_any_{type}"


def _operator(expr: Apply) -> str:
    """The sign of C's operator on vectors that does what an operation of the loop IR means; "" if none does."""
    first = element_of(expr.arguments[0].type)
    kind = "mask" if first in MASKS else ELEMENT_TYPES[first].kind if first in ELEMENT_TYPES else ""
    if kind == "float" and first not in ("f32", "f64") or expr.op in SHIFTS and not _is_short_shift(expr):
        return ""
    return OPERATORS.get(kind, {}).get(expr.op, "")


def _is_short_shift(expr: Apply) -> bool:
    """Whether a shift is by a constant below the bits of an element; C defines no others."""
    by = expr.arguments[1]
    amount = by.arguments[0] if isinstance(by, Apply) and by.op == "splat" else by
    return isinstance(amount, Const) and 0 <= amount.integer < bits_of(element_of(expr.type))


def _computed(expr: Apply) -> str:
    """The elements that an operator takes: instead of signed integers, whose overflow C does not define, unsigned ones.
    """
    first = element_of(expr.arguments[0].type)
    is_signed = first not in MASKS and ELEMENT_TYPES[first].kind == "signed"
    return f"u{bits_of(first)}" if is_signed and expr.op in {*ARITHMETIC, *SHIFTS} - {"shift_right_arithmetic"} else \
        f"s{bits_of(first)}" if expr.op == "shift_right_arithmetic" else first


def _operand(expr: Apply, value: Expr, text: Printer) -> str:
    """An operand of an operator; scalars have the type of an element, so that C takes them for all lanes."""
    wanted, own, printed = _computed(expr), element_of(value.type), text(value)
    if is_vector(value.type):
        return printed if wanted == own else f"(hloc_{vector(wanted, lanes_of(value.type))}){printed}"
    printed = printed if isinstance(value, (Const, Var)) else f"({printed})"
    return printed if wanted == own and wanted in EXACT_IN_C else f"(hloc_{wanted})({printed})"


def _with_operator(expr: Apply, sign: str, arguments: list[str]) -> str:
    value = f"{sign}{arguments[0]}" if len(arguments) == 1 else f"{arguments[0]} {sign} {arguments[1]}"
    is_cast = expr.op in COMPARISONS or _computed(expr) != element_of(expr.type)
    return f"((hloc_{expr.type})({value}))" if is_cast else f"({value})"


def _function(expr: Apply) -> str:
    """The name of the function of an operation."""
    facts = ",".join(map(str, expr.immediate))
    given, is_rounding = [a.type for a in operands(expr)], _is_rounding(expr)
    types = [*given, expr.type] if not all(map(is_vector, given)) else dict.fromkeys(
        [*(a.type for a in expr.arguments), expr.type])
    op = f"round_{operation(expr.arguments[0]).op}" if is_rounding else expr.op
    return "_".join(["hlocv", op, *types, *([f"{zlib.crc32(facts.encode()):08x}"] if facts else [])])


# -- definitions -------------------------------------------------------------------------------------------------------

def vector_definitions(statements: Iterable[Stmt], printer: CountingPrinter) -> list[str]:
    """The types and functions that statements need, each once; `printer` counts their calls and loops. Where functions
    of many instructions are many, those with the most copies are calls."""
    found: dict[str, str] = {}
    everything = [e for s in walk(statements) for e in parts(expressions(s)) if has_vectors(e)]
    calls = called(Counter(_function(e) for e in everything if isinstance(e, Apply) and e.op in HEAVY), MOST_INLINED)
    for e in everything:
        arguments = e.arguments if isinstance(e, Apply) else ()
        computed = [vector(_computed(e), lanes_of(e.type))] if isinstance(e, Apply) and _operator(e) else []
        for type in filter(is_vector, (*(a.type for a in arguments), e.type, *computed)):
            if f"hloc_{type}" not in found:
                found[f"hloc_{type}"] = _type(type)
        if isinstance(e, Apply) and not _operator(e) and e.op not in ("lane", "bitcast") and _function(e) not in found:
            found[_function(e)] = _definition(e, printer, "HLOC_CALLED" if _function(e) in calls else "HLOC_FN")
    return [f"#ifndef {name.upper()}\n#define {name.upper()}\n{body}\n#endif" for name, body in found.items()]


def called(copies: Counter[Key], most: int) -> frozenset[Key]:
    """The functions that are calls, so that at most `most` are inlined: first those with the most copies. A C compiler
    takes 10 to 25 ms for each copy, and for the function itself: a call of one that is used once gains nothing."""
    found, inlined = set[Key](), sum(copies.values())
    for key, n in copies.most_common():
        if inlined <= most or n == 1:
            break
        found.add(key)
        inlined -= n
    return frozenset(found)


def _type(type: str) -> str:
    element, bytes = element_of(type), bits_of(element_of(type)) // 8
    lane = f"hloc_s{MASKS[element]}" if element in MASKS else f"hloc_{element}"
    return (f"typedef {lane} hloc_{type} __attribute__((vector_size({bytes_of(type)})));\n"
            f"typedef hloc_{type} {in_memory(type)} __attribute__((aligned({bytes}), may_alias));")


def _definition(expr: Apply, printer: CountingPrinter, qualifier: str) -> str:
    names = "abc"[:len(expr.arguments)]
    parameters = ", ".join(f"{_parameter(a.type)} {name}" for a, name in zip(operands(expr), names))
    body = _across(expr) if expr.op in ACROSS_LANES else _select(expr) if expr.op == "select" else \
        _of_masks(expr) if expr.op == "convert" and _mask_in(expr) else ""
    row = INSTRUCTIONS.get((expr.op, expr.arguments[0].type, expr.type))
    lines = [f"  return {body};"] if body else [f"  {line}" for line in _by_lanes(expr, names, printer)]
    if row is not None:
        has_row = f"#if defined({row.macro}) && HLOC_BUILTIN({row.builtin})"
        lines = [has_row, f"  return (hloc_{expr.type}){row.text};", "#else", *lines, "#endif"]
    return "\n".join([f"{qualifier} hloc_{expr.type} {_function(expr)}({parameters}) {{", *lines, "}"])


def _parameter(type: str) -> str:
    return "long" if type == INDEX else f"hloc_{type}"


def _by_lanes(expr: Apply, names: str, printer: CountingPrinter) -> list[str]:
    """The scalar operation on each lane; one with a form for usual arguments is called only if a lane has another."""
    lanes, element = lanes_of(expr.type), vector(element_of(expr.type), 1)
    arguments: tuple[Expr, ...] = tuple(Var(f"{name}[k]", element_of(a.type)) if is_vector(a.type) else
                                        Var(name, a.type) for name, a in zip(names, operands(expr)))
    if _is_rounding(expr):
        arguments = (Apply(operation(expr.arguments[0]).op, arguments, element_of(expr.arguments[0].type)),)
    exact = Apply(expr.op, arguments, element, expr.immediate)
    lines = [f"hloc_{expr.type} r;"]
    if not has_near(exact.op, element):
        return [*lines, *_loop(lanes, exact, printer, element_of(expr.type) in MASKS), "return r;"]
    far = printer.expression(Apply(f"{expr.op}_is_near", arguments, "pred"))
    printer.loops += 1
    return ["int far = 0;", *lines, *_loop(lanes, exact._replace(op=f"{expr.op}_near"), printer),
            f"_Pragma(\"omp simd simdlen({lanes}) reduction(|:far)\")",
            f"for (long k = 0; k < {lanes}; k++) far |= !{far};",
            f"if (far) for (long k = 0; k < {lanes}; k++) r[k] = {printer.expression(exact)};", "return r;"]


def _loop(lanes: int, value: Apply, printer: CountingPrinter, is_mask: bool = False) -> list[str]:
    """The loop that stores a value in each lane of r."""
    text = printer.expression(value)
    printer.loops += 1
    text = f"-({text})" if is_mask else text
    return [f"_Pragma(\"omp simd simdlen({lanes})\")", f"for (long k = 0; k < {lanes}; k++) r[k] = {text};"]


def _across(expr: Apply) -> str:
    type, lanes = f"hloc_{expr.type}", lanes_of(expr.type)
    if expr.op == "splat":
        value = "-(a != 0)" if element_of(expr.type) in MASKS else "a"
        return f"({type}){{{', '.join([value] * lanes)}}}"
    if expr.op == "series":
        places = ", ".join(str(i * expr.immediate[0]) for i in range(lanes))
        return f"({type}){{{places}}} + (hloc_{element_of(expr.type)})a"
    assert expr.op == "shuffle"
    own = lanes_of(expr.arguments[0].type)
    places = ", ".join(map(str, expr.immediate))
    picked = ", ".join(f"a[{i}]" if i < own else f"b[{i - own}]" for i in expr.immediate)
    return f"HLOC_PICK_LANES(__builtin_shufflevector(a, b, {places}), (({type}){{{picked}}}))"


def _select(expr: Apply) -> str:
    """By bits: gcc makes a blend of it."""
    mask = f"hloc_{expr.arguments[0].type}"
    return f"(hloc_{expr.type})((({mask})b & a) | (({mask})c & ~a))"


def _mask_in(expr: Apply) -> bool:
    return element_of(expr.type) in MASKS or element_of(expr.arguments[0].type) in MASKS


def _of_masks(expr: Apply) -> str:
    """Conversions from and to masks, of which a true lane holds -1."""
    source, result, lanes = element_of(expr.arguments[0].type), element_of(expr.type), lanes_of(expr.type)
    bits = bits_of(result)
    same = f"__builtin_convertvector({'a' if source in MASKS else 'a != 0'}, {_register(bits, bits * lanes // 8)})"
    if result in MASKS:
        return f"(hloc_{expr.type}){same}"
    one = "1.0f" if ELEMENT_TYPES[result].kind == "float" else "1"
    return f"(hloc_{expr.type})({same} & ({_register(bits, bits * lanes // 8)})((hloc_{expr.type}){{}} + {one}))"
