"""Which routines of runtime/ a program needs: told from the generated C, and before that from the module.

In: C texts and Tiles, or a Module. Out: names of units: a file of runtime/, or `generic.c:gemm_c64`, one function of a
file that has many. Each unit is compiled once per machine (build.py), so a program should name no more than it calls.

    hloc_gemm_f32(&args)        gemm_f32.c, in two parts, and a third where a product has few rows (thin_units)
    hloc_conv_f32(&args)        all ways of convolutions, products too
    hloc_conv_rows_f32(&args)   the one way that most convolutions go; hloc_conv_spread_f32: with a base dilation
"""
from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from hloc.analysis.triangular import routine_type
from hloc.ir import Instruction, Module, window_of
from hloc.kernels.ir import Tile
from hloc.kernels.tiny import NARROW, SHALLOW, SMALL, TINY, is_shallow, is_small, multiply_adds
from hloc.targets.cpu.complex_products import PARTS, real_product

FAST_TYPES = {"gemm": ("f32", "f64", "bf16", "f16", "s8", "s32"), "conv": ("f32", "bf16", "f16")}
SAME_PRODUCT = {"u32": "s32"}        # products whose sums have the same bits
# The products that make up a convolution of other types, where not those of its own: "s8" has sums of s32.
PRODUCT_OF = {**SAME_PRODUCT, "s8_s32": "s8", "u8_s32": "s32", "s8": "u8"}
ATTENTION_UNITS = {"": ("attention.c", "attention_kernels.c"), "few": ("attention_thin.c",)}
FEW_QUERIES = 8                      # HLOC_FEW in runtime/attention_internal.h
CONVOLUTION_UNITS = ("conv.c", "conv_rows.c", "conv_dots.c", "conv_outer.c", "conv_depthwise.c")
WAY_UNITS = {"rows": ("conv.c", "conv_rows.c", "conv_dots.c"),
             "spread": ("gemm_f32.c", "conv.c", "conv_rows.c", "conv_dots.c", "conv_transposed.c")}
MOST_THIN = 4                        # THIN_ROWS in runtime/gemm_thin.h
SHORTEST_THIN, SMALLEST_THIN = 8, 1024    # columns, and elements of the larger operand, as is_thin says there
DEEPEST_ROWS = 16384                 # MOST_ZEROS in runtime/conv_rows.c
ENTRY = re.compile(r"\bhloc_(gemm|conv|fft|topk|attention|cholesky|trisolve)(?:_(\w+))?\(")


def runtime_units(text: str) -> list[str]:
    """The units of runtime/ that implement what a tile's text calls."""
    return [unit for kind, type in ENTRY.findall(text) for unit in _units_of(kind, type)]


def file_of(unit: str) -> str:
    """The file of runtime/ that holds a unit."""
    return unit.partition(":")[0]


def _units_of(kind: str, type: str) -> list[str]:
    if kind == "attention":
        return list(ATTENTION_UNITS[type])
    if kind in ("cholesky", "trisolve"):
        return [f"triangular_{type}.c"]
    if kind == "gemm" and type in PARTS:
        return [f"complex_{type}.c", f"gemm_{PARTS[type]}.c"]
    if kind not in FAST_TYPES:
        return [f"fft_{type}.c" if kind == "fft" else f"{kind}.c"]
    way, _, _ = type.partition("_")
    if way in WAY_UNITS:
        return list(WAY_UNITS[way])
    if type not in FAST_TYPES[kind]:
        products = _units_of("gemm", PRODUCT_OF.get(type, type)) if kind == "conv" else []
        return [f"generic.c:{kind}_{type}", *products]
    return [f"gemm_{type}.c"] if kind == "gemm" else [f"gemm_{type}.c", f"conv_{type}.c", *CONVOLUTION_UNITS]


def generic_flags(unit: str) -> tuple[str, ...]:
    """The macros by which runtime/generic.c makes one function: of gemm_c64, conv_f64, conv_s8_s32."""
    kind, _, types = unit.partition(":")[2].partition("_")
    operand, _, total = types.partition("_")
    return (f"-DHLOC_GENERIC_{kind.upper()}={types}", f"-DHLOC_OPERAND={operand}", f"-DHLOC_TOTAL={total or operand}",
            f"-DHLOC_PRODUCT={PRODUCT_OF.get(types, types)}")


def way_of(given: dict) -> str:
    """The ways that runtime/conv.c may choose for a convolution: "rows": conv_rows.c; "spread": that or
    conv_transposed.c; "": all others, too (a product, channel by channel, a filter gradient). `given`: parameters as
    hloc/kernels/lower_convolution.py says."""
    groups, depth = given["feature_groups"], given["lhs_features"] // given["feature_groups"]
    moves = any(given["padding_low"]) or any(n != 1 for k in ("window", "stride", "base_dilation") for n in given[k])
    by_channel = (groups > 1 and groups == given["lhs_features"]) or given["batch_groups"] > 1
    if not moves or by_channel or depth > DEEPEST_ROWS or prod(given["window"]) > 4 * prod(given["size"]):
        return ""
    spreads = groups == 1 and any(n != 1 for n in given["base_dilation"]) and all(n == 1 for n in given["stride"])
    return "spread" if spreads else "rows"


def conv_entry(type: str, given: dict) -> str:
    """The entry of runtime/conv.h for a convolution of a fast type."""
    return f"{way_of(given)}_{type}".lstrip("_")


def thin_units(tiles: Iterable[Tile]) -> frozenset[str]:
    """The units of which the part for products of few rows or columns (runtime/gemm_thin.h) is needed."""
    found = set()
    for tile in tiles:
        given = dict(tile.parameters)
        if tile.routine == "gemm":
            sizes = given["sizes"]
            if given["types"][0] in PARTS:
                sizes = real_product(*sizes, given["lhs"][1:], given["rhs"][1:]).sizes
        elif tile.routine == "convolution":
            positions = prod(given["size"])
            depth = given["lhs_features"] * (prod(given["window"]) if positions == 1 else 1)
            sizes = given["batch"] * positions, given["features"], depth
        else:
            continue
        if is_thin(*sizes):
            found.add(f"gemm_{_product_type(tile.routine, given['types'])}.c")
    return frozenset(found)


def _product_type(routine: str, types: tuple[str, ...]) -> str:
    """The type of gemm_<type>.c that multiplies for a product, or for a convolution of these types."""
    operand, total = types[:2]
    if routine == "convolution":
        return PRODUCT_OF.get(operand if operand == total else f"{operand}_{total}", operand)
    return PARTS.get(operand, SAME_PRODUCT.get(operand, operand))


def is_thin(m: int, n: int, k: int) -> bool:
    """Whether runtime/gemm_thin.h may be chosen for a product of an m by k and a k by n matrix."""
    return min(m, n) <= MOST_THIN and max(m, n) >= SHORTEST_THIN and max(m, n) * k >= SMALLEST_THIN


# -- before the passes have run ----------------------------------------------------------------------------------------

def likely_units(module: Module) -> tuple[list[str], frozenset[str]]:
    """runtime_units and thin_units as they will probably be, told from the opcodes before any pass has run."""
    attention = _likely_attention(module)
    units, thin = ["pool.c", *attention], set()
    for instruction in module.instructions():
        type = instruction.operands[0].shape.element_type if instruction.operands else ""
        if instruction.opcode == "fft":
            units += _units_of("fft", "f64" if type in ("f64", "c128") else "f32")
        elif instruction.opcode in ("cholesky", "triangular-solve") and routine_type(instruction):
            units.append(f"triangular_{routine_type(instruction)}.c")
        elif instruction.opcode == "dot" and type in (*FAST_TYPES["gemm"], *PARTS) \
                and not _is_small(instruction) and not (attention and instruction.get("lhs_batch_dims")):
            units += _units_of("gemm", type)
            twice = 1 + (type in PARTS)
            if is_thin(*(twice * side for side in _sides(instruction)), _depth(instruction)):
                thin.add(f"gemm_{PARTS.get(type, type)}.c")
        elif instruction.opcode == "topk" and type == "f32":
            units.append("topk.c")
        elif instruction.opcode == "convolution" and multiply_adds(instruction) > TINY \
                and not (is_shallow(instruction) or is_small(instruction)):
            total = instruction.shape.element_type
            if type in FAST_TYPES["conv"]:
                units += _units_of("conv", conv_entry(type, _facts(instruction)))
            else:
                units += _units_of("conv", type if type == total else f"{type}_{total}")
    return list(dict.fromkeys(units)), frozenset(thin)


def _depth(dot: Instruction) -> int:
    """Products in one sum of a dot."""
    left = dot.operands[0].shape.dimensions
    return prod(left[d] for d in dot.get("lhs_contracting_dims", ()))


def _is_small(dot: Instruction) -> bool:
    """A dot that will probably become loops."""
    depth = _depth(dot)
    columns = _sides(dot)[1]
    return dot.shape.num_elements * depth <= SMALL \
        or (not dot.get("lhs_batch_dims") and depth <= SHALLOW and 1 < columns <= NARROW)


def _likely_attention(module: Module) -> list[str]:
    """Units for a softmax of products: two batched dots for an exponential in one computation. A training step, which
    keeps the weights for the gradients, has six. Queries are the rows or columns of the first that are fewer."""
    units: list[str] = []
    for computation in module.computations:
        batched = [i for i in computation.instructions if i.opcode == "dot" and i.get("lhs_batch_dims")]
        if 1 < len(batched) <= 2 * sum(i.opcode == "exponential" for i in computation.instructions):
            units += ATTENTION_UNITS["few" if min(_sides(batched[0])) <= FEW_QUERIES else ""]
    return list(dict.fromkeys(units))


def _sides(dot: Instruction) -> tuple[int, int]:
    """Rows and columns of a dot, batch dimensions apart."""
    sides = []
    for side, operand in zip(("lhs", "rhs"), dot.operands):
        used = (*dot.get(f"{side}_batch_dims", ()), *dot.get(f"{side}_contracting_dims", ()))
        sides.append(prod(d for i, d in enumerate(operand.shape.dimensions) if i not in used))
    return tuple(sides)


def _facts(convolution: Instruction) -> dict:
    """What way_of asks, of an instruction."""
    numbers, windows = convolution.get("dim_labels"), window_of(convolution)
    return {"feature_groups": convolution.get("feature_group_count", 1),
            "batch_groups": convolution.get("batch_group_count", 1),
            "lhs_features": convolution.operands[0].shape.dimensions[numbers.input_feature],
            "window": [w.size for w in windows], "stride": [w.stride for w in windows],
            "base_dilation": [w.base_dilation for w in windows], "padding_low": [w.padding_low for w in windows],
            "size": [convolution.shape.dimensions[d] for d in numbers.output_spatial]}
