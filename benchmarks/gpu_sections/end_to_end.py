"""Whole models against XLA:GPU on the same HLO text, and against hloc without fusion; data stays on the device."""
from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator

from gpu_sections.models import SMALL, helpers
from hloc import api
from hloc.errors import HlocError

# model -> what one run is, and how many
MODELS = {"digits": ("images", 360), "minilm": ("runs", 1), "resnet50": ("images", 4), "gpt2_prefill": ("runs", 1),
          "transformer_train": ("steps", 1), "resnet50_train": ("steps", 1), "gpt2_generate": ("runs", 1),
          "unet_block": ("runs", 1), "lstm": ("runs", 1)}


class Xla:
    """The module compiled by XLA:GPU, its inputs on the device. Raises RuntimeError where JAX has no GPU."""

    def __init__(self, module, arrays):
        import jax
        from jaxlib import _hlo, _jax

        from hloc.tools.xla_text import text_for_xla
        jax.config.update("jax_enable_x64", True)
        device = jax.devices("gpu")[0]
        proto = _hlo.hlo_module_from_text(text_for_xla(module)).as_serialized_hlo_module_proto()
        self.compiled = device.client.compile_and_load(
            _jax.mlir.hlo_to_stablehlo(proto), _jax.DeviceList((device,)), _jax.CompileOptions())
        self.arguments = [jax.device_put(a, device) for a in arrays]

    def run(self) -> None:
        for answer in self.compiled.execute_sharded(self.arguments).disassemble_into_single_device_arrays():
            answer[0].block_until_ready()

    def seconds(self) -> float:
        for _ in range(2):
            self.run()
        times = []
        while len(times) < 5 or (sum(times) < 0.5 and len(times) < 100):
            start = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def xla_missing(device) -> str:
    """Why XLA:GPU is not measured; "" where it is."""
    if device.emulated:
        return "XLA:GPU does not run on the emulation"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")         # hloc wants memory too
    try:
        import jax
        jax.devices("gpu")
    except (ImportError, RuntimeError) as error:
        return f"jax has no GPU: {str(error).splitlines()[0]}; pip install 'jax[cuda13]'"
    return ""


def rows(device) -> Iterator[dict]:
    models, missing = helpers(), xla_missing(device)
    if missing:
        yield {"what": "XLA:GPU", "missing": missing}
    yield {"what": "ResNet-50 in bf16", "missing": "testdata/models has it in f32 only"}
    ratios: list[float] = []
    for name in SMALL if device.emulated else MODELS:
        model = models.find(name)
        if not models.is_ready(model):
            yield {"what": name, "missing": f"its weights are not made: {model['weights']}"}
            continue
        try:
            yield measured(device, models, model, not missing, ratios)
        except (HlocError, RuntimeError) as error:
            yield {"what": name, "missing": str(error).splitlines()[0]}
    if ratios:
        yield {"what": "all of them", "value": statistics.geometric_mean(ratios), "unit": "of XLA:GPU's time",
               "note": "to reach: 1.0 as geometric mean, 1.2 for each"}


def measured(device, models, model: dict, with_xla: bool, ratios: list[float]) -> dict:
    path, arrays = models.model_path(model), models.inputs(model)
    seconds = {}
    for fusion in ("on", "off"):
        backend = device.program(path, arrays, fusion=fusion)
        seconds[fusion] = device.seconds(backend)
        backend.close()
    unit, count = MODELS[model["name"]]
    compared = {"the time without fusion": seconds["on"] / seconds["off"]}
    if with_xla:
        compared["XLA:GPU's time"] = seconds["on"] / Xla(api.load(path), arrays).seconds()
        ratios.append(compared["XLA:GPU's time"])
    return {"what": model["name"], "value": seconds["on"] * 1e3, "unit": "ms", "compared": compared,
            "note": f"{count / seconds['on']:,.1f} {unit}/s"}
