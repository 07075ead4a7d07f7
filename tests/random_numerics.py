"""Numerical methods in random modules: normalization, triangular systems, scans, random numbers."""
from __future__ import annotations

from random_body import Body, Value

FLOATING = ("f32", "f64", "bf16", "f16")
SOLVED = ("f32", "f64", "c64")
DIAGONAL = 64                    # larger than what stands beside it in any row: the systems are well conditioned


# -- normalization -----------------------------------------------------------------------------------------------------

def batch_norm(body: Body) -> None:
    value = body.some(lambda v: len(v.dims) > 0, types=FLOATING)
    if not value.dims:
        return
    feature = body.choices.integer(0, len(value.dims) - 1)
    channels = (value.dims[feature],)
    attributes = (f"epsilon={body.choices.pick((1, 0.5))}", f"feature_index={feature}")
    kind = body.choices.pick(("inference", "training", "grad"))
    scale = body.like(value.type, channels)
    if kind == "training":
        offset = body.like(value.type, channels)
        body.emit_tuple([(value.type, value.dims), (value.type, channels), (value.type, channels)],
                        "batch-norm-training", [value, scale, offset], *attributes)
        return
    mean = body.like(value.type, channels)
    variance = body.emit(value.type, channels, "abs", [body.like(value.type, channels)])
    if kind == "inference":
        offset = body.like(value.type, channels)
        body.emit(value.type, value.dims, "batch-norm-inference", [value, scale, offset, mean, variance], *attributes)
        return
    gradient = body.like(value.type, value.dims)
    body.emit_tuple([(value.type, value.dims), (value.type, channels), (value.type, channels)], "batch-norm-grad",
                    [value, scale, mean, variance, gradient], *attributes)


# -- systems of equations ----------------------------------------------------------------------------------------------

def dominant(body: Body) -> Value:
    """Square matrices with a large diagonal and numbers between -1 and 1 beside it."""
    size, element_type = body.size((3, 1, 2, 5, 8)), body.choices.pick(SOLVED)
    dims = (*(body.size((2, 1, 3)) for _ in range(body.choices.pick((0, 0, 1, 2)))), size, size)
    places = [body.emit("s32", dims, "iota", (), f"iota_dimension={len(dims) - n}") for n in (1, 2)]
    diagonal = body.emit("pred", dims, "compare", places, "direction=EQ")
    large = filled(body, element_type, dims, "(64, 0)" if element_type == "c64" else str(DIAGONAL))
    if element_type == "c64":
        beside = [body.emit("f32", dims, "cosine", [body.like("f32", dims)]) for _ in range(2)]
        rest = body.emit("c64", dims, "complex", beside)
    else:
        rest = body.emit(element_type, dims, "cosine", [body.like(element_type, dims)])
    return body.emit(element_type, dims, "select", [diagonal, large, rest])


def filled(body: Body, element_type: str, dims, number: str) -> Value:
    scalar = body.emit(element_type, (), "constant", [number])
    return body.emit(element_type, dims, "broadcast", [scalar], "dimensions={}")


def cholesky(body: Body) -> None:
    matrix = dominant(body)
    body.emit(matrix.type, matrix.dims, "cholesky", [matrix], f"lower={body.choices.pick(('true', 'false'))}")


def triangular_solve(body: Body) -> None:
    matrix = dominant(body)
    left, other = body.choices.chance(50), body.size((2, 1, 3))
    size = matrix.dims[-1]
    right = body.like(matrix.type, (*matrix.dims[:-2], *((size, other) if left else (other, size))))
    transposed = body.choices.pick(("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"))
    flags = [f"{name}={'true' if body.choices.chance(50) else 'false'}" for name in ("lower", "unit_diagonal")]
    body.emit(matrix.type, right.dims, "triangular-solve", [matrix, right],
              f"left_side={'true' if left else 'false'}", *flags, f"transpose_a={transposed}")


# -- one step after the other ------------------------------------------------------------------------------------------

def scan(body: Body) -> None:
    """Running sums of slices."""
    value = body.some(lambda v: len(v.dims) > 0, types=("f32", "s32", "f64"))
    if not value.dims:
        return
    axis = body.choices.integer(0, len(value.dims) - 1)
    rest = (*value.dims[:axis], *value.dims[axis + 1:])
    shape = f"{value.type}[{','.join(map(str, rest))}]"
    step = body.program.shared(
        f"step {shape}", f"$ {{\n  x = {shape} parameter(0)\n  c = {shape} parameter(1)\n  s = {shape} add(x, c)\n"
        f"  ROOT r = ({shape}, {shape}) tuple(s, s)\n}}\n")
    body.emit_tuple([(value.type, value.dims), (value.type, rest)], "scan", [value, body.like(value.type, rest)],
                    f"dimensions={{{axis}}}", f"is_reverse={body.choices.pick(('false', 'true'))}", "num_carries=1",
                    f"to_apply={step}")


# -- random numbers ----------------------------------------------------------------------------------------------------

def rng(body: Body) -> None:
    """Numbers that are random only to the eye: two bounds that leave no choice, or a deviation of zero."""
    dims = body.program.dims()
    if body.choices.chance(50):
        bounds = [body.emit("s32", (), "constant", [str(n)]) for n in (5, 6)]
        body.emit("s32", dims, "rng", bounds, "distribution=rng_uniform")
        return
    bounds = [body.emit("f32", (), "constant", [n]) for n in ("2", "0")]
    body.emit("f32", dims, "rng", bounds, "distribution=rng_normal")


def rng_state(body: Body) -> None:
    """Its value depends on the calls before; what follows from its shape does not."""
    state = body.line("u64[2]", "rng-get-and-update-state", (), f"delta={body.choices.integer(1, 9)}")
    zero = filled(body, "u64", (2,), "0")
    body.emit("u64", (2,), "and", [state, zero])


def stochastic_convert(body: Body) -> None:
    """Of whole numbers: others are rounded as the bits say, and these may come from anything inexact."""
    source = body.choices.pick(("f32", "bf16", "f16"))
    value = body.some(types=(source,))
    if value.type != source:
        return
    whole = body.emit(value.type, value.dims, "round-nearest-even", [value])
    bits = body.like({"f32": "u32"}.get(source, "u16"), value.dims)
    body.emit(body.choices.pick(("s8", "s32", "u8", "s16")), value.dims, "stochastic-convert", [whole, bits])


NUMERICS = {batch_norm: 1, cholesky: 1, triangular_solve: 1, scan: 1, rng: 1, rng_state: 1, stochastic_convert: 1}
