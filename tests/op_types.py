"""A module for each op that works element by element, or moves elements, and each element type.

    text = module_of("compare", "c64", "direction=LT")
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES

TYPES = tuple(t.name for t in ELEMENT_TYPES.values() if t.dtype is not None)
PREDICATES = ("compare", "is-finite")
REAL = {"c64": "f32", "c128": "f64"}
COMPLEX = {"f32": "c64", "f64": "c128"}
# Ops with attributes: one form each.
FORMS: dict[str, tuple[str, ...]] = {
    "compare": tuple(f"direction={d}" for d in ("EQ", "NE", "LT", "LE", "GT", "GE")) + ("direction=LT, type=TOTALORDER",),
    "reduce-precision": ("exponent_bits=5, mantissa_bits=3",),
}
# Ops of other shapes: the whole call, and the type of the result, of operands x, y: T[8], z: T[].
CALLS: dict[str, tuple[str, str]] = {
    "iota": ("{t}[8]", "iota(), iota_dimension=0"),
    "clamp": ("{t}[8]", "clamp(z, x, y)"),
    "select": ("{t}[8]", "select(p, x, y)"),
    "reverse": ("{t}[8]", "reverse(x), dimensions={{0}}"),
    "pad": ("{t}[12]", "pad(x, z), padding=1_3"),
    "concatenate": ("{t}[16]", "concatenate(x, y), dimensions={{0}}"),
    "slice": ("{t}[3]", "slice(x), slice={{[1:7:2]}}"),
    "broadcast": ("{t}[2,8]", "broadcast(x), dimensions={{1}}"),
    "dynamic-slice": ("{t}[3]", "dynamic-slice(x, i), dynamic_slice_sizes={{3}}"),
    "dynamic-update-slice": ("{t}[8]", "dynamic-update-slice(x, w, i)"),
    "gather": ("{t}[2]", "gather(x, j), offset_dims={{}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
                         "index_vector_dim=1, slice_sizes={{1}}"),
    "reduce": ("{t}[]", "reduce(x, z), dimensions={{0}}, to_apply=larger"),
    "sort": ("{t}[8]", "sort(x), dimensions={{0}}, to_apply=before"),
    "mulhi": ("{t}[8]", "mulhi(x, y)"),
    "stochastic-convert": ("s8[8]", "stochastic-convert(x, b)"),
}


def forms(op) -> tuple[str, ...]:
    """The attributes to try an op with."""
    return FORMS.get(op.opcode, ("",))


def result_type(opcode: str, element_type: str) -> str:
    if opcode in PREDICATES:
        return "pred"
    if opcode == "complex":
        return COMPLEX.get(element_type, element_type)
    return REAL.get(element_type, element_type) if opcode in ("abs", "real", "imag") else element_type


def module_of(op, element_type: str, attributes: str = "") -> str:
    """The text of a module whose entry takes x, y: T[8] and z: T[] and applies the op."""
    if op.opcode in CALLS:
        shape, call = (text.format(t=element_type) for text in CALLS[op.opcode])
    else:
        shape = f"{result_type(op.opcode, element_type)}[8]"
        call = f"{op.opcode}({', '.join('xyx'[:op.least_operands])}){', ' if attributes else ''}{attributes}"
    bits = {2: "u2", 4: "u4"}.get(ELEMENT_TYPES[element_type].bits, f"u{max(8, ELEMENT_TYPES[element_type].bits)}")
    bits = bits if bits in ELEMENT_TYPES else "u64"
    parameters = [f"x = {element_type}[8]", f"y = {element_type}[8]", f"z = {element_type}[]"]
    lines = [f"  {p} parameter({n})" for n, p in enumerate(parameters)]
    scalar = f"a = {element_type}[] parameter(0)  b = {element_type}[] parameter(1)"
    extra = {"select": ["p = pred[8] constant({1, 0, 0, 1, 1, 0, 1, 0})"],
             "stochastic-convert": [f"b = {bits}[8] constant({{0, 1, 0, 1, 0, 1, 0, 1}})"],
             "dynamic-slice": ["i = s32[] constant(2)"], "gather": ["j = s32[2,1] constant({{3}, {1}})"],
             "dynamic-update-slice": ["i = s32[] constant(2)", f"w = {element_type}[3] slice(y), slice={{[0:3]}}"]}
    lines += [f"  {line}" for line in extra.get(op.opcode, ())]
    called = {"reduce": f"larger {{ {scalar}  ROOT r = {element_type}[] maximum(a, b) }}\n",
              "sort": f"before {{ {scalar}  ROOT r = pred[] compare(a, b), direction=LT }}\n"}.get(op.opcode, "")
    return f"HloModule types\n{called}ENTRY e {{\n" + "\n".join(lines) + f"\n  ROOT r = {shape} {call}\n}}\n"
