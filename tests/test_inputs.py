"""Made-up inputs: what they are for decides what they are."""
import numpy as np
import pytest

import hloc
from hloc.errors import RunError, UsageError
from hloc.evaluate import evaluate
from hloc.inputs import entry_parameters
from hloc.inputs.elided import fill_elided
from hloc.inputs.files import read_inputs
from hloc.inputs.sensible import roles_of, sensible_arrays, sensible_inputs
from hloc.text import parse_module


def parameter_roles(module):
    return roles_of((module.entry, p) for p in module.entry.parameters)


def test_inputs_know_what_they_are_for():
    module = parse_module("""
        m { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT r = f32[] maximum(x, y) }
        ENTRY e { a = f32[8] parameter(0)  i = s32[] parameter(1)  z = f32[] parameter(2)
          s = f32[2] dynamic-slice(a, i), dynamic_slice_sizes={2}  l = f32[2] log(s)
          ROOT r = f32[] reduce(l, z), dimensions={0}, to_apply=m }""")
    a, i, z = module.entry.parameters
    assert parameter_roles(module) == {a: set(), i: {"index"}, z: {"=maximum"}}
    _, index, start = sensible_arrays(module)
    assert 0 <= index < 4 and start == -np.inf


def test_second_moment_of_an_optimizer_is_positive():
    module = parse_module("""ENTRY e {
        g = f32[90] parameter(0)  v = f32[90] parameter(1)  b = f32[90] parameter(2)
        square = f32[90] multiply(g, g)  decayed = f32[90] multiply(v, b)  moment = f32[90] add(decayed, square)
        root = f32[90] sqrt(moment)  ROOT r = f32[90] divide(g, root) }""")
    assert all("positive" in roles for roles in parameter_roles(module).values())
    assert all((a > 0).all() for a in sensible_arrays(module, 5))


def test_made_up_inputs_by_name():
    module = parse_module("ENTRY e { x = f32[3] parameter(0)  i = s32[] parameter(1)  ROOT r = f32[3] log(x) }")
    parameters, sensible = entry_parameters(module), sensible_inputs(module)
    for name in ("random", "random:3", "zeros", "sensible", "sensible:3"):
        arrays = read_inputs([name], parameters, sensible)
        assert [(a.shape, a.dtype) for a in arrays] == [((3,), np.float32), ((), np.int32)]
    for bad in (["random:x"], ["random:\u00b2"], ["random:" + "9" * 5000], ["zeros:1"], ["random:1", "zeros"]):
        with pytest.raises(UsageError):
            read_inputs(bad, parameters, sensible)
    with pytest.raises(UsageError, match="compiled file"):
        read_inputs(["sensible"], parameters)


# -- constants whose values the text leaves out ------------------------------------------------------------------------

ELIDED = """ENTRY e {
    x = f32[9] parameter(0)  i = s32[3,1] constant({...})  v = f32[9] constant({...})  w = f32[2] constant({1, 2})
    t = (f32[2], (s32[4], pred[3])) constant(({3, 4}, ({...}, {...})))
    g = f32[3] gather(x, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
        slice_sizes={1}
    ROOT r = (f32[9], f32[3], (f32[2], (s32[4], pred[3]))) tuple(v, g, t) }"""


@pytest.mark.parametrize("values", ["sensible", "sensible:3", "random:3", "zeros"])
def test_elided_constants_are_made_up(values):
    module = parse_module(ELIDED)
    assert fill_elided(module, values) == 4
    x, i, v, w, t, *_ = module.entry.instructions
    assert v.literal.shape == (9,) and v.literal.dtype == np.float32 and i.literal.dtype == np.int32
    assert w.literal.tolist() == [1, 2] and t.literal[0].tolist() == [3, 4] and t.literal[1][1].dtype == np.bool_
    assert 0 <= i.literal.min() and i.literal.max() <= 9
    assert (v.literal != np.asarray(read_inputs(["random:3"], entry_parameters(module))[0])).any()
    evaluate(module, [np.arange(9, dtype=np.float32)])
    assert fill_elided(module, values) == 0


def test_what_cannot_fill_elided_constants():
    with pytest.raises(UsageError, match="'x.npy' cannot fill elided constants"):
        fill_elided(parse_module(ELIDED), "x.npy")
    large = parse_module("ENTRY e { ROOT c = f32[1000000,1000000,1000000] constant({...}) }")
    with pytest.raises(RunError, match="the elided constant %c is"):
        fill_elided(large, "zeros")


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_python_numbers_become_the_wanted_type(target):
    exe = hloc.compile("ENTRY e {\n i = s32[2] parameter(0)\n x = bf16[] parameter(1)\n"
                       "ROOT t = (s32[2], bf16[]) tuple(i, x) }", target)
    assert str(exe.parameters) == "(i: s32[2], x: bf16[])" and str(exe.results) == "(result.0: s32[2], result.1: bf16[])"
    i, x = exe([1, -2], 1.5)
    assert i.tolist() == [1, -2] and x == 1.5
    for wrong in ([1.5, 2], [1, 1 << 40], [1, None]):
        with pytest.raises(RunError, match=r"input 0 \(i\) must be s32\[2\]: cannot convert list"):
            exe(wrong, 0)


def test_what_is_no_module_and_no_target():
    with pytest.raises(UsageError, match="a module is a path, text or bytes, not int"):
        hloc.load(3)
    with pytest.raises(UsageError, match="a target is a name"):
        hloc.compile(ELIDED, target=None)


@pytest.mark.parametrize("sizes", ["s32[8]", "u8[8]", "s64[3,8]"])
def test_group_sizes_add_up_to_the_rows(sizes):
    batch = "3," if "," in sizes else ""
    dims = "lhs_batch_dims={0}, rhs_batch_dims={1}, " if batch else ""
    rows, shift = 200, int(bool(batch))
    module = parse_module(f"""ENTRY e {{
        a = f32[{batch}{rows},16] parameter(0)  b = f32[8,{batch}16,4] parameter(1)  s = {sizes} parameter(2)
        ROOT r = f32[{batch}{rows},4] ragged-dot(a, b, s), {dims}lhs_contracting_dims={{{1 + shift}}},
          rhs_contracting_dims={{{1 + shift}}}, lhs_ragged_dims={{{shift}}}, rhs_group_dims={{0}} }}""")
    made = sensible_arrays(module, 3)[2]
    assert (made.astype(int).sum(-1) == rows).all() and (made >= 0).all() and len(set(made.ravel())) > 3
