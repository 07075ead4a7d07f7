"""The models of testdata/models on the device, against the results that JAX gave for them."""
from __future__ import annotations

from collections.abc import Iterator

from gpu_sections.programs import helpers
from hloc.errors import HlocError

# Of whole models whose products round f32 to TF32. The gradient of resnet50_train's first filter differs
# by 0.062 of its largest on an H200, and by 0.0615 on a CPU if operands are rounded there (reduce-precision).
OF_TF32 = 8e-2
SMALL = ("cumsum",)                     # what the emulation is given


def chosen(device) -> list[dict]:
    """All models, the quick ones first."""
    found = sorted(helpers().catalogue(), key=lambda m: (m["size"] == "large", m["instructions"]))
    return [m for m in found if m["name"] in SMALL] if device.emulated else found


def rows(device) -> Iterator[dict]:
    models = helpers()
    for model in chosen(device):
        if not models.is_ready(model):
            yield {"what": model["name"], "missing": f"its weights are not made: {model['weights']}"}
            continue
        try:
            backend = device.program(models.model_path(model), models.inputs(model), name=model["name"])
            backend.run()
            first = models.differences(model, backend.fetch(), OF_TF32)
            backend.run()                                       # now as a graph
            wrong = first or [f"as a graph: {line}" for line in models.differences(model, backend.fetch(), OF_TF32)]
            backend.close()
        except HlocError as error:
            wrong = [error.message]
        yield {"what": model["name"], "value": f"{len(wrong)} results wrong" if wrong else "agrees",
               **({"wrong": True, "note": wrong[0][:300]} if wrong else {})}
