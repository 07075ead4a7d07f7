"""The index algebra of kernels (hloc/kernels/indexing.py): what it keeps, and what cancels."""
from __future__ import annotations

import random

from hloc.kernels import indexing


def value_of(index: indexing.Index, values: dict[str, int]) -> int:
    total = index.constant
    for atom, factor in index.terms:
        if atom.kind == indexing.VARIABLE:
            total += factor * values[atom.name]
        else:
            inner = value_of(indexing.Index(*atom.inner), values)
            total += factor * (inner // atom.divisor if atom.kind == indexing.QUOTIENT else inner % atom.divisor)
    return total


def test_index_algebra_keeps_values():
    """Random chains of operations against plain integers."""
    draw = random.Random(0)
    for _ in range(2000):
        values = {f"v{n}": draw.randrange(12) for n in range(3)}
        index, number = indexing.variable("v0", 12), values["v0"]
        for _ in range(8):
            step, k = draw.randrange(5), draw.randrange(1, 9)
            if step == 0:
                name = f"v{draw.randrange(3)}"
                index = indexing.add(index, indexing.scale(indexing.variable(name, 12), k))
                number += k * values[name]
            elif step == 1:
                index, number = indexing.shift(index, -k), number - k
            elif step == 2:
                index, number = indexing.scale(index, k), number * k
            elif step == 3:
                index, number = indexing.floor_divide(index, k), number // k
            else:
                index, number = indexing.modulo(index, k), number % k
            assert value_of(index, values) == number
            low, high = indexing.bounds(index)
            assert low <= number <= high


def test_reshapes_cancel():
    i, j = indexing.variable("i", 12), indexing.variable("j", 64)
    there = indexing.reshape((i, j), (12, 64), (768,))
    assert indexing.reshape(there, (768,), (12, 64)) == (i, j)
    v = indexing.variable("v", 12 * 64)
    split = indexing.delinearize(v, (3, 4, 64))
    assert indexing.linearize(split, (3, 4, 64)) == v


def test_dimensions_that_move_together_are_one():
    """Positions of images whose channels go from the end to the front."""
    v = indexing.variable("v", 2 * 5 * 7 * 3)
    image, row, column, channel = indexing.delinearize(v, (2, 5, 7, 3))
    assert indexing.linearize((row, column), (5, 7)) == indexing.modulo(indexing.floor_divide(v, 3), 35)
    moved = indexing.linearize((image, channel, row, column), (2, 3, 5, 7))
    for n in range(2 * 5 * 7 * 3):
        assert value_of(moved, {"v": n}) == n // 105 * 105 + n % 3 * 35 + n // 3 % 35


def test_places_inside_of_steps_do_not_change_quotients():
    """(128 * block + k) // 256, k < 128: the block alone decides; the place in a row is a multiple of the block, and k."""
    block, k = indexing.variable("block", 6), indexing.variable("k", 128)
    column = indexing.add(indexing.scale(block, 128), k)
    assert indexing.floor_divide(column, 256) == indexing.floor_divide(block, 2)
    assert indexing.modulo(column, 256) == indexing.add(indexing.scale(indexing.modulo(block, 2), 128), k)
    for place in range(768):
        values = {"block": place // 128, "k": place % 128}
        for divisor in (2, 3, 96, 128, 192, 256, 300, 512, 640):
            assert value_of(indexing.floor_divide(column, divisor), values) == place // divisor
            assert value_of(indexing.modulo(column, divisor), values) == place % divisor
