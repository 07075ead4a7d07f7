"""Memory: what is predicted is what a run allocates; a limit makes arrays be computed again, or is refused by name."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from memory_model import check_memory
from test_models import SMALL, inputs_of, models, name_of

import hloc
from hloc.api import optimized_plan
from hloc.cli.main import main
from hloc.kernels.memory import memory_use
from hloc.targets import find

MODELS = Path(__file__).parent.parent / "testdata" / "models"
LAYERS = 12


def network() -> str:
    """A forward pass whose layers are all read again behind the last one, as in training."""
    lines = ["x0 = f32[64,64] parameter(0)"]
    for n in range(LAYERS):
        lines += [f"p{n} = f32[64,64] dot(x{n}, x0), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
                  f"t{n} = f32[64,64] tanh(p{n})", f"x{n + 1} = f32[64,64] negate(t{n})"]
    lines += [f"g{LAYERS} = f32[64,64] abs(x{LAYERS})"]
    for n in reversed(range(LAYERS)):
        lines += [f"q{n} = f32[64,64] dot(g{n + 1}, t{n}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
                  f"g{n} = f32[64,64] tanh(q{n})"]
    return "HloModule network\n\nENTRY e {\n  " + "\n  ".join(lines[:-1]) + "\n  ROOT " + lines[-1] + "\n}\n"


def arena(text: str, limit: int | None = None) -> int:
    module, program = optimized_plan(hloc.load(text), find("cpu"), hloc.Options(passes={"memory_limit": limit}))
    check_memory(module)
    assert limit is None or program.peak <= limit
    return program.arena_size


def test_a_limit_is_kept_and_changes_no_result():
    text, plenty = network(), 3 * 64 * 64 * 4
    whole = arena(text)
    limit = plenty + int(0.7 * whole)
    assert arena(text, limit) < 0.75 * whole
    x = np.linspace(-0.2, 0.2, 64 * 64, dtype=np.float32).reshape(64, 64)
    small = hloc.compile(text, target="cpu", options=hloc.Options(passes={"memory_limit": limit}))
    assert small.backend.program.arena_size < 0.75 * whole
    assert small(x)[0].tobytes() == hloc.compile(text, target="cpu")(x)[0].tobytes()


def looped(layers: int = 6, size: int = 64) -> str:
    """The same network as the body of a loop."""
    array = f"f32[{size},{size}]"
    state, first = f"(s32[], {array})", ["n = s32[] get-tuple-element(p), index=0"]
    body = [f"p = {state} parameter(0)", *first, f"x0 = {array} get-tuple-element(p), index=1", "one = s32[] constant(1)",
            "next = s32[] add(n, one)"]
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    for n in range(layers):
        body += [f"p{n} = {array} dot(x{n}, x0), {dims}", f"t{n} = {array} tanh(p{n})", f"x{n + 1} = {array} negate(t{n})"]
    body.append(f"g{layers} = {array} abs(x{layers})")
    for n in reversed(range(layers)):
        body += [f"q{n} = {array} dot(g{n + 1}, t{n}), {dims}", f"g{n} = {array} tanh(q{n})"]
    body.append(f"ROOT r = {state} tuple(next, g0)")
    short = [f"p = {state} parameter(0)", *first, "most = s32[] constant(3)",
             "ROOT less = pred[] compare(n, most), direction=LT"]
    entry = [f"x = {array} parameter(0)", "zero = s32[] constant(0)", f"t = {state} tuple(zero, x)",
             f"w = {state} while(t), condition=short, body=body", f"ROOT y = {array} get-tuple-element(w), index=1"]
    return "HloModule looped\n" + "".join(f"\n{name} {{\n  " + "\n  ".join(lines) + "\n}\n" for name, lines in (
        ("body", body), ("short", short), ("ENTRY e", entry)))


def test_a_limit_reaches_into_loops():
    text, target = looped(), find("cpu")
    _, plain = optimized_plan(hloc.load(text), target)
    options = hloc.Options(passes={"memory_limit": plain.peak - int(0.25 * plain.arena_size)})
    module, small = optimized_plan(hloc.load(text), target, options)
    check_memory(module)
    assert small.arena_size <= 0.75 * plain.arena_size and options.saved
    assert any(i.opcode == "while" for i in module.entry.instructions) and ".remat" in str(module)
    x = np.linspace(-0.2, 0.2, 64 * 64, dtype=np.float32).reshape(64, 64)
    results = [hloc.compile(text, target="cpu", options=o)(x)[0].tobytes() for o in (hloc.Options(), options)]
    assert results[0] == results[1]


def test_memory_that_results_lend_is_not_saved():
    """What a run takes without a limit is enough with one, and nothing is computed again for it: the arrays that are
    read again at the end lie in the result, which is larger than all of them and written last."""
    text = network().replace("ROOT ", "").removesuffix("}\n")
    text += "  zero = f32[] constant(0)\n  ROOT wide = f32[512,512] pad(g0, zero), padding=0_448x0_448\n}\n"
    target = find("cpu")
    module, program = optimized_plan(hloc.load(text), target)
    assert program.arena_size < 8 * 64 * 64 * 4
    limited, same = optimized_plan(hloc.load(text), target, hloc.Options(passes={"memory_limit": program.peak}))
    assert same.peak == program.peak and len(limited.entry.instructions) == len(module.entry.instructions)


def test_too_low_a_limit_is_refused_with_the_figure(tmp_path, capsys):
    path = tmp_path / "network.hlo"
    path.write_text(network())
    sys.argv = ["hloc", "run", str(path), "-t", "cpu", "-i", "zeros", "--memory-limit", "64KiB"]
    with pytest.raises(SystemExit) as end:
        main()
    err = capsys.readouterr().err
    assert end.value.code == 6 and "bytes at least" in err and "the limit is 65,536" in err
    assert err.startswith(f"{path}:") and "^~~" in err              # the instruction at the peak


@pytest.mark.parametrize("size", ["lots", "12Q", "-5"])
def test_sizes_that_are_none(size, tmp_path, capsys):
    path = tmp_path / "network.hlo"
    path.write_text(network())
    sys.argv = ["hloc", "memory", str(path), "--memory-limit", size]
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and "is not a size" in capsys.readouterr().err


def test_training_takes_less_where_it_must():
    target, path = find("cpu"), MODELS / "decoder_reduced_train" / "model.hlo"
    module, program = optimized_plan(hloc.load(path), target)
    limit = program.peak - int(0.12 * program.arena_size)      # what costs nothing is computed again anyway
    module, limited = optimized_plan(hloc.load(path), target, hloc.Options(passes={"memory_limit": limit}))
    check_memory(module)
    assert limited.peak <= limit


@pytest.mark.parametrize("model", SMALL, ids=name_of)
def test_prediction_is_what_a_run_allocates(model):
    module, program = optimized_plan(hloc.load(models.model_path(model)), find("cpu"))
    use = memory_use(module, find("cpu").machine, find("cpu").workspace)
    exe = hloc.compile(models.model_path(model), target="cpu")
    results = exe(*inputs_of(model, exe))
    assert use.arena == exe.backend.program.arena_size
    assert use.results == sum(r.nbytes for r in results)
    assert use.parameters == sum(v.shape.num_bytes for v in exe.parameters)
    assert use.constants == sum(c.nbytes for c in program.constants)
    assert use.peak == program.peak
