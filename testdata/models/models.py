"""The models of models.json as arrays: inputs in entry-parameter order, and a comparison with the expected results.

In: the folder of a model (weights.npz made, see weights.py).  Out: NumPy arrays. Needs NumPy only (ml_dtypes for bf16).

    model = find("gpt2_generate")
    outputs = run(model_path(model), inputs(model))
    differences(model, outputs)      # [] where all of them are within the model's tolerance

The names of arrays in a file say their place: p003_x is entry parameter 3, r001_y is result 1 (of the flattened tuple).
Of a result that is too big to be kept, only every n-th element of the flattened array is there: r001_y.every97.
NumPy has no bf16: such arrays are stored as two-byte void (V2) and are viewed as the type that the module says.
"""

import json
import re
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
NARROW_TOLERANCE = 2e-2  # of bf16 and f16, of which compilers may keep more digits than they must


def catalogue() -> list[dict]:
    return json.loads((HERE / "models.json").read_text())


def find(name: str) -> dict:
    return next(model for model in catalogue() if model["name"] == name)


def model_path(model: dict) -> Path:
    return HERE / model["hlo"]


def is_ready(model: dict) -> bool:
    """Whether all input files are there, the regenerated ones too."""
    return all((HERE / path).exists() for path in model["inputs"])


def inputs(model: dict) -> list[np.ndarray]:
    """The flattened entry parameters, in order."""
    return [array for path in model["inputs"] for array in read_arrays(HERE / path).values()]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    loaded = np.load(path, allow_pickle=False)
    return {path.stem: loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}


def differences(model: dict, outputs: list[np.ndarray], least: float = 0.0) -> list[str]:
    """One line for each result that is not as expected. least: tolerance of floats in any case."""
    expected = read_arrays(HERE / model["expected"])
    if len(expected) != len(outputs):
        return [f"{len(outputs)} results where {len(expected)} are expected"]
    found = (difference(name, want, np.asarray(got), max(model["tolerance"], least))
             for (name, want), got in zip(expected.items(), outputs, strict=True))
    return [line for line in found if line]


def difference(name: str, want: np.ndarray, got: np.ndarray, tolerance: float) -> str | None:
    every = re.search(r"\.every(\d+)$", name)
    if every:
        got = got.ravel()[:: int(every[1])]
    if want.dtype.kind == "V":
        want = want.view(got.dtype)
    if want.shape != got.shape or want.dtype != got.dtype:
        return f"{name}: {got.dtype}{list(got.shape)} where {want.dtype}{list(want.shape)} is expected"
    if want.dtype.kind in "biu":
        wrong = np.count_nonzero(want != got)
        return f"{name}: {wrong} of {want.size} elements differ" if wrong else None
    if want.dtype.itemsize <= 2:
        tolerance = max(tolerance, NARROW_TOLERANCE)
    error = relative_error(want, got)
    return None if error <= tolerance else f"{name}: off by {error:.2e} of the largest magnitude"


def relative_error(want: np.ndarray, got: np.ndarray) -> float:
    """The largest difference as a fraction of the largest finite magnitude; inf where inf or nan stand elsewhere."""
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    want, got = want.astype(wide).ravel(), got.astype(wide).ravel()
    finite = np.isfinite(want)
    if not np.array_equal(want[~finite], got[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return np.inf
    if not finite.any():
        return 0.0
    want, got = want[finite], got[finite]
    return float(np.abs(want - got).max() / max(np.abs(want).max(), 1e-30))
