"""Inputs that a command writes beside a module: input_0, input_1 ... of an .npz."""
from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np


def save_inputs(path: Path, arrays: Sequence[np.ndarray], is_own: Callable | None = None) -> None:
    """is_own as in files.writing."""
    from hloc.inputs.files import write_outputs
    write_outputs(path, arrays, [f"input_{i}" for i in range(len(arrays))], is_own)


def is_saved(file: BinaryIO) -> bool:
    """Whether an existing .npz that the user did not name was written by save_inputs."""
    try:
        with zipfile.ZipFile(file) as archive:
            return all(re.fullmatch(r"input_\d+\.npy", name) for name in archive.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return False
