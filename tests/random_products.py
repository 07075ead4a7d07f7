"""Products in random modules: dot, ragged-dot, scaled-dot, convolution, and the Fourier transform."""
from __future__ import annotations

import math

from random_body import Body, braces
from random_indexing import window_text, windowed

SUMMED = ("f32", "f32", "s32", "f64", "bf16", "f16", "s8", "u32", "c64")
WIDER = {"bf16": "f32", "f16": "f32", "s8": "s32"}


def result_type(body: Body, element_type: str) -> str:
    wider = WIDER.get(element_type)
    return wider if wider and body.choices.chance(40) else element_type


def dot(body: Body) -> None:
    lhs = body.some(lambda v: 0 < len(v.dims) < 5, types=SUMMED)
    roles = [body.choices.pick(("free", "contract", "contract", "batch", "free")) for _ in lhs.dims]
    batch = body.choices.order([d for d, r in enumerate(roles) if r == "batch"])
    contract = body.choices.order([d for d, r in enumerate(roles) if r == "contract"])
    extra = [body.size((2, 3, 1, 5, 17)) for _ in range(body.choices.pick((1, 1, 0, 2)))]
    parts = [("batch", n) for n in range(len(batch))] + [("contract", n) for n in range(len(contract))] + \
        [("free", n) for n in range(len(extra))]
    placed = body.choices.order(parts)
    size = {"batch": [lhs.dims[d] for d in batch], "contract": [lhs.dims[d] for d in contract], "free": extra}
    rhs_dims = [size[role][n] for role, n in placed]
    free = [lhs.dims[d] for d, r in enumerate(roles) if r == "free"]
    dims = size["batch"] + free + [size["free"][n] for role, n in placed if role == "free"]
    if max(math.prod(dims), math.prod(rhs_dims)) > body.program.most_elements:
        return
    rhs = body.like(lhs.type, rhs_dims)
    attributes = [f"lhs_contracting_dims={braces(contract)}",
                  f"rhs_contracting_dims={braces([placed.index(('contract', n)) for n in range(len(contract))])}"]
    if batch:
        attributes += [f"lhs_batch_dims={braces(batch)}",
                       f"rhs_batch_dims={braces([placed.index(('batch', n)) for n in range(len(batch))])}"]
    body.emit(result_type(body, lhs.type), dims, "dot", [lhs, rhs], *attributes)


def ragged_dot(body: Body) -> None:
    """Rows, depth or batch in groups whose sizes add up to all of them."""
    kind = body.choices.pick(("rows", "depth", "batch"))
    rows, depth, columns, batch = (body.size((3, 4, 1, 5, 7)) for _ in range(4))
    total = {"rows": rows, "depth": depth, "batch": batch}[kind]
    sizes = []
    for _ in range(body.choices.pick((2, 1, 3))):
        sizes.append(body.choices.integer(0, total - sum(sizes)))
    sizes[-1] += total - sum(sizes)
    groups = body.emit(body.choices.pick(("s32", "s64")), (len(sizes),), "constant", [braces(sizes)])
    element_type = body.choices.pick(("f32", "bf16", "f64", "s32"))
    shapes = {"rows": ((rows, depth), (len(sizes), depth, columns), (rows, columns)),
              "depth": ((rows, depth), (depth, columns), (len(sizes), rows, columns)),
              "batch": ((batch, rows, depth), (batch, depth, columns), (batch, rows, columns))}[kind]
    attributes = {"rows": ("lhs_contracting_dims={1}", "rhs_contracting_dims={1}", "lhs_ragged_dims={0}",
                           "rhs_group_dims={0}"),
                  "depth": ("lhs_contracting_dims={1}", "rhs_contracting_dims={0}", "lhs_ragged_dims={1}"),
                  "batch": ("lhs_batch_dims={0}", "rhs_batch_dims={0}", "lhs_contracting_dims={2}",
                            "rhs_contracting_dims={1}", "lhs_ragged_dims={0}")}[kind]
    lhs, rhs = body.like(element_type, shapes[0]), body.like(element_type, shapes[1])
    body.emit(element_type, shapes[2], "ragged-dot", [lhs, rhs, groups], *attributes)


def scaled_dot(body: Body) -> None:
    """Each block of the depth has a factor of its own."""
    if "f8e8m0fnu" not in body.program.types:
        return
    rows, columns, blocks, length = (body.size((3, 1, 2, 5)) or 1 for _ in range(4))    # scales divide their operands
    operand = body.choices.pick(("f8e4m3fn", "f8e5m2", "bf16"))
    lhs, rhs = body.like(operand, (rows, blocks * length)), body.like(operand, (blocks * length, columns))
    scales = [body.like("f8e8m0fnu", dims) for dims in ((rows, blocks), (blocks, columns))]
    body.emit(body.choices.pick(("bf16", "f32")), (rows, columns), "scaled-dot", [lhs, rhs, *scales],
              "lhs_contracting_dims={1}", "rhs_contracting_dims={0}")


def convolution(body: Body) -> None:
    choices = body.choices
    space = [body.size((4, 5, 3, 1, 7)) for _ in range(choices.pick((1, 2, 1, 2, 0, 3)))]
    batch, group, features = body.size((1, 2, 3)), choices.pick((1, 1, 2, 3)), body.size((1, 2, 3))
    outputs, batched = body.size((1, 2, 4)), group > 1 and choices.chance(30)
    parts = [windowed(body, n) for n in space]
    element_type = choices.pick(("f32", "f32", "f32", "bf16", "f64", "s32", "f16", "c64"))
    places = [p[6] for p in parts]
    sizes = {"b": batch * (group if batched else 1), "f": features * (1 if batched else group),
             "i": features, "o": outputs * group}
    result = {"b": batch, "f": outputs * group}
    rank = len(space)
    if max(math.prod(places) * batch, math.prod(space) * sizes["b"] * sizes["f"]) * outputs * group \
            > body.program.most_elements:
        return
    numbers = "0123"[:rank]
    inputs, kernel, output = (choices.order(letters + numbers) for letters in ("bf", "io", "bf"))
    lhs = body.like(element_type, [space[int(c)] if c.isdigit() else sizes[c] for c in inputs])
    rhs = body.like(element_type, [parts[int(c)][0] if c.isdigit() else sizes[c] for c in kernel])
    dims = [places[int(c)] if c.isdigit() else result[c] for c in output]
    attributes = [f"dim_labels={''.join(inputs)}_{''.join(kernel)}->{''.join(output)}"]
    if rank:
        attributes.append(window_text(parts, [int(choices.chance(15)) for _ in parts]))
    if group > 1:
        attributes.append(f"{'batch' if batched else 'feature'}_group_count={group}")
    body.emit(element_type, dims, "convolution", [lhs, rhs], *attributes)


REAL = {"c64": "f32", "c128": "f64", "f32": "c64", "f64": "c128"}


def fft(body: Body) -> None:
    """Of one to three of the last dimensions."""
    value = body.some(lambda v: len(v.dims) > 0, types=("c64", "c128", "f32", "f64", "c64"))
    if not value.dims:
        return
    rank = min(len(value.dims), body.choices.pick((1, 1, 2, 3)))
    before, sizes = value.dims[:-rank], list(value.dims[len(value.dims) - rank:])
    kind = "RFFT" if value.kind == "float" else body.choices.pick(("FFT", "IFFT", "IRFFT"))
    result = list(sizes)
    if kind == "IRFFT" and sizes[-1]:
        result[-1] = sizes[-1] = 2 * (sizes[-1] - 1) + body.choices.integer(0, 1) or 1
    elif kind == "RFFT":
        result[-1] = sizes[-1] // 2 + 1 if sizes[-1] else 0
    body.emit(value.type if kind in ("FFT", "IFFT") else REAL[value.type], (*before, *result), "fft", [value],
              f"fft_type={kind}", f"fft_length={braces(sizes)}")


PRODUCTS = {dot: 6, convolution: 3, fft: 1, ragged_dot: 1, scaled_dot: 1}
