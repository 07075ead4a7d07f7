"""Made-up inputs: what they are for decides what they are."""
import numpy as np
import pytest

from hloc.errors import UsageError
from hloc.inputs import entry_parameters
from hloc.inputs.files import read_inputs
from hloc.inputs.sensible import parameter_roles, sensible_arrays, sensible_inputs
from hloc.text import parse_module


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
    for bad in (["random:x"], ["zeros:1"], ["random:1", "zeros"]):
        with pytest.raises(UsageError):
            read_inputs(bad, parameters, sensible)
    with pytest.raises(UsageError, match="compiled file"):
        read_inputs(["sensible"], parameters)
