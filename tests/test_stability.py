"""What rounding alone moves, and by how much."""
import numpy as np

from hloc.evaluate import evaluate
from hloc.text import parse_module
from hloc.tools.stability import perturbed_results

SUM = """add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e { x = f32[64] parameter(0)  z = f32[] constant(0)
  ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=add }"""


def moved(module, *arrays) -> float:
    (exact,), (shaken,) = evaluate(module, arrays), perturbed_results(module, arrays)
    return float(np.abs(shaken.astype(np.float64) - exact).max())


def test_sums_that_cancel_move_far():
    module, x = parse_module(SUM), np.full(64, 3.0, np.float32)
    alternating = np.where(np.arange(64) % 2 == 0, x, -x)
    assert 0 < moved(module, x) / 192 < 1e-5
    assert evaluate(module, [alternating])[0] == 0 and moved(module, alternating) > 1e-7


def test_exact_operations_and_integers_do_not_move():
    module = parse_module("ENTRY e { x = s32[5] parameter(0)  y = s32[5] multiply(x, x)  ROOT r = s32[5] add(y, x) }")
    assert moved(module, np.arange(5, dtype=np.int32)) == 0
