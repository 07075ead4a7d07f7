"""Bounded dynamic dimensions become static: an array lies in memory at its bounds, its sizes are values beside it.

    x = f32[<=8] parameter(0)             =>      x = (f32[8], s32[]) parameter(0)
    y = f32[<=8] negate(x)                        y = f32[8] negate(get-tuple-element(x), index=0), of the same size
    s = f32[] reduce(y, zero), add                s = f32[] reduce(select(iota < size, y, 0), zero), add

If such an array leaves its computation (the root, the operand of a call, the state of a loop), it is a tuple of the
array at its bounds and the sizes of its dynamic dimensions, in their order. So parameters and results of the entry are
followed by their sizes, which hloc/api.py adds and removes. rules.py has a rule for each op; an op without a rule is an
error that names the op.
"""
from __future__ import annotations

from hloc.ir import Module, reachable_computations
from hloc.ops.dynamic_shapes import write_dynamic_shapes
from hloc.passes.context import PassContext
from hloc.passes.dynamic_padder.padded import has_dynamic

ENTRY_FACTS = ("entry_computation_layout", "input_output_alias", "buffer_donor")


def dynamic_padder(module: Module, context: PassContext) -> bool:
    """True if a shape was dynamic."""
    computations, written = reachable_computations(module.entry), module.entry.root.shape
    write_dynamic_shapes(module)
    if not any(has_dynamic(i.shape) for c in computations for i in c.instructions):
        return False
    entry = [module.entry.root.shape, *(p.shape for p in module.entry.parameters)]
    from hloc.passes.dynamic_padder.walk import pad_computations, without_sizes
    pad_computations(computations, module)
    if entry[0] != written:
        without_sizes(module.entry, entry[0], written)
    if any(has_dynamic(shape) for shape in entry):
        for key in ENTRY_FACTS:
            module.attributes.pop(key, None)
    return True
