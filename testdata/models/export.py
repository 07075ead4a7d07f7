"""Exports models as HLO text. Needs the `jax` extra; running what it wrote does not.

    python export.py digits gpt2_prefill      these
    python export.py                          all

In: <name>/model.py, whose `build()` gives a Model.  Out: <name>/model.hlo, inputs.npz, expected.npz, weights.json and
weights.npz (git-ignored) where the model has weights as parameters, and the model's entry in models.json.
"""

import importlib.util
import json
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from common import Model, hlo_text, results, weight_arrays
from weights import Weight

HERE = Path(__file__).resolve().parent
KEPT_ELEMENTS = 25_000  # of all expected results of a model together; bigger ones are sampled


def load(name: str) -> Model:
    spec = importlib.util.spec_from_file_location(f"model_{name}", HERE / name / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build()


def export(name: str) -> dict:
    """Writes the folder of one model and returns its entry for models.json."""
    model, folder = load(name), HERE / name
    text = hlo_text(model, name)
    (folder / "model.hlo").write_text(text)
    inputs = write_inputs(model, folder)
    if model.weights and not model.weights_of:
        write_weights(model, folder)
    outputs = results(model)
    np.savez_compressed(folder / "expected.npz", **sampled(outputs))
    for label, array in model.extra.items():
        np.save(folder / f"{label}.npy", array)
    return entry(name, model, inputs, text)


def write_inputs(model: Model, folder: Path) -> list[str]:
    """A single input becomes <its name>.npy, several become inputs.npz."""
    if len(model.inputs) == 1:
        [(label, array)] = model.inputs.items()
        np.save(folder / f"{label}.npy", array)
        return [f"{folder.name}/{label}.npy"]
    arrays = {f"p{k:03}_{label}": array for k, (label, array) in enumerate(model.inputs.items())}
    np.savez_compressed(folder / "inputs.npz", **arrays)
    return [f"{folder.name}/inputs.npz"]


def write_weights(model: Model, folder: Path) -> None:
    """The list of the weights, one line each, and the weights themselves."""
    head = {"package": model.package} if model.package else {"seed": model.seed}
    names = {name: f"p{k:03}_{name}" for k, name in enumerate(model.weights, len(model.inputs))}
    lines = ["  " + json.dumps(weight_fields(names[name], w)) for name, w in model.weights.items()]
    text = json.dumps(head)[:-1] + ', "arrays": [\n' + ",\n".join(lines) + "\n]}\n"
    (folder / "weights.json").write_text(text)
    np.savez(folder / "weights.npz", **{names[name]: array for name, array in weight_arrays(model).items()})


def weight_fields(name: str, weight: Weight) -> dict:
    """What weights.json says of one array; what is as usual is left out."""
    usual = {field.name: field.default for field in fields(Weight)}
    return {"name": name, **{key: value for key, value in asdict(weight).items() if value != usual[key]}}


def sampled(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All elements of small results, every n-th element of big ones (n odd, so that no power of two hides a row)."""
    most = max(16, KEPT_ELEMENTS // len(outputs))
    kept = {}
    for k, (name, array) in enumerate(outputs.items()):
        every = -(-array.size // most) | 1
        if every == 1:
            kept[f"r{k:03}_{name}"] = array
        else:
            kept[f"r{k:03}_{name}.every{every}"] = array.ravel()[::every]
    return kept


def entry(name: str, model: Model, inputs: list[str], text: str) -> dict:
    owner = model.weights_of or name
    made = {
        "name": name,
        "folder": name,
        "hlo": f"{name}/model.hlo",
        "inputs": inputs + ([f"{owner}/weights.npz"] if model.weights else []),
        "weights": f"python testdata/models/weights.py {owner}" if model.weights else None,
        "expected": f"{name}/expected.npz",
        "tolerance": model.tolerance,
        "size": model.size,
        "instructions": text.count("\n  "),
    }
    if model.ranges:
        places = list(model.inputs)
        made["ranges"] = {str(places.index(label)): bounds for label, bounds in model.ranges.items()}
    return made


def update_catalogue(made: dict) -> None:
    path = HERE / "models.json"
    entries = {e["name"]: e for e in json.loads(path.read_text())} if path.exists() else {}
    entries[made["name"]] = made
    lines = [json.dumps(entries[name]) for name in sorted(entries)]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main(names: list[str]) -> None:
    for name in names or sorted(path.parent.name for path in HERE.glob("*/model.py")):
        started = time.perf_counter()
        made = export(name)
        update_catalogue(made)
        size = (HERE / made["hlo"]).stat().st_size
        seconds = time.perf_counter() - started
        print(f"{name}: {made['instructions']} instructions, {size / 1000:.0f} kB, {seconds:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
