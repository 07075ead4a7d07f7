"""Windows: reduce-window (pooling, running sums). Their gradients are in select_and_scatter.py.

In: the lone instruction. Out: a kernel, of several forms the one of least predicted cost:
    elements  a loop over the taps of each element, which go together by schedules of row nests
    passes    a block of padded columns, over which passes go: window_passes.py
A window that reaches from the first (or last) element to the current one is a running total (scans.py).
"""
from __future__ import annotations

from hloc.ir import window_of
from hloc.kernels import indexing
from hloc.kernels.elemental.loop import loop_kernel
from hloc.kernels.group import Group, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.reductions.scans import direction, lower_scan
from hloc.kernels.reductions.window_passes import kernels_by_passes
from hloc.kernels.reductions.window_taps import is_plain
from hloc.kernels.rules.loops import reduce_window_values
from hloc.kernels.schedule.kernel_cost import kernel_cycles
from hloc.machine import Machine


def lower_reduce_window(group: Group, machine: Machine) -> Lowered:
    shape, result = group.instruction.operands[0].shape, group.result_shapes[0]
    if result.num_elements == 0:
        return Lowered(())
    dims = window_of(group.instruction)
    scanned = [d for d, w in enumerate(dims) if not is_plain(w)]
    if len(scanned) == 1 and direction(dims[scanned[0]], shape.dimensions[scanned[0]]):
        return lower_scan(group, machine, scanned[0], dims[scanned[0]])

    def element(outline: Outline, index: tuple[Index, ...]) -> None:
        results = outline.elements.drive(reduce_window_values(outline.elements, group.instruction, index))
        outline.store_all(indexing.linearize(index, result.dimensions), results)
    forms = [loop_kernel(group, machine, result.dimensions, element)]
    if machine.kind == "cpu":
        forms += kernels_by_passes(group)
    if len(forms) == 1:
        return Lowered((forms[0],))
    return Lowered((min(forms, key=lambda call: kernel_cycles(call.kernel, machine)),))
