"""The cost of instructions: scalar operations, bytes, and seconds on a Machine, to one digit.

In: an instruction (and a machine). Out: estimates for choices such as "recompute or store?", and for reports.

    flops(dot f32[64,128] x f32[128,32])            2 * 64 * 32 * 128
    operations(exponential)                         10 per element, where add is 1
    bytes_accessed(dynamic-slice of 8 rows)         the 8 rows, twice; not the array they come from
    main_operation(fusion of convolution, maximum)  the convolution
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.analysis.fusible import is_elementwise
from hloc.ir import Instruction, Shape, window_of
from hloc.machine import Machine
from hloc.ops.table import OPS

LIBRARY_KERNELS = frozenset(["dot", "convolution", "ragged-dot", "scaled-dot", "fft", "sort", "cholesky",
                             "triangular-solve", "scatter", "select-and-scatter", "custom-call"])
FREE = frozenset(["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape", "opt-barrier",
                  "after-all", "domain", "add-dependency"])
PARTIAL_READS = frozenset(["slice", "dynamic-slice", "gather"])
GPU_LANES, GPU_HERTZ, CPU_HERTZ = 128, 1.5e9, 2.5e9
SCALARS_A_CYCLE = 4                     # operations of a CPU's core that do not wait for each other
CALL_SECONDS = 2e-8                     # starting a small kernel on the calling CPU thread
ALONE_SECONDS = 10e-6                   # shorter kernels stay on the calling CPU thread
CACHED_SPEEDUP = 4                      # of caches over memory


class Costs(NamedTuple):
    """Seconds of kernels apart, and of one kernel, or fewer, that does the work of all of them."""

    apart: float
    together: float


def operations(instruction: Instruction) -> float:
    """Arithmetic per element of the result, in units of one addition; data movement counts a little."""
    opcode, row = instruction.opcode, OPS.get(instruction.opcode)
    if row is not None and row.cost > 1:
        integer_division = opcode in ("divide", "remainder") and instruction.shape.kind in ("signed", "unsigned")
        wide = 4 if integer_division or instruction.shape.kind == "complex" else 1
        return row.cost * wide
    if opcode in FREE or opcode in ("broadcast", "iota"):
        return 0.0
    if opcode in ("transpose", "concatenate", "pad", "reverse", "gather", "dynamic-slice", "slice", "copy"):
        return 0.5
    return 3.0 if instruction.shape.is_array and instruction.shape.kind == "complex" else 1.0


def flops(instruction: Instruction) -> int:
    """Floating-point (or integer) operations of one execution, called computations included once."""
    opcode, shape = instruction.opcode, instruction.shape
    if opcode == "dot":
        return 2 * shape.num_elements * contracted_elements(instruction)
    if opcode == "convolution":
        return 2 * shape.num_elements * window_elements(instruction)
    if opcode == "reduce":
        return instruction.operands[0].shape.num_elements * (len(instruction.operands) // 2)
    if opcode == "reduce-window":
        sizes = math.prod(d.size for d in window_of(instruction))
        return sum(s.num_elements for s in _arrays(instruction)) * sizes
    if is_elementwise(instruction):
        return int(shape.num_elements * operations(instruction))
    return sum(flops(i) for c in instruction.called_computations for i in c.instructions) if opcode == "fusion" else 0


def main_operation(instruction: Instruction) -> Instruction:
    """The main operation of an instruction or fusion: its matmul, convolution or library kernel, else the instruction
    that computes most; of several equal ones the last. If a fusion only moves data, its root."""
    if instruction.opcode != "fusion":
        return instruction
    inside = instruction.called_computations[0]
    work = [main_operation(i) for i in inside.instructions if i.opcode not in FREE]
    if not any(flops(i) or i.opcode in LIBRARY_KERNELS for i in work):
        return inside.root if inside.root.opcode not in FREE or not work else work[-1]
    return max(reversed(work), key=lambda i: (i.opcode in LIBRARY_KERNELS, flops(i)))


def _arrays(instruction: Instruction) -> tuple[Shape, ...]:
    return instruction.shape.tuple_shapes or (instruction.shape,)


def contracted_elements(dot: Instruction) -> int:
    """Length of the sums of a dot."""
    left = dot.operands[0].shape.dimensions
    return math.prod(left[d] for d in dot.get("lhs_contracting_dims", ()))


def window_elements(convolution: Instruction) -> int:
    """Products per result element of a convolution."""
    kernel = convolution.operands[1].shape
    numbers = convolution.get("dim_labels")
    outputs = kernel.dimensions[numbers.kernel_output_feature] if numbers else 1
    return kernel.num_elements // max(1, outputs)


def bytes_accessed(instruction: Instruction) -> int:
    """Bytes that one execution reads and writes, ignoring caches."""
    opcode = instruction.opcode
    if opcode in FREE:
        return 0
    if opcode == "dynamic-update-slice":
        return 2 * instruction.operands[1].shape.num_bytes
    read = sum(bytes_read(instruction, slot) for slot in range(len(instruction.operands)))
    return read + instruction.shape.num_bytes


def bytes_read(instruction: Instruction, slot: int) -> int:
    """Bytes of one operand that are read."""
    whole = instruction.operands[slot].shape.num_bytes
    if slot == 0 and instruction.opcode in PARTIAL_READS:
        return min(whole, instruction.shape.num_bytes)
    return whole


def operations_per_second(machine: Machine) -> float:
    """f32 operations per second of all cores."""
    if machine.kind == "gpu":
        return machine.cores * GPU_LANES * GPU_HERTZ
    return machine.cores * (machine.vector_bytes / 4) * CPU_HERTZ


def seconds_of_operations(count: float, machine: Machine) -> float:
    """Time for f32 operations: on one core if there are too few to share."""
    together = count / operations_per_second(machine)
    if machine.kind == "gpu":
        return together
    return max(together, min(together * machine.cores, ALONE_SECONDS))


def seconds_one_by_one(count: float, cpu: Machine) -> float:
    """Time for operations of a loop without vectors."""
    return count / (SCALARS_A_CYCLE * CPU_HERTZ)


def seconds_of_traffic(size: int, machine: Machine) -> float:
    """Time to move `size` bytes, from the cache if they fit."""
    fast = CACHED_SPEEDUP if size <= machine.l2_bytes else 1
    return size / (machine.bandwidth * fast)


def seconds_of_launch(size: int, machine: Machine) -> float:
    """Launch time of one more kernel that moves `size` bytes."""
    if machine.kind == "cpu" and size < machine.l2_bytes // 8:
        return CALL_SECONDS
    return machine.launch_seconds


def predicted_seconds(instruction: Instruction, machine: Machine) -> float:
    """Time of one execution as a separate kernel: the longer of arithmetic and memory traffic, plus its launch."""
    if instruction.opcode in FREE:
        return 0.0
    size = bytes_accessed(instruction)
    work = max(seconds_of_operations(flops(instruction), machine), seconds_of_traffic(size, machine))
    return work + seconds_of_launch(size, machine)
