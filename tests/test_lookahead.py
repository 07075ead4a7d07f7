"""Loops that look ahead give what their steps give one by one."""
import numpy as np
import pytest

from hloc.errors import RunError
from hloc.evaluate import Evaluator, Options
from hloc.inputs import check_inputs
from hloc.text import parse_module


class StepByStep(Evaluator):
    can_look_ahead = False


def loop(state: str, body: str, test: str = "ROOT go = pred[] compare(i, n), direction=LT", counter: str = "s32",
         more: str = "") -> str:
    """A module with a loop over (counter i, limit n, the given state x); `body` makes y of x, i and n."""
    head = f"s = ({counter}[], {counter}[], {state}) parameter(0)  i = {counter}[] get-tuple-element(s), index=0 " \
           f"n = {counter}[] get-tuple-element(s), index=1  x = {state} get-tuple-element(s), index=2 "
    return f"""{more}
        test {{ {head} {test} }}
        body {{ {head} one = {counter}[] constant(1)  next = {counter}[] add(i, one)
                {body}
                ROOT r = ({counter}[], {counter}[], {state}) tuple(next, n, y) }}
        ENTRY e {{ zero = {counter}[] constant(0)  n = {counter}[] parameter(0)  x = {state} parameter(1)
                  t = ({counter}[], {counter}[], {state}) tuple(zero, n, x)
                  ROOT w = ({counter}[], {counter}[], {state}) while(t), condition=test, body=body }}"""


HASH = """
hash { k = s32[] parameter(0)  a = s32[] constant(1103515245)  m = s32[] multiply(k, a)  c = s32[] constant(13)
       sh = s32[] shift-right-logical(m, c)  ROOT h = s32[] xor(m, sh) }
round_test { p = (s32[], s32[4]) parameter(0)  j = s32[] get-tuple-element(p), index=0  five = s32[] constant(5)
             ROOT go = pred[] compare(j, five), direction=LT }
round { p = (s32[], s32[4]) parameter(0)  j = s32[] get-tuple-element(p), index=0
        v = s32[4] get-tuple-element(p), index=1  one = s32[] constant(1)  j1 = s32[] add(j, one)
        b = s32[4] broadcast(j), dimensions={}  w = s32[4] multiply(v, v)  w1 = s32[4] add(w, b)
        w2 = s32[4] reverse(w1), dimensions={0}  ROOT r = (s32[], s32[4]) tuple(j1, w2) }"""
INT, FLOAT = np.array([3, -1, 2, 7], np.int32), np.array([1.5, -2, 0.25, 3], np.float32)
CASES = {
    "calls and loops inside": (loop("s32[4]", """
        h = s32[] call(i), to_apply=hash  hb = s32[4] broadcast(h), dimensions={}  zero = s32[] constant(0)
        t = (s32[], s32[4]) tuple(zero, hb)  w = (s32[], s32[4]) while(t), condition=round_test, body=round
        g = s32[4] get-tuple-element(w), index=1  y = s32[4] add(x, g)""", more=HASH), INT),
    "moves": (loop("s32[4]", """
        v = s32[1] reshape(i)  c = s32[3] constant({5, 6, 7})  k = s32[4] concatenate(v, c), dimensions={0}
        q = s32[4] iota(), iota_dimension=0  kq = s32[4] multiply(k, q)  m = s32[2,2] reshape(kq)
        tr = s32[2,2] transpose(m), dimensions={1,0}  sl = s32[1,2] slice(tr), slice={[1:2], [0:2]}
        bm = s32[4,1,2] broadcast(sl), dimensions={1,2}  f = s32[4] reshape(tr)
        f1 = s32[4,1,1] slice(bm), slice={[0:4], [0:1], [1:2]}
        f2 = s32[4] reshape(f1)  f3 = s32[4] subtract(f, f2)  y = s32[4] subtract(x, f3)"""), INT),
    "select and clamp by scalars": (loop("f32[4]", """
        three = s32[] constant(3)  odd = s32[] and(i, three)  p = pred[] compare(odd, three), direction=EQ
        c = f32[4] constant({1, 2, 3, 4})  d = f32[4] constant({4, 3, 2, 1})  sel = f32[4] select(p, c, d)
        fi = f32[] convert(i)  hi = f32[] constant(50)  cl = f32[4] clamp(fi, sel, hi)
        y = f32[4] add(x, cl)"""), FLOAT),
    "bits": (loop("f32[4]", """
        u = s32[4] broadcast(i), dimensions={}  c = s32[4] constant({1, 2, 3, 4})  a = s32[4] multiply(u, c)
        m = s32[4] constant({8388607, 8388607, 8388607, 8388607})  b = s32[4] and(a, m)
        e = s32[4] constant({1065353216, 1065353216, 1065353216, 1065353216})  o = s32[4] or(b, e)
        f = f32[4] bitcast-convert(o)  y = f32[4] add(x, f)"""), FLOAT),
    "a test of what is carried": (loop("f32[4]", """
        fi = f32[] convert(i)  b = f32[4] broadcast(fi), dimensions={}  y = f32[4] add(x, b)""", """
        one = f32[1] slice(x), slice={[0:1]}  v = f32[] reshape(one)  most = f32[] convert(n)
        ROOT go = pred[] compare(v, most), direction=LT"""), FLOAT),
    "a counter that wraps": (loop("s32[4]", """
        w = s32[] convert(i)  y = s32[4] broadcast(w), dimensions={}""", """
        one = s32[1] slice(x), slice={[0:1]}  v = s32[] reshape(one)  most = s32[] convert(n)
        ROOT go = pred[] compare(v, most), direction=NE""", counter="s8"), np.array([-1, 0, 0, 0], np.int32)),
    "nothing but the counter": (loop("s32[4]", "y = s32[4] copy(x)"), INT),
    "all of the state": (loop("s32[4]", "y = s32[4] broadcast(i), dimensions={}"), INT),
    "a tuple that is known goes into a branch": (loop("s32[4]", """
        b = s32[4] broadcast(i), dimensions={}  t = (s32[4], s32[]) tuple(b, i)  z = s32[] constant(1)
        one1 = s32[1] slice(x), slice={[0:1]}  v = s32[] reshape(one1)  bit = s32[] and(v, z)
        g = s32[4] conditional(bit, t, t), branch_computations={left, right}
        y = s32[4] add(x, g)""", more="""
        left { p = (s32[4], s32[]) parameter(0)  ROOT a = s32[4] get-tuple-element(p), index=0 }
        right { p = (s32[4], s32[]) parameter(0)  a = s32[4] get-tuple-element(p), index=0
                ROOT b = s32[4] negate(a) }"""), INT),
}


def results(evaluator, module, arrays):
    return [np.asarray(r) for r in evaluator(module).run(check_inputs(module, arrays))]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 32, 33, 96, 97, 127, 700])
def test_as_step_by_step(name, count):
    text, x = CASES[name]
    module = parse_module(text)
    n = np.array(count, np.int32).astype(np.int8) if "s8[]" in text else np.array(count, np.int32)
    for got, want in zip(results(Evaluator, module, [n, x]), results(StepByStep, module, [n, x]), strict=True):
        assert got.dtype == want.dtype and np.array_equal(got, want), name


def test_what_acts_outside_happens_once_a_step_in_order():
    text = loop("s32[4]", """tok = token[] after-all()  h = s32[] multiply(i, i)
        out = token[] outfeed(h, tok), outfeed_shape=s32[]  y = s32[4] copy(x)""")
    options = Options()
    Evaluator(parse_module(text), options=options).run([np.array(200, np.int32), INT])
    assert [int(v) for v in options.outfeed] == [i * i for i in range(200)]


def test_an_error_of_a_step_is_that_of_the_step():
    text = loop("s32[4]", """b = s32[<=4] set-dimension-size(x, i), dimensions={0}
        m = s32[] get-dimension-size(b), dimensions={0}  mb = s32[4] broadcast(m), dimensions={}
        y = s32[4] add(x, mb)""")
    with pytest.raises(RunError, match="set-dimension-size to 5"):
        Evaluator(parse_module(text)).run([np.array(40, np.int32), INT])


def test_a_long_loop_is_quick():
    """200 instructions that depend on the counter only, 3,000 steps: 600,000 evaluations one by one."""
    chain = "\n".join(f"h{k + 1} = s32[] {'multiply' if k % 2 else 'xor'}(h{k}, i)" for k in range(200))
    module = parse_module(loop("s32[4]", f"h0 = s32[] negate(i)\n{chain}\nb = s32[4] broadcast(h200), dimensions={{}}"
                                         "  y = s32[4] add(x, b)"))
    calls = []

    class Counting(Evaluator):
        def run_steps(self, steps, values):
            calls.append(len(steps))
            super().run_steps(steps, values)
    Counting(module).run([np.array(3000, np.int32), INT])
    assert sum(calls) < 40_000
