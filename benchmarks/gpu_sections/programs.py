"""The whole programs that are measured, where their text and inputs come from, and their compilation side by side.

    case = find("transformer_train"); path, arrays = source(case, device)
    python benchmarks/gpu.py --compile transformer_train on FOLDER          one program into FOLDER, as a container

Compiling takes longer than running: `prepare` compiles all programs at once, each in a process of its own, and
Device.program takes from FOLDER what is there.
"""
from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "testdata" / "models"
FOLDER = "HLOC_GPU_FOLDER"              # of what one run of gpu.py makes and throws away
EXPORT_SECONDS = 60


class Case(NamedTuple):
    """unit, count: what one run is, and how many; published: what others measured for fusion, as a note; made: the
    arguments of testdata/models/for_gpu.py (type, batch, size), for what is exported on this machine."""

    name: str
    unit: str = "runs"
    count: int = 1
    published: str = ""
    made: tuple[str, int, int] | None = None
    text: str = ""


RESNET = "published for XLA's fusion: 1.58"
CASES = (
    Case("ResNet-50 training step, f32, 128 images of 224x224", "images", 128, RESNET, ("f32", 128, 224)),
    Case("ResNet-50 training step, bf16, 128 images of 224x224", "images", 128, "published: up to 3 in half precision",
         ("bf16", 128, 224)),
    Case("transformer_train", "steps"), Case("gpt2_prefill", "tokens", 64), Case("gpt2_generate", "tokens", 32),
    Case("resnet50_train", "images", 4, RESNET), Case("resnet50", "images", 2), Case("minilm", "sentences", 8),
    Case("digits", "images", 360), Case("unet_block"), Case("lstm"))
REDUCED = (Case("ResNet training step, f32, reduced", "images", 2, RESNET, ("f32", 2, 32)),
           Case("cumsum"))

ADD = "add {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT r = {t}[] add(a, b) }}\n"
MAX = "max {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT r = {t}[] maximum(a, b) }}\n"
GELU = """  gc{n} = {t}[{s}] multiply({x}, {x})  gk{n} = {t}[{s}] multiply(gc{n}, {x})
  ge{n} = {t}[{s}] multiply(gk{n}, cubic)  gf{n} = {t}[{s}] add({x}, ge{n})  gg{n} = {t}[{s}] multiply(gf{n}, scale)
  gt{n} = {t}[{s}] tanh(gg{n})  gu{n} = {t}[{s}] add(gt{n}, one)  gv{n} = {t}[{s}] multiply(gu{n}, half)
  {name} = {t}[{s}] multiply({x}, gv{n})
"""
CONSTANTS = "".join(f"  {n}.s = {{t}}[] constant({v})  {n} = {{t}}[{{s}}] broadcast({n}.s), dimensions={{{{}}}}\n"
                    for n, v in (("cubic", 0.044715), ("scale", 0.7978845608), ("one", 1), ("half", 0.5)))
SOFTMAX = """  top{n} = {t}[{r}] reduce({x}, low), dimensions={{1}}, to_apply=max
  topb{n} = {t}[{s}] broadcast(top{n}), dimensions={{0}}  less{n} = {t}[{s}] subtract({x}, topb{n})
  exp{n} = {t}[{s}] exponential(less{n})  sum{n} = {t}[{r}] reduce(exp{n}, zero), dimensions={{1}}, to_apply=add
  sumb{n} = {t}[{s}] broadcast(sum{n}), dimensions={{0}}  {name} = {t}[{s}] divide(exp{n}, sumb{n})
"""
NORM = """  sum{n} = {t}[{r}] reduce({x}, zero), dimensions={{1}}, to_apply=add  mean{n} = {t}[{r}] divide(sum{n}, many)
  meanb{n} = {t}[{s}] broadcast(mean{n}), dimensions={{0}}  less{n} = {t}[{s}] subtract({x}, meanb{n})
  sq{n} = {t}[{s}] multiply(less{n}, less{n})  sqs{n} = {t}[{r}] reduce(sq{n}, zero), dimensions={{1}}, to_apply=add
  var{n} = {t}[{r}] divide(sqs{n}, many)  some{n} = {t}[{r}] add(var{n}, tiny)  inv{n} = {t}[{r}] rsqrt(some{n})
  invb{n} = {t}[{s}] broadcast(inv{n}), dimensions={{0}}  {name} = {t}[{s}] multiply(less{n}, invb{n})
"""
LAYER = """  w{n} = {t}[{w},{w}] parameter({weight})  b{n} = {t}[{w}] parameter({bias})
  p{n} = {t}[{s}] dot(x{n}, w{n}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  bb{n} = {t}[{s}] broadcast(b{n}), dimensions={{1}}  y{n} = {t}[{s}] add(p{n}, bb{n})
"""
HEADS = {"softmax": "  low = {t}[] constant(-inf)  zero = {t}[] constant(0)\n", "GELU": CONSTANTS,
         "layer norm": "  zero = {t}[] constant(0)  many.s = {t}[] constant({c})\n"
                       "  many = {t}[{r}] broadcast(many.s), dimensions={{}}  tiny.s = {t}[] constant(0.00001)\n"
                       "  tiny = {t}[{r}] broadcast(tiny.s), dimensions={{}}\n"}
BODIES = {"softmax": SOFTMAX, "GELU": GELU, "layer norm": NORM}
LINKS = 4                               # of each chain


def chain(kind: str, type: str, rows: int, columns: int) -> str:
    """The same operation four times, one after the other."""
    facts = {"t": type, "s": f"{rows},{columns}", "r": rows, "c": columns}
    text = "HloModule chain\n" + (ADD + MAX).format(**facts)
    text += ("ENTRY e {{\n  x0 = {t}[{s}] parameter(0)\n" + HEADS[kind]).format(**facts)
    for n in range(LINKS):
        name = f"{'ROOT ' if n == LINKS - 1 else ''}x{n + 1}"
        text += BODIES[kind].format(n=n, x=f"x{n}", name=name, **facts)
    return text + "}\n"


def perceptron(type: str, rows: int, width: int) -> str:
    """Three layers with biases and GELU."""
    facts = {"t": type, "s": f"{rows},{width}", "w": width}
    text = "HloModule mlp\nENTRY e {{\n  x0 = {t}[{s}] parameter(0)\n".format(**facts) + CONSTANTS.format(**facts)
    for n in range(3):
        text += LAYER.format(n=n, weight=2 * n + 1, bias=2 * n + 2, **facts)
        text += GELU.format(n=n, x=f"y{n}", name=f"{'ROOT ' if n == 2 else ''}x{n + 1}", **facts)
    return text + "}\n"


def cases(device) -> list[Case]:
    rows, columns, width = device.size(8192, 12), device.size(4096, 40), device.size(4096, 32)
    made = [Case(f"MLP bf16 {rows} rows, 3 layers of {width}", "rows", rows, text=perceptron("bf16", rows, width))]
    made += [Case(f"{kind} chain {type}[{rows},{columns}]", text=chain(kind, type, rows, columns))
             for kind in BODIES for type in ("f32", "bf16")]
    made = made[:2] if device.emulated else made
    return [*(REDUCED if device.emulated else CASES), *made]


def find(name: str, device) -> Case:
    return next(c for c in cases(device) if c.name == name)


def helpers():
    """testdata/models/models.py."""
    spec = importlib.util.spec_from_file_location("testdata_models", MODELS / "models.py")
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


def source(case: Case, device) -> tuple[str | Path, list[np.ndarray] | None]:
    """The text and the inputs (None: random ones). Raises LookupError with what is missing."""
    if case.text:
        return case.text, None
    models = helpers()
    if case.made is None:
        model = models.find(case.name)
        if not models.is_ready(model):
            raise LookupError(f"its weights are not made: {model['weights']}")
        return models.model_path(model), models.inputs(model)
    owner = models.find("resnet_reduced_train" if device.emulated else "resnet50_train")
    if not models.is_ready(owner):
        raise LookupError(f"its weights are not made: {owner['weights']}")
    folder = exported(case, device.emulated)
    files = (folder / "inputs.npz", MODELS / owner["inputs"][1])
    return folder / "model.hlo", [array for file in files for array in models.read_arrays(file).values()]


def exported(case: Case, reduced: bool) -> Path:
    """The folder that for_gpu.py fills; JAX lowers on the CPU for it."""
    folder = Path(os.environ[FOLDER]) / key(case.name, "export")
    if not (folder / "inputs.npz").exists():
        command = [sys.executable, str(MODELS / "for_gpu.py"), *map(str, case.made), str(folder)]
        done = subprocess.run([*command, *(["reduced"] if reduced else [])], capture_output=True, text=True,
                              errors="replace", timeout=EXPORT_SECONDS, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise LookupError(f"testdata/models/for_gpu.py: {lines[-1][:200] if lines else 'no message'}")
    return folder


def key(name: str, fusion: str) -> str:
    return hashlib.sha256(f"{name}/{fusion}".encode()).hexdigest()[:24]


def container_path(name: str, fusion: str) -> Path | None:
    """Where a compiled program lies, or would."""
    folder = os.environ.get(FOLDER)
    return Path(folder) / f"{key(name, fusion)}.cubin" if folder else None
