"""The evaluator's own behaviour: what a run carries along, memory, bounds, several devices, custom calls."""
import tracemalloc

import numpy as np
import pytest

from hloc.errors import RunError, UnsupportedError
from hloc.evaluate import Options, evaluate, make_scalar_plan
from hloc.evaluate.simulate import evaluate_devices
from hloc.ops.device_groups import parse_groups
from hloc.text import parse_module


def run(text, *inputs, **more):
    return evaluate(parse_module(text), inputs, **more)


# -- what goes in and out ----------------------------------------------------------------------------------------------

def test_tuples_are_flattened_both_ways():
    text = """ENTRY e { p = (f32[2], (s32[], token[])) parameter(0)  q = pred[] parameter(1)
                        ROOT r = ((f32[2], (s32[], token[])), pred[]) tuple(p, q) }"""
    x, n, b = run(text, np.array([1, 2], np.float32), 7, True)
    assert (x.tolist(), int(n), bool(b)) == ([1, 2], 7, True)


def test_wrong_inputs_are_named():
    with pytest.raises(RunError, match=r"input 0 \(x\) must be f32\[2\], but f64\[3\] was given"):
        run("ENTRY e { ROOT x = f32[2] parameter(0) }", np.zeros(3))


def test_elided_constant_cannot_run():
    for text in ("c = f32[4] constant({...})", "c = (f32[4], s32[]) constant(({...}, 1))"):
        with pytest.raises(UnsupportedError, match="omits the value of this constant"):
            run("ENTRY e { ROOT " + text + " }")


# -- memory and bounds -------------------------------------------------------------------------------------------------

def test_dead_values_are_freed():
    steps = "\n".join(f"x{i + 1} = f32[1000000] negate(x{i})" for i in range(30))
    text = f"ENTRY e {{ x0 = f32[1000000] parameter(0)\n{steps}\nROOT r = f32[1000000] negate(x30) }}"
    module, x = parse_module(text), np.ones(1_000_000, np.float32)
    tracemalloc.start()
    (y,) = evaluate(module, [x])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert y[0] == -1 and peak < 30_000_000                       # seven arrays, not thirty


def test_deep_calls_end_with_an_error():
    calls = "\n".join(f"g{i + 1} {{ p = f32[] parameter(0)  ROOT r = f32[] call(p), to_apply=g{i} }}"
                      for i in range(400))
    text = f"g0 {{ ROOT p = f32[] parameter(0) }}\n{calls}\nENTRY e {{ p = f32[] parameter(0)  " \
           "ROOT r = f32[] call(p), to_apply=g400 }"
    with pytest.raises(UnsupportedError, match="calls nest deeper than"):
        run(text, 1.0)


def test_a_chain_of_thousands_is_no_nesting():
    steps = "\n".join(f"x{i + 1} = f32[] add(x{i}, x0)" for i in range(5000))
    (r,) = run(f"ENTRY e {{ x0 = f32[] parameter(0)\n{steps}\nROOT r = f32[] negate(x5000) }}", 1.0)
    assert r == -5001


LOOP = """
less { s = (s32[], f32[4]) parameter(0)  i = s32[] get-tuple-element(s), index=0  n = s32[] constant(2000)
       ROOT r = pred[] compare(i, n), direction=LT }
step { s = (s32[], f32[4]) parameter(0)  i = s32[] get-tuple-element(s), index=0
       x = f32[4] get-tuple-element(s), index=1
       one = s32[] constant(1)  j = s32[] add(i, one)  y = f32[4] negate(x)  ROOT r = (s32[], f32[4]) tuple(j, y) }
ENTRY e { i = s32[] constant(0)  x = f32[4] parameter(0)  t = (s32[], f32[4]) tuple(i, x)
          ROOT w = (s32[], f32[4]) while(t), condition=less, body=step }"""


def test_a_loop_of_2000_steps():
    count, x = run(LOOP, np.arange(4, dtype=np.float32))
    assert count == 2000 and x.tolist() == [0, 1, 2, 3]


# -- custom calls, the host, random numbers ----------------------------------------------------------------------------

CUSTOM = 'ENTRY e { x = f32[2] parameter(0)  ROOT r = f32[2] custom-call(x), custom_call_target="my\\"own" }'


def test_bits_in_a_combiner_are_taken_of_whole_arrays():
    """Floats ordered by their bits, as optimized modules for GPUs do it; element by element that takes minutes."""
    module = parse_module("""
        m { a = f32[] parameter(0)  b = f32[] parameter(1)  x = s32[] bitcast(a)  y = s32[] bitcast-convert(b)
            less = pred[] compare(x, y), direction=LT  ROOT r = f32[] select(less, a, b) }
        ENTRY e { p = f32[3,50] parameter(0)  z = f32[] constant(inf)
                  ROOT r = f32[3] reduce(p, z), dimensions={1}, to_apply=m }""")
    assert make_scalar_plan(module.computations[0]) is not None
    p = np.random.default_rng(0).random((3, 50), np.float32)
    assert np.array_equal(evaluate(module, [p])[0], p.min(1))


def test_unknown_custom_call_is_named():
    with pytest.raises(UnsupportedError, match="custom-call target 'my\"own' is not known"):
        run(CUSTOM, np.ones(2, np.float32))


@pytest.mark.parametrize("target, reason", [
    ("tpu_custom_call", "a kernel for TPUs .Mosaic, Pallas.: its body in backend_config is MLIR bytecode"),
    ("__cudnn$fmhaSoftmaxDropoutBackward", "cuDNN's own random numbers"),
    ("__onednn$matmul_reorder", "an order that oneDNN keeps to itself")])
def test_why_a_custom_call_has_no_meaning_is_told(target, reason):
    with pytest.raises(UnsupportedError, match=reason):
        run(f'ENTRY e {{ x = f32[2] parameter(0)  ROOT r = f32[2] custom-call(x), custom_call_target="{target}" }}',
            np.ones(2, np.float32))


def test_custom_call_from_python():
    (r,) = run(CUSTOM, np.ones(2, np.float32), custom_calls={'my"own': lambda instruction, x: x + 1})
    assert r.tolist() == [2, 2]


def test_custom_call_must_keep_its_word():
    with pytest.raises(RunError, match=r"%r is f32\[2\], but evaluating custom-call gave float64\[3\]"):
        run(CUSTOM, np.ones(2, np.float32), custom_calls={'my"own': lambda instruction, x: np.zeros(3)})


def test_infeed_and_outfeed():
    text = """ENTRY e { t = token[] after-all()  i = ((s32[2]), token[]) infeed(t)
                        d = (s32[2]) get-tuple-element(i), index=0  u = token[] get-tuple-element(i), index=1
                        x = s32[2] get-tuple-element(d), index=0  y = s32[2] add(x, x)
                        ROOT o = token[] outfeed(y, u), outfeed_shape=s32[2] }"""
    options = Options(infeed=[(np.array([1, 2], np.int32),)])
    assert run(text, options=options) == ()
    assert [v.tolist() for v in options.outfeed] == [[2, 4]]
    with pytest.raises(RunError, match="infeed has nothing to take"):
        run(text)


def test_random_numbers_follow_the_seed():
    text = """ENTRY e { a = f32[] constant(0)  b = f32[] constant(1)
                        ROOT r = f32[1000] rng(a, b), distribution=rng_uniform }"""
    (first,), (again,), (other,) = run(text), run(text), run(text, options=Options(seed=1))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert 0 <= first.min() and first.max() < 1 and abs(first.mean() - 0.5) < 0.05


def test_observer_sees_every_value():
    seen = []
    run("ENTRY e { x = f32[] parameter(0)  y = f32[] negate(x)  ROOT r = f32[] exponential(y) }", 0.0,
        options=Options(observer=lambda instruction, operands, value: seen.append((instruction.name, float(value)))))
    assert seen == [("y", 0.0), ("r", 1.0)]


# -- dynamic sizes -----------------------------------------------------------------------------------------------------

def test_dynamic_size_beyond_its_bound():
    text = """ENTRY e { x = f32[4] parameter(0)  n = s32[] parameter(1)
                        ROOT r = f32[<=4] set-dimension-size(x, n), dimensions={0} }"""
    assert run(text, np.arange(4, dtype=np.float32), 3)[0].tolist() == [0, 1, 2]
    with pytest.raises(RunError, match="holds 0 to 4"):
        run(text, np.arange(4, dtype=np.float32), 5)


# -- several devices ---------------------------------------------------------------------------------------------------

def test_devices_that_wait_for_each_other_are_reported():
    text = """HloModule m, replica_count=2
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
yes { x = f32[] parameter(0)  ROOT r = f32[] all-reduce(x), replica_groups={}, to_apply=add }
no { ROOT x = f32[] parameter(0) }
ENTRY e { p = pred[] parameter(0)  x = f32[] parameter(1)
          ROOT r = f32[] conditional(p, x, x), true_computation=yes, false_computation=no }"""
    module = parse_module(text)
    assert [float(r[0]) for r in evaluate_devices(module, [[True, 1.0], [True, 2.0]])] == [3, 3]
    assert [float(r[0]) for r in evaluate_devices(module, [[False, 1.0], [False, 2.0]])] == [1, 2]
    with pytest.raises(RunError, match=r"all-reduce %r waits for the devices \[1\], which do not come"):
        evaluate_devices(module, [[True, 1.0], [False, 2.0]])


def test_collective_for_more_devices_than_there_are():
    with pytest.raises(UnsupportedError, match=r"names the devices \[0, 1\], this run has 1 device\n(?s:.*)hint: --devices 2 "):
        run("""add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
               ENTRY e { x = f32[] parameter(0)
                         ROOT r = f32[] all-reduce(x), replica_groups={{0,1}}, to_apply=add }""", 1.0)


def test_a_device_of_no_group_is_told_which_there_are():
    text = """add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
              ENTRY e { x = f32[] parameter(0)
                        ROOT r = f32[] all-reduce(x), replica_groups={{0}}, to_apply=add }"""
    with pytest.raises(UnsupportedError, match=r"names the devices \[0\], this run has 2 devices"):
        evaluate_devices(parse_module(text), [[1.0], [2.0]])


@pytest.mark.parametrize("text, groups", [
    ("{}", []),
    ("{{0,1},{2,3}}", [[0, 1], [2, 3]]),
    ("{ {0, 2}, {1} }", [[0, 2], [1]]),
    ("[2,2]<=[4]", [[0, 1], [2, 3]]),
    ("[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
    ("mesh['x'=2,'y'=2] {'y'}", [[0, 1], [2, 3]]),
    ("mesh['x'=2,'y'=2] {'x'}", [[0, 2], [1, 3]]),
    ("mesh['x'=2,'y'=2], device_ids=(3,2,1,0) {'y'}", [[3, 2], [1, 0]]),
])
def test_device_groups(text, groups):
    assert parse_groups(text) == groups


def test_unknown_device_groups_are_named():
    with pytest.raises(UnsupportedError, match="device groups"):
        parse_groups("mesh['x'=2] {'z'}")
