"""HLO instructions -> kernels in the loop IR: the table of lowerings.

In: one instruction of a fused, row-major, scheduled module (a fusion or an op standing alone), and the Machine.
Out: Lowered: kernels with the operands, results and scratch buffers that they take, in the order to run them.

    lower(add, machine).calls[0].kernel.body
      -> For("i0", ..., PARALLEL, (For("i1", ..., VECTOR, (Store("out0", ..., Apply("add", ...)),)),))

A fusion is lowered by its kind and the opcode of its root, everything else by its opcode; an op with an element rule
and no lowering of its own becomes a loop over its elements. The folders: `rules` (how one element is computed),
`elemental` (loops over elements), `reductions`, `products`, `attention`, and `library_kernels` (Tiles that targets
implement by calls of library kernels).
"""
from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from hloc.analysis.attention import attention_in
from hloc.analysis.attention_gradient import gradient_in
from hloc.analysis.fusible import in_place_operands
from hloc.errors import UnsupportedError
from hloc.ir import UNBOUNDED, Instruction, Shape, leaves
from hloc.kernels.elemental.loop import lower_loop
from hloc.kernels.group import RULES, Arg, Group, KernelCall, Lowered
from hloc.kernels.reductions.reduce import lower_reduce
from hloc.machine import Machine

__all__ = ["Arg", "KernelCall", "Lowered", "lower"]

Lowering = Callable[[Group, Machine], Lowered]


def late(file: str, name: str) -> Lowering:
    """A lowering whose file is imported on first use: a program needs few of them."""
    def lowering(group: Group, machine: Machine) -> Lowered:
        return getattr(import_module(f"hloc.kernels.{file}"), name)(group, machine)
    return lowering


lower_attention = late("attention.attention", "lower_attention")
lower_attention_gradient = late("attention.gradient", "lower_attention_gradient")
lower_bitcast_convert = late("elemental.bitcast_convert", "lower_bitcast_convert")
lower_product = late("products.dot", "lower_product")
BY_OPCODE: dict[str, Lowering] = {
    "reduce": lower_reduce,
    "pad": late("elemental.pad", "lower_pad"),
    "dot": lower_product, "convolution": late("products.convolution", "lower_convolution"),
    "ragged-dot": late("products.ragged_dot", "lower_ragged_product"),
    "dynamic-update-slice": late("elemental.updates", "lower_dynamic_update_slice"),
    "scatter": late("elemental.updates", "lower_scatter"),
    "sort": late("library_kernels.sort", "lower_sort"), "topk": late("library_kernels.whole_arrays", "lower_topk"),
    "reduce-window": late("reductions.window", "lower_reduce_window"),
    "select-and-scatter": late("reductions.select_and_scatter", "lower_select_and_scatter"),
    "bitcast-convert": lower_bitcast_convert, "bitcast": lower_bitcast_convert,
    "fft": late("library_kernels.whole_arrays", "lower_fft"),
    "cholesky": late("library_kernels.whole_arrays", "lower_cholesky"),
    "triangular-solve": late("library_kernels.whole_arrays", "lower_triangular_solve"),
}
BY_KIND: dict[str, Lowering] = {"kInput": lower_reduce, "kCustom": late("reductions.rows", "lower_rows"),
                                "kOutput": lower_product}


def lower(instruction: Instruction, machine: Machine) -> Lowered:
    """The kernels of one instruction. Raises UnsupportedError, at the instruction, if there is no lowering."""
    if any(s.is_dynamic or UNBOUNDED in s.dimensions for s in _shapes(instruction)):
        raise UnsupportedError(f"'{instruction.opcode}' of dynamic dimensions cannot be compiled", instruction.span)
    group = Group.of(instruction)
    root = group.roots[0]
    if instruction.opcode == "fusion" and root in group.parameters:
        return lower_loop(group, machine)
    if instruction.opcode == "fusion" and any(m.opcode == "sort" for m in group.members):
        return BY_OPCODE["sort"](group, machine)
    if instruction.opcode == "fusion" and attention_in(instruction.get("calls")) is not None:
        return lower_attention(group, machine)
    if instruction.opcode == "fusion" and gradient_in(instruction.get("calls")) is not None:
        return lower_attention_gradient(group, machine)
    several = len(group.roots) > 1
    in_place = several and len(in_place_operands(instruction)) == len(group.roots)
    lowering = BY_OPCODE.get(root.opcode) if in_place or not several else None
    if instruction.opcode == "fusion" and (lowering is None or lowering is lower_reduce):
        lowering = BY_KIND.get(instruction.get("kind"), lowering)
    if lowering is not None:
        return lowering(group, machine)
    if root.opcode in RULES:
        return lower_loop(group, machine)
    raise UnsupportedError(f"'{instruction.opcode}' cannot be compiled", instruction.span)


def _shapes(instruction: Instruction) -> list[Shape]:
    """The array shapes of the operands and the result."""
    return [leaf for i in (instruction, *instruction.operands) for leaf in leaves(i.shape)]
