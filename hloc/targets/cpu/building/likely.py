"""A guess of the library kernels that a program will need, from its opcodes, so that they compile while the passes run.

In: a Module. Out: names of units, as in routines.py, and the parts of matmuls, as in product_parts.py. If the guess is
wrong, the first compilation takes longer.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hloc.analysis.triangular import routine_type
from hloc.ir import Instruction, Module, window_of
from hloc.kernels.products.convolution_products import ConvolutionProduct, product_of_images
from hloc.kernels.products.tiny import SMALL, TINY_OF_MANY, WIDE, WIDEST, has_few_terms, may_be_loops
from hloc.kernels.scalars import computation_type, sums_of_whole_numbers
from hloc.machine import Machine
from hloc.targets.cpu.building.parts import Parts, add, of_attention, of_systems, of_transform
from hloc.targets.cpu.building.product_parts import add_convolution, add_product
from hloc.targets.cpu.building.routines import (
    ATTENTION_UNITS,
    FAST_TYPES,
    FEW_QUERIES,
    SAME_PRODUCT,
    generic_conv,
    units_of,
)
from hloc.targets.cpu.scratch.convolution import arguments
from hloc.targets.cpu.scratch.convolution_ways import way_of
from hloc.targets.cpu.scratch.products import Product
from hloc.targets.cpu.tiles.complex_products import PARTS


def likely_units(module: Module, machine: Machine) -> tuple[list[str], Parts]:
    """The probable runtime_units and parts_of_tiles."""
    attention, units, parts = _likely_attention(module, machine), ["pool.c"], {}
    dots: set[tuple] = set()
    for queries, kind in attention:
        units += ATTENTION_UNITS[kind]
        for unit in ATTENTION_UNITS[kind][1:]:
            add(parts, unit, of_attention(queries, machine))
    for instruction in module.instructions():
        type = instruction.operands[0].shape.element_type if instruction.operands else ""
        if instruction.opcode == "fft":
            units += units_of("fft", "f64" if type in ("f64", "c128") else "f32")
            add(parts, units[-1], _parts_of_transform(instruction))
        elif instruction.opcode in ("cholesky", "triangular-solve") and routine_type(instruction):
            units.append(f"triangular_{routine_type(instruction)}.c")
            sides = instruction.shape.dimensions[-1 if instruction.get("left_side", False) else -2]
            add(parts, units[-1], {"CHOLESKY"} if instruction.opcode == "cholesky" else of_systems(sides))
        elif instruction.opcode == "dot":
            if (form := _form(instruction)) in dots:
                continue
            dots.add(form)
            if _is_small(instruction) or attention and instruction.get("lhs_batch_dims"):
                continue
            left, right = (o.shape.element_type for o in instruction.operands[:2])
            small = sums_of_whole_numbers(left, right, instruction.shape.element_type)
            type, _ = small or _tile_types(instruction)
            type = SAME_PRODUCT.get(type, type)
            if type in (*FAST_TYPES["gemm"], *PARTS):
                units += units_of("gemm", type)
                add_product(parts, _product(instruction, type), machine)
        elif instruction.opcode == "topk" and type == "f32":
            units.append("topk.c")
        elif instruction.opcode == "convolution" and not may_be_loops(instruction):
            type, total = _tile_types(instruction)
            if product := product_of_images(instruction):
                units += units_of("gemm", type)
                add_product(parts, _by_images(product, type), machine)
                continue
            if type not in FAST_TYPES["conv"]:
                units += units_of("conv", generic_conv(type, total))
                continue
            facts = _facts(instruction, type)
            units += units_of("conv", f"{way_of(arguments(facts, False), machine)}_{type}")
            add_convolution(parts, facts, False, machine)
    return list(dict.fromkeys(units)), parts


def _form(dot: Instruction) -> tuple:
    """The facts that the parts of a matmul depend on: equal layers share one."""
    read = [(o.shape, o.operands[0].shape.element_type if o.opcode == "convert" else "") for o in dot.operands]
    names = (f"{side}_{dimensions}_dims" for side in ("lhs", "rhs") for dimensions in ("batch", "contracting"))
    return (dot.shape, *read, *map(dot.get, names))


def _tile_types(hero: Instruction) -> tuple[str, str]:
    """Of the operands and of the sums of a product or convolution (kernels/products/epilogues.py)."""
    own = [operand.shape.element_type for operand in hero.operands[:2]]
    left, right = ((o.operands[0] if o.opcode == "convert" and o.shape.element_type == "f32" else o).shape.element_type
                   for o in hero.operands[:2])
    result = computation_type(hero.shape.element_type)
    if left == right and left in ("bf16", "f16") and result == "f32":
        return left, result
    return ("s8", "s32") if result == "s8" or own == ["s8", "s8"] and result == "s32" else (result, result)


def _parts_of_transform(fft: Instruction) -> set[str]:
    kind, lengths = fft.get("fft_type"), tuple(fft.get("fft_length"))
    full = fft.shape if kind == "IRFFT" else fft.operands[0].shape
    return of_transform(kind, lengths, full.num_elements // max(1, prod(lengths)))


def _product(dot: Instruction, type: str) -> Product:
    """A dot with row-major operands."""
    (m, n), depth = _sides(dot), _depth(dot)
    a, b = _strides(dot, "lhs"), _strides(dot, "rhs")
    return Product(type, dot.shape.num_elements // max(1, m * n), m, n, depth, (0, 0, *a), (0, 0, *reversed(b)))


def _by_images(product: ConvolutionProduct, type: str) -> Product:
    given = dict(product.parameters(0, 0))
    _, outer, inner, row, column = given["lhs"]
    _, b_outer, b_inner, b_row, b_column = given["rhs"]
    return Product(type, given["batches"][0], *given["sizes"], (outer, inner, row, column),
                   (b_outer, b_inner, b_row, b_column))


def _strides(dot: Instruction, side: str) -> tuple[int, int]:
    """From row to row, and from one product of a sum to the next, of an operand."""
    dimensions = dot.operands[side == "rhs"].shape.dimensions
    summed, batch = dot.get(f"{side}_contracting_dims", ()), dot.get(f"{side}_batch_dims", ())
    free = [d for d in range(len(dimensions)) if d not in (*summed, *batch)]
    return tuple(prod(dimensions[max(some) + 1:]) if some else 1 for some in (free, summed))


def _depth(dot: Instruction) -> int:
    """Products in one sum of a dot."""
    left = dot.operands[0].shape.dimensions
    return prod(left[d] for d in dot.get("lhs_contracting_dims", ()))


def _is_small(dot: Instruction) -> bool:
    """Whether a dot will probably become loops."""
    work = dot.shape.num_elements * _depth(dot)
    batches = prod(dot.operands[0].shape.dimensions[d] for d in dot.get("lhs_batch_dims", ()))
    if batches > 1:
        return work // batches <= TINY_OF_MANY
    columns, widest = _sides(dot)[1], WIDE.get(dot.operands[1].shape.element_type, WIDEST)
    return work <= SMALL or (columns > 1 and has_few_terms(_depth(dot), columns, widest))


def _likely_attention(module: Module, machine: Machine) -> set[tuple[int, str]]:
    """The numbers of queries of softmaxes of products, and which of ATTENTION_UNITS they take: two batched dots for an
    exponential in one computation. A training step, which keeps the weights for the gradients, has six. Queries are the
    rows or columns of the first that are fewer."""
    found: set[tuple[int, str]] = set()
    for computation in module.computations:
        batched = [i for i in computation.instructions if i.opcode == "dot" and i.get("lhs_batch_dims")]
        if 1 < len(batched) <= 2 * sum(i.opcode == "exponential" for i in computation.instructions):
            queries, types = min(_sides(batched[0])), {o.shape.element_type for d in batched for o in d.operands}
            kind = "pairs" if types == {"bf16"} and machine.has_pairs and _depth(batched[0]) % 2 == 0 else ""
            found.add((queries, "few" if queries <= FEW_QUERIES else kind))
    return found


def _sides(dot: Instruction) -> tuple[int, int]:
    """Rows and columns of a dot, batch dimensions apart."""
    sides = []
    for side, operand in zip(("lhs", "rhs"), dot.operands):
        used = (*dot.get(f"{side}_batch_dims", ()), *dot.get(f"{side}_contracting_dims", ()))
        sides.append(prod(d for i, d in enumerate(operand.shape.dimensions) if i not in used))
    return tuple(sides)


def _facts(convolution: Instruction, type: str) -> dict:
    """Parameters as hloc/kernels/products/convolution.py says, of row-major operands."""
    n, windows = convolution.get("dim_labels"), window_of(convolution)
    x, w, y = (i.shape.dimensions for i in (*convolution.operands[:2], convolution))

    def strides(of: Sequence[int], *dimensions: int) -> tuple[int, ...]:
        return tuple(prod(of[d + 1:]) for d in dimensions)
    return {"types": (type, "f32"), "batch": x[n.input_batch], "lhs_features": x[n.input_feature],
            "features": y[n.output_feature], "feature_groups": convolution.get("feature_group_count", 1),
            "batch_groups": convolution.get("batch_group_count", 1), "lhs_size": [x[d] for d in n.input_spatial],
            "window": [w.size for w in windows], "size": [y[d] for d in n.output_spatial],
            "stride": [w.stride for w in windows], "padding_low": [w.padding_low for w in windows],
            "base_dilation": [w.base_dilation for w in windows],
            "window_dilation": [w.window_dilation for w in windows],
            "reversal": [bool(w.reversal) for w in windows],
            "lhs": (0, *strides(x, n.input_batch, n.input_feature, *n.input_spatial)),
            "rhs": (0, *strides(w, n.kernel_input_feature, n.kernel_output_feature, *n.kernel_spatial)),
            "result": strides(y, n.output_batch, n.output_feature, *n.output_spatial)}
