"""Generated inputs that suit the use of each parameter.

In: a module and a seed. Out: an array per flattened entry parameter. They depend on the use:

    indices of gather, scatter, dynamic-slice     small and not negative
    group sizes of a ragged-dot                   add up to the rows, or to the size that is grouped
    divisors, logarithms, asin, shift distances   in the op's domain
    operands of roots, through sums and products  positive: variances, second moments of an optimizer
    the start value of a reduction                its identity: XLA may use it more than once
    matrices of deep networks                     scaled by the rows, so that activations do not overflow
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hloc.ir import ELEMENT_TYPES, Computation, Instruction, Module, Shape, leaves, numpy_dtype

THROUGH = frozenset(("reshape bitcast broadcast transpose copy convert slice concatenate reverse pad opt-barrier "
                     "optimization-barrier get-tuple-element tuple select clamp maximum minimum").split())
ARITHMETIC = frozenset("add multiply divide".split())       # of positive numbers: positive
POSITIVE = frozenset("log sqrt rsqrt cbrt power".split())
UNIT = frozenset("acos asin atanh".split())
CALLS = frozenset("call fusion map".split())
GROUPS = "groups of "               # role of group sizes, followed by their sum
SHIFTS = frozenset("shift-left shift-right-arithmetic shift-right-logical".split())
DEEP_FROM = 300                     # instructions from which a module is a whole network


def sensible_arrays(module: Module, seed: int = 0) -> list[np.ndarray]:
    """Deterministic: the same for equal modules and seeds."""
    return sensible_inputs(module)(seed)


def sensible_inputs(module: Module) -> Callable[[int], list[np.ndarray]]:
    """A function from seeds to arrays. The module is analyzed now, so that it may be compiled in place later."""
    return sensible_values(module, [(module.entry, p, shape)
                                    for p in module.entry.parameters for shape in leaves(p.shape)])


def sensible_values(module: Module,
                    wanted: Sequence[tuple[Computation, Instruction, Shape]]) -> Callable[[int], list[np.ndarray]]:
    """The same for values that begin anywhere in the module: where, the instruction, and the shape of one leaf."""
    deep = is_deep(module)
    roles = roles_of(dict.fromkeys((computation, start) for computation, start, _ in wanted))
    shapes = [(shape, roles[start]) for _, start, shape in wanted]

    def arrays(seed: int) -> list[np.ndarray]:
        generator = np.random.default_rng(seed)
        return [_array(generator, shape, roles, deep) for shape, roles in shapes]

    return arrays


def is_deep(module: Module) -> bool:
    """Whether it is a deep network: a whole network, or a loop around matmuls."""
    opcodes = [i.opcode for c in module.computations for i in c.instructions]
    return len(opcodes) >= DEEP_FROM or ("while" in opcodes and "dot" in opcodes)


# -- uses of values ---------------------------------------------------------------------------------------------------

def roles_of(starts: Iterable[tuple[Computation, Instruction]]) -> dict[Instruction, set[str]]:
    """Roles per value: index, "groups of 256", divisor, shift, positive, unit, large, or an identity's "=add"."""
    readers: dict[Computation, dict[Instruction, list[tuple[Instruction, int]]]] = {}
    found: dict[Instruction, set[str]] = {}
    for start in starts:
        found[start[1]] = roles = set()
        queue, seen = deque([(*start, False)]), set()
        while queue:
            computation, value, computed = queue.popleft()
            if (value, computed) in seen:
                continue
            seen.add((value, computed))
            if computation not in readers:
                readers[computation] = _readers(computation)
            for reader, slot in readers[computation].get(value, ()):
                role = _role(reader, slot)
                if role and (not computed or role == "positive"):
                    roles.add(role)
                elif reader.opcode in THROUGH or reader.opcode in ARITHMETIC:
                    queue.append((computation, reader, computed or reader.opcode in ARITHMETIC))
                elif reader.opcode in CALLS:
                    callee = reader.called_computations[0]
                    queue.extend((callee, p, computed) for p in callee.parameters if p.parameter_number == slot)
    return found


def _readers(computation: Computation) -> dict[Instruction, list[tuple[Instruction, int]]]:
    table: dict[Instruction, list[tuple[Instruction, int]]] = {}
    for instruction in computation.instructions:
        for slot, operand in enumerate(instruction.operands):
            table.setdefault(operand, []).append((instruction, slot))
    return table


def _role(reader: Instruction, slot: int) -> str | None:
    opcode, count = reader.opcode, len(reader.operands)
    if (opcode == "gather" and slot == 1) or (opcode == "scatter" and slot == (count - 1) // 2) or (
            opcode == "dynamic-slice" and slot >= 1) or (opcode == "dynamic-update-slice" and slot >= 2):
        return "index"
    if opcode in ("reduce", "reduce-window") and slot >= count // 2:
        return _identity_of(reader, slot - count // 2)
    if opcode == "ragged-dot" and slot == 2:
        (split,) = reader.get("lhs_ragged_dims")
        return f"{GROUPS}{reader.operands[0].shape.dimensions[split]}"
    if opcode in ("divide", "remainder") and slot == 1:
        return "divisor"
    if opcode in SHIFTS and slot == 1:
        return "shift"
    if opcode in POSITIVE:
        return "positive"
    return "unit" if opcode in UNIT else "large" if opcode == "acosh" else None


def _identity_of(reader: Instruction, number: int) -> str | None:
    root = reader.get("to_apply").root
    if root.opcode == "tuple":
        root = root.operands[number]
    return "=" + root.opcode


# -- arrays ------------------------------------------------------------------------------------------------------------

def _array(generator: np.random.Generator, shape: Shape, roles: set[str], deep: bool) -> np.ndarray:
    dtype, kind, dimensions = numpy_dtype(shape.element_type), shape.kind, shape.dimensions
    identities = [r[1:] for r in roles if r.startswith("=")]
    if len(identities) == 1 and (value := _identity(identities[0], shape)) is not None:
        return np.full(dimensions, value, dtype)
    if kind == "pred":
        return generator.random(dimensions) < 0.5
    if kind in ("signed", "unsigned"):
        return _integers(generator, shape, roles).astype(dtype)
    if kind == "complex":
        return (_floats(generator, dimensions, roles) + 1j * _floats(generator, dimensions, roles)).astype(dtype)
    if shape.element_type == "f8e8m0fnu":
        return np.asarray(2.0 ** generator.integers(-2, 3, dimensions)).astype(dtype)
    values = _floats(generator, dimensions, roles)
    if deep and not roles:
        values = _network(generator, dimensions)
    return values.astype(dtype)


def _identity(opcode: str, shape: Shape) -> int | float | None:
    """The neutral value of a reduction's function, or None."""
    bits, kind = ELEMENT_TYPES[shape.element_type].bits, shape.kind
    if opcode in ("add", "or", "xor", "subtract"):
        return 0
    if opcode in ("multiply", "and"):
        return 1 if opcode == "multiply" or kind == "pred" else -1 if kind == "signed" else (1 << bits) - 1
    if opcode not in ("maximum", "minimum") or kind == "complex":
        return None
    least = opcode == "maximum"
    if kind == "pred":
        return not least
    if kind in ("signed", "unsigned"):
        low = -(1 << (bits - 1)) if kind == "signed" else 0
        return low if least else low + (1 << bits) - 1
    if shape.element_type in ("f16", "f32", "f64", "bf16"):
        return -np.inf if least else np.inf
    return None


def _integers(generator: np.random.Generator, shape: Shape, roles: set[str]) -> np.ndarray:
    bits, signed = ELEMENT_TYPES[shape.element_type].bits, shape.kind == "signed"
    split = [int(r.removeprefix(GROUPS)) for r in roles if r.startswith(GROUPS)]
    if split and shape.rank and shape.num_elements:
        groups = shape.dimensions[-1]
        most = min(min(split), (1 << bits - signed) - 1)
        return generator.multinomial(most, [1 / groups] * groups, shape.dimensions[:-1])
    low, high = (-8, 9) if signed else (0, 16)
    if "index" in roles:
        low, high = 0, 4
    elif "shift" in roles:
        low, high = 0, min(bits, 8)
    elif "divisor" in roles:
        low, high = 1, 8
    least, beyond = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    low, high = max(low, least), min(high, beyond)
    return np.asarray(generator.integers(low, max(high, low + 1), shape.dimensions))


def _floats(generator: np.random.Generator, dimensions: tuple[int, ...], roles: set[str]) -> np.ndarray:
    if "positive" in roles:
        return np.asarray(generator.uniform(0.125, 2.0, dimensions))
    if "large" in roles:
        return np.asarray(generator.uniform(1.0, 3.0, dimensions))
    if "unit" in roles:
        return np.asarray(generator.uniform(-0.95, 0.95, dimensions))
    if "divisor" in roles:
        return np.asarray(generator.uniform(0.25, 1.5, dimensions) * generator.choice([-1.0, 1.0], dimensions))
    return np.asarray(generator.uniform(-1.0, 1.0, dimensions))


def _network(generator: np.random.Generator, dimensions: tuple[int, ...]) -> np.ndarray:
    """Weights of variance 1/rows; vectors (biases, scales, variances) between 1/2 and 3/2."""
    if len(dimensions) < 2:
        return np.asarray(generator.uniform(0.5, 1.5, dimensions))
    rows = max(3, min(int(np.prod(dimensions[:-1])), 4096))
    return generator.uniform(-1, 1, dimensions) * (3.0 / rows) ** 0.5
